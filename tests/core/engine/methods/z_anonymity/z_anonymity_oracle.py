"""z-anonymity, written again from its page, row by row and without state: all earlier rows are looked at anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crenel.policy import Policy
from crenel.policy.geometry import Interval, Radix, Tree

Span = tuple[float, float]


def spans(qi: Any, x: float, bins: int) -> Iterator[Span]:
    """Yield the spans of a value, the finest first."""
    yield x, x
    geometry = qi.values
    if x != qi.missing_at:
        yield from _between(geometry, x, bins)
    yield qi.geometry.widest()


def _between(geometry: Any, x: float, bins: int) -> Iterator[Span]:
    if isinstance(geometry, Interval):
        lo, hi = geometry.widest()
        count = min(bins, int(hi - lo) + 1) if geometry.cells else bins
        while count > 1:
            if geometry.cells:
                starts = [lo + at * (int(hi) - int(lo) + 1) // count for at in range(count + 1)]
                at = max(i for i in range(count) if starts[i] <= x)
                yield starts[at], starts[at + 1] - 1
            else:
                ends = [lo, *(lo + (hi - lo) * (at / count) for at in range(1, count)), hi]
                at = max(i for i in range(count) if ends[i] <= x)
                yield ends[at], ends[at + 1]
            count //= 2
    elif isinstance(geometry, Radix):
        for gone in range(1, geometry.length):
            size = geometry.base**gone
            yield float(x // size * size), float(x // size * size + size - 1)
    elif isinstance(geometry, Tree):
        chain = [int(geometry.leaf[int(x)])]
        while chain[-1]:
            chain.append(int(geometry.parent[chain[-1]]))
        # A node some levels below the root: a leaf that is less deep stands for itself.
        deepest = max(_depth(geometry, node) for node in range(len(geometry.parent)))
        for level in range(deepest - 1, 0, -1):
            node = next(node for node in chain if _depth(geometry, node) <= level)
            yield float(geometry.first[node]), float(geometry.last[node])


def _depth(tree: Tree, node: int) -> int:
    return 0 if node == 0 else 1 + _depth(tree, int(tree.parent[node]))


def box_of(policy: Policy, window: int, rows: list[Any], at: int) -> list[Span] | None:
    """Return the spans that a row is published under; None if it is suppressed."""
    latest = max(time for _, _, _, time in rows[: at + 1])
    inside = [row for row in rows[: at + 1] if row[3] >= latest - window]
    if rows[at] not in inside:
        return None
    box = []
    for d, qi in enumerate(policy.quasi_identifiers.values()):
        chains = [(person, set(spans(qi, point[d], policy.parameters.bins))) for point, person, _, _ in inside]
        for span in spans(qi, rows[at][0][d], policy.parameters.bins):
            if len({person for person, chain in chains if span in chain}) >= policy.k:
                box.append(span)
                break
        else:
            return None
    return box
