"""The progress of a run, and the summary at its end."""

from __future__ import annotations

import contextlib
import dataclasses
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from crenel.audit.differential_privacy import stated
from crenel.pipelines.checking.advice import SEED
from crenel.pipelines.console import compile_notes, status_line
from crenel.pipelines.console.limits import said
from crenel.pipelines.console.sections import count, percent
from crenel.policy import OnSuppress, Policy
from crenel.policy.durations import UNITS, format_duration

if TYPE_CHECKING:
    from crenel.pipelines.files.file_job import Outcome
    from crenel.pipelines.files.scratch import Scratch
    from crenel.transforms._publish.counts import Spread

__all__ = ["as_dict", "as_text", "showing", "watching"]

_EVERY = 0.5
_WIDTH = 100
_SECOND = UNITS["s"]


@contextlib.contextmanager
def watching(scratch: Scratch) -> Iterator[None]:
    """Show the progress of a run on standard error."""
    with compile_notes.noting() as note, showing(lambda: progress(scratch, note())):
        yield


@contextlib.contextmanager
def showing(line: Callable[[], str]) -> Iterator[None]:
    """Show a line of progress on standard error."""
    over = threading.Event()

    def show() -> None:
        while not over.wait(_EVERY):
            status_line.show(line())

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        status_line.show("")


def progress(scratch: Scratch, note: str = "") -> str:
    """Describe the progress of a run."""
    read, left = scratch.ticked("read"), scratch.ticked("left")
    if left:
        return f"{left:,} of {count(read, 'row')} anonymized{note}"
    return f"{count(read, 'row')} read{note}"


def as_dict(policy: Policy, outcome: Outcome) -> dict[str, Any]:
    """Summarize a run for machines. The keys are part of the interface; `differential` is there if it is proven."""
    statement = stated(policy)
    differential = {} if statement is None else {"differential": dataclasses.asdict(statement)}
    return {
        "alone": outcome.alone,
        "files": outcome.files,
        "rows": outcome.rows,
        "published": outcome.published,
        "suppressed": outcome.suppressed,
        "sampled_out": outcome.sampled_out,
        "left_out": outcome.left_out,
        "rejected": outcome.rejected.total(),
        "ignored": outcome.ignored,
        "rejected_by": [
            {"field": name, "reason": reason, "rows": rows} for (name, reason), rows in _rejections(outcome)
        ],
        "releases": outcome.releases,
        "loss": None if outcome.loss is None else round(outcome.loss, 6),
        "release_rows": _spread(outcome.sizes),
        "delay_seconds": None if outcome.delay is None else _spread(outcome.delay, _SECOND),
        "held_rows": outcome.held,
        "misfits": outcome.misfits,
        "dead_letters": outcome.dead_letters,
        "seconds": round(outcome.seconds, 3),
        "workers": outcome.workers,
        "warnings": [SEED] if policy.seed is not None else [],
        **differential,
    }


