"""What the methods' kernels share: the generator, the space of quasi-identifiers, counting, and what leaves.

Functions take `numbers` as an array of one element with named fields; each method has fields of its own, and those
that are asked for here: `draws` by the generator; `clock`, `arrivals`, `released`, `out_rows` and `out_releases` by
what leaves.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

_Function = TypeVar("_Function")
Array = NDArray[Any]

INTERVAL, TREE, RADIX = 0, 1, 2
CLUSTER, REUSE, SUPPRESSED, SAMPLED_OUT = 0, 1, 2, 3
NONE = -1
EARLIEST, LATEST = -(2**63), 2**63 - 1
WORDS = 16


def kernel(function: _Function) -> _Function:
    """Compile `function` when it is first called, and keep the result on disk."""
    return cast(_Function, numba.njit(cache=True, nogil=True, _nrt=True)(function))


def inner(function: _Function) -> _Function:
    """The same, for what only kernels call: without the way in from Python, which takes as long to compile."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": True}  # not by who calls it: see `bare`
    return cast(_Function, numba.njit(cache=True, nogil=True, **options)(function))


def bare(function: _Function) -> _Function:
    """The same, for what makes no array: without counting who holds the arrays it is given, which its caller does.

    Counting is two atomic instructions for each array that is handed over, and a state has dozens: it was half of what
    a row cost. A function that makes an array, by `np.empty` or by copying, cannot be compiled like this.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    return cast(_Function, numba.njit(cache=True, nogil=True, **options)(function))


def inlined(function: _Function) -> _Function:
    """The same, copied into its callers.

    For glue: numba optimizes all that a function calls once more with each that calls it. And for what takes all of the
    state for each row, which is dear to hand over.
    """
    return cast(_Function, numba.njit(cache=True, nogil=True, inline="always")(function))


@bare
def copy_into(source: Array, target: Array) -> None:
    """Copy one row, as a slice assignment would, which takes a second to compile wherever it stands."""
    for d in range(source.size):
        target[d] = source[d]


@bare
def saturating_add(a: int, b: int) -> int:
    """The sum, or the limit that it is beyond."""
    if b >= 0:
        return a + b if a <= LATEST - b else LATEST
    return a + b if a >= EARLIEST - b else EARLIEST


# --- The generator: ChaCha20's keystream -----------------------------------------------------------------------------


class Random(NamedTuple):
    """The generator."""

    key: Any
    block: Any


@bare
def _quarter_round(x: Array, a: int, b: int, c: int, d: int) -> None:
    x[a] = x[a] + x[b]
    v = x[d] ^ x[a]
    x[d] = (v << 16) | (v >> 16)
    x[c] = x[c] + x[d]
    v = x[b] ^ x[c]
    x[b] = (v << 12) | (v >> 20)
    x[a] = x[a] + x[b]
    v = x[d] ^ x[a]
    x[d] = (v << 8) | (v >> 24)
    x[c] = x[c] + x[d]
    v = x[b] ^ x[c]
    x[b] = (v << 7) | (v >> 25)


@kernel
def chacha20_block(random: Random, counter: int) -> None:
    """Write block number `counter` of the keystream (nonce 0) into the generator's block."""
    start = np.empty(WORDS, dtype=np.uint32)
    start[0], start[1], start[2], start[3] = 0x61707865, 0x3320646E, 0x79622D32, 0x6B206574
    copy_into(random.key, start[4:12])
    start[12] = counter & 0xFFFFFFFF
    start[13] = counter >> 32
    start[14] = start[15] = 0
    block = random.block
    copy_into(start, block)
    for _ in range(10):
        _quarter_round(block, 0, 4, 8, 12)
        _quarter_round(block, 1, 5, 9, 13)
        _quarter_round(block, 2, 6, 10, 14)
        _quarter_round(block, 3, 7, 11, 15)
        _quarter_round(block, 0, 5, 10, 15)
        _quarter_round(block, 1, 6, 11, 12)
        _quarter_round(block, 2, 7, 8, 13)
        _quarter_round(block, 3, 4, 9, 14)
    for i in range(WORDS):
        block[i] = block[i] + start[i]


