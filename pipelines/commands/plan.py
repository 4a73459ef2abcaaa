"""Say how many shards a stream can feed, and what they cost: processor, state, information.

It applies the rule of thumb of docs/scale.md to a policy and a rate of rows, and prints its
assumptions. It measures nothing on your machine: speed and loss depend on your data.

Exits with 1 if the stream cannot work: too few persons within the deadline, or a shard too slow.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

from crenel.pipelines.checking.scale import MEASURED, Plan, Shards, make_plan
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.commands._policy_argument import add_policy, policy_of
from crenel.pipelines.console.sections import Finding, Line, Section, Severity, count, listed, percent, render
from crenel.policy import Policy, ShardBy

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = "  crenel plan policy.yaml --rate 50000/s --persons 2000000"

_RATE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)([kM]?)/(s|m|h|d)", re.ASCII)
_TIMES = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MANY = {"": 1, "k": 1_000, "M": 1_000_000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_policy(parser)
    parser.add_argument("--rate", required=True, metavar="N/s", help="rows of the whole stream: 50000/s, 200/m, 3M/h")
    parser.add_argument(
        "--persons", metavar="N", help="persons in the stream; without it, every row is of another person"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; 1 if there are problems."""
    rate, persons = _rate(arguments.rate), _persons(arguments.persons)
    policy = policy_of(arguments)
    plan = make_plan(policy, rate, persons)
    findings = list(_findings(policy, plan, persons))
    if arguments.json:
        print(json.dumps(_as_dict(plan, persons, findings)))
    else:
        sys.stdout.write(render(_sections(policy, plan, persons), findings))
    return int(any(finding.severity is Severity.PROBLEM for finding in findings))


def _rate(text: str) -> float:
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) * _MANY[found[2]] / _TIMES[found[3]] if found else 0.0
    if not 0 < rate < 1e12:
        msg = f"--rate must be a number of rows per time above 0, such as 50000/s, 50k/s, 200/m or 3M/h, not {text!r}."
        raise CommandError(msg)
    return rate


def _persons(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)([kM]?)", text.strip(), re.ASCII)
    persons = int(found[1]) * _MANY[found[2]] if found else 0
    if persons < 1:
        msg = f"--persons must be a whole number of at least 1, such as 2000000 or 2M, not {text!r}."
        raise CommandError(msg)
    return persons


# --- In words ---


def _sections(policy: Policy, plan: Plan, persons: int | None) -> list[Section]:
    return [
        Section("The stream", tuple(_stream(policy, plan))),
        Section("Shards", tuple(_shards(policy, plan))),
        Section("What it costs", tuple(_costs(plan))),
        Section("Assumptions", tuple(_assumed(policy, persons))),
    ]


def _stream(policy: Policy, plan: Plan) -> Iterator[Line]:
    yield "rate", f"{_number(plan.rate)} rows per second"
    yield (
        "deadline",
        f"{_time(plan.deadline)}, in which {_number(plan.rows)} rows of {_number(plan.persons)} persons come",
    )
    yield "k", f"{policy.k}"


def _shards(policy: Policy, plan: Plan) -> Iterator[Line]:
    by = policy.shard_by.value if isinstance(policy.shard_by, ShardBy) else listed(policy.shard_by)
    yield "in the policy", f"{plan.asked.shards}, by {by}: {_meaning(plan.asked)}"
    if plan.advised is not None and plan.advised != plan.asked:
        yield "advised", f"{plan.advised.shards}, the fewest that keep up: {_meaning(plan.advised)}"
    yield "at most", f"{plan.most:,}, so that each sees {MEASURED.crowd:g} times k persons within the deadline"


def _meaning(shards: Shards) -> str:
    crowd = f"each sees {_number(shards.persons)} persons within the deadline, {_number(shards.crowd)} times k"
    return (
        f"{crowd}; the fullest is busy {shards.busy:.0%} of the time; loss is {shards.loss:.2f} times that of 1 shard"
    )


def _costs(plan: Plan) -> Iterator[Line]:
    yield (
        "processor",
        f"{max(plan.cores, 0.1):,.1f} cores for crenel's steps, each busy {MEASURED.busy:.0%} of the time",
    )
    yield "held rows", f"at most {_bytes(plan.held_bytes)}, {_bytes(plan.shard_bytes)} per shard"
    yield (
        "state",
        f"at most {_bytes(plan.stored_bytes)}, the log included; {_bytes(plan.written_bytes)} written per second",
    )


