"""Audit what was published: check every promise of the policy, and measure what it cost.

Reads the published rows in any format that crenel run writes. With --input, it bounds the persons of
each group and finds lost and wrong rows. With --trace, which crenel run --trace writes, it knows the
release of each row, and its figures are exact. What the given files cannot show, it calls unknown. The
audit shares no code with the engine, and reports counts, never a row's value. See docs/audit.md.

Exits with 0 if no promise is broken, 1 if one is, and 2 if the policy or a file is broken.
"""

from __future__ import annotations

import argparse
import datetime as dt
import glob
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crenel.errors import PolicyError
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.commands._input_options import add_dialect, dialect_of, integer, number
from crenel.pipelines.commands._policy_argument import add_policy, policy_of
from crenel.pipelines.commands.run import quiet
from crenel.pipelines.console import limits
from crenel.pipelines.console.sections import Line, Section, count, filled, section_text
from crenel.policy import Policy
from crenel.policy.durations import span_of_seconds

if TYPE_CHECKING:
    from crenel.audit.evidence import Evidence
    from crenel.audit.utility import Workload

__all__ = ["EXAMPLE", "add_arguments", "judged", "run", "text"]

EXAMPLE = "  crenel audit policy.yaml --input visits.csv --published published.csv --trace trace.csv --html report.html"

#: The exit code of a failure that is not the user's fault.
FAILED = 70