def as_text(policy: Policy, outcome: Outcome) -> str:
    """Summarize a run in a short table: first the number of rows that were published without a crowd."""
    lines = [("without crowd", f"{outcome.alone:,}", _alone(policy, outcome))]
    lines.append(("rows", f"{outcome.rows:,}", f"in {count(outcome.files, 'file')}" if outcome.files else ""))
    lines.append(("published", f"{outcome.published:,}", _share(outcome, outcome.published)))
    star = policy.on_suppress is OnSuppress.STAR
    fate = f"{_share(outcome, outcome.suppressed)}; {'published as *' if star else 'not published'}"
    lines.append(("suppressed", f"{outcome.suppressed:,}", fate if outcome.suppressed else ""))
    if outcome.sampled_out:
        lines.append(("sampled out", f"{outcome.sampled_out:,}", _share(outcome, outcome.sampled_out)))
    if policy.once_per is not None:
        why = f"another row of the person, within {format_duration(policy.once_per)} (once_per)"
        lines.append(("left out", f"{outcome.left_out:,}", f"{_share(outcome, outcome.left_out)}; {why}"))
    rejected = outcome.rejected.total()
    lines.append(("rejected", f"{rejected:,}", _share(outcome, rejected) if rejected else ""))
    lines += [(f"  {name}", f"{rows:,}", reason) for (name, reason), rows in _rejections(outcome)]
    if outcome.ignored:
        lines.append(("ignored", f"{outcome.ignored:,}", "deletes and other changes without a row"))
    if outcome.misfits:
        lines.append(("misfits", f"{outcome.misfits:,}", "released, but not of the output's schema; see --rejected"))
    if outcome.dead_letters:
        where = f"records that their topics did not take, in {outcome.dead_letters_file}"
        lines.append(("dead letters", f"{outcome.dead_letters:,}", where))
    lines.append(("releases", f"{outcome.releases:,}", ""))
    if outcome.loss is not None:
        lines.append(
            ("average loss", f"{outcome.loss:.3f}", "0: every value exact; 1: every value as coarse as can be")
        )
    if outcome.sizes.count:
        ends = f"{outcome.sizes.least:,.0f} to {outcome.sizes.most:,.0f}"
        lines.append(("release size", f"{outcome.sizes.mean:,.1f}", f"rows released together on average; {ends}"))
    if outcome.delay is not None and outcome.delay.count:
        lines.append(("delay", _waited(outcome.delay.mean), f"on average; at most {_waited(outcome.delay.most)}"))
    lines.append(("held rows", f"{outcome.held:,}", "at most, in a shard"))
    statement = stated(policy)
    if statement is not None:
        pair = f"{statement.epsilon:.3g}, {statement.delta:.2g}"
        lines.append(("epsilon, delta", pair, f"proven; for {statement.scope}"))
    processes = f"in {outcome.workers} processes" if outcome.workers > 1 else ""
    lines.append(("time", f"{outcome.seconds:.1f} s", processes))
    wide = max(len(label) for label, _, _ in lines)
    far = max(len(figure) for _, figure, _ in lines)
    table = [f"{label:<{wide}}  {figure:>{far}}  {told}".rstrip() for label, figure, told in lines]
    meaning = textwrap.wrap(_meaning(policy, outcome), _WIDTH - wide - far - 4)
    table[1:1] = [" " * (wide + far + 4) + line for line in meaning]
    return "\n".join(table) + "\n"


def _alone(policy: Policy, outcome: Outcome) -> str:
    """Explain the number of rows that were published without a crowd."""
    left = outcome.sizes.total
    if not left:
        return "no row was published"
    if not outcome.alone:
        return f"every published row is among rows of at least {policy.k} persons, each once, at one moment"
    share = said(outcome.alone / left)
    return f"{share} of the published rows are not among rows of {policy.k} persons, each once, at one moment"


def _meaning(policy: Policy, outcome: Outcome) -> str:
    """Explain what rows without a crowd mean, and what to do about them."""
    if not outcome.alone:
        return ""
    risk = (
        "An attacker who knows a person's quasi-identifiers and about when the row came can find the row, and read all "
        "of it."
    )
    if policy.crowd:
        return f"{risk} The policy forbids it, so this is a bug of crenel: do not publish the output."
    return f"{risk} Method bastion with reuse: off and on_suppress: drop suppresses such rows instead."


def _spread(figures: Spread, unit: float = 1.0) -> dict[str, float] | None:
    """Round figures for machines; None if there are none."""
    if not figures.count:
        return None
    named = {"least": figures.least, "mean": figures.mean, "most": figures.most}
    return {name: round(value / unit, 3) for name, value in named.items()}


def _waited(micros: float) -> str:
    """Write a waiting time, in a unit that suits it."""
    size, unit = next(((size, unit) for unit, size in UNITS.items() if micros >= size), (_SECOND, "s"))
    return f"{micros / size:.3g} {unit}"


def _share(outcome: Outcome, rows: int) -> str:
    return percent(rows / outcome.rows) if outcome.rows else ""


def _rejections(outcome: Outcome) -> list[tuple[tuple[str, str], int]]:
    return sorted(outcome.rejected.items(), key=lambda item: (-item[1], item[0]))
