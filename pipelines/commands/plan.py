"""Say how many shards a stream can feed, and what they cost: processor, state, information.

It applies the rule of thumb of docs/scale.md to a policy and a rate of rows, and prints its
assumptions. It measures nothing on your machine: speed and loss depend on your data.

With --data, it learns a tree of shards from a sample of the stream: rows that could be in one group go to
one shard, and shards are even. --write stores it, for shard_by: {tree: FILE}. The tree tells where many
rows are: it is yours alone, and must not be published.

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

from crenel.encoding.row_sample import RowSample
from crenel.encoding.tree_learning import HELD, RATE, with_tree
from crenel.pipelines.checking.scale import MEASURED, Plan, Shards, is_near, make_plan
from crenel.pipelines.checking.tree_plan import TreePlan, rate_of
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.commands._policy_argument import add_policy, policy_of
from crenel.pipelines.commands.run import quiet
from crenel.pipelines.console.sections import Finding, Line, Section, Severity, count, listed, percent, render
from crenel.policy import Policy, ShardBy
from crenel.policy.durations import parse_duration
from crenel.policy.sharding.shard_rule import AUTO
from crenel.policy.sharding.shard_tree import MOST_SHARDS

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = """\
  crenel plan policy.yaml --rate 50000/s --persons 2000000
  crenel plan policy.yaml --data sample.csv --shards 32 --write shards.json"""

_RATE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)([kM]?)/(s|m|h|d)", re.ASCII)
_TIMES = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MANY = {"": 1, "k": 1_000, "M": 1_000_000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_policy(parser)
    parser.add_argument(
        "--rate", metavar="N/s", help="rows of the whole stream: 50000/s, 200/m, 3M/h; by default that of --data"
    )
    parser.add_argument(
        "--persons", metavar="N", help="persons in the stream; without it, every row is of another person"
    )
    parser.add_argument(
        "--checkpoints", default="10s", metavar="TIME", help="time between checkpoints of a stream on Flink (10s)"
    )
    parser.add_argument("--data", metavar="FILE", help="a sample of the stream: consecutive rows")
    parser.add_argument(
        "--shards", metavar="N", help="with --data: the most leaves of the tree; by default the policy's"
    )
    parser.add_argument("--write", metavar="FILE", help="with --data: where to write the tree")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; 1 if there are problems."""
    persons, shards = _persons(arguments.persons), _shards_asked(arguments)
    policy = policy_of(arguments)
    checkpoints = _checkpoints(arguments.checkpoints)
    sample = None if arguments.data is None else _sample(policy, arguments.data)
    rate = _rate_asked(arguments, policy, sample)
    plan = make_plan(policy, rate, persons, checkpoints=checkpoints)
    learned = None if sample is None else _learned(policy, plan, sample, shards)
    if learned is not None:
        policy = with_tree(policy, learned.tree)
        plan = make_plan(policy, rate, persons, checkpoints=checkpoints)
    findings = list(_findings(policy, plan, persons))
    findings += [] if learned is None else learned.findings()
    if arguments.write is not None and learned is not None:
        _write(learned, arguments.write)
    if arguments.json:
        print(json.dumps(_as_dict(plan, persons, findings, learned)))
    else:
        sys.stdout.write(render(_sections(policy, plan, persons, learned), findings))
        if arguments.write is not None:
            print(f"Wrote {arguments.write}. Name it in the policy, and never publish it: shard_by: {{tree: FILE}}")
    return int(any(finding.severity is Severity.PROBLEM for finding in findings))


def _sample(policy: Policy, path: str) -> RowSample:
    """Sample the rows of a file that fit the policy."""
    with quiet():  # loads Beam
        from crenel.pipelines.files.readers import open_file
        from crenel.pipelines.files.tree_sample import sample_of
    sample = sample_of(policy, [open_file(path)])
    if not len(sample.rows):
        msg = f"{path}: no row fits the policy. Try crenel check --data."
        raise CommandError(msg)
    return sample


def _learned(policy: Policy, plan: Plan, sample: RowSample, shards: int | None) -> TreePlan:
    if shards is None:
        shards = plan.asked.shards if plan.asked.shards > 1 or plan.advised is None else plan.advised.shards
    # A deadline in rows is one of the shard, which the learner knows.
    inside = math.inf if policy.delay is None else plan.rate * policy.delay / 1e6
    return TreePlan.of(policy, sample.rows, shards, inside)


def _write(learned: TreePlan, path: str) -> None:
    try:
        learned.tree.write(path)
    except OSError as error:
        msg = f"{path}: cannot be written: {(error.strerror or 'unknown reason').lower()}."
        raise CommandError(msg) from None


def _shards_asked(arguments: argparse.Namespace) -> int | None:
    for option in ("shards", "write"):
        if getattr(arguments, option) is not None and arguments.data is None:
            msg = f"--{option} needs --data, the sample that a tree is learned from."
            raise CommandError(msg)
    text = arguments.shards
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII) or int(text) > MOST_SHARDS:
        msg = f"--shards must be a whole number from 1 to {MOST_SHARDS}, not {text!r}."
        raise CommandError(msg)
    return int(text)


