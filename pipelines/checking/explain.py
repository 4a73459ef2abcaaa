"""A policy in words: which columns are published and how, what is promised, and when a row is released."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import pairwise
from typing import Any

from crenel.audit.differential_privacy import stated
from crenel.pipelines.checking.advice import reuses, uncrowded
from crenel.pipelines.console.sections import Line, Section, count, listed, sentence, spoken
from crenel.policy import OnSuppress, Policy
from crenel.policy.durations import FOREVER, format_duration
from crenel.policy.geometry import Geometry, Interval, Radix, Tree
from crenel.policy.parameters import Parameter
from crenel.policy.quasi_identifiers import Categorical, Datetime, Missing, QuasiIdentifier, Range, Unknown

__all__ = ["example", "explain"]

#: The widths of a range of moments in an example, in microseconds: a second to a year.
_CALENDAR = [10**6 * s for s in (1, 60, 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)]

#: The digits of an example of a code: mixed, so that a reader can tell them apart.
_MIXED = (5, 3, 7, 0, 6, 1, 9, 2, 8, 4)


def explain(policy: Policy) -> list[Section]:
    """Explain the policy, in sections."""
    return [
        Section("Published columns", tuple(_published_columns(policy))),
        Section("Columns that are never published", tuple(_hidden_columns(policy))),
        Section("What the policy promises", tuple(_promises(policy))),
        Section("When a row is released", tuple(_deadline(policy))),
        Section("Rows held in memory", (_memory(policy),)),
        Section("Method", tuple(_method(policy))),
    ]


def example(qi: QuasiIdentifier) -> str:
    """Show how a value is generalized step by step: `53706 -> 5370* -> 537** -> *****`.

    The value is made up, or is one of the policy's own labels. Empty if the domain is not known.
    """
    geometry = qi.values
    if isinstance(geometry, Interval) and geometry.learned:
        return ""
    shown = [published(qi.publish(lo, hi)) for lo, hi in _climb(qi, geometry)]
    steps = shown[:1] + [after for before, after in pairwise(shown) if after != before]
    if len(steps) > 4:
        steps = [*steps[:3], "...", steps[-1]]
    return " -> ".join(steps)


def published(value: Any) -> str:
    """Write a published value as a reader would."""
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
    # A leaf as deep as any. Of a large tree, looking at the first leaves is enough.
    paths = (_ancestors(geometry, leaf) for leaf in geometry.leaf[:100].tolist())
    for above in max(paths, key=len):
        yield (float(geometry.first[above]), float(geometry.last[above]))


def _ancestors(geometry: Tree, node: int) -> list[int]:
    path = [node]
    while path[-1] != 0:
        path.append(int(geometry.parent[path[-1]]))
    return path


def _published_columns(policy: Policy) -> Iterator[Line]:
    for name, qi in policy.quasi_identifiers.items():
        made_of = [one for one in qi.inputs(name) if one != name]
        of = f" of {listed(made_of)}" if made_of else ""
        yield name, f"quasi-identifier{of}: {_how(qi)}" + _weight(qi) + _gaps(policy, name)
    for name, column in policy.sensitive.items():
        how = "with noise" if name in policy.parameter("perturb_sensitive", {}) else "as it is"
        size = f", one of {column.size} values" if column.values is not None else ""
        bins = f", counted in {column.size} ranges" if column.domain is not None else ""
        order = ", which are ordered" if column.ordered else ""
        yield name, f"sensitive: {how}{size}{bins}{order}"
    for name, treatment in policy.treat.items():
        yield name, f"treated column: {treatment.reveals()}"
    for name in (name for name in policy.publish if name not in policy.treat):
        apart = "as it is; the rows of a group share it (within)"
        yield name, f"other column: {apart if name in policy.within else 'as it is; crenel checks nothing about it'}"


def _how(qi: QuasiIdentifier) -> str:
    shown = example(qi)
    if not shown:
        step = getattr(qi, "step", None)
        ends = "" if step is None else f" whose ends are multiples of {_plain(step)}"
        return f"as a range{ends}; the domain is learned from the stream"
    if isinstance(qi, Categorical):
        hierarchy = qi.hierarchy
        size = f"{count(len(hierarchy), 'value')}, {count(hierarchy.depth, 'level')} above them"
        return f"as a node of its hierarchy ({size}), such as {shown}"
    return f"generalized, such as {shown}"


def _gaps(policy: Policy, name: str) -> str:
    """Say what becomes of missing and unknown values."""
    qi, told = policy.quasi_identifiers[name], ""
    if qi.missing is Missing.CATEGORY:
        told = "; a missing value is a value of its own, published as null"
        if isinstance(qi.geometry, Interval):
            told += ", and a range without an upper end includes missing values"
        else:
            told += f", and {published(qi.publish(*qi.geometry.widest()))} includes missing values"
    elif policy.missing(name) is Missing.REJECT:
        told = "; a row without it is rejected"
    if isinstance(qi, Categorical) and qi.unknown is Unknown.ROOT:
        told += f"; a value that the hierarchy does not have is published as {qi.hierarchy.root_label}"
    return told


def _weight(qi: QuasiIdentifier) -> str:
    return "" if qi.weight == 1 else f" (its precision counts {qi.weight:g} times)"


def _hidden_columns(policy: Policy) -> Iterator[Line]:
    pseudonym = ", and published as a pseudonym, see above" if policy.person in policy.treat else ""
    if policy.each_row:
        yield "each row", "is about another person, says the policy: if a person has several rows, k persons are fewer"
    else:
        yield policy.person, f"the person: used only to count persons{pseudonym}"
    if policy.event_time is not None:
        if policy.event_time in policy.quasi_identifiers:
            yield policy.event_time, "the event time: only its generalization is published, see above"
        else:
            yield policy.event_time, "the event time: used only for the deadline"
    for name in policy.within:
        if name not in policy.publish:
            yield name, "used only to keep rows apart (within)"
    yield "(all others)", "a column that the policy does not name is never published"


def _promises(policy: Policy) -> Iterator[str]:
    if policy.crowd:
        yield (
            f"Each row is released together with others: a release has rows of at least {policy.k} persons (k), one "
            "row each, under one generalization, at one moment, in a secret random order."
        )
    elif policy.declaration.value_by_value:
        yield (
            f"Each row is released at once. At least {policy.k} persons (k) had each of its published values within "
            "the window before, counted value by value: nothing is promised about combinations of values."
        )
        yield f"A crowd at one moment is not promised: {'; '.join(why for why, _ in uncrowded(policy))}."
    else:
        yield (
            f"When a row is released, the rows published so far under the same generalization belong to at least "
            f"{policy.k} different persons (k)."
        )
        yield f"A crowd at one moment is not promised: {'; '.join(why for why, _ in uncrowded(policy))}."
    if Missing.HOLE in map(policy.missing, policy.quasi_identifiers):
        yield (
            "Rows may lack quasi-identifiers. All rows of a group are published with the same quasi-identifiers, and "
            "without the others."
        )
    if policy.once_per is not None:
        yield (
            f"Any two published rows of a person are at least {spoken(policy.once_per)} of event time apart "
            "(once_per). Rows between them are left out: the owner finds them among the suppressed ones."
        )
    if policy.together is not None:
        span = "" if policy.together == FOREVER else f" less than {spoken(policy.together)} apart"
        yield (
            f"All rows of a person that are published{span} have generalizations that fit at least {policy.k} persons "
            "at once (together). A row that the earlier ones do not fit, since the person's values changed, begins "
            "anew. Somebody who links the rows is left with these persons, though not with equally likely ones; "
            "somebody who also knows when the rows came may be left with one."
        )
    if policy.within:
        yield (
            f"Rows with different values of {listed(policy.within)} are kept apart (within): the persons of a group "
            "share them, and an attacker who knows them finds no smaller crowd."
        )
    names = listed(policy.sensitive)
    each = names if len(policy.sensitive) == 1 else f"each of {names}"
    if policy.l is not None:
        yield f"Each group has at least {policy.l} different values of {each} (l)."
    if policy.t is not None:
        yield (
            f"In each group, the values of {each} are distributed nearly as in the whole stream so far: at a distance "
            f"of at most {policy.t:g}, where 1 is the largest possible (t)."
        )
    if policy.on_suppress is OnSuppress.STAR:
        yield (
            "A row that finds no group in time is published with every quasi-identifier at its widest "
            "(on_suppress: star). The promises above do not cover such a row."
        )
    else:
        yield "A row that finds no group in time is not published (on_suppress: drop)."
    if policy.declaration.perturbs:
        yield "Generalizations cover perturbed values: they need not contain the row's own."
    statement = stated(policy)
    if statement is not None:
        yield sentence(f"{statement}.")


def _deadline(policy: Policy) -> Iterator[str]:
    limits = []
    if policy.delay is not None:
        limits.append(f"{spoken(policy.delay)} after its event time (delay)")
    if policy.delay_rows is not None:
        limits.append(f"when {count(policy.delay_rows, 'later row')} of its shard have come (delay_rows)")
    earlier = ", whichever is earlier" if len(limits) == 2 else ""
    yield f"At the latest {', or '.join(limits)}{earlier}."
    if not policy.timed:
        return
    source = policy.event_time or "Beam's timestamp of the element"
    yield f"The event time is {source}."
    if policy.disorder:
        yield (
            f"Event times may be {spoken(policy.disorder)} out of order (disorder): the clock is that much behind the "
            "latest event time seen, unless the watermark is later."
        )
    yield (
        f"A row that is more than {spoken(policy.most_ahead or 0)} ahead of the latest event time (max_ahead) waits "
        "until other rows confirm its time, or is rejected."
    )


def _memory(policy: Policy) -> str:
    reusable = f", and {policy.parameters.max_reusable:,} reusable generalizations" if reuses(policy) else ""
    if policy.delay_rows is not None:
        return f"At most {count(policy.delay_rows, 'row')} of each shard{reusable}."
    window = spoken((policy.delay or 0) + policy.disorder)
    return f"All rows of each shard that come within {window}{reusable}."


def _method(policy: Policy) -> Iterator[Line]:
    yield "method", f"{policy.method}: {policy.declaration.summary}"
    for name, about in policy.declaration.fields.items():
        value = getattr(policy.parameters, name)
        if isinstance(value, Mapping) and not value:
            continue
        unused = about.used_with and policy.reuse not in about.used_with
        meaning = f"no effect with reuse: {policy.reuse.value}" if unused else about.sentence.rstrip(".")
        yield name, f"{_value(value, about)}: {meaning[0].lower()}{meaning[1:]}"


def _value(value: Any, about: Parameter) -> str:
    """Write a parameter's value as a reader would, with its unit."""
    if value is None:
        return f"not set ({about.unset})" if about.unset else "not set"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if about.unit == "microseconds":
        return format_duration(value)
    return f"{value:,} {about.unit}" if about.unit else str(value)
