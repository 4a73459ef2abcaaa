"""`crenel-boot`: starts a Python worker for a TaskManager, where Beam would otherwise need Docker.

A TaskManager calls it with the worker's name and with the address of the service that tells the rest. Everything that
the job needs must be installed beside it: packages that are staged with a job are not unpacked. A worker logs to a file
of its own in `$CRENEL_WORKER_LOGS`, which only its owner may read, because error messages may contain rows.

The kernels of the method that `$CRENEL_COMPILED_METHOD` names are compiled before the worker takes work. A worker that
compiled them later, in the middle of a bundle, would hold up a checkpoint for as long as the compiler takes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["COMPILED", "LOGS", "main"]

#: The environment variable that names the folder of the workers' logs.
LOGS = "CRENEL_WORKER_LOGS"
#: The environment variable that names the method whose kernels are compiled first.
COMPILED = "CRENEL_COMPILED_METHOD"

#: Seconds that a TaskManager has to answer.
_PATIENCE = 60.0


def main(given: Sequence[str] | None = None) -> None:
    """Become the worker."""
    parser = argparse.ArgumentParser(prog="crenel-boot", description="Starts a Beam worker. Flink calls it.")
    parser.add_argument("--id", required=True, help="the worker's name")
    parser.add_argument("--provision_endpoint", required=True, help="the service that tells the worker what to do")
    said, _ = parser.parse_known_args(given)
    _log_to(_log_of(said.id))
    compile_kernels(os.environ.get(COMPILED))
    os.environ.update(environment(said.id, provision(said.id, said.provision_endpoint)))
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def compile_kernels(method: str | None) -> None:
    """Compile the kernels of a method, or load them from disk."""
    if method:
        from crenel.engine import precompile

        # If something is wrong with the method, the step that uses it reports that better.
        with suppress(Exception):
            precompile.compile_family([method])


def provision(worker: str, endpoint: str) -> Any:
    """Ask the TaskManager what a worker needs to know."""
    import grpc
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc

    with grpc.insecure_channel(endpoint) as channel:
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        metadata = [("worker_id", worker)]
        return stub.GetProvisionInfo(request, metadata=metadata, timeout=_PATIENCE, wait_for_ready=True).info


def environment(worker: str, info: Any) -> Mapping[str, str]:
    """The answer, as the environment variables that Beam's worker reads."""
    from google.protobuf import json_format, text_format

    told = {
        "WORKER_ID": worker,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options, indent=None),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    endpoints = {"CONTROL": info.control_endpoint, "LOGGING": info.logging_endpoint, "STATUS": info.status_endpoint}
    for name, endpoint in endpoints.items():
        if endpoint.url:
            told[f"{name}_API_SERVICE_DESCRIPTOR"] = text_format.MessageToString(endpoint, as_one_line=True)
    return told


def _log_of(worker: str) -> Path:
    folder = Path(os.environ.get(LOGS) or Path(tempfile.gettempdir()) / f"crenel-workers-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Every TaskManager counts its workers from 1.
    return folder / f"worker-{worker}-{os.getpid()}.log"


def _log_to(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())


if __name__ == "__main__":
    main()
