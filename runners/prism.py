"""Runs a pipeline on Prism, Beam's own portable runner: one machine, state and timers as on a cluster.

Prism is a program in Go. It is built once for each version of Beam, by `go install`, and kept in
the user's cache; `--prism_location` names another one. Workers are threads of this process, so they
see the files of this machine; Prism itself is a process that ends with the run.
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

#: Since this version, Go fetches the newer version that a module requires.
_OLDEST_GO = (1, 21)

#: A shell program that ends its child when it is told to, and when its parent process is gone for any reason.
_NO_ORPHAN = """
"$@" & child=$!
trap 'kill $child; exit' TERM INT
while kill -0 $PPID && kill -0 $child; do sleep 1 & wait $!; done 2>/dev/null
kill $child 2>/dev/null
"""

_GET_GO = "install it with pip install 'crenel[prism]', or name a built Prism with --prism_location"


def check(flags: Sequence[str]) -> None:
    """Build Prism, if it is not there, before anything starts.

    Raises:
        RunnerError: it cannot be built.
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
    """The process of Prism. It holds rows, so it must not outlive the run."""

    def subprocess_cmd_and_endpoint(self) -> tuple[list[str], str]:
        """The command that starts it, and the address where it will listen."""
        command, endpoint = super().subprocess_cmd_and_endpoint()
        return (command if os.name == "nt" else ["sh", "-c", _NO_ORPHAN, "prism", *command]), endpoint

    def stop(self) -> None:
        """Stop it, if it was started."""
        if self._server is not None:
            super().stop()


class _Runner(PrismRunner):
    """Beam's runner, with our server: Beam's own installs signal handlers, which only a main thread may."""

    def __init__(self, server: JobServer) -> None:
        super().__init__()
        self._server = server

    def default_job_server(self, options: PipelineOptions) -> JobServer:
        """The server that takes jobs."""
        return self._server


def binary(options: PipelineOptions) -> str:
    """The path of Prism, which is built if it is not there.

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
    """The path in the cache of Prism for this version of Beam."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = "prism.exe" if os.name == "nt" else "prism"
    return Path(home, "crenel", "prism", str(beam.__version__), name)


def go() -> str:
    """The path of Go, of a version that can build Prism.

    Raises:
        RunnerError: there is none.
    """
    # The interpreter's folder too, and last: the virtual environment may not be active.
    path = os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])
    found = shutil.which("go", path=path)
    if found is None:
        msg = f"--runner prism builds Prism with Go, which is not installed: {_GET_GO}."
        raise RunnerError(msg)
    said = subprocess.run([found, "version"], capture_output=True, text=True, check=False)
    version = re.search(r"go(\d+)\.(\d+)", said.stdout)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST_GO:
        wanted = ".".join(map(str, _OLDEST_GO))
        msg = f"--runner prism builds Prism with Go {wanted} or newer, and {found} is older: {_GET_GO}."
        raise RunnerError(msg)
    return found


def _build(program: str, target: Path) -> None:
    print(f"crenel: building Prism {beam.__version__}, once. This takes some minutes.", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    # In a folder beside the target, and moved when it is complete: another process may be building, too.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [program, "install", f"{_MODULE}@v{beam.__version__}"]
        done = subprocess.run(
            command, env=_environment(folder), cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            msg = f"Prism could not be built by go {' '.join(command[1:])} ({why}). Fix that, or use --prism_location."
            raise RunnerError(msg)
        os.replace(Path(folder) / target.name, target)


def _environment(folder: str) -> Mapping[str, str]:
    """Go's environment: it installs into this folder, and fetches a newer Go if it is too old."""
    return {**os.environ, "GOBIN": folder, "GOTOOLCHAIN": "auto", "GO111MODULE": "on", "GOFLAGS": "-buildvcs=false"}