_VERDICTS = {
    "kept": "KEPT: every promise was checked, and holds.",
    "broken": "BROKEN: at least one promise does not hold.",
    "not proven": "NOT PROVEN: no promise was found broken, but not every promise is proven.",
    "no crowd": "NO CROWD: the policy's promises hold, but they do not include a crowd at one moment.",
}
_KNOWN = {
    "published": "the published rows alone",
    "input": "the published rows and the input",
    "trace": "the published rows, the input and the trace, which tells the release of each row",
}
#: The questions of the Article 29 Working Party's opinion 05/2014.
_RISKS = "In regulators' words (evidence, not a legal opinion)"
_ROWS = {"input": "in the input", "sampled_out": "sampled out", "left_out": "left out"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_policy(parser)
    parser.add_argument("--published", metavar="OUT", nargs="+", required=True, help="the published files")
    parser.add_argument("--input", metavar="IN", nargs="+", help="the input files, as crenel run was given them")
    parser.add_argument("--suppressed", metavar="S", help="the file of crenel run --suppressed")
    parser.add_argument("--trace", metavar="T", help="the file of crenel run --trace; needs --input")
    parser.add_argument("--releases", metavar="R", help="the file of crenel run --releases, to check it; needs --trace")
    parser.add_argument(
        "--csv-escape-formulas", action="store_true", help="the CSV files were written with this option of crenel run"
    )
    add_dialect(parser)
    parser.add_argument("--html", metavar="F", help="also write the report as an HTML page")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of text")
    parser.add_argument(
        "--queries",
        metavar="N",
        type=integer,
        default=500,
        help="queries per window (500); 0 for none",
    )
    parser.add_argument("--theta", metavar="X", type=number, default=0.1, help="selectivity of a query (0.1)")
    parser.add_argument("--seed", metavar="S", type=integer, default=1, help="seed of the queries and the attacks (1)")
    limits.add_arguments(parser, "if there are more, the verdict says so and the page is not green")


def run(arguments: argparse.Namespace) -> int:
    """Audit; 1 if a promise is broken."""
    policy = policy_of(arguments)
    _check(arguments)
    try:
        document = audited(policy, arguments)
    except (CommandError, PolicyError):
        raise
    except Exception as error:
        if os.environ.get("CRENEL_DEBUG"):
            raise
        # The error's own message may quote rows.
        said = f"the audit failed ({type(error).__name__}). Set CRENEL_DEBUG=1 to see the error, which may show rows."
        print(f"crenel: {said}", file=sys.stderr)
        return FAILED
    document |= {"subject": _subject(arguments)}
    if arguments.html:
        _write_page(document, arguments.html)
    sys.stdout.write(json.dumps(document) + "\n" if arguments.json else text(document))
    return int(document["verdict"] == "broken")


def _check(arguments: argparse.Namespace) -> None:
    problems = []
    if arguments.trace and not arguments.input:
        problems.append("--trace needs --input, because it numbers the rows of the input.")
    if arguments.releases and not arguments.trace:
        problems.append("--releases needs --trace, because it is compared with the trace.")
    if arguments.queries < 0:
        problems.append(f"--queries must be a number of at least 0, not {arguments.queries}.")
    if not 0 < arguments.theta <= 1:
        problems.append(f"--theta must be a number above 0 and at most 1, not {arguments.theta:g}.")
    if arguments.seed < 0:
        problems.append(f"--seed must be a number of at least 0, not {arguments.seed}.")
    # Checked before the work, not after it.
    if arguments.html and not all(map(find_spec, ("matplotlib", "jinja2"))):
        problems.append("--html needs matplotlib and Jinja. Run: pip install 'crenel[report]'")
    if problems:
        raise CommandError(*problems)


def audited(policy: Policy, arguments: argparse.Namespace) -> dict[str, Any]:
    """Read the files, and build the audit's document.

    Raises:
        CommandError: a file is broken, or does not fit the policy or the other files.
    """
    from crenel.audit.utility import Workload
    from crenel.pipelines.auditing.regulators import risks

    with quiet():  # loads Beam
        from crenel.pipelines.auditing import evidence_files
        from crenel.pipelines.console import run_summary
    progress = _Progress()
    with run_summary.showing(progress.line) if sys.stderr.isatty() else nullcontext():
        given = evidence_files.read(
            policy,
            published=arguments.published,
            given=arguments.input,
            suppressed=arguments.suppressed,
            trace=arguments.trace,
            releases=arguments.releases,
            escaped=arguments.csv_escape_formulas,
            dialect=dialect_of(arguments),
            tick=progress.tick("read"),
        )
        workload = Workload(arguments.queries, arguments.theta, arguments.seed)
        document = judged(policy, given, workload, progress.tick("matched"))
    return document | {
        "risks": risks(document["policy"], document["promises"], document["attacks"]),
        "too_many": _too_many(document["rows"], limits.Limits.of(arguments)),
    }


def _subject(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tell what was judged, and when: a signature is for these very files."""
    given = {
        "policy": [arguments.policy],
        "published": arguments.published,
        "input": arguments.input or [],
        "suppressed": [arguments.suppressed] if arguments.suppressed else [],
        "trace": [arguments.trace] if arguments.trace else [],
        "releases": [arguments.releases] if arguments.releases else [],
    }
    files = [
        {"role": role, "name": path.name, "bytes": path.stat().st_size, "sha256": _digest(path)}
        for role, patterns in given.items()
        for path in dict.fromkeys(found for pattern in patterns for found in _paths(pattern))
    ]
    return {"judged": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"), "files": files}


def _paths(pattern: str) -> list[Path]:
    return [Path(pattern)] if Path(pattern).is_file() else sorted(map(Path, glob.glob(pattern, recursive=True)))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _too_many(rows: dict[str, Any], allowed: limits.Limits) -> list[dict[str, Any]]:
    """List the limits that were exceeded. A count that is not known exceeds none."""
    passed = allowed.passed(rows["input"], suppressed=rows["suppressed"], rejected=rows["rejected"])
    return [one.as_dict() | {"text": f"{one.fact}."} for one in passed]


def judged(
    policy: Policy, given: Evidence, workload: Workload | None = None, tick: Callable[[int], None] = lambda rows: None
) -> dict[str, Any]:
    """Build the audit's document from what was read.

    Raises:
        CommandError: the trace is not one of crenel run.
    """
    import crenel
    from crenel.audit.document import build
    from crenel.audit.exact import TraceError

    try:
        return build(policy, given, version=crenel.__version__, workload=workload, tick=tick)
    except TraceError as error:
        msg = f"the trace was not written by crenel run: {error}."
        raise CommandError(msg) from None


class _Progress:
    """Counts rows, for a line about the progress."""

    def __init__(self) -> None:
        self._what, self._rows = "read", 0

    def tick(self, what: str) -> Callable[[int], None]:
        """Make a function that counts the rows of one part of the work."""

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
    """Write the document for a terminal: the verdict first."""
    parts = [
        "\n".join(map(filled, _verdict(document))),
        section_text(Section("Promises", tuple(map(_promise, document["promises"])))),
        section_text(Section("Rows", (_rows(document["rows"]),))),
        section_text(Section("Loss", _loss(document["loss"]))),
        section_text(Section("Groups", (_groups(document["groups"]),))),
        section_text(Section("Delay", _delay(document["delay"]))),
        section_text(Section("Utility", _utility(document["utility"]))),
        section_text(Section("Attacks", tuple(map(_attack, document["attacks"])))),
        section_text(Section("Differential privacy", _differential(document["differential"]))),
        section_text(Section(_RISKS, tuple(map(_risk, document.get("risks", ()))))),
        section_text(Section("Notes", tuple(document["notes"]))),
        section_text(Section("What was judged", tuple(_judged_files(document.get("subject"))))),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _verdict(document: dict[str, Any]) -> Iterator[str]:
    policy = document["policy"]
    yield _VERDICTS[document["verdict"]]
    yield document["crowd"]["text"]
    if document["crowd"]["seed"]:
        yield document["crowd"]["seed"]
    for passed in document.get("too_many", []):
        yield f"TOO MANY: {passed['text']}"
    yield f"Evidence: {_KNOWN[document['knowledge']]}. Method {policy['method']}, k = {policy['k']}."


def _risk(risk: dict[str, Any]) -> Line:
    state = {"kept": "What was promised is kept", "broken": "A PROMISE IS BROKEN", "unknown": "Not proven"}
    return risk["name"], f"{risk['question']} {state.get(risk['state'], 'Not promised')}. {risk['text']}"


def _judged_files(subject: dict[str, Any] | None) -> Iterator[Line]:
    if subject is None:
        return
    yield f"On {subject['judged']}:"
    for file in subject["files"]:
        yield file["role"], f"{file['name']}, {file['bytes']:,} bytes, SHA-256 {file['sha256']}"


def _promise(promise: dict[str, Any]) -> Line:
    state = promise["state"].upper() if promise["state"] == "broken" else promise["state"]
    # Nothing can break a promise that was not made.
    made = promise["state"] != "not promised"
    wrong = [count(promise[what], noun) for what, noun in (("groups", "group"), ("rows", "row")) if promise[what]]
    offends = f"Broken in {' with '.join(wrong)}." if wrong and made else ""
    told = f"{state}. Promised: {promise['promised']}. Measured: {promise['measured']}."
    return promise["name"], " ".join(filter(None, (told, offends, promise["note"])))


def _rows(rows: dict[str, Any]) -> str:
    said = [f"{_figure(number)} {_ROWS.get(name, name)}" for name, number in rows.items()]
    return ", ".join(said) + "."


def _loss(loss: dict[str, Any]) -> tuple[Line, ...]:
    if loss["overall"] is None:
        return ()
    lines = [("overall", f"{_figure(loss['overall'])}, from 0 (no value was made coarser) to 1 (every value was)")]
    lines += [(f"  {name}", _figure(value)) for name, value in loss["per_attribute"].items()]
    lines += [
        ("certainty penalty", f"{_figure(loss['ncp'])}, normalized (NCP)"),
        ("uncertainty penalty", f"{_figure(loss['uncertainty_penalty'])}, the sum over the columns"),
        ("information loss", f"{_figure(loss['information_loss'])}, the same with a penalty for delays"),
        ("discernibility", _figure(loss["discernibility"])),
        ("suppression rate", _figure(loss["suppression_rate"])),
    ]
    return tuple(lines)


def _groups(groups: dict[str, Any]) -> str:
    if groups["smallest"] is None:
        return "None."
    sizes = f"smallest {groups['smallest']:,}, median {groups['median']:,g}, largest {groups['largest']:,}"
    return f"Size in {groups['unit']}: {sizes}."


def _delay(delay: dict[str, Any] | None) -> tuple[Line, ...]:
    if delay is None:
        return ()
    write = span_of_seconds if delay["unit"] == "seconds" else "{:,.6g} rows".format
    said = ", ".join(f"{name} {write(delay[name])}" for name in ("mean", "p50", "p99", "largest"))
    deadline = "" if delay["deadline"] is None else f" The deadline is {write(delay['deadline'])}."
    return (f"A row waits: {said}.{deadline}",)


def _utility(utility: dict[str, Any] | None) -> tuple[Line, ...]:
    if utility is None:
        return ()
    how = f"{utility['queries']} queries of selectivity {utility['theta']:g} in each of {utility['windows']} windows"
    return (f"Relative error of a count, median: {_figure(utility['error'])}. Measured by {how}.",)


def _attack(attack: dict[str, Any]) -> Line:
    return attack["name"], f"{attack['state']}. {attack['text']}"


def _differential(differential: dict[str, Any] | None) -> tuple[Line, ...]:
    return () if differential is None else (str(differential["text"]),)


def _figure(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
