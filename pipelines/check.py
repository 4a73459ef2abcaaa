"""Explain a policy in words, and find what will go wrong with it.

With --data, also how the policy fits a sample of the rows: CSV with a header, JSON lines (both
may be .gz or .zst), Parquet or Avro. What is told of the sample are counts and shares, never a
row's value. Exits with 1 if there are problems: the run would fail, or publish next to nothing.
"""

from __future__ import annotations

import argparse
import sys

from crenel.pipelines.report import Severity, render

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = "  crenel check policy.yaml --data visits.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("policy", help="the policy's YAML file")
    parser.add_argument("--data", metavar="FILE", help="a sample of the rows")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 1 if there are problems."""
    from crenel.pipelines.advice import advise
    from crenel.pipelines.explain import explain
    from crenel.policy import Policy

    policy = Policy.from_yaml(arguments.policy)
    sections, findings = explain(policy), advise(policy)
    if arguments.data is not None:
        from crenel.pipelines import tables
        from crenel.pipelines.sample import Sample

        sample = Sample(policy, tables.read_for(policy, arguments.data))
        sections += sample.look()
        findings += sample.findings
    sys.stdout.write(render(sections, findings))
    return int(any(finding.severity is Severity.PROBLEM for finding in findings))
