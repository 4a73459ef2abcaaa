"""Files elsewhere (`s3://bucket/visits.csv`), by Beam's file systems: fetched before they are read, and sent whole.

A file is fetched into a private folder of this process, because readers look at a file several times. An output is
written on this machine, sent under a temporary name beside its own, and renamed when all outputs have been sent. An
object store shows an object when all of it is there, and renames by copying within itself. So what can fail for want of
rights or space fails before anything is visible; but several renames are not one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files.private_folder import PrivateFolder

__all__ = ["Uploads", "configure", "fetched", "is_remote", "matching", "name_of", "require"]

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://", re.ASCII)
#: The extra that brings what a file system needs, by the scheme of its addresses; and a module that only it brings.
_EXTRAS = {
    "s3": ("aws", "boto3"),
    "gs": ("gcp", "google.cloud.storage"),
    "azfs": ("azure", "azure.storage.blob"),
}
_BYTES = 1 << 20
#: The most characters of what a file system says about an error.
_MOST_SAID = 200
#: An upload in several parts has at least one, and an empty file would have none. To JSON lines, a blank line is none.
_EMPTY = b"\n"


def is_remote(path: str | PathLike[str]) -> bool:
    """Whether it is an address of a file elsewhere."""
    return _ADDRESS.match(str(path)) is not None


def name_of(address: str) -> str:
    """The name of a file at an address."""
    return address.rstrip("/").rpartition("/")[2]


def configure(flags: Sequence[str]) -> None:
    """Take Beam's options of file systems, such as --s3_endpoint_url."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    FileSystems.set_options(PipelineOptions(list(flags)))


def require(address: str) -> None:
    """Refuse an address that no file system here knows.

    Raises:
        CommandError: there is none; the message says what is missing.
    """
    from apache_beam.io.filesystem import FileSystem
    from apache_beam.io.filesystems import FileSystems

    scheme = _scheme(address)
    extra, module = _EXTRAS.get(scheme, ("", ""))
    if module and not _is_there(module):
        msg = f"{address}: {scheme}:// needs an extra: pip install 'crenel[{extra}]'."
        raise CommandError(msg)
    try:
        FileSystems.get_filesystem(address)
    except ValueError:
        known = sorted(one for kind in FileSystem.get_all_subclasses() if (one := kind.scheme()) is not None)
        msg = f"{address}: no file system is known for {scheme}://, only for {', '.join(f'{one}://' for one in known)}."
        raise CommandError(msg) from None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def matching(pattern: str) -> list[str]:
    """Find the addresses of files that match a pattern (`*`, `?`, `[`), by name.

    Raises:
        CommandError: there is none, or the file system does not answer.
    """
    from apache_beam.io.filesystems import FileSystems

    require(pattern)
    with _told(pattern, "read"):
        found = sorted(one.path for one in FileSystems.match([pattern])[0].metadata_list)
    if not found:
        said = "no file matches" if re.search(r"[*?\[]", pattern) else "there is no such file"
        msg = f"{pattern}: {said}."
        raise CommandError(msg)
    return found


#: Where fetched files are kept until the process ends.
_folder: list[PrivateFolder] = []


def fetched(address: str) -> Path:
    """Copy a file into a private folder of this process.

    Raises:
        CommandError: it cannot be read.
    """
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    if not _folder or not os.path.isdir(_folder[0].path):
        _folder[:] = [PrivateFolder.begin(None)]
    descriptor, place = tempfile.mkstemp(dir=_folder[0].path, prefix="fetched-")
    plain = CompressionTypes.UNCOMPRESSED  # what compresses it is for the readers of rows
    with os.fdopen(descriptor, "wb") as file, _told(address, "read"), FileSystems.open(address, "", plain) as stream:
        shutil.copyfileobj(stream, file, _BYTES)
    return Path(place)


class Uploads:
    """The outputs that are sent elsewhere: all under temporary names first. What was not renamed is deleted in the end.

    Use it as a context manager.
    """

    def __init__(self) -> None:
        #: The temporary addresses, by the addresses that they are for.
        self._sent: dict[str, str] = {}

    def __enter__(self) -> Uploads:
        return self

    def __exit__(self, *_: object) -> None:
        from apache_beam.io.filesystems import FileSystems

        for temporary in self._sent.values():
            with contextlib.suppress(Exception):  # whatever it is, what went wrong before matters more
                FileSystems.delete([temporary])

    def send(self, path: str, address: str) -> None:
        """Send a file of this machine, under a temporary name.

        Raises:
            CommandError: it cannot be written.
        """
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        temporary = f"{address}.crenel-{secrets.token_hex(4)}.unfinished"
        self._sent[address] = temporary
        with _told(address, "written"), open(path, "rb") as file:
            stream: Any = FileSystems.create(temporary, compression_type=CompressionTypes.UNCOMPRESSED)
            with stream:
                shutil.copyfileobj(file, stream, _BYTES)
                if not file.tell():
                    stream.write(_EMPTY)

    def show(self, address: str) -> None:
        """Give a file its own name.

        Raises:
            CommandError: it cannot be renamed.
        """
        from apache_beam.io.filesystems import FileSystems

        with _told(address, "written"):
            FileSystems.rename([self._sent[address]], [address])
        del self._sent[address]


@contextlib.contextmanager
def _told(address: str, done: str) -> Iterator[None]:
    """Turn whatever a file system raises into one sentence."""
    why = ""
    try:
        yield
    except Exception as error:  # each file system has errors of its own
        why = _said(error)
    if why:
        msg = f"{address} cannot be {done}: {why}. Check the address, and that this machine has the rights to it."
        raise CommandError(msg)


def _said(error: BaseException) -> str:
    """What went wrong, on one line. Beam keeps the causes of several files in one error."""
    while isinstance(details := getattr(error, "exception_details", None), dict):
        causes = [one for one in details.values() if isinstance(one, BaseException)]
        if not causes:
            break
        error = causes[0]
    first = str(error.args[0] if error.args else error).strip().partition("\n")[0].rstrip(".")
    return first[:_MOST_SAID] or type(error).__name__


def _scheme(address: str) -> str:
    found = _ADDRESS.match(address)
    return found[1] if found else ""
