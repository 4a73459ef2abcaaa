"""Explain a policy in words, and find what will go wrong with it.

With --data, also report how the policy fits a sample of the rows: CSV with a header, JSON lines or an
array (all may be .gz or .zst), Parquet or Avro. The engine runs on the sample, at the policy's deadline and at
longer ones. Give it consecutive rows: a sample with gaps looks thinner than the stream is. Of a large
file, it looks at stretches of consecutive rows (--sample). The report holds counts and shares, never a
row's value.

Exits with 1 if there is a problem: the run would fail, or too many rows would not be published.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext

from crenel.pipelines.commands._input_options import add_dialect, add_sample, dialect_of
from crenel.pipelines.commands._policy_argument import add_policy, policy_of
from crenel.pipelines.commands.run import quiet
from crenel.pipelines.console import limits
from crenel.pipelines.console.sections import Severity, render

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = "  crenel check policy.yaml --data visits.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_policy(parser)
    parser.add_argument("--data", metavar="FILE", help="a sample of the stream: consecutive rows")
    add_dialect(parser)
    add_sample(parser)
    limits.add_arguments(parser, "more in the sample is a problem")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 1 if there are problems."""
    from crenel.pipelines.checking.advice import advise
    from crenel.pipelines.checking.explain import explain

    policy = policy_of(arguments)
    sections, findings = explain(policy), advise(policy)
    if arguments.data is not None:
        from crenel.pipelines.checking.sample import Sample
        from crenel.pipelines.console import compile_notes, run_summary

        with quiet():  # loads Beam
            from crenel.pipelines.files.file_rows import read_for
        watched = sys.stderr.isatty()
        progress = ["reading the sample"]  # the last line is shown
        with (
            compile_notes.noting() as note,
            run_summary.showing(lambda: progress[-1] + note()) if watched else nullcontext(),
        ):
            rows = read_for(policy, arguments.data, dialect_of(arguments), arguments.sample)
            sample = Sample(policy, rows.table, limits.Limits.of(arguments), progress.append, total=rows.total)
            sections += sample.look()
        findings += sample.findings
    sys.stdout.write(render(sections, findings))
    return int(any(finding.severity is Severity.PROBLEM for finding in findings))
