"""The jars of Flink, from PyPI."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from crenel.runners.flink import download_cache
from crenel.runners.runner_errors import RunnerError

__all__ = ["VERSION", "libraries"]

VERSION = "1.20.3"

#: The package has all jars of Flink. The scripts of a distribution are not needed here.
_PACKAGE = f"apache-flink-libraries=={VERSION}"
_SHA256 = "f07f07a46bb272c1e851379ed92105928367019db31240091a5367fc92800289"
#: Flink itself, with RocksDB and the web page, and its logger. The rest of `lib` is SQL.
_NEEDED = ("flink-dist-", "log4j-")


def libraries() -> Path:
    """The folder of Flink's jars, which are downloaded if they are not there.

    Raises:
        RunnerError: they cannot be downloaded.
    """
    return download_cache.kept(f"flink-{VERSION}", _fetch)


def _fetch(folder: Path) -> None:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{_PACKAGE} --hash=sha256:{_SHA256}\n", "utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    fetched = subprocess.run(
        [*command, "--dest", str(folder), "--requirement", str(requirement)],
        capture_output=True,
        text=True,
        check=False,
    )
    archives = list(folder.glob("*.tar.gz"))
    if fetched.returncode or not archives:
        msg = f"Flink cannot be downloaded. To see why, run `python {' '.join(command[1:])} {_PACKAGE}`."
        raise RunnerError(msg)
    with tarfile.open(archives[0]) as archive:
        for member in archive:
            name = Path(member.name).name
            if "/deps/lib/" in member.name and name.startswith(_NEEDED) and member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                with file, (folder / name).open("wb") as out:
                    while chunk := file.read(1 << 20):
                        out.write(chunk)
    archives[0].unlink()
    requirement.unlink()
