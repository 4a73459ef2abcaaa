"""On Prism, Beam's own portable runner: one machine, state and timers as on a cluster.

Prism is a program in Go. It is built once for each version of Beam, by `go install`, and kept in
the user's cache; `--prism_location` names another. Workers are threads of this process, so that
files are where they are for the local runner; Prism itself is a process that ends with the run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PrismRunnerOptions
from apache_beam.runners.portability.job_server import JobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner

from crenel.runners import Job
from crenel.runners.runner_errors import RunnerError

__all__ = ["binary", "cached", "check", "go", "launch"]

_MODULE = "github.com/apache/beam/sdks/v2/go/cmd/prism"

#: From this version on Go fetches the newer one that a module asks for.
_OLDEST_GO = (1, 21)

#: Ends what it runs when it is told to, and when the process that started it is gone, however that went.
_NO_ORPHAN = """
"$@" & child=$!
trap 'kill $child; exit' TERM INT
while kill -0 $PPID && kill -0 $child; do sleep 1 & wait $!; done 2>/dev/null
kill $child 2>/dev/null
"""

_GET_GO = "pip install 'crenel[prism]' brings it, or name a built Prism with --prism_location"


def check(flags: Sequence[str]) -> None:
    """Have Prism before anything starts: build it where it is not there.

    Raises:
        RunnerError: it cannot be.
    """
    binary(PipelineOptions(list(flags)))


def launch(job: Job) -> int:
    """Run a job to its end; return 1: the workers are threads of this process."""
    options = PipelineOptions(list(job.flags))
    options.view_as(PrismRunnerOptions).prism_location = binary(options)
    server = _Server(options)
    try:
        pipeline = beam.Pipeline(runner=_Runner(server), options=options)
        job.build(pipeline)
        pipeline.run().wait_until_finish()
    finally:
        server.stop()
    return 1


class _Server(PrismJobServer):
    """Prism, which holds rows: it must not outlive the run."""

    def subprocess_cmd_and_endpoint(self) -> tuple[list[str], str]:
        """How it is started, and where it will listen."""
        command, endpoint = super().subprocess_cmd_and_endpoint()
        return (command if os.name == "nt" else ["sh", "-c", _NO_ORPHAN, "prism", *command]), endpoint

    def stop(self) -> None:
        """End it, if it was started."""
        if self._server is not None:
            super().stop()


class _Runner(PrismRunner):
    """Beam's, with a server that is ours to stop: Beam's own would catch signals, which only a main thread may."""

    def __init__(self, server: JobServer) -> None:
        super().__init__()
        self._server = server

    def default_job_server(self, options: PipelineOptions) -> JobServer:
        """The server that jobs are handed to."""
        return self._server


def binary(options: PipelineOptions) -> str:
    """Where Prism is; it is built if it has to be.

    Raises:
        RunnerError: it is not there, and cannot be built.
    """
    named = options.view_as(PrismRunnerOptions).prism_location
    if named:
        if "://" not in named and not Path(named).is_file():
            msg = f"--prism_location must be a file or an address, and there is no file {named}."
            raise RunnerError(msg)
        return str(named)
    there = cached()
    if not there.is_file():
        _build(go(), there)
    return str(there)


def cached() -> Path:
    """Where a built Prism is kept, for this version of Beam."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = "prism.exe" if os.name == "nt" else "prism"
    return Path(home, "crenel", "prism", str(beam.__version__), name)


def go() -> str:
    """Where Go is, of a version that can build Prism.

    Raises:
        RunnerError: there is none.
    """
    # The interpreter's own folder last: a virtual environment need not be active.
    path = os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])
    found = shutil.which("go", path=path)
    if found is None:
        msg = f"--runner prism builds Prism with Go, which is not here: {_GET_GO}."
        raise RunnerError(msg)
    said = subprocess.run([found, "version"], capture_output=True, text=True, check=False)
    version = re.search(r"go(\d+)\.(\d+)", said.stdout)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST_GO:
        wanted = ".".join(map(str, _OLDEST_GO))
        msg = f"--runner prism builds Prism with Go {wanted} or newer, and {found} is older: {_GET_GO}."
        raise RunnerError(msg)
    return found


def _build(program: str, target: Path) -> None:
    print(f"crenel: building Prism {beam.__version__}, once; this takes some minutes.", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, and moved there when it is whole: another process may be building, too.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [program, "install", f"{_MODULE}@v{beam.__version__}"]
        done = subprocess.run(
            command, env=_environment(folder), cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            msg = f"Prism could not be built by {' '.join(command[1:])} ({why}): see to it, or use --prism_location."
            raise RunnerError(msg)
        os.replace(Path(folder) / target.name, target)


def _environment(folder: str) -> Mapping[str, str]:
    """Go's: what is built goes to this folder, and a Go that is too old fetches a newer one."""
    return {**os.environ, "GOBIN": folder, "GOTOOLCHAIN": "auto", "GO111MODULE": "on", "GOFLAGS": "-buildvcs=false"}
