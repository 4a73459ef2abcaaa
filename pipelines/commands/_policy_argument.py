"""The policy's file on the command line, and whether it may name files elsewhere."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crenel.policy import Policy

__all__ = ["add_policy", "policy_of"]


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Declare the argument."""
    parser.add_argument("policy", help="the policy's YAML file")
    parser.add_argument(
        "--allow-outside-files",
        action="store_true",
        help="let the policy name hierarchies outside of its own folder",
    )


def policy_of(arguments: argparse.Namespace) -> Policy:
    """Read the policy.

    Raises:
        PolicyError: it is wrong.
    """
    from crenel.policy import Policy

    return Policy.from_yaml(arguments.policy, allow_outside_files=arguments.allow_outside_files)
