"""Anonymize an example stream, and audit what was published.

Makes up a stream of card payments (customers who come back, some payments late, a few broken),
anonymizes it as `crenel run` does, shows rows before and after, and lets the audit, which shares
no code with the engine, check every promise. Exits with 1 if one is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crenel.pipelines.report import count, percent
from crenel.pipelines.run import launcher, quiet

if TYPE_CHECKING:
    from crenel.audit.guarantees import Report
    from crenel.pipelines.job import Outcome
    from crenel.policy import Policy

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = "  crenel demo --keep demo"

_ROWS = 20_000
_SHOWN = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--keep", metavar="DIR", help="a new folder for its files; they are removed otherwise")
    parser.add_argument("--rows", metavar="N", type=int, default=_ROWS, help=f"payments ({_ROWS:,} by default)")


def run(arguments: argparse.Namespace) -> int:
    """Show it; 1 if a promise was broken."""
    from crenel.pipelines.errors import CommandError

    if not 100 <= arguments.rows <= 1_000_000:
        msg = f"--rows must be a number from 100 to 1000000, not {arguments.rows}."
        raise CommandError(msg)
    with _folder(arguments.keep) as folder, quiet():
        return _show(folder, arguments.rows, keep=arguments.keep)


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    from crenel.pipelines.errors import CommandError

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="crenel-demo-") as made:
            yield Path(made)
        return
    try:
        Path(keep).mkdir(parents=True)
    except FileExistsError:
        msg = f"{keep}: must be a new folder, and is there already."
        raise CommandError(msg) from None
    except OSError as error:
        msg = f"{keep}: the folder cannot be made: {(error.strerror or 'unknown').lower()}."
        raise CommandError(msg) from None
    yield Path(keep)


def _show(folder: Path, rows: int, *, keep: str | None) -> int:
    from crenel.pipelines import compiled, demo_data, summary
    from crenel.policy import Policy

    demo_data.write(folder, rows=rows)
    policy = Policy.from_yaml(folder / "policy.yaml")
    _say(f"{count(rows, 'card payment')}, made up: {', '.join(demo_data.COLUMNS)}")
    _say("", "The policy:", "", *(f"    {line}" for line in demo_data.POLICY.splitlines()), "")
    where = keep or "."
    _say(f"$ crenel run {where}/policy.yaml --input {where}/transactions.csv --output {where}/published.csv \\")
    _say(f"      --suppressed {where}/suppressed.csv --rejected {where}/rejected.jsonl --releases {where}/releases.csv")
    if not compiled.is_compiled():
        _say(f"({compiled.WAIT})")
    outcome = _anonymize(policy, folder)
    _say("", *(f"    {line}" for line in summary.as_text(policy, outcome).splitlines()), "")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".trace-") as trace:
        traced = _Traced(policy, folder, Path(trace))
        _say(*traced.before_and_after(), "")
        report = traced.report()
        _say(*_verdict(policy, report, outcome, traced))
    if keep is not None:
        _say("", f"The files are in {keep}.")
    return int(bool(report.problems()) or not traced.same)


def _say(*lines: str) -> None:
    print(*lines, sep="\n")
    sys.stdout.flush()


def _anonymize(policy: Policy, folder: Path, into: Path | None = None, form: str = "csv") -> Outcome:
    from crenel.pipelines import job

    into = into or folder
    request = job.Request(
        policy=policy,
        inputs=[str(folder / "transactions.csv")],
        published=job.Output.of(str(into / f"published.{form}")),
        suppressed=job.Output.of(str(into / "suppressed.csv")),
        rejected=job.Output.of(str(into / "rejected.jsonl")),
        releases=job.Output.of(str(into / f"releases.{form}")),
    )
    return job.run(request, launcher("local", workers=1))


class _Traced:
    """The same run once more, with the receipts kept, so that each published row can be traced to its customer.

    The seed and the rows being the same, it publishes the same; that is checked, too.
    """

    def __init__(self, policy: Policy, folder: Path, trace: Path) -> None:
        import pyarrow.parquet as pq

        from crenel.pipelines import sinks
        from crenel.policy import Policy as Policies

        said = policy.to_dict()
        self.policy = Policies.from_dict({**said, "publish": [*said["publish"], "receipt"]})
        _anonymize(self.policy, folder, trace, "parquet")
        self.published = pq.read_table(trace / "published.parquet")
        self.releases = pq.read_table(trace / "releases.parquet")
        self.receipts = self.published["receipt"].cast("int64").to_numpy()
        bare = self.published.drop_columns(["receipt"])
        sinks.write(str(trace / "bare.csv"), ".csv", None, bare.schema, [bare])
        #: Whether it published what the run before did.
        self.same = filecmp.cmp(trace / "bare.csv", folder / "published.csv", shallow=False)
        self._read(folder / "transactions.csv")

    def _read(self, path: Path) -> None:
        import numpy as np
        import pyarrow as pa

        from crenel.encode import Encoder
        from crenel.pipelines.sources import Source
        from crenel.pipelines.typed import Typing
        from crenel.transforms.anonymize import secret_of

        self.raw = pa.Table.from_batches(list(Source(str(path), path.name, ".csv").batches())).combine_chunks()
        typed = Typing(self.policy).of(self.raw.to_batches()[0], 0, 0)
        encoder = Encoder(self.policy, secret=secret_of(self.policy))
        encoded = encoder.encode({name: typed.column(name) for name in typed.schema.names})
        # The order of arrival is that of the event times, of which no two are the same.
        order = np.argsort(encoded.rows.time)
        self.rows = encoded.rows.take(order)
        self.arrival = np.full(self.raw.num_rows, -1)
        self.arrival[encoded.kept[order]] = np.arange(len(order))

    def report(self) -> Report:
        """What the audit says."""
        from crenel.audit.guarantees import audit
        from crenel.pipelines.trace import published

        seen = published(self.policy, self.published, self.releases, self.arrival[self.receipts])
        return audit(self.policy, self.rows, seen)

    def singled_out(self) -> tuple[int, int]:
        """How many customers nobody shares the quasi-identifiers with before; and how many there are."""
        from crenel.pipelines import measures

        who = measures.places(self.rows.person)
        return measures.unique_persons(self.rows.qi, who), int(who.max()) + 1

    def before_and_after(self) -> Iterator[str]:
        """A release, row by row."""
        kinds, sizes = self.releases["kind"].to_pylist(), self.releases["rows"].to_pylist()
        chosen = next(i for i, kind in enumerate(kinds) if kind == "cluster" and i >= len(kinds) // 2)
        start = sum(sizes[:chosen])
        after = self.published.slice(start, min(sizes[chosen], _SHOWN)).to_pylist()
        before = self.raw.take(self.receipts[start : start + len(after)]).to_pylist()
        names = [*self.policy.quasi_identifiers, *self.policy.sensitive, "channel"]
        heads = [["customer", "paid_at", *names], names]
        persons = self.releases["persons"][chosen].as_py()
        yield f"One of the releases, {count(sizes[chosen], 'payment')} of {count(persons, 'customer')}; before:"
        yield ""
        yield from _table(heads[0], [[row[name] for name in heads[0]] for row in before])
        yield ""
        yield "and after:"
        yield ""
        yield from _table(heads[1], [[_cell(row[name]) for name in names] for row in after])


def _cell(value: Any) -> str:
    return f"[{value['lo']:g}, {value['hi']:g}]" if isinstance(value, dict) else str(value)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    for row in [heads, *rows]:
        yield "    " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _verdict(policy: Policy, report: Report, outcome: Outcome, traced: _Traced) -> Iterator[str]:
    alone, customers = traced.singled_out()
    share = percent(alone / customers)
    yield f"Before, {alone:,} of {count(customers, 'customer')} ({share}) could be singled out: nobody else has their"
    yield f"age, zipcode and occupation. After, every payment looks like those of {policy.k} customers or more."
    yield ""
    yield "The audit traces each published row by its receipt, in a second run that keeps it and publishes the same:"
    yield ""
    kept = report.lost + report.twice + report.unknown == 0 and outcome.accounted == outcome.rows and traced.same
    checks = [
        (f"all {outcome.rows:,} rows are accounted for, once", kept),
        (f"each group has at least {policy.k} customers", report.small_groups == 0),
        (f"and at least {policy.l} kinds of purchases", not any(report.low_diversity.values())),
        ("each range holds its row's own values", report.outside == 0 and report.illegal == 0),
        ("no payment left later than an hour", report.late == 0),
        ("reported losses and group sizes are right", report.wrong_loss == 0 and report.wrong_persons == 0),
    ]
    yield from (f"    {'ok    ' if well else 'BROKEN'}  {said}" for said, well in checks)
    yield ""
    problems = [*report.problems(), *report.unchecked()]
    yield "All promises kept." if not problems and traced.same else " ".join(["Promises broken.", *problems])
