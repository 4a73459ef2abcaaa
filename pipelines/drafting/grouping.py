"""Drafts a hierarchy of values: neighbours in the alphabet are grouped, balanced by how often they occur.

Codes that begin alike, and names that are written alike, are neighbours. So the groups are those of common beginnings,
as far as the frequencies allow: a frequent value stays alone, and rare ones are many together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["ENOUGH", "Group", "grouped", "paths"]

#: With fewer values, groups would say no more than the root does.
ENOUGH = 7

#: With more values, there are groups of groups.
_MANY = 100


@dataclass(frozen=True)
class Group:
    """A node of the hierarchy: its label, and what is under it, values or groups."""

    label: str
    under: tuple[Group | str, ...]


def grouped(counts: Mapping[str, int], root: str) -> Group:
    """Draft a hierarchy of values, of which each is given with the number of its rows.

    >>> grouped({"a": 9, "b": 9, "c": 9}, "*").under
    ('a', 'b', 'c')
    >>> [group.label for group in grouped({f"{n:02}": 1 for n in range(16)}, "*").under]
    ['00 to 03', '04 to 07', '08 to 11', '12 to 15']
    """
    values = sorted(counts, key=_place)
    levels = 1 if len(values) < ENOUGH else 2 if len(values) <= _MANY else 3
    labels = {root, *values}
    return Group(root, _under(values, counts, levels, labels))


def _place(value: str) -> tuple[bool, float, str]:
    """Order numbers by their size, before all other values."""
    is_number = value.isascii() and value.removeprefix("-").isdigit()
    return not is_number, float(value) if is_number else 0.0, value


def paths(group: Group, above: Sequence[str] = ()) -> Iterator[list[str]]:
    """Yield the labels from each value up to the root: the lines of a hierarchy's file."""
    for child in group.under:
        if isinstance(child, Group):
            yield from paths(child, (group.label, *above))
        else:
            yield [child, group.label, *above]


def _under(values: Sequence[str], counts: Mapping[str, int], levels: int, labels: set[str]) -> tuple[Group | str, ...]:
    if levels == 1:
        return tuple(values)
    fan = math.ceil(len(values) ** (1 / levels))
    found: list[Group | str] = []
    for part in _balanced(values, counts, fan):
        if len(part) == 1:
            found.append(part[0])
            continue
        label = _label(part, labels)
        labels.add(label)
        found.append(Group(label, _under(part, counts, levels - 1 if len(part) > ENOUGH else 1, labels)))
    return tuple(found)


def _balanced(values: Sequence[str], counts: Mapping[str, int], fan: int) -> Iterator[Sequence[str]]:
    """Cut a list into at most `fan` parts that have about as many rows each."""
    left, start, rows = sum(counts[value] for value in values), 0, 0
    for place, value in enumerate(values):
        rows += counts[value]
        if fan > 1 and rows * fan >= left and place + 1 < len(values):
            yield values[start : place + 1]
            left, start, rows, fan = left - rows, place + 1, 0, fan - 1
    yield values[start:]


def _label(part: Sequence[str], taken: set[str]) -> str:
    label = f"{part[0]} to {part[-1]}"
    while label in taken:
        label += " "
    return label
