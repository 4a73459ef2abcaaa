"""Show what k and the deadline cost: the engine, run on a sample over a grid of guarantees.

For each combination it tells how many rows find no group in time, how much the others lose, how long they
wait, and how far counts over the published rows are off. Nothing is published. Give it consecutive rows: a
sample with gaps looks thinner than the stream is.

With --target, it names the shortest deadline that meets the target, for each k, and exits with 1 if none
does. Ctrl-C shows what is done so far.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.commands._input_options import add_dialect, add_sample, dialect_of
from crenel.pipelines.commands._policy_argument import add_policy, policy_of
from crenel.pipelines.commands.run import quiet
from crenel.pipelines.console.sections import count, filled, listed, table
from crenel.policy.durations import A_DURATION, parse_duration, span_of_seconds

if TYPE_CHECKING:
    from crenel.pipelines.exploring.settings import Axes, Cost, Setting
    from crenel.policy import Policy

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = """\
  crenel explore policy.yaml --data visits.csv --k 5,10,20 --delay 10m,1h,6h --target 'suppressed<1%'
  crenel explore policy.yaml --data visits.csv --html curves.html"""

#: Exit codes: no setting meets the target, and the user stopped.
NOT_MET, INTERRUPTED = 1, 130

#: Cells of the progress bar.
_BAR = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    from crenel.pipelines.exploring.targets import target

    add_policy(parser)
    parser.add_argument("--data", metavar="FILE", required=True, help="a sample of the stream: consecutive rows")
    add_dialect(parser)
    add_sample(parser)
    parser.add_argument("--k", metavar="N,...", type=_integers(2), help="values of k; by default 1/2, 1, 2 and 4 times")
    parser.add_argument("--l", metavar="N,...", type=_integers(1), help="values of l; by default the policy's")
    deadlines = parser.add_mutually_exclusive_group()
    deadlines.add_argument(
        "--delay", metavar="D,...", type=_durations, help="delays, such as 10m,1h; by default 1/4, 1, 4 and 16 times"
    )
    deadlines.add_argument("--delay-rows", metavar="N,...", type=_integers(1), help="values of delay_rows instead")
    parser.add_argument(
        "--target",
        metavar="BOUND",
        type=target,
        action="append",
        default=[],
        help="a bound to meet: suppressed<1%%, loss<0.3, error<20%% or delay<10m (the mean); several may be given",
    )
    parser.add_argument("--rows", metavar="N", type=_integer(100), help="rows to run the engine on (20,000)")
    parser.add_argument("--html", metavar="F", help="also write an HTML page with curves")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Try all settings, and print what they cost."""
    from crenel.pipelines.exploring.settings import Axes, grid

    policy = policy_of(arguments)
    axes = Axes(k=arguments.k, l=arguments.l, delay=arguments.delay, delay_rows=arguments.delay_rows)
    _check(policy, axes)
    settings = grid(policy, axes)
    costs, rejected, stopped = _tried(policy, settings, arguments)
    document = _document(policy, arguments, settings, costs, rejected)
    if arguments.html and costs:
        _write_page(document, arguments.html)
    sys.stdout.write(json.dumps(document) + "\n" if arguments.json else _text(document, stopped))
    if stopped:
        return INTERRUPTED
    return NOT_MET if arguments.target and not document["cheapest"] else 0


def _tried(policy: Policy, settings: Sequence[Setting], arguments: argparse.Namespace) -> tuple[list[Cost], int, bool]:
    """Return what the settings cost, how many rows do not fit the policy, and whether the user stopped the trials."""
    from crenel.pipelines.checking.engine_trial import MOST_ROWS
    from crenel.pipelines.checking.sample import Sample
    from crenel.pipelines.console import compile_notes, run_summary
    from crenel.pipelines.exploring.settings import costs

    with quiet():  # loads Beam
        from crenel.pipelines.files.file_rows import read_for
    most = arguments.rows or MOST_ROWS
    progress = ["reading the sample"]  # the last line is shown
    found: list[Cost] = []
    with (
        compile_notes.noting() as note,
        run_summary.showing(lambda: progress[-1] + note()) if sys.stderr.isatty() else nullcontext(),
    ):
        rows = read_for(policy, arguments.data, dialect_of(arguments), arguments.sample).table
        _check_columns(policy, rows.column_names, arguments.data)
        encoded = Sample(policy, rows).encoded
        if not len(encoded.kept):
            msg = f"{arguments.data} has no row that fits the policy. crenel check says why."
            raise CommandError(msg)

        def tick(done: int, line: str) -> None:
            progress[:] = [_bar(done, settings, line)]

        try:
            for cost in costs(settings, encoded, rows, tick, most):
                found.append(cost)
        except KeyboardInterrupt:
            return found, len(encoded.rejected), True
    return found, len(encoded.rejected), False


def _check_columns(policy: Policy, there: Sequence[str], name: str) -> None:
    from crenel.transforms._pack.text_columns import lacking

    wrong = [f"{name} {sentence}" for sentence in lacking(policy, there)]
    if wrong:
        raise CommandError(*wrong)


def _bar(done: int, settings: Sequence[Setting], line: str) -> str:
    full = _BAR * done // len(settings)
    return f"[{'#' * full}{'.' * (_BAR - full)}] {done} of {len(settings)}; {line}"


