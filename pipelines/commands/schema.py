"""Print the JSON Schema of a policy, by which an editor completes and checks it.

Name it in the policy's first line, and keep the file beside the policy:

  # yaml-language-server: $schema=policy.schema.json

It knows the methods and the types of quasi-identifiers of all installed packages.
"""

from __future__ import annotations

import argparse
import json
import sys

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = "  crenel schema > policy.schema.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print the schema."""
    from crenel.pipelines.drafting.policy_schema import policy_schema

    sys.stdout.write(json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n")
    return 0
