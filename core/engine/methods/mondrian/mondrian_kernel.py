"""Mondrian's loops: a set of rows is cut into two or more parts, again and again, until no part can be cut.

A *part* is a run of each line of `orders`: line `d` has the numbers of all rows, those of a part in the order of
quasi-identifier `d`. So nothing is sorted here: cutting a part moves its rows, line by line, and keeps their order.

What a part must have (k persons, l values) is `needed`: how many distinct codes in each line of `codes`, whose first
line is the persons.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.arrays import Array
from crenel.engine.kernels.box_geometry import INTERVAL, TREE, Space, span_of
from crenel.engine.kernels.compiler import inner, kernel


class Runs(NamedTuple):
    """The children of a span that have rows: where the rows begin and end, and whether they are enough for a part."""

    begin: Any
    end: Any
    enough: Any


class Scratch(NamedTuple):
    """Scratch space."""

    runs: Runs
    part: Any  # for each row of the part that is being cut: which new part it would be in
    buffer: Any
    ends: Any  # per part
    los: Any  # per part
    his: Any


class Needs(NamedTuple):
    """What a part must have."""

    needed: Any  # for each line of codes: how many distinct ones
    codes: Any  # [line, row]: 0, 1, ...
    seen: Any  # [line, code]: the last check in which it was seen
    checks: Any  # one number: how many checks there were


@inner
def _is_enough(needs: Needs, rows: Array) -> bool:
    """Return whether the rows have enough distinct persons and values for a part."""
    needs.checks[0] += 1
    check = needs.checks[0]
    for line in range(needs.needed.size):
        missing = needs.needed[line]
        for i in range(rows.size):
            code = needs.codes[line, rows[i]]
            if needs.seen[line, code] != check:
                needs.seen[line, code] = check
                missing -= 1
                if missing == 0:
                    break
        if missing > 0:
            return False
    return True


@inner
def _child_end(space: Space, d: int, lo: float, hi: float, node: int, x: float) -> float:
    """Return the last coordinate of the child of span [lo, hi] (of tree node `node`) that contains `x`."""
    dimension = space.dimensions[d]
    if dimension.kind == TREE:
        child = space.leaf[dimension.leaf_offset + np.int64(x)]
        while space.nodes[child].parent != node:
            child = space.nodes[child].parent
        return space.nodes[child].last
    size = (hi - lo + 1.0) / dimension.digits
    return np.floor(x / size) * size + size - 1.0


@inner
def _cut_in_two(needs: Needs, column: Array, rows: Array, relaxed: bool, part: Array) -> int:
    """Cut rows, sorted by value, at the median. Return the number of parts, 0 if there is no cut."""
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
    # Rows with equal values are separated only if there is no other cut.
    for cut in (near, far, half if relaxed else 0):
        if 0 < cut < n and _is_enough(needs, rows[:cut]) and _is_enough(needs, rows[cut:]):
            for i in range(n):
                part[rows[i]] = i >= cut
            return 2
    return 0


@inner
def _cut_off_tail(
    space: Space, d: int, needs: Needs, column: Array, rows: Array, spare: int, part: Array
) -> tuple[int, int]:
    """Leave over the outermost rows of one end, at most `spare`, that lose the least in sum; of equal ones, the first.

    Rows are sorted by value. Those that are left over must be too few for a part of their own, and the others enough.
    Returns the number of parts, 0 if there is no cut, and how many of them (the last ones) are left over.
    """
    dimension = space.dimensions[d]
    n = rows.size
    first, last, least = 0, n, np.inf
    for low in (True, False):
        for tail in range(1, min(spare, n - 1) + 1):
            begin, end = (tail, n) if low else (0, n - tail)
            outside = rows[:tail] if low else rows[end:]
            if _is_enough(needs, outside) or not _is_enough(needs, rows[begin:end]):
                break
            inner_value, outer_value = (begin, begin - 1) if low else (end - 1, end)
            if column[rows[inner_value]] == column[rows[outer_value]]:
                continue
            width = column[rows[end - 1]] - column[rows[begin]] + dimension.cell
            loss = tail + dimension.scale * width * (n - tail)
            if loss < least:
                first, last, least = begin, end, loss
    if least == np.inf:
        return 0, 0
    for i in range(n):
        part[rows[i]] = not first <= i < last
    return 2, 1


@inner
def _children(
    space: Space, d: int, span: tuple[float, float, int], needs: Needs, column: Array, rows: Array, runs: Runs
) -> int:
    """Find the children of the span among rows in the order of their values, and return how many there are."""
    lo, hi, node = span
    count, start = 0, 0
    while start < rows.size:
        last = _child_end(space, d, lo, hi, node, column[rows[start]])
        stop = start + 1
        while stop < rows.size and column[rows[stop]] <= last:
            stop += 1
        runs.begin[count], runs.end[count] = start, stop
        runs.enough[count] = _is_enough(needs, rows[start:stop])
        count += 1
        start = stop
    return count


@inner
def _write_small(rows: Array, runs: Runs, count: int, buffer: Array) -> int:
    """Write the rows of the children that are not enough for a part, and return how many there are."""
    at = 0
    for run in range(count):
        if not runs.enough[run]:
            for i in range(runs.begin[run], runs.end[run]):
                buffer[at] = rows[i]
                at += 1
    return at


@inner
def _join_small(needs: Needs, rows: Array, runs: Runs, count: int, buffer: Array) -> None:
    """Add the smallest child that is enough to those that are not, until they are enough together."""
    while True:
        joined = _write_small(rows, runs, count, buffer)
        if joined == 0 or _is_enough(needs, buffer[:joined]):
            return
        smallest = -1
        for run in range(count):
            if runs.enough[run] and (
                smallest < 0 or runs.end[run] - runs.begin[run] < runs.end[smallest] - runs.begin[smallest]
            ):
                smallest = run
        runs.enough[smallest] = False  # there is one, since all rows together are enough


@inner
def _cut_by_children(
    needs: Needs, rows: Array, runs: Runs, count: int, spare: int, part: Array, buffer: Array
) -> tuple[int, int]:
    """Cut rows into the children of their span.

    Children that are too small for a part are joined, with a larger child if necessary. But if they have at most
    `spare` rows, and are not all, each of them is left over instead. Returns the number of parts, 0 if there is no cut,
    and how many of them (the last ones) are left over.
    """
    small = _write_small(rows, runs, count, buffer)
    leave = 0 < small <= spare and small < rows.size
    if not leave:
        _join_small(needs, rows, runs, count, buffer)
    parts, left, joined = 0, 0, False
    for enough in (True, False):
        for run in range(count):
            if runs.enough[run] == enough:
                for i in range(runs.begin[run], runs.end[run]):
                    part[rows[i]] = parts
                if enough or leave:
                    parts += 1
                    left += not enough
                else:
                    joined = True
    parts += joined
    if parts < 2:
        return 0, 0
    return parts, left


@inner
def _cut(
    space: Space, columns: Array, needs: Needs, lines: Array, d: int, relaxed: bool, spare: int, scratch: Scratch
) -> tuple[int, int]:
    """Cut a part along one quasi-identifier; with `spare`, only so that rows are left over if it is a number.

    Returns the number of parts, 0 if there is no cut, and how many of them (the last ones) are left over.
    """
    column, rows = columns[d], lines[d]
    span = span_of(space, d, column[rows[0]], column[rows[rows.size - 1]])
    if space.dimensions[d].scale * (span[1] - span[0]) <= 0.0:
        return 0, 0
    if space.dimensions[d].kind == INTERVAL:
        if spare > 0:
            return _cut_off_tail(space, d, needs, column, rows, spare, scratch.part)
        return _cut_in_two(needs, column, rows, relaxed, scratch.part), 0
    count = _children(space, d, span, needs, column, rows, scratch.runs)
    return _cut_by_children(needs, rows, scratch.runs, count, spare, scratch.part, scratch.buffer)


@inner
def _ends_of_parts(column: Array, rows: Array, parts: int, part: Array, los: Array, his: Array) -> None:
    """Write the least and the greatest value of each part. The rows are in the order of their values."""
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
    """Return the total loss of the rows with these parts; a row that is left over may lose everything."""
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
    """Move the rows of each part together, in every line, and write the parts' ends to `scratch.ends`."""
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
    space: Space, columns: Array, needs: Needs, lines: Array, relaxed: bool, spare: int, scratch: Scratch
) -> tuple[int, int]:
    """Cut a part along the quasi-identifier after which its rows lose the least; of equal ones, the first.

    Rows are left over only where all rows then lose less than in an uncut part. Returns the number of parts, 0 if there
    is no cut, and how many of them (the last ones) are left over.
    """
    best, best_spare, least, uncut = -1, 0, np.inf, np.inf
    if spare > 0:
        for i in range(lines.shape[1]):
            scratch.part[lines[0, i]] = 0
        uncut = _loss_after(space, columns, lines, 1, 0, scratch)
    for d in range(lines.shape[0]):
        for may_spare in (0, spare):
            parts, left = _cut(space, columns, needs, lines, d, relaxed, may_spare, scratch)
            if parts > 0:
                loss = _loss_after(space, columns, lines, parts, left, scratch)
                if loss < least and (left == 0 or loss < uncut):
                    best, best_spare, least = d, may_spare, loss
            if spare == 0:
                break
    if best < 0:
        return 0, 0
    parts, left = _cut(space, columns, needs, lines, best, relaxed, best_spare, scratch)
    _move(lines, parts, scratch)
    return parts, left


@kernel
def partition(
    space: Space, columns: Array, orders: Array, needs: Needs, relaxed: bool, spare: int, group: Array
) -> None:
    """Write the number of each row's group; -1, -2, ... for the sets of rows that are left over.

    `columns` has one quasi-identifier per line, `orders` the rows in the order of each; `orders` is overwritten.
    """
    n = group.size
    if not _is_enough(needs, orders[0]):
        for row in range(n):
            group[row] = -1
        return
    numbers = np.empty((7, n), dtype=np.int64)
    runs = Runs(numbers[0], numbers[1], np.empty(n, dtype=np.bool_))
    scratch = Scratch(runs, part=numbers[2], buffer=numbers[3], ends=numbers[4], los=np.empty(n), his=np.empty(n))
    # The parts that wait to be cut, the next one last.
    begin, end = numbers[5], numbers[6]
    begin[0], end[0] = 0, n
    waiting, groups, left_over = 1, 0, 0
    while waiting > 0:
        waiting -= 1
        start, stop = begin[waiting], end[waiting]
        lines = orders[:, start:stop]
        parts, left = 0, 0
        if stop - start >= 2 * needs.needed[0] or spare > 0:
            parts, left = _split(space, columns, needs, lines, relaxed, spare, scratch)
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