def _check(policy: Policy, axes: Axes) -> None:
    """Refuse a grid that the policy cannot have, in the words of the command line."""
    if axes.delay and policy.event_time is None:
        msg = "--delay is event time, and the policy names no event_time. Name one, or use --delay-rows."
        raise CommandError(msg)
    if axes.l and not policy.sensitive:
        msg = "--l needs a sensitive column, and the policy names none."
        raise CommandError(msg)
    if policy.timed and policy.event_time is None:
        what = policy.timed[0]
        msg = f"the policy has {what} but names no event_time, so a file cannot show it. Name one in the policy."
        raise CommandError(msg)


def _document(
    policy: Policy, arguments: argparse.Namespace, settings: Sequence[Setting], costs: Sequence[Cost], rejected: int
) -> dict[str, Any]:
    """Gather what the text and the page show. It holds counts, shares and means."""
    import crenel
    from crenel.pipelines.exploring.targets import cheapest

    best = cheapest(costs, arguments.target, policy.k) if arguments.target else []
    return {
        "crenel": crenel.__version__,
        "data": Path(arguments.data).name,
        "method": policy.method,
        "rows": costs[0].rows if costs else 0,
        "rejected": rejected,
        "unit": "rows" if policy.delay is None else "seconds",
        "target": [one.text for one in arguments.target],
        "asked": len(settings),
        "settings": [_as_dict(cost) for cost in costs],
        "cheapest": [costs.index(cost) for cost in best],
    }


def _as_dict(cost: Cost) -> dict[str, Any]:
    policy = cost.setting.policy
    return {
        "k": policy.k,
        "l": policy.l,
        "delay": None if policy.delay is None else policy.delay / 1e6,
        "delay_rows": policy.delay_rows,
        "guarantee": cost.setting.guarantee,
        "deadline": cost.setting.deadline,
        "own": cost.setting.is_own,
        "cut": cost.is_cut,
        "suppressed": round(cost.suppressed, 6),
        "left_out": round(cost.left_out, 6),
        "loss": round(cost.loss, 6),
        "wait": None if cost.delay is None else round(cost.delay, 3),
        "wait_p99": None if cost.delay_p99 is None else round(cost.delay_p99, 3),
        "error": None if cost.error is None else round(cost.error, 6),
    }


def _text(document: dict[str, Any], stopped: bool) -> str:
    from crenel.pipelines.console.limits import said

    done = document["settings"]
    parts = []
    if stopped:
        parts.append(filled(f"Stopped: {len(done)} of {count(document['asked'], 'setting')} were tried."))
    if not done:
        return "\n".join([*parts, ""])
    aside = (
        f" {count(document['rejected'], 'row')} of the sample do not fit the policy." if document["rejected"] else ""
    )
    parts.append(
        filled(
            f"The engine ({document['method']}) was run on {count(document['rows'], 'consecutive row')} of "
            f"{document['data']}.{aside}"
        )
    )
    cells = [("k", "deadline", "suppressed", "loss", "mean wait", "99% wait", "query error", "")]
    for one in done:
        notes = [word for word, holds in (("the policy's", one["own"]), ("*", one["cut"])) if holds]
        error = "" if one["error"] is None else said(one["error"])
        waits = [_wait(one[name], document["unit"]) for name in ("wait", "wait_p99")]
        figures = (said(one["suppressed"]), f"{one['loss']:.3f}", *waits, error)
        cells.append((one["guarantee"].removeprefix("k = "), one["deadline"], *figures, " ".join(notes)))
    parts.append("\n".join(table(cells)))
    notes = ["Loss is the average over all rows; a suppressed row counts 1. Query error is the median error of counts."]
    if any(one["left_out"] for one in done):
        most = max(one["left_out"] for one in done)
        notes.append(f"once_per left out up to {said(most)} of the rows: neither suppressed, nor in the loss.")
    if any(one["cut"] for one in done):
        notes.append("* The sample is shorter than this deadline: with a longer sample, rows would wait longer.")
    parts.append("\n".join(map(filled, notes)))
    parts += _verdict(document)
    return "\n\n".join(parts) + "\n"


def _verdict(document: dict[str, Any]) -> list[str]:
    """Name the cheapest setting, and that of other guarantees."""
    if not document["target"]:
        return []
    target, done = listed(document["target"]), document["settings"]
    if not document["cheapest"]:
        return [filled(f"No setting that was tried meets {target}. Try a longer deadline, a smaller k, or more rows.")]
    first, *others = [done[place] for place in document["cheapest"]]
    said = f"The cheapest setting that meets {target}: {first['guarantee']}, deadline {first['deadline']}."
    more = [f"{one['guarantee']}: deadline {one['deadline']}" for one in others]
    return [filled(said + (f" With another k: {'; '.join(more)}." if more else ""))]


def _wait(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return span_of_seconds(value) if unit == "seconds" else f"{value:,.0f} rows"


def _write_page(document: dict[str, Any], path: str) -> None:
    from crenel.pipelines.exploring.curves_page import render

    page = render(document)
    try:
        Path(path).write_text(page, "utf-8")
    except OSError as error:
        msg = f"{path} cannot be written: {(error.strerror or 'failed').lower()}."
        raise CommandError(msg) from None


def _integers(least: int) -> Callable[[str], list[int]]:
    one = _integer(least)
    return lambda text: sorted({one(part) for part in text.split(",")})


def _integer(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            msg = f"must be whole numbers of at least {least}, not {text!r}"
            raise argparse.ArgumentTypeError(msg)
        return number

    return read


def _durations(text: str) -> list[int]:
    found = [parse_duration(part) for part in text.split(",")]
    known = sorted({micros for micros in found if micros})
    if len(known) < len(set(found)):
        msg = f"must be durations, each {A_DURATION}, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return known