def _rate_asked(arguments: argparse.Namespace, policy: Policy, sample: RowSample | None) -> float:
    if arguments.rate is not None:
        return _rate(arguments.rate)
    rate = None if sample is None else rate_of(policy, sample)
    if rate is None:
        msg = "--rate must be given, unless --data has rows with event times."
        raise CommandError(msg)
    return rate


def _rate(text: str) -> float:
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) * _MANY[found[2]] / _TIMES[found[3]] if found else 0.0
    if not 0 < rate < 1e12:
        msg = f"--rate must be a number of rows per time above 0, such as 50000/s, 50k/s, 200/m or 3M/h, not {text!r}."
        raise CommandError(msg)
    return rate


def _checkpoints(text: str) -> float:
    micros = parse_duration(text.strip())
    if not micros:
        msg = f"--checkpoints must be a duration above 0 such as 500ms, 1s or 10s, not {text!r}."
        raise CommandError(msg)
    return micros / 1e6


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


def _sections(policy: Policy, plan: Plan, persons: int | None, learned: TreePlan | None) -> list[Section]:
    return [
        Section("The stream", tuple(_stream(policy, plan))),
        *([] if learned is None else [Section("The tree", tuple(learned.lines()))]),
        Section("From topic to topic on Flink", tuple(_sending(plan))),
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


def _sending(plan: Plan) -> Iterator[Line]:
    waits = f"{MEASURED.confirmations} checkpoints, {_time(plan.checkpoints)} apart"
    steps = f"{_time(MEASURED.steps_seconds)} for reading, bundles and the outbox"
    yield "published", f"at most about {_time(plan.sent)} after the deadline: {waits}, and {steps}"
    yield (
        "to publish sooner",
        "--checkpointing_interval of crenel run, in milliseconds; --checkpoints says what it gives",
    )


def _shards(policy: Policy, plan: Plan) -> Iterator[Line]:
    yield "in the policy", f"{_said(policy, plan)}, by {_by(policy)}: {_meaning(plan.asked)}"
    if plan.advised is not None and plan.advised != plan.asked:
        yield "advised", f"{plan.advised.shards}, the fewest that keep up: {_meaning(plan.advised)}"
    yield "at most", f"{plan.most:,}, so that each sees {MEASURED.crowd:g} times k persons within the deadline"


def _said(policy: Policy, plan: Plan) -> str:
    if policy.shards != AUTO:
        return f"{plan.asked.shards}"
    held = f"one for each {HELD:,} of {_number(plan.rate * plan.deadline)} rows within the deadline"
    rate = f"one for each {RATE:,} of {_number(plan.rate)} rows per second"
    return f"auto, which is {plan.asked.shards} ({held}, and {rate}; no more than see enough persons)"


def _by(policy: Policy) -> str:
    if isinstance(policy.shard_by, tuple):
        return listed(policy.shard_by)
    return policy.shard_by.value if isinstance(policy.shard_by, ShardBy) else "the tree"


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
    power = MEASURED.loss_power_tree if is_near(policy) else MEASURED.loss_power
    yield "loss", f"grows with the number of shards to the power of {power:g}, as measured on four streams"
    if is_near(policy):
        yield "balance", f"the fullest shard has {MEASURED.fullest:g} times the mean"
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
    followed = plan.rate * MEASURED.learn_us / 1e6
    if policy.shard_by is ShardBy.LOCALITY and policy.shards != 1 and followed > MEASURED.busy:
        text = (
            f"Files are fine; in a stream, all rows pass through one key that learns the tree, which would be busy "
            f"{followed:.0%} of the time. Learn the tree from a sample: --data SAMPLE --write shards.json."
        )
        yield Finding(Severity.WARNING, text)
    if advised is None:
        return
    if advised.shards > max(plan.most, 1):
        text = (
            f"The stream needs {count(advised.shards, 'shard')} to keep up, but only {count(plan.most, 'shard')} would "
            "see enough persons each. Set a longer delay or a smaller k."
        )
        yield Finding(Severity.WARNING, text)
    small = plan.held_bytes / advised.shards <= MEASURED.largest
    if advised.shards < asked.shards and asked.busy <= MEASURED.busy and small:
        less = 1 - advised.loss / asked.loss
        better = f", and would lose {percent(less)} less information" if less > 0 else ""
        yield Finding(Severity.NOTE, f"{count(advised.shards, 'shard')} would keep up, too{better}.")
    if asked.shards > 1 and not is_near(policy):
        text = "A tree of shards (--data SAMPLE --write shards.json) would lose less information than shard_by: person."
        yield Finding(Severity.NOTE, text)


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
    return "No number of shards keeps up: make bundles larger, or split the stream over several pipelines."


# --- Numbers ---


def _as_dict(plan: Plan, persons: int | None, findings: list[Finding], learned: TreePlan | None) -> dict[str, Any]:
    told = dataclasses.asdict(plan) | {"assumed": {"persons": persons, **dataclasses.asdict(MEASURED)}}
    told["shortest"] = None if math.isinf(plan.shortest) else plan.shortest
    if learned is not None:
        told["tree"] = learned.as_dict()
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
