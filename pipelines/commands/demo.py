"""Anonymize an example stream, and audit what was published.

Makes up a stream of card payments (customers who come back, some payments late, a few broken),
anonymizes it as `crenel run` does, shows rows before and after, and lets the audit check every
promise. The audit shares no code with the engine. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from crenel.pipelines.commands._input_options import integer
from crenel.pipelines.commands.run import launcher, quiet
from crenel.pipelines.console.sections import count, percent, table

if TYPE_CHECKING:
    from crenel.audit.evidence import Evidence
    from crenel.pipelines.files.file_job import Outcome
    from crenel.policy import Policy

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = "  crenel demo --keep demo"

_ROWS = 20_000
_SHOWN = 6
_INPUT, _PUBLISHED = "transactions.csv", "published.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--keep", metavar="DIR", help="a new folder to keep the files in; without it, they are removed")
    parser.add_argument(
        "--rows", metavar="N", type=integer, default=_ROWS, help=f"how many payments (default {_ROWS:,})"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 1 if a promise is broken."""
    from crenel.pipelines.command_errors import CommandError

    if not 100 <= arguments.rows <= 1_000_000:
        msg = f"--rows must be a number from 100 to 1000000, not {arguments.rows}."
        raise CommandError(msg)
    with _folder(arguments.keep) as folder, quiet():
        return _show(folder, arguments.rows, keep=arguments.keep)


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    from crenel.pipelines.command_errors import CommandError

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="crenel-demo-") as made:
            yield Path(made)
        return
    try:
        Path(keep).mkdir(parents=True)
    except FileExistsError:
        msg = f"{keep}: must be a new folder, but it exists already."
        raise CommandError(msg) from None
    except OSError as error:
        msg = f"{keep}: the folder cannot be created: {(error.strerror or 'unknown').lower()}."
        raise CommandError(msg) from None
    yield Path(keep)


def _show(folder: Path, rows: int, *, keep: str | None) -> int:
    from crenel.pipelines.auditing import evidence_files
    from crenel.pipelines.commands import _demo_data, audit
    from crenel.pipelines.console import compile_notes, run_summary
    from crenel.policy import Policy

    _demo_data.write(folder, rows=rows)
    policy = Policy.from_yaml(folder / "policy.yaml")
    _say(f"{count(rows, 'made-up card payment')} with these columns:", f"    {', '.join(_demo_data.COLUMNS)}")
    _say("", "The policy:", "", *_indented(_demo_data.POLICY.splitlines()), "")
    where = keep or "."
    _say(f"$ crenel run {where}/policy.yaml --input {where}/transactions.csv --output {where}/published.csv \\")
    _say(f"      --suppressed {where}/suppressed.csv --rejected {where}/rejected.jsonl \\")
    _say(f"      --releases {where}/releases.csv --trace {where}/trace.csv")
    with compile_notes.announcing(_say):
        outcome = _anonymize(policy, folder)
    _say("", *_indented(run_summary.as_text(policy, outcome).splitlines()), "")
    given = evidence_files.read(
        policy,
        published=[str(folder / _PUBLISHED)],
        given=[str(folder / _INPUT)],
        suppressed=_file(folder, "suppressed"),
        trace=_file(folder, "trace"),
        releases=_file(folder, "releases"),
    )
    _say(*_before_and_after(policy, folder, given), "", *_singled_out(policy, given), "")
    _say(f"$ crenel audit {where}/policy.yaml --input {where}/transactions.csv --published {where}/published.csv \\")
    _say(f"      --suppressed {where}/suppressed.csv --releases {where}/releases.csv --trace {where}/trace.csv", "")
    document = audit.judged(policy, given)
    _say(*_indented(audit.text(document).splitlines()))
    if keep is not None:
        _say("", f"The files are in {keep}.")
    return int(document["verdict"] == "broken")


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}".rstrip() for line in lines]


def _say(*lines: str) -> None:
    print(*lines, sep="\n")
    sys.stdout.flush()


def _anonymize(policy: Policy, folder: Path) -> Outcome:
    from crenel.pipelines.files import file_job

    request = file_job.Request(
        policy=policy,
        inputs=[str(folder / _INPUT)],
        published=file_job.Output.of(str(folder / _PUBLISHED)),
        suppressed=file_job.Output.of(_file(folder, "suppressed")),
        rejected=file_job.Output.of(str(folder / "rejected.jsonl")),
        releases=file_job.Output.of(_file(folder, "releases")),
        trace=file_job.Output.of(_file(folder, "trace")),
    )
    return file_job.run(request, launcher("local"))


def _file(folder: Path, name: str) -> str:
    return str(folder / f"{name}.csv")


def _before_and_after(policy: Policy, folder: Path, given: Evidence) -> Iterator[str]:
    """Show some rows of one release. The trace says which row of the input became which."""
    trace = given.trace
    if trace is None:
        return
    clusters = trace.release[(trace.kind == 0) & (trace.release >= trace.release.max() // 2)]
    rows = np.flatnonzero(trace.release == clusters[0])
    shown = trace.row[rows[:_SHOWN]].tolist()
    before = _rows(folder / _INPUT, shown)
    after = _rows(folder / _PUBLISHED, _places(policy, folder, shown))
    names = [*policy.quasi_identifiers, *policy.sensitive, "channel"]
    heads = [["customer", "paid_at", *names], names]
    persons = len({row["customer"] for row in _rows(folder / _INPUT, trace.row[rows].tolist())})
    size = f"{count(len(rows), 'payment')} of {count(persons, 'customer')}"
    yield f"One of the releases: {size}. Before, {len(shown)} of its rows were:"
    yield ""
    yield from _indented(table([heads[0], *([row[name] for name in heads[0]] for row in before)]))
    yield ""
    yield "And after, they are:"
    yield ""
    yield from _indented(table([names, *([row[name] for name in names] for row in after)]))


def _places(policy: Policy, folder: Path, rows: Sequence[int]) -> list[int]:
    """Find rows of the input in the published file. The file of the trace has the same order."""
    with open(_file(folder, "trace"), newline="", encoding="utf-8") as file:
        traced = [(record["kind"], int(record["row"])) for record in csv.DictReader(file)]
    absent = (
        {"sampled_out", "left_out"} if policy.on_suppress.value == "star" else {"sampled_out", "left_out", "suppressed"}
    )
    place = {row: n for n, row in enumerate(row for kind, row in traced if kind not in absent)}
    return [place[row] for row in rows]


def _rows(path: Path, numbers: Sequence[int]) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    return [every[number] for number in numbers]


def _singled_out(policy: Policy, given: Evidence) -> Iterator[str]:
    """Say how many customers share their quasi-identifiers with nobody in the input."""
    from crenel.pipelines.drafting import sample_measures

    if given.input is None:
        return
    who = sample_measures.places(given.input.rows.person)
    alone, customers = sample_measures.unique_persons(given.input.rows.qi, who), int(who.max()) + 1
    known = f"{alone:,} of {count(customers, 'customer')} ({percent(alone / customers)})"
    yield f"Before, {known} could be singled out: nobody else had the same age,"
    yield f"zipcode and occupation. After, every payment looks like those of at least {policy.k} customers."
