"""Audit what was published: whether each promise of the policy holds, and what it cost.

Reads the published rows in any format that crenel run writes. With --input, what went in, it bounds
the persons of each group and finds lost and wrong rows; with --trace, which crenel run --trace has
written, it knows each row's way, and is exact. What cannot be told with what is given is said so.
The audit shares no code with the engine. It tells counts, never a value of a row. See docs/audit.md.

Exits with 0 if no promise is broken, 1 if one is, and 2 if the policy or a file is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from crenel.errors import PolicyError
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.console import limits
from crenel.pipelines.console.sections import table
from crenel.policy import Policy

if TYPE_CHECKING:
    from crenel.audit.evidence import Evidence
    from crenel.audit.utility import Workload

__all__ = ["EXAMPLE", "add_arguments", "judged", "run", "text"]

EXAMPLE = "  crenel audit policy.yaml --input visits.csv --published published.csv --trace trace.csv --html report.html"

#: The exit code of a failure that is not the user's.
FAILED = 70

_VERDICTS = {
    "kept": "KEPT: every promise was checked, and holds.",
    "broken": "BROKEN: at least one promise does not hold.",
    "not proven": "NOT PROVEN: nothing broken was found, and not everything is proven.",
    "no crowd": "NO CROWD: what the policy promises holds, and it does not promise a crowd at one moment.",
}
_KNOWN = {
    "published": "the published rows alone",
    "input": "the published rows and the input",
    "trace": "the published rows, the input and the trace: each row's way is known",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("policy", help="the policy's YAML file")
    parser.add_argument("--published", metavar="OUT", nargs="+", required=True, help="what was published: files")
    parser.add_argument("--input", metavar="IN", nargs="+", help="what went in: files, as crenel run was given them")
    parser.add_argument("--suppressed", metavar="S", help="the owner's file of suppressed rows")
    parser.add_argument("--trace", metavar="T", help="the owner's file of what became of each row; needs --input")
    parser.add_argument("--releases", metavar="R", help="the owner's file of releases, to check it; needs --trace")
    parser.add_argument("--html", metavar="F", help="write the report as one page, too")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of text")
    parser.add_argument("--queries", metavar="N", type=int, default=500, help="queries of a window (500); 0: none")
    parser.add_argument("--theta", metavar="X", type=float, default=0.1, help="selectivity of a query (0.1)")
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="seed of queries and attacks (1)")
    limits.add_arguments(parser, "if there are more, the verdict says so, and the page is not green")


def run(arguments: argparse.Namespace) -> int:
    """Audit; 1 if a promise is broken."""
    policy = Policy.from_yaml(arguments.policy)
    _check(arguments)
    try:
        document = audited(policy, arguments)
    except (CommandError, PolicyError):
        raise
    except Exception as error:
        if os.environ.get("CRENEL_DEBUG"):
            raise
        # What an error says of itself may hold rows.
        said = f"the audit failed ({type(error).__name__}); with CRENEL_DEBUG=1 the error is shown, rows and all."
        print(f"crenel: {said}", file=sys.stderr)
        return FAILED
    if arguments.html:
        _write_page(document, arguments.html)
    sys.stdout.write(json.dumps(document) + "\n" if arguments.json else text(document))
    return int(document["verdict"] == "broken")


def _check(arguments: argparse.Namespace) -> None:
    problems = []
    if arguments.trace and not arguments.input:
        problems.append("--trace needs --input: it says which rows of the input were published.")
    if arguments.releases and not arguments.trace:
        problems.append("--releases needs --trace: it is compared with what the trace shows.")
    if arguments.queries < 0:
        problems.append(f"--queries must be a number of at least 0, not {arguments.queries}.")
    if not 0 < arguments.theta <= 1:
        problems.append(f"--theta must be a number above 0 and at most 1, not {arguments.theta:g}.")
    if arguments.seed < 0:
        problems.append(f"--seed must be a number of at least 0, not {arguments.seed}.")
    # Said before the work, not after.
    if arguments.html and not all(map(find_spec, ("matplotlib", "jinja2"))):
        problems.append("--html needs matplotlib and Jinja: pip install 'crenel[report]'.")
    if problems:
        raise CommandError(*problems)


def audited(policy: Policy, arguments: argparse.Namespace) -> dict[str, Any]:
    """The audit's document.

    Raises:
        CommandError: a file is broken, or does not fit the policy or the others.
    """
    from crenel.audit.utility import Workload
    from crenel.pipelines.auditing import evidence_files as evidence
    from crenel.pipelines.console import run_summary as summary

    progress = _Progress()
    with summary.showing(progress.line) if sys.stderr.isatty() else nullcontext():
        given = evidence.read(
            policy,
            published=arguments.published,
            given=arguments.input,
            suppressed=arguments.suppressed,
            trace=arguments.trace,
            releases=arguments.releases,
            tick=progress.tick("read"),
        )
        workload = Workload(arguments.queries, arguments.theta, arguments.seed)
        document = judged(policy, given, workload, progress.tick("matched"))
    return document | {"too_many": _too_many(document["rows"], limits.Limits.of(arguments))}


def _too_many(rows: dict[str, Any], allowed: limits.Limits) -> list[dict[str, Any]]:
    """The limits that were passed; of what is not known nothing is said."""
    passed = allowed.passed(rows["input"], suppressed=rows["suppressed"], rejected=rows["rejected"])
    return [one.as_dict() | {"text": f"{one.fact}."} for one in passed]


def judged(
    policy: Policy, given: Evidence, workload: Workload | None = None, tick: Callable[[int], None] = lambda rows: None
) -> dict[str, Any]:
    """The document of what was read.

    Raises:
        CommandError: the trace is not one.
    """
    import crenel
    from crenel.audit.document import build
    from crenel.audit.exact import TraceError

    try:
        return build(policy, given, version=crenel.__version__, workload=workload, tick=tick)
    except TraceError as error:
        msg = f"the trace is none of crenel run: {error}."
        raise CommandError(msg) from None


class _Progress:
    """How far it is."""

    def __init__(self) -> None:
        self._what, self._rows = "read", 0

    def tick(self, what: str) -> Callable[[int], None]:
        """Counts rows of a part of the work."""

        def tick(rows: int) -> None:
            self._rows = rows + (self._rows if self._what == what else 0)
            self._what = what

        return tick

    def line(self) -> str:
        return f"{self._rows:,} rows {self._what}"


def _write_page(document: dict[str, Any], path: str) -> None:
    from crenel.pipelines.auditing import page

    try:
        page.write(document, path)
    except OSError as error:
        msg = f"{path} cannot be written: {(error.strerror or 'unknown').lower()}."
        raise CommandError(msg) from None


# -- the text --------------------------------------------------------------------------------------


def text(document: dict[str, Any]) -> str:
    """The document for a terminal: the verdict first."""
    sections = [
        _verdict(document),
        _promises(document["promises"]),
        _rows(document["rows"]),
        _loss(document["loss"]),
        _groups(document["groups"]),
        _delay(document["delay"]),
        _utility(document["utility"]),
        _attacks(document["attacks"]),
        [str(document["differential"]["text"])] if document["differential"] else [],
        document["notes"],
    ]
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


def _verdict(document: dict[str, Any]) -> Iterator[str]:
    policy = document["policy"]
    yield _VERDICTS[document["verdict"]]
    yield document["crowd"]["text"]
    if document["crowd"]["seed"]:
        yield document["crowd"]["seed"]
    for passed in document.get("too_many", []):
        yield f"TOO MANY: {passed['text']}"
    yield f"Judged by {_KNOWN[document['knowledge']]}; method {policy['method']}, k = {policy['k']}."


def _promises(promises: list[dict[str, Any]]) -> Iterator[str]:
    rows = [["promise", "", "promised", "measured"]]
    rows += [
        [p["name"], p["state"].upper() if p["state"] == "broken" else p["state"], p["promised"], p["measured"]]
        for p in promises
    ]
    yield from table(rows)
    for promise in promises:
        # What is not promised does not offend.
        known = promise["state"] != "not promised"
        wrong = [f"{promise[what]:,} {what}" for what in ("groups", "rows") if promise[what] and known]
        told = [f"{' of '.join(wrong)} offend." if wrong else "", promise["note"]]
        if any(told):
            yield f"  {promise['name']}: {' '.join(filter(None, told))}"


def _rows(rows: dict[str, Any]) -> list[str]:
    said = [f"{_figure(count)} {name.replace('_', ' ')}" for name, count in rows.items()]
    return ["Rows: " + ", ".join(said) + "."]


def _loss(loss: dict[str, Any]) -> list[str]:
    if loss["overall"] is None:
        return []
    rows = [["loss", "", ""], ["overall", _figure(loss["overall"]), "0: nothing was made coarser; 1: everything was"]]
    rows += [[f"  {name}", _figure(value), ""] for name, value in loss["per_attribute"].items()]
    rows += [
        ["certainty penalty", _figure(loss["ncp"]), "normalized"],
        ["uncertainty penalty", _figure(loss["uncertainty_penalty"]), "parts of the domains, added up"],
        ["information loss", _figure(loss["information_loss"]), "the same, with the decay of delays"],
        ["discernibility", _figure(loss["discernibility"]), ""],
        ["suppression rate", _figure(loss["suppression_rate"]), ""],
    ]
    return list(table(rows))


def _groups(groups: dict[str, Any]) -> list[str]:
    if groups["smallest"] is None:
        return ["Groups: none."]
    sizes = f"smallest {groups['smallest']:,}, median {groups['median']:,g}, largest {groups['largest']:,}"
    return [f"Groups, in {groups['unit']}: {sizes}."]


def _delay(delay: dict[str, Any] | None) -> list[str]:
    if delay is None:
        return []
    said = ", ".join(f"{name} {delay[name]:,g}" for name in ("mean", "p50", "p99", "largest"))
    deadline = "" if delay["deadline"] is None else f"; the deadline is {delay['deadline']:,g}"
    return [f"Delay, in {delay['unit']}: {said}{deadline}."]


def _utility(utility: dict[str, Any] | None) -> list[str]:
    if utility is None:
        return []
    how = f"{utility['queries']} queries of selectivity {utility['theta']:g} in each of {utility['windows']} windows"
    return [f"Utility: counts are off by {_figure(utility['error'])} (the median, as a part of the count); {how}."]


def _attacks(attacks: list[dict[str, Any]]) -> Iterator[str]:
    for attack in attacks:
        yield f"Attack {attack['name']} ({attack['state']}): {attack['text']}"


def _figure(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
