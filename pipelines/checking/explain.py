"""A policy in words: what leaves and how, what is promised, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import pairwise
from typing import Any

from crenel.audit.differential_privacy import stated
from crenel.pipelines.checking.advice import reuses, uncrowded
from crenel.pipelines.console.sections import Line, Section, count, listed, spoken
from crenel.policy import OnSuppress, Policy
from crenel.policy.durations import format_duration
from crenel.policy.geometry import Geometry, Interval, Radix, Tree
from crenel.policy.parameters import Parameter
from crenel.policy.quasi_identifiers import Categorical, Datetime, QuasiIdentifier, Range

__all__ = ["example", "explain"]

#: Microseconds in which a range of moments is shown: a second to a year.
_CALENDAR = [10**6 * s for s in (1, 60, 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)]

#: What a code is shown by: mixed, so that its digits can be told apart.
_MIXED = (5, 3, 7, 0, 6, 1, 9, 2, 8, 4)


def explain(policy: Policy) -> list[Section]:
    """The policy in words."""
    return [
        Section("What leaves", tuple(_leaves(policy))),
        Section("What never leaves", tuple(_stays(policy))),
        Section("What is promised", tuple(_promises(policy))),
        Section("When a row leaves", tuple(_deadline(policy))),
        Section("What is held in memory", (_memory(policy),)),
        Section("How", tuple(_method(policy))),
    ]


def example(qi: QuasiIdentifier) -> str:
    """A value on its way up, as it would be published: `53706 -> 5370* -> 537** -> *****`.

    The value is made up, or is one of the policy's own; empty where the domain is not known.
    """
    geometry = qi.geometry
    if isinstance(geometry, Interval) and geometry.learned:
        return ""
    shown = [published(qi.publish(lo, hi)) for lo, hi in _climb(qi, geometry)]
    steps = shown[:1] + [after for before, after in pairwise(shown) if after != before]
    if len(steps) > 4:
        steps = [*steps[:3], "...", steps[-1]]
    return " -> ".join(steps)


def published(value: Any) -> str:
    """A published value as a reader would write it."""
    if not isinstance(value, Range):
        return str(value)
    lo, hi = (_plain(end) for end in value)
    return lo if lo == hi else f"[{lo}, {hi}]"


def _plain(end: Any) -> str:
    if isinstance(end, float) and end.is_integer() and abs(end) < 1e15:
        return str(int(end))
    return f"{end:.6g}" if isinstance(end, float) else str(end)


def _climb(qi: QuasiIdentifier, geometry: Geometry) -> Iterator[tuple[float, float]]:
    if isinstance(geometry, Interval) and geometry.cells:
        return _climb_cells(geometry)
    if isinstance(geometry, Interval):
        return _climb_interval(geometry, calendar=isinstance(qi, Datetime))
    return _climb_radix(geometry) if isinstance(geometry, Radix) else _climb_tree(geometry)


def _climb_interval(geometry: Interval, *, calendar: bool) -> Iterator[tuple[float, float]]:
    lo, hi = geometry.widest()
    tenth = (hi - lo) / 10
    steps = _CALENDAR if calendar else [m * 10.0**e for e in range(-12, 16) for m in (1, 2, 5)]
    step = max((step for step in steps if step <= tenth), default=tenth)
    start = (lo + 4 * tenth) // step * step
    near = (max(lo, start), min(hi, start + step))
    value = near[0] + (0 if calendar else 0.4 * step)
    yield from ((value, value), near, (lo, hi))


def _climb_cells(geometry: Interval) -> Iterator[tuple[float, float]]:
    lo, hi = geometry.widest()
    tenth = (hi - lo + 1) // 10
    first = lo + 4 * tenth
    yield from ((first, first), (first, max(first + tenth - 1, first)), (lo, hi))


def _climb_radix(geometry: Radix) -> Iterator[tuple[float, float]]:
    value = 0
    for place in range(geometry.length):
        value = value * geometry.base + _MIXED[place % len(_MIXED)] % geometry.base
    for digits in range(geometry.length + 1):
        size = geometry.base**digits
        yield (float(value // size * size), float(value // size * size + size - 1))


def _climb_tree(geometry: Tree) -> Iterator[tuple[float, float]]:
    # One of the deepest; of a large tree, the first leaves tell enough.
    paths = (_ancestors(geometry, leaf) for leaf in geometry.leaf[:100].tolist())
    for above in max(paths, key=len):
        yield (float(geometry.first[above]), float(geometry.last[above]))


def _ancestors(geometry: Tree, node: int) -> list[int]:
    path = [node]
    while path[-1] != 0:
        path.append(int(geometry.parent[path[-1]]))
    return path


def _leaves(policy: Policy) -> Iterator[Line]:
    for name, qi in policy.quasi_identifiers.items():
        yield name, f"quasi-identifier: {_how(qi)}" + _weight(qi)
    for name, column in policy.sensitive.items():
        as_it_is = "with noise" if name in policy.parameter("perturb_sensitive", {}) else "as it is"
        size = f", one of {column.size} values" if column.values is not None else ""
        bins = f", looked at in {column.size} ranges" if column.domain is not None else ""
        order = ", in their order" if column.ordered else ""
        yield name, f"sensitive: {as_it_is}{size}{bins}{order}"
    for name in policy.publish:
        yield name, "published: as it is; nothing is checked about it"


def _how(qi: QuasiIdentifier) -> str:
    shown = example(qi)
    if not shown:
        step = getattr(qi, "step", None)
        ends = "" if step is None else f" that ends at multiples of {_plain(step)}"
        return f"as a range{ends}; its domain is learned from the stream"
    if isinstance(qi, Categorical):
        hierarchy = qi.hierarchy
        size = f"{count(len(hierarchy), 'value')}, {count(hierarchy.depth, 'level')} above them"
        return f"as a node of its hierarchy ({size}), such as {shown}"
    return f"generalized, such as {shown}"


def _weight(qi: QuasiIdentifier) -> str:
    return "" if qi.weight == 1 else f" (its precision counts {qi.weight:g} times)"


def _stays(policy: Policy) -> Iterator[Line]:
    yield policy.person, "the person: only counted"
    if policy.event_time is not None:
        if policy.event_time in policy.quasi_identifiers:
            yield policy.event_time, "the event time, but for its generalization above"
        else:
            yield policy.event_time, "the event time: only for the deadline"
    yield "(all others)", "a column that the policy does not name never leaves"


def _promises(policy: Policy) -> Iterator[str]:
    if policy.crowd:
        yield (
            f"Every published row leaves in a release of rows of at least {policy.k} persons (k), each person in it "
            "once, at one moment, under one generalization, in an order drawn in secret."
        )
    else:
        yield (
            f"When a row leaves, the rows published so far under the same generalization are of at "
            f"least {policy.k} different persons (k)."
        )
        yield f"A crowd at one moment is not promised: {'; '.join(why for why, _ in uncrowded(policy))}."
    if policy.declaration.takes_holes:
        yield (
            "Rows may lack quasi-identifiers. A generalization includes which of them are published: that is the same "
            "for all rows of a group."
        )
    names = listed(policy.sensitive)
    each = names if len(policy.sensitive) == 1 else f"each of {names}"
    if policy.l is not None:
        yield f"They have at least {policy.l} different values of {each} (l)."
    if policy.t is not None:
        yield (
            f"The values of {each} are distributed as in the whole stream so far, within a "
            f"distance of {policy.t:g} of 1 (t)."
        )
    if policy.on_suppress is OnSuppress.STAR:
        yield (
            "A row that no group takes in time is published with every quasi-identifier at its "
            "widest (on_suppress: star); what is said above does not count it."
        )
    else:
        yield "A row that no group takes in time is not published (on_suppress: drop)."
    if policy.declaration.perturbs:
        yield "Generalizations are over perturbed values: a row's own need not lie in them."
    statement = stated(policy)
    if statement is not None:
        yield f"{str(statement)[0].upper()}{str(statement)[1:]}."


def _deadline(policy: Policy) -> Iterator[str]:
    limits = []
    if policy.delay is not None:
        limits.append(f"{spoken(policy.delay)} after its event time (delay)")
    if policy.delay_rows is not None:
        limits.append(f"when {count(policy.delay_rows, 'later row')} of its shard came (delay_rows)")
    earlier = ", whichever is earlier" if len(limits) == 2 else ""
    yield f"At the latest {', or '.join(limits)}{earlier}."
    if policy.delay is None:
        return
    source = policy.event_time or "Beam's timestamp of the element"
    yield f"The event time is {source}."
    if policy.disorder:
        yield (
            f"Event times may be {spoken(policy.disorder)} out of order: the clock is the latest "
            "one seen minus that (disorder), or the watermark."
        )


def _memory(policy: Policy) -> str:
    reusable = f", and {policy.parameters.max_reusable:,} generalizations" if reuses(policy) else ""
    if policy.delay_rows is not None:
        return f"At most {count(policy.delay_rows, 'row')} of each shard{reusable}."
    window = spoken((policy.delay or 0) + policy.disorder)
    return f"The rows of each shard that come within {window}, however many{reusable}."


def _method(policy: Policy) -> Iterator[Line]:
    yield "method", f"{policy.method}: {policy.declaration.summary}"
    for name, about in policy.declaration.fields.items():
        value = getattr(policy.parameters, name)
        if isinstance(value, Mapping) and not value:
            continue
        unused = about.used_with and policy.reuse not in about.used_with
        meaning = f"without effect under reuse: {policy.reuse.value}" if unused else about.sentence.rstrip(".")
        yield name, f"{_value(value, about)}: {meaning[0].lower()}{meaning[1:]}"


def _value(value: Any, about: Parameter) -> str:
    """A parameter's value as a reader would write it, with its unit."""
    if value is None:
        return f"not set ({about.unset})" if about.unset else "not set"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if about.unit == "microseconds":
        return format_duration(value)
    return f"{value:,} {about.unit}" if about.unit else str(value)
