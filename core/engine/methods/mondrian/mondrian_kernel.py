"""Mondrian's hot loops: a set of rows, cut in two or more until no part can be cut again.

A *part* is a run of each line of `orders`: line `d` has the numbers of all rows, those of a part in the order of
quasi-identifier `d`. So nothing is sorted here: cutting a part moves its rows, line by line, and keeps their order.

What is asked of a part (k persons, l values) is `needed`: how many distinct codes, for each line of `codes`, where the
first line is the persons.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.common import INTERVAL, TREE, Array, Space, inner, kernel
from crenel.engine.kernels.group_boxes import span_of


class Runs(NamedTuple):
    """The children of a span that have rows: where these begin and end, and whether they are enough by themselves."""

    begin: Any
    end: Any
    alone: Any


class Scratch(NamedTuple):
    """Room to compute with."""

    runs: Runs
    part: Any  # per row of the part that is being cut: where it would go
    buffer: Any
    ends: Any  # per part
    los: Any  # per part
    his: Any


class Wanted(NamedTuple):
    """What a part must have."""

    needed: Any  # per line of codes: how many distinct ones
    codes: Any  # [line, row]: 0, 1, ...
    seen: Any  # [line, code]: the last question in which it was met
    asked: Any  # one number: how many questions there were


@inner
def _ready(wanted: Wanted, rows: Array) -> bool:
    """Whether the rows have as many distinct persons and values as are needed."""
    wanted.asked[0] += 1
    question = wanted.asked[0]
    for line in range(wanted.needed.size):
        missing = wanted.needed[line]
        for i in range(rows.size):
            code = wanted.codes[line, rows[i]]
            if wanted.seen[line, code] != question:
                wanted.seen[line, code] = question
                missing -= 1
                if missing == 0:
                    break
        if missing > 0:
            return False
    return True


@inner
def _child_end(space: Space, d: int, lo: float, hi: float, node: int, x: float) -> float:
    """The last coordinate of the child of the span [lo, hi] (of tree node `node`) that has `x` in it."""
    dimension = space.dimensions[d]
    if dimension.kind == TREE:
        child = space.leaf[dimension.leaf_offset + np.int64(x)]
        while space.nodes[child].parent != node:
            child = space.nodes[child].parent
        return space.nodes[child].last
    size = (hi - lo + 1.0) / dimension.base
    return np.floor(x / size) * size + size - 1.0


@inner
def _cut_in_two(wanted: Wanted, column: Array, rows: Array, relaxed: bool, part: Array) -> int:
    """Cut rows, which are in the order of their values, at the median; the number of parts, 0 if there is no cut."""
    n = rows.size
    half = n // 2
    median = column[rows[half]]
    below_median, above_median = half, half
    while below_median > 0 and column[rows[below_median - 1]] == median:
        below_median -= 1
    while above_median < n and column[rows[above_median]] == median:
        above_median += 1
    near, far = below_median, above_median
    if above_median - half < half - below_median:
        near, far = above_median, below_median
    # Equal values are cut apart only if nothing else is allowed.
    for cut in (near, far, half if relaxed else 0):
        if 0 < cut < n and _ready(wanted, rows[:cut]) and _ready(wanted, rows[cut:]):
            for i in range(n):
                part[rows[i]] = i >= cut
            return 2
    return 0


@inner
def _children(
    space: Space, d: int, span: tuple[float, float, int], wanted: Wanted, column: Array, rows: Array, runs: Runs
) -> int:
    """Find the children of the span among rows in the order of their values; the number of children."""
    lo, hi, node = span
    count, start = 0, 0
    while start < rows.size:
        last = _child_end(space, d, lo, hi, node, column[rows[start]])
        stop = start + 1
        while stop < rows.size and column[rows[stop]] <= last:
            stop += 1
        runs.begin[count], runs.end[count] = start, stop
        runs.alone[count] = _ready(wanted, rows[start:stop])
        count += 1
        start = stop
    return count


@inner
def _pooled(rows: Array, runs: Runs, count: int, buffer: Array) -> int:
    """Write the rows of the children that are not alone; their number."""
    at = 0
    for run in range(count):
        if not runs.alone[run]:
            for i in range(runs.begin[run], runs.end[run]):
                buffer[at] = rows[i]
                at += 1
    return at


@inner
def _pool(wanted: Wanted, rows: Array, runs: Runs, count: int, buffer: Array) -> None:
    """Take the smallest of the children that are alone to those that are not, until these are enough together."""
    while True:
        pooled = _pooled(rows, runs, count, buffer)
        if pooled == 0 or _ready(wanted, buffer[:pooled]):
            return
        smallest = -1
        for run in range(count):
            if runs.alone[run] and (
                smallest < 0 or runs.end[run] - runs.begin[run] < runs.end[smallest] - runs.begin[smallest]
            ):
                smallest = run
        runs.alone[smallest] = False  # there is one: all rows together are enough


@inner
def _cut_by_children(
    wanted: Wanted, rows: Array, runs: Runs, count: int, spare: int, part: Array, buffer: Array
) -> tuple[int, int]:
    """Cut rows into those of each child.

    Children that are too small stay together under the span itself, if need be with others. If at most `spare` rows are
    in such, and not all are, each is left over instead. Returns the number of parts, 0 if there is no cut, and how many
    of them, the last ones, are left over.
    """
    small = _pooled(rows, runs, count, buffer)
    leave = 0 < small <= spare and small < rows.size
    if not leave:
        _pool(wanted, rows, runs, count, buffer)
    parts, left, pooled = 0, 0, False
    for alone in (True, False):
        for run in range(count):
            if runs.alone[run] == alone:
                for i in range(runs.begin[run], runs.end[run]):
                    part[rows[i]] = parts
                if alone or leave:
                    parts += 1
                    left += not alone
                else:
                    pooled = True
    parts += pooled
    if parts < 2:
        return 0, 0
    return parts, left


@inner
def _cut(
    space: Space, columns: Array, wanted: Wanted, lines: Array, d: int, relaxed: bool, spare: int, scratch: Scratch
) -> tuple[int, int]:
    """Cut a part along one quasi-identifier.

    Returns the number of parts, 0 if there is no cut, and how many of them, the last ones, are left over.
    """
    column, rows = columns[d], lines[d]
    span = span_of(space, d, column[rows[0]], column[rows[rows.size - 1]])
    if space.dimensions[d].scale * (span[1] - span[0]) <= 0.0:
        return 0, 0
    if space.dimensions[d].kind == INTERVAL:
        return _cut_in_two(wanted, column, rows, relaxed, scratch.part), 0
    count = _children(space, d, span, wanted, column, rows, scratch.runs)
    return _cut_by_children(wanted, rows, scratch.runs, count, spare, scratch.part, scratch.buffer)


@inner
def _ends_of_parts(column: Array, rows: Array, parts: int, part: Array, los: Array, his: Array) -> None:
    """Write the least and the greatest value of each part, of rows that are in the order of their values."""
    for p in range(parts):
        los[p], his[p] = np.inf, -np.inf
    met, i = 0, 0
    while met < parts:
        p = part[rows[i]]
        if los[p] == np.inf:
            los[p] = column[rows[i]]
            met += 1
        i += 1
    i = rows.size - 1
    while met > 0:
        p = part[rows[i]]
        if his[p] == -np.inf:
            his[p] = column[rows[i]]
            met -= 1
        i -= 1


@inner
def _loss_after(space: Space, columns: Array, lines: Array, parts: int, left: int, scratch: Scratch) -> float:
    """The losses of the rows, if these are the parts; a row of those that are left over may lose everything."""
    part, sizes, los, his = scratch.part, scratch.ends, scratch.los, scratch.his
    for p in range(parts):
        sizes[p] = 0
    for i in range(lines.shape[1]):
        sizes[part[lines[0, i]]] += 1
    total = 0.0
    for p in range(parts - left, parts):
        total += sizes[p]
    for d in range(lines.shape[0]):
        _ends_of_parts(columns[d], lines[d], parts, part, los, his)
        for p in range(parts - left):
            lo, hi, _ = span_of(space, d, los[p], his[p])
            total += space.dimensions[d].scale * (hi - lo + space.dimensions[d].cell) * sizes[p]
    return total


@inner
def _move(lines: Array, parts: int, scratch: Scratch) -> None:
    """Put the rows of each part together, in every line; `scratch.ends` are where the parts end."""
    part, ends, places, buffer = scratch.part, scratch.ends, scratch.runs.begin, scratch.buffer
    for d in range(lines.shape[0]):
        for p in range(parts):
            ends[p] = 0
        for i in range(lines.shape[1]):
            ends[part[lines[d, i]]] += 1
        at = 0
        for p in range(parts):
            places[p] = at
            at += ends[p]
            ends[p] = at
        for i in range(lines.shape[1]):
            row = lines[d, i]
            buffer[places[part[row]]] = row
            places[part[row]] += 1
        for i in range(lines.shape[1]):
            lines[d, i] = buffer[i]


@inner
def _split(
    space: Space, columns: Array, wanted: Wanted, lines: Array, relaxed: bool, spare: int, scratch: Scratch
) -> tuple[int, int]:
    """Cut a part along the quasi-identifier after which its rows lose the least (then the first).

    Returns the number of parts, 0 if there is no cut, and how many of them, the last ones, are left over.
    """
    best, best_spare, least = -1, 0, np.inf
    for d in range(lines.shape[0]):
        for may_spare in (0, spare):
            parts, left = _cut(space, columns, wanted, lines, d, relaxed, may_spare, scratch)
            if parts > 0:
                loss = _loss_after(space, columns, lines, parts, left, scratch)
                if loss < least:
                    best, best_spare, least = d, may_spare, loss
            if spare == 0 or space.dimensions[d].kind == INTERVAL:
                break
    if best < 0:
        return 0, 0
    parts, left = _cut(space, columns, wanted, lines, best, relaxed, best_spare, scratch)
    _move(lines, parts, scratch)
    return parts, left


@kernel
def partition(
    space: Space, columns: Array, orders: Array, wanted: Wanted, relaxed: bool, spare: int, group: Array
) -> None:
    """Write the number of each row's group; -1, -2, ... of those that are left over together.

    `columns` has a quasi-identifier in each line; `orders` the rows in the order of that. The latter is overwritten.
    """
    n = group.size
    if not _ready(wanted, orders[0]):
        for row in range(n):
            group[row] = -1
        return
    numbers = np.empty((7, n), dtype=np.int64)
    runs = Runs(numbers[0], numbers[1], np.empty(n, dtype=np.bool_))
    scratch = Scratch(runs, part=numbers[2], buffer=numbers[3], ends=numbers[4], los=np.empty(n), his=np.empty(n))
    # Parts that are still to be looked at, the next one last.
    begin, end = numbers[5], numbers[6]
    begin[0], end[0] = 0, n
    waiting, groups, left_over = 1, 0, 0
    while waiting > 0:
        waiting -= 1
        start, stop = begin[waiting], end[waiting]
        lines = orders[:, start:stop]
        parts, left = 0, 0
        if stop - start >= 2 * wanted.needed[0]:
            parts, left = _split(space, columns, wanted, lines, relaxed, spare, scratch)
        if parts == 0:
            for i in range(stop - start):
                group[lines[0, i]] = groups
            groups += 1
        for p in range(parts - 1, -1, -1):
            first = scratch.ends[p - 1] if p > 0 else 0
            last = scratch.ends[p]
            if p < parts - left:
                begin[waiting], end[waiting] = start + first, start + last
                waiting += 1
                continue
            spare -= last - first
            for i in range(first, last):
                group[lines[0, i]] = -(left_over + 1 + p - (parts - left))
        left_over += left
