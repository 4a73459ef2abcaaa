"""The entry point of the Dataflow flex template: builds the job, submits it, and exits.

The parameters are those of `runners/dataflow/metadata.json`; all other flags come from Dataflow
and are Beam's. The policy may lie in Cloud Storage: it is fetched with the files beside it, which
are its hierarchies.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from apache_beam.io.filesystems import FileSystems

from crenel.errors import PolicyError
from crenel.pipelines import pubsub
from crenel.pipelines.command_errors import CommandError
from crenel.policy import Policy
from crenel.runners import Job, RunnerError, dataflow

__all__ = ["main", "policy_at"]


def main(given: Sequence[str] | None = None) -> int:
    """Submit the job and return the exit code. It does not wait for the job: a template's launcher must not."""
    said, flags = _parser().parse_known_args(sys.argv[1:] if given is None else list(given))
    try:
        topics = pubsub.Topics(
            source=_address(said.input),
            published=_address(said.output),
            suppressed=said.suppressed and _address(said.suppressed),
            rejected=said.rejected and _address(said.rejected),
        )
        policy = policy_at(said.policy)
        job = Job(build=lambda pipeline: pubsub.build(pipeline, policy, topics), shards=policy.most_shards, flags=flags)
        dataflow.launch(job)
    except (PolicyError, CommandError, RunnerError) as error:
        for problem in error.problems:
            print(f"crenel: {problem}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crenel-dataflow", allow_abbrev=False)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--suppressed")
    parser.add_argument("--rejected")
    # Dataflow's launcher names the runner; there is only one here.
    parser.add_argument("--runner", help=argparse.SUPPRESS)
    return parser


def _address(name: str) -> str:
    return name if name.startswith(pubsub.SCHEME) else pubsub.SCHEME + name


def policy_at(path: str) -> Policy:
    """Read the policy at a path, which may be in Cloud Storage.

    Raises:
        PolicyError: it is wrong.
        CommandError: it cannot be read.
    """
    if "://" not in path:
        return Policy.from_yaml(path)
    beside, name = path.rsplit("/", 1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = [file.path for match in FileSystems.match([f"{beside}/**"]) for file in match.metadata_list]
            for file in found:
                target = Path(folder, os.path.relpath(file, beside))
                target.parent.mkdir(parents=True, exist_ok=True)
                with FileSystems.open(file) as source:
                    target.write_bytes(source.read())
        except (OSError, ValueError) as error:
            msg = f"{path}: cannot be read ({type(error).__name__})."
            raise CommandError(msg) from None
        return Policy.from_yaml(Path(folder, name))


if __name__ == "__main__":
    sys.exit(main())
