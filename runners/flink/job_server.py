"""Beam's job server, which translates pipelines to jobs of Flink."""

from __future__ import annotations

import importlib.resources
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import apache_beam

from crenel.runners.flink import beam_patch, download_cache, requirements
from crenel.runners.flink.ports import free_ports, listening
from crenel.runners.flink.processes import Process
from crenel.runners.runner_errors import RunnerError

__all__ = ["JobServer", "fetch", "jars"]

#: The folder of corrected jars, inside that of all jars.
_CORRECTED = "corrected"
_MAIN = "org.apache.beam.runners.flink.FlinkJobServerDriver"
#: The packages of Java that Beam needs opened: Beam's own list.
OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch")
#: Beam's own job server: one jar.
_ARTIFACT = "beam-runners-flink-1.20-job-server"
#: The first version whose sources leave nothing behind in the state.
_CURED = (2, 76)
#: Seconds for which an answer that the repository has no such job server is remembered: asking takes some seconds.
_BELIEVED = 7 * 86_400.0
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
        #: Which job server it is, and what that means, once it was started.
        self.said = ""

    def start(self) -> str:
        """Start; return the address that pipelines are submitted to.

        Raises:
            RunnerError: it does not start.
        """
        job, artifact, expansion = free_ports(3)
        log = self._folder / "job-server.log"
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        program, self.said = _program(self._jar, corrected=self._distinct)
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


def fetch() -> None:
    """Download what a job server needs, if it is not there.

    Raises:
        RunnerError: it cannot be downloaded.
    """
    if _own(corrected=True) is None:
        jars()


def _program(jar: str | None, *, corrected: bool) -> tuple[list[str], str]:
    """The arguments of Java that name the program, and a sentence about it."""
    if jar is not None:
        return ["-jar", jar], f"the job server is {jar}."
    own, version = _own(corrected=corrected), _version()
    if own is not None:
        is_flat = _is_cured() or own.name == "corrected.jar"
        means = (
            "checkpoints stay flat."
            if is_flat
            else "checkpoints grow with every pause of a source (Beam issue 27648): install Beam 2.76 or later."
        )
        return ["-jar", str(own)], f"the job server is Beam's own, {version}: {means}"
    means = "corrected so that checkpoints stay flat." if corrected else "not corrected for Beam issue 27648."
    said = f"Maven has no job server of Beam {version}: the one that crenel was tested with is used, 2.70, {means}"
    return ["-cp", _class_path(jars(), corrected=corrected), _MAIN], said


def _version() -> str:
    """The version of the installed Beam."""
    return str(apache_beam.__version__)


def _is_cured() -> bool:
    """Whether a source that pauses leaves nothing behind in the state of this version's runner."""
    return tuple(int(part) for part in _version().split(".")[:2]) >= _CURED


def _own(*, corrected: bool) -> Path | None:
    """Beam's own job server, which is downloaded if it is not there; None if the Maven repository has none.

    Args:
        corrected: Whether it is to be corrected, where it has to be and can be (see `beam_patch`).
    """
    absent = download_cache.root() / f"{_ARTIFACT}-{_version()}.absent"
    if _is_recent(absent):
        return None
    try:
        folder = download_cache.kept(f"{_ARTIFACT}-{_version()}", _fetch_own)
    except _Absent as found:
        if found.is_certain:
            absent.parent.mkdir(parents=True, exist_ok=True)
            absent.touch()
        return None
    absent.unlink(missing_ok=True)
    own, better = folder / f"{_ARTIFACT}-{_version()}.jar", folder / "corrected.jar"
    return better if corrected and better.exists() else own


class _Absent(Exception):
    """The repository does not have it, or cannot be asked."""

    def __init__(self, *, is_certain: bool) -> None:
        super().__init__()
        self.is_certain = is_certain


def _is_recent(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < _BELIEVED
    except OSError:
        return False


def _fetch_own(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise _Absent(is_certain=False)
    asked = download_cache.copy_jars(maven, [f"org.apache.beam:{_ARTIFACT}:{_version()}"], folder)
    if asked.returncode:
        # In Maven's words, the first time and when it remembers it.
        raise _Absent(is_certain="Could not find artifact" in asked.stdout or "was not found in" in asked.stdout)
    if not _is_cured():
        try:
            beam_patch.correct(folder / f"{_ARTIFACT}-{_version()}.jar", folder / "corrected.jar")
        except RunnerError:  # it is used as it is, and the run says what that means
            (folder / "corrected.jar").unlink()


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
    fetched = download_cache.copy_jars(requirements.maven(), locked, folder)
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