def _assumed(policy: Policy, persons: int | None) -> Iterator[Line]:
    if persons is None:
        yield "persons", "every row within the deadline is of another person; set --persons if not"
    else:
        yield "persons", f"{persons:,}, all equally active"
    shard = f"{MEASURED.row_us:g} us for a row in its shard, {MEASURED.pack_us:g} us for a pack of rows"
    rest = f"{MEASURED.spread_us:g} us for a row before and after its shard; bundles of {MEASURED.bundle:,} rows"
    yield "time", f"{shard}, {rest}. Reading, writing and the runner itself are not included"
    if policy.shard_by is ShardBy.LOCALITY:
        yield "loss", "the same for any number of shards, as measured on Adult and the census"
        yield "balance", f"{MEASURED.fullest:.0%} of the rows are in the fullest shard"
    else:
        growth = f"grows with the number of shards to the power of {MEASURED.loss_power:g}"
        yield "loss", f"{growth}, as measured on Adult and the census"
    yield "source", "measured by python -m benchmarks.scale; docs/scale.md has the tables"


# --- What is wrong ---


def _findings(policy: Policy, plan: Plan, persons: int | None) -> Iterator[Finding]:
    yield from _crowd(policy, plan)
    yield from _speed(policy, plan)
    yield from _size(plan)
    if persons is None:
        text = "If the same persons come again within the deadline, there are fewer: set --persons."
        yield Finding(Severity.NOTE, text)


def _crowd(policy: Policy, plan: Plan) -> Iterator[Finding]:
    asked = plan.asked
    if asked.crowd < 1:
        text = (
            f"A shard sees {_number(asked.persons)} persons within the deadline, fewer than k ({policy.k}): hardly any "
            f"row finds a group. {_longer(policy, plan)}"
        )
        yield Finding(Severity.PROBLEM, text)
    elif asked.crowd < MEASURED.crowd:
        text = (
            f"A shard sees {_number(asked.crowd)} times k persons within the deadline. With fewer than "
            f"{MEASURED.crowd:g} times, rows are suppressed and groups are coarse. {_longer(policy, plan)}"
        )
        yield Finding(Severity.WARNING, text)


def _speed(policy: Policy, plan: Plan) -> Iterator[Finding]:
    asked, advised = plan.asked, plan.advised
    if asked.busy > MEASURED.busy:
        worst = Severity.PROBLEM if asked.busy >= 1 else Severity.WARNING
        yield Finding(worst, f"The fullest shard would be busy {asked.busy:.0%} of the time. {_more(policy, plan)}")
    if advised is None:
        return
    if advised.shards > max(plan.most, 1):
        text = (
            f"The stream needs {count(advised.shards, 'shard')} to keep up, but only {count(plan.most, 'shard')} would "
            "see enough persons each. Set shard_by: locality, a longer delay or a smaller k."
        )
        yield Finding(Severity.WARNING, text)
    small = plan.held_bytes / advised.shards <= MEASURED.largest
    if advised.shards < asked.shards and asked.busy <= MEASURED.busy and small:
        less = 1 - advised.loss / asked.loss
        better = f", and would lose {percent(less)} less information" if less > 0 else ""
        yield Finding(Severity.NOTE, f"{count(advised.shards, 'shard')} would keep up, too{better}.")


def _size(plan: Plan) -> Iterator[Finding]:
    if plan.shard_bytes > MEASURED.largest:
        pause = plan.rows / plan.asked.shards * MEASURED.snapshot_us / 1e6
        text = (
            f"A shard holds up to {_bytes(plan.shard_bytes)}. When it writes or reads all of it, it pauses for about "
            f"{_time(pause)}. It sees {_number(plan.asked.crowd)} times k persons within the deadline, more than it "
            "needs: shorten the delay, or use more shards."
        )
        yield Finding(Severity.WARNING, text)


def _longer(policy: Policy, plan: Plan) -> str:
    if math.isinf(plan.shortest):
        return f"The stream has too few persons for k = {policy.k}: lower k."
    if plan.most >= 1:
        return f"Use at most {count(plan.most, 'shard')}, or a longer delay."
    return f"Even one shard needs {_time(plan.shortest)} to see that many: set a longer delay, or lower k."


def _more(policy: Policy, plan: Plan) -> str:
    if plan.advised is not None:
        return f"Use {count(plan.advised.shards, 'shard')}."
    if policy.shard_by is ShardBy.LOCALITY:
        return "More shards do not help, since most rows are in one: use shard_by: person."
    return "No number of shards keeps up: make bundles larger, or split the stream over several pipelines."


# --- Numbers ---


def _as_dict(plan: Plan, persons: int | None, findings: list[Finding]) -> dict[str, Any]:
    told = dataclasses.asdict(plan) | {"assumed": {"persons": persons, **dataclasses.asdict(MEASURED)}}
    told["shortest"] = None if math.isinf(plan.shortest) else plan.shortest
    told["findings"] = [{"severity": finding.severity.value, "text": finding.text} for finding in findings]
    return told


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _time(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} seconds"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000:
            return f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:,.3g} TB"
