"""Beam's job server, which translates pipelines to jobs of Flink."""

from __future__ import annotations

import importlib.resources
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from crenel.runners.flink import beam_patch, download_cache, requirements
from crenel.runners.flink.ports import free_ports, listening
from crenel.runners.flink.processes import Process
from crenel.runners.runner_errors import RunnerError

__all__ = ["JobServer", "jars"]

#: The folder of corrected jars, inside that of all jars.
_CORRECTED = "corrected"
_MAIN = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
#: The packages of Java that Beam needs opened: Beam's own list.
OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch")
#: Seconds that it has to start.
_PATIENCE = 90.0


class JobServer:
    """A job server on this machine, for one cluster.

    Args:
        master: The address of the cluster's REST service, `HOST:PORT`.
        folder: The folder of its log, and of the files that workers fetch, also after a failure.
        jar: The user's own job server, as Beam publishes it in one file.
        distinct: Whether all elements of a splittable step are different. Then a step that pauses leaves nothing behind
            in the state (see `beam_patch`). Equal elements would lose what they have left to do.
    """

    def __init__(self, master: str, folder: Path, jar: str | None = None, *, distinct: bool = False) -> None:
        self._distinct = distinct
        self._master = master
        self._folder = folder
        self._jar = jar
        self._process: Process | None = None

    def start(self) -> str:
        """Start; return the address that pipelines are submitted to.

        Raises:
            RunnerError: it does not start.
        """
        job, artifact, expansion = free_ports(3)
        log = self._folder / "job-server.log"
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        program = ["-jar", self._jar] if self._jar else ["-cp", _class_path(jars(), corrected=self._distinct), _MAIN]
        command = [
            *(requirements.java(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opened, *program),
            *(f"--flink-master={self._master}", "--job-host=127.0.0.1", f"--job-port={job}"),
            *(f"--artifact-port={artifact}", f"--expansion-port={expansion}"),
            # A worker that is restarted after a failure fetches them again.
            *(f"--artifacts-dir={self._folder / 'artifacts'}", "--clean-artifacts-per-job=false"),
        ]
        self._process = Process(command, log)
        end = time.monotonic() + _PATIENCE
        while not listening(job):
            if not self._process.alive or time.monotonic() > end:
                self.stop()
                msg = f"Beam's job server does not start; its log is {log}."
                raise RunnerError(msg)
            time.sleep(0.1)
        return f"localhost:{job}"

    def stop(self) -> None:
        """Stop it. Jobs continue."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def __enter__(self) -> str:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()


def _class_path(folder: Path, *, corrected: bool) -> str:
    own = {path.name: path for path in (folder / _CORRECTED).iterdir()} if corrected else {}
    return ":".join(str(own.get(path.name, path)) for path in sorted(folder.glob("*.jar")))


def jars() -> Path:
    """The folder of the job server's jars, which are downloaded if they are not there. Their checksums are verified.

    Raises:
        RunnerError: one cannot be downloaded, or has another checksum.
    """
    locked = dict(_locked())
    mark = download_cache.digest("".join(sorted(locked.values())) + beam_patch.VERSION)[:12]
    return download_cache.kept(f"flink-job-server-{mark}", lambda folder: _fetch(folder, locked))


def _locked() -> Iterator[tuple[str, str]]:
    """The names of the jars, as Maven has them, and their checksums."""
    text = importlib.resources.files("crenel.runners.flink").joinpath("jars.lock").read_text("utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            checksum, name = line.split()
            yield name, checksum


def _fetch(folder: Path, locked: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as project:
        (Path(project) / "pom.xml").write_text(_pom(locked), "utf-8")
        command = [requirements.maven(), "-B", "-q", _COPY, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
        fetched = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if fetched.returncode:
        why = next((line for line in fetched.stdout.splitlines() if "ERROR" in line), "mvn says nothing")
        msg = f"Beam's job server cannot be downloaded with mvn ({why.split('ERROR]')[-1].strip()[:300]})."
        raise RunnerError(msg)
    for name, checksum in locked.items():
        _, artifact, version = name.split(":")
        path = folder / f"{artifact}-{version}.jar"
        if not path.exists() or download_cache.sha256(path) != checksum:
            msg = f"{path.name} is not the file that crenel was tested with. Find out where Maven got it."
            raise RunnerError(msg)
        if artifact == beam_patch.JAR:
            (folder / _CORRECTED).mkdir()
            beam_patch.correct(path, folder / _CORRECTED / path.name)


def _pom(names: Sequence[str] | dict[str, str]) -> str:
    """A Maven project that depends on these jars, without their own dependencies."""
    one = (
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><exclusions><exclusion>"
        "<groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
    )
    listed = "\n".join(one.format(*name.split(":")) for name in names)
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>crenel</groupId>'
        f"<artifactId>job-server</artifactId><version>1</version><dependencies>\n{listed}\n</dependencies></project>\n"
    )