@bare
def below(random: Random, numbers: Array, n: int) -> int:
    """A number from 0 to n - 1, exactly uniform."""
    counters = numbers[0]
    while True:
        word = counters.draws % WORDS
        if word == 0:
            chacha20_block(random, counters.draws // WORDS)
        counters.draws += 1
        product = np.int64(random.block[word]) * n
        rest = product & 0xFFFFFFFF
        # The limit is below n, and to divide is dear.
        if rest >= n or rest >= (2**32 - n) % n:
            return product >> 32


@bare
def shuffle(random: Random, numbers: Array, items: Array) -> None:
    """Put items in an order of which each is as likely."""
    for i in range(items.size - 1, 0, -1):
        j = below(random, numbers, i + 1)
        items[i], items[j] = items[j], items[i]


# --- The space: spans, loss, enlargement -----------------------------------------------------------------------------


DIMENSION = np.dtype(
    [
        ("kind", "i8"),
        ("base", "f8"),
        ("share", "f8"),  # weight / sum of weights
        ("scale", "f8"),  # share / width of the domain
        ("cell", "f8"),  # width of what one coordinate stands for
        ("learned", "i8"),
        ("domain_lo", "f8"),
        ("domain_hi", "f8"),
        ("widest_lo", "f8"),
        ("widest_hi", "f8"),
        ("leaf_offset", "i8"),
    ]
)
NODE = np.dtype([("parent", "i8"), ("first", "f8"), ("last", "f8")])


class Space(NamedTuple):
    """The quasi-identifiers; all trees lie in one array of nodes."""

    dimensions: Any  # DIMENSION
    nodes: Any  # NODE
    leaf: Any  # leaf -> node, from leaf_offset on


class Boxes(NamedTuple):
    """Boxes, a column each: the ends of their spans, and the tree nodes these are of.

    A quasi-identifier is a row, so that one row of the stream is compared with many boxes by vector instructions.
    """

    lo: Any
    hi: Any
    node: Any


@bare
def widen(space: Space, d: int, lo: float, hi: float, node: int, x_lo: float, x_hi: float) -> tuple[float, float, int]:
    """The span of quasi-identifier `d` that holds [lo, hi] (a span, of tree node `node`) and [x_lo, x_hi]."""
    if x_lo >= lo and x_hi <= hi:
        return lo, hi, node
    dimension = space.dimensions[d]
    if dimension.kind == INTERVAL:
        return min(lo, x_lo), max(hi, x_hi), node
    if dimension.kind == TREE:
        nodes = space.nodes
        while nodes[node].first > x_lo or nodes[node].last < x_hi:
            node = nodes[node].parent
        return nodes[node].first, nodes[node].last, node
    size = hi - lo + 1.0
    while x_lo < lo or x_hi > hi:
        size *= dimension.base
        lo = np.floor(lo / size) * size
        hi = lo + size - 1.0
    return lo, hi, node


@bare
def point_box(space: Space, row: Array, boxes: Boxes, at: int) -> None:
    """Make box `at` that of one row."""
    lo, hi, node = boxes.lo, boxes.hi, boxes.node
    for d in range(row.size):
        lo[d, at] = hi[d, at] = row[d]
        dimension = space.dimensions[d]
        if dimension.kind == TREE:
            node[d, at] = space.leaf[dimension.leaf_offset + np.int64(row[d])]


@bare
def grow_box(space: Space, row: Array, boxes: Boxes, at: int) -> None:
    """Let box `at` hold one more row."""
    lo, hi, node = boxes.lo, boxes.hi, boxes.node
    for d in range(row.size):
        x = row[d]
        if x < lo[d, at] or x > hi[d, at]:
            lo[d, at], hi[d, at], node[d, at] = widen(space, d, lo[d, at], hi[d, at], node[d, at], x, x)


@bare
def join_boxes(space: Space, boxes: Boxes, at: int, other: int) -> None:
    """Let box `at` hold another box."""
    lo, hi, node = boxes.lo, boxes.hi, boxes.node
    for d in range(lo.shape[0]):
        lo[d, at], hi[d, at], node[d, at] = widen(
            space, d, lo[d, at], hi[d, at], node[d, at], lo[d, other], hi[d, other]
        )


@bare
def move_box(boxes: Boxes, source: int, target: int) -> None:
    """Put box `source` in the place of another."""
    for d in range(boxes.lo.shape[0]):
        boxes.lo[d, target] = boxes.lo[d, source]
        boxes.hi[d, target] = boxes.hi[d, source]
        boxes.node[d, target] = boxes.node[d, source]


@bare
def loss_of(space: Space, lo: Array, hi: Array) -> float:
    """The generalized loss of a box, from 0 to 1."""
    total = 0.0
    for d in range(lo.size):
        total += space.dimensions[d].scale * (hi[d] - lo[d] + space.dimensions[d].cell)
    return total


@bare
def loss_with(space: Space, boxes: Boxes, at: int, row: Array) -> float:
    """The loss of box `at` after taking the row."""
    los, his, node = boxes.lo, boxes.hi, boxes.node
    total = 0.0
    for d in range(row.size):
        lo, hi, _ = widen(space, d, los[d, at], his[d, at], node[d, at], row[d], row[d])
        total += space.dimensions[d].scale * (hi - lo + space.dimensions[d].cell)
    return total


@bare
def enlargements(space: Space, boxes: Boxes, row: Array, enlargement: Array) -> None:
    """How much the loss of each box grows if it takes the row: of the first ones, as `enlargement` has room for."""
    n = enlargement.size
    for i in range(n):
        enlargement[i] = 0.0
    for d in range(row.size):
        x = row[d]
        scale = space.dimensions[d].scale
        lo, hi, node = boxes.lo[d], boxes.hi[d], boxes.node[d]
        if space.dimensions[d].kind == INTERVAL:
            for i in range(n):
                enlargement[i] += scale * ((max(hi[i], x) - min(lo[i], x)) - (hi[i] - lo[i]))
        elif space.dimensions[d].kind == TREE:  # as widen does, which would cost three times as much here
            nodes = space.nodes
            for i in range(n):
                if x < lo[i] or x > hi[i]:
                    at = node[i]
                    while nodes[at].first > x or nodes[at].last < x:
                        at = nodes[at].parent
                    enlargement[i] += scale * ((nodes[at].last - nodes[at].first) - (hi[i] - lo[i]))
        else:
            for i in range(n):
                if x < lo[i] or x > hi[i]:
                    new_lo, new_hi, _ = widen(space, d, lo[i], hi[i], node[i], x, x)
                    enlargement[i] += scale * ((new_hi - new_lo) - (hi[i] - lo[i]))


@bare
def enlargements_by(space: Space, boxes: Boxes, at: int, columns: Array, rows: Array, enlargement: Array) -> None:
    """How much the loss of box `at` grows if it takes each of `rows`, which are columns of `columns`."""
    n = enlargement.size
    for i in range(n):
        enlargement[i] = 0.0
    for d in range(columns.shape[0]):
        column = columns[d]
        scale = space.dimensions[d].scale
        lo, hi, node = boxes.lo[d, at], boxes.hi[d, at], boxes.node[d, at]
        width = hi - lo
        if space.dimensions[d].kind == INTERVAL:
            for i in range(n):
                x = column[rows[i]]
                enlargement[i] += scale * ((max(hi, x) - min(lo, x)) - width)
        elif space.dimensions[d].kind == TREE:
            nodes = space.nodes
            for i in range(n):
                x = column[rows[i]]
                if x < lo or x > hi:
                    ancestor = node
                    while nodes[ancestor].first > x or nodes[ancestor].last < x:
                        ancestor = nodes[ancestor].parent
                    enlargement[i] += scale * ((nodes[ancestor].last - nodes[ancestor].first) - width)
        else:
            for i in range(n):
                x = column[rows[i]]
                if x < lo or x > hi:
                    new_lo, new_hi, _ = widen(space, d, lo, hi, node, x, x)
                    enlargement[i] += scale * ((new_hi - new_lo) - width)


@bare
def enlargement_by_box(space: Space, boxes: Boxes, at: int, other: int) -> float:
    """How much the loss of box `at` grows if it takes another box."""
    los, his = boxes.lo, boxes.hi
    total = 0.0
    for d in range(los.shape[0]):
        lo, hi = los[d, at], his[d, at]
        new_lo, new_hi, _ = widen(space, d, lo, hi, boxes.node[d, at], los[d, other], his[d, other])
        total += space.dimensions[d].scale * ((new_hi - new_lo) - (hi - lo))
    return total


@bare
def inside(lo: Array, hi: Array, row: Array) -> bool:
    """Whether a box contains the row."""
    for d in range(row.size):
        if row[d] < lo[d] or row[d] > hi[d]:
            return False
    return True


@bare
def learn_domains(space: Space, row: Array) -> None:
    """Let undeclared domains hold the row."""
    for d in range(row.size):
        dimension = space.dimensions[d]
        if dimension.learned and (row[d] < dimension.domain_lo or row[d] > dimension.domain_hi):
            dimension.domain_lo = min(dimension.domain_lo, row[d])
            dimension.domain_hi = max(dimension.domain_hi, row[d])
            width = dimension.domain_hi - dimension.domain_lo + dimension.cell
            dimension.scale = dimension.share / width if width > 0.0 else 0.0


# --- Counting distinct values ----------------------------------------------------------------------------------------


ENTRY = np.dtype([("tag", "i8"), ("value", "i8"), ("count", "i8")])


@bare
def _home(counts: Array, tag: int, value: int) -> int:
    """Where (tag, value) should be in the table."""
    mixed = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(tag) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(mixed >> np.uint64(32)) & (counts.size - 1)


@bare
def find_entry(counts: Array, tag: int, value: int) -> int:
    """Where (tag, value) is in the table, or where it would be put."""
    place = _home(counts, tag, value)
    while counts[place].count != 0:
        if counts[place].value == value and counts[place].tag == tag:
            break
        place = (place + 1) & (counts.size - 1)
    return place


@bare
def put_entry(counts: Array, place: int, tag: int, value: int, count: int) -> None:
    """Write what is at a place of the table."""
    counts[place].tag = tag
    counts[place].value = value
    counts[place].count = count


@bare
def erase_entry(counts: Array, place: int) -> None:
    """Empty a place, moving back those behind it that would no longer be found."""
    mask = counts.size - 1
    gap = place
    probe = (gap + 1) & mask
    while counts[probe].count != 0:
        tag, value = counts[probe].tag, counts[probe].value
        if ((probe - _home(counts, tag, value)) & mask) >= ((probe - gap) & mask):
            put_entry(counts, gap, tag, value, counts[probe].count)
            gap = probe
        probe = (probe + 1) & mask
    counts[gap].count = 0


@bare
def count_up(counts: Array, tag: int, value: int) -> bool:
    """Count one more; true if it is the first."""
    place = find_entry(counts, tag, value)
    put_entry(counts, place, tag, value, counts[place].count + 1)
    return counts[place].count == 1


@bare
def count_down(counts: Array, tag: int, value: int) -> bool:
    """Count one less; true if it was the last."""
    place = find_entry(counts, tag, value)
    if counts[place].count == 1:
        erase_entry(counts, place)
        return True
    counts[place].count -= 1
    return False


# Counting in groups: a table where all entries of a value lie together, whatever their group. One look tells both
# whether a value is new in its group and whether it is new anywhere.

GROUPED = np.dtype([("value", "i8"), ("group", "i4"), ("count", "i4")])
#: What one more, or one less, of a value means.
SAME, IN_GROUP, ANYWHERE = 0, 1, 2


@bare
def count_up_in(counts: Array, group: int, value: int) -> int:
    """Count one more; ANYWHERE if the value was nowhere, IN_GROUP if it was only in other groups, else SAME."""
    place = _home(counts, 0, value)
    elsewhere = False
    while counts[place].count != 0:
        if counts[place].value == value:
            if counts[place].group == group:
                counts[place].count += 1
                return SAME
            elsewhere = True
        place = (place + 1) & (counts.size - 1)
    counts[place].value = value
    counts[place].group = group
    counts[place].count = 1
    return IN_GROUP if elsewhere else ANYWHERE


@bare
def count_down_in(counts: Array, group: int, value: int) -> int:
    """Count one less; ANYWHERE if the value is nowhere now, IN_GROUP if it is only in other groups, else SAME."""
    mask = counts.size - 1
    place = _home(counts, 0, value)
    gap = NONE
    elsewhere = False
    while counts[place].count != 0 and (gap == NONE or not elsewhere):
        if counts[place].value == value:
            if counts[place].group != group:
                elsewhere = True
            elif counts[place].count > 1:
                counts[place].count -= 1
                return SAME
            else:
                gap = place
        place = (place + 1) & mask
    probe = (gap + 1) & mask
    while counts[probe].count != 0:  # as in `erase_entry`
        value = counts[probe].value
        if ((probe - _home(counts, 0, value)) & mask) >= ((probe - gap) & mask):
            counts[gap].value = value
            counts[gap].group = counts[probe].group
            counts[gap].count = counts[probe].count
            gap = probe
        probe = (probe + 1) & mask
    counts[gap].count = 0
    return IN_GROUP if elsewhere else ANYWHERE


@kernel
def move_counts(counts: Array, target: Array) -> None:
    """Put all entries into a larger table, which is empty."""
    mask = target.size - 1
    for i in range(counts.size):
        if counts[i].count != 0:
            place = _home(target, 0, counts[i].value)
            while target[place].count != 0:
                place = (place + 1) & mask
            target[place] = counts[i]


# --- Held rows by their deadlines ------------------------------------------------------------------------------------


@bare
def _before(slots: Array, a: int, b: int) -> bool:
    if slots[a].deadline != slots[b].deadline:
        return slots[a].deadline < slots[b].deadline
    return slots[a].number < slots[b].number


@bare
def sift(slots: Array, heap: Array, timed: int, place: int) -> None:
    """Move what is at `place` of the heap to where it belongs, up or down."""
    slot = heap[place]
    while place > 0:
        above = (place - 1) // 2
        if not _before(slots, slot, heap[above]):
            break
        heap[place] = heap[above]
        slots[heap[place]].heap_place = place
        place = above
    while 2 * place + 1 < timed:
        child = 2 * place + 1
        if child + 1 < timed and _before(slots, heap[child + 1], heap[child]):
            child += 1
        if not _before(slots, heap[child], slot):
            break
        heap[place] = heap[child]
        slots[heap[place]].heap_place = place
        place = child
    heap[place] = slot
    slots[slot].heap_place = place


# --- Closeness to the stream's distribution ---------------------------------------------------------------------------


class Closeness(NamedTuple):
    """What t-closeness needs."""

    values: Any  # number of values per sensitive column
    ordered: Any
    stream: Any  # histogram of the stream, [column, value]


@bare
def within_t(numbers: Array, closeness: Closeness, histogram: Array, total: int) -> bool:
    """Whether a group's values are distributed as the stream's, up to t, in every sensitive column."""
    n = numbers[0]
    for j in range(closeness.values.size):
        values = closeness.values[j]
        distance = 0.0
        cumulative = 0.0
        for v in range(values):
            difference = histogram[j, v] / total - closeness.stream[j, v] / n.arrivals
            if closeness.ordered[j]:
                cumulative += difference
                distance += abs(cumulative)
            else:
                distance += abs(difference)
        if closeness.ordered[j]:
            distance = distance / (values - 1) if values > 1 else 0.0
        else:
            distance /= 2.0
        if distance > n.t:
            return False
    return True


@bare
def count_values(histogram: Array, sensitive: Array) -> None:
    """Count a row's sensitive values."""
    for j in range(histogram.shape[0]):
        histogram[j, sensitive[j]] += 1


# --- What leaves -----------------------------------------------------------------------------------------------------


RELEASE = np.dtype(
    [
        ("kind", "i8"),
        ("loss", "f8"),
        ("persons", "i8"),
        ("moment", "i8"),
        ("arrivals", "i8"),
        ("group", "i8"),
        ("end", "i8"),
    ]
)


class Out(NamedTuple):
    """What leaves."""

    rows: Any
    releases: Any  # RELEASE
    lo: Any
    hi: Any


@bare
def write_release(
    out: Out, numbers: Array, kind: int, lo: Array, hi: Array, loss: float, persons: int, group: int
) -> None:
    """Close a release, whose rows were just written; `group` NONE is the release's own number."""
    n = numbers[0]
    copy_into(lo, out.lo[n.out_releases])
    copy_into(hi, out.hi[n.out_releases])
    release = out.releases[n.out_releases]
    release.kind = kind
    release.loss = loss
    release.persons = persons
    release.moment = n.clock
    release.arrivals = n.arrivals
    release.group = n.released if group == NONE else group
    release.end = n.out_rows
    n.out_releases += 1
    n.released += 1
