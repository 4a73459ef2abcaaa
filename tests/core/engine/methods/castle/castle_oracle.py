"""CASTLE in plain Python, written from ``docs/castle.md`` alone.

It shares no code with ``crenel.engine``. From the same key and the same rows, the engine must make the same releases.
The oracle uses only lists, dicts, ints and floats, and has a method for each heading of that page. It adds floats in
loops, because the builtin ``sum`` compensates for rounding from Python 3.12 on.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from crenel.policy.geometry import Interval, Radix, Tree

CLUSTER, REUSE, SUPPRESSED = 0, 1, 2
FIRST_MOMENT, LAST_MOMENT = -(2**63), 2**63 - 1


@dataclass
class OracleRelease:
    """Rows that leave together under one generalization, at one moment."""

    rows: list[int]
    kind: int
    lo: tuple[float, ...]
    hi: tuple[float, ...]
    loss: float
    persons: int
    moment: int
    arrivals: int
    group: int


@dataclass(eq=False)
class Row:
    """One row that is held."""

    number: int
    qi: tuple[float, ...]
    person: int
    sensitive: tuple[int, ...]
    deadline: int | None


class Random:
    """Words of the ChaCha20 keystream: nonce 0, 64-bit block counter from 0."""

    BLOCKS = 64

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.block = 0
        self.words: deque[int] = deque()

    def word(self) -> int:
        if not self.words:
            # The cipher is created anew at its block, because a cipher object cannot be copied.
            nonce = self.block.to_bytes(8, "little") + bytes(8)
            cipher = Cipher(algorithms.ChaCha20(self.key, nonce), mode=None)
            stream = cipher.encryptor().update(bytes(64 * self.BLOCKS))
            for at in range(0, len(stream), 4):
                self.words.append(int.from_bytes(stream[at : at + 4], "little"))
            self.block += self.BLOCKS
        return self.words.popleft()

    def below(self, n: int) -> int:
        """Draw a number from 0 to n - 1, all equally likely (Lemire's method)."""
        while True:
            product = self.word() * n
            if product % 2**32 >= (2**32 - n) % n:
                return product >> 32


class IntervalAxis:
    """A range is published unchanged, or as its cells. The domain is declared, or learned from the rows seen so far."""

    def __init__(self, geometry: Interval) -> None:
        #: Added to the width of a range: one cell if coordinates are cells, because a single cell has a loss, too.
        self.cell = 1.0 if geometry.cells else 0.0
        self.learned = geometry.lo is None
        self.lo = math.inf if geometry.lo is None else float(geometry.lo)
        self.hi = -math.inf if geometry.hi is None else float(geometry.hi)

    def see(self, x: float) -> None:
        if self.learned:
            self.lo = min(self.lo, x)
            self.hi = max(self.hi, x)

    def width(self) -> float:
        return self.hi - self.lo + self.cell if self.lo <= self.hi else 0.0

    def whole(self) -> tuple[float, float]:
        return (-math.inf, math.inf) if self.learned else (self.lo, self.hi)

    def span(self, lo: float, hi: float) -> tuple[float, float]:
        return lo, hi


class TreeAxis:
    """A range is published as the leaves under the lowest common ancestor."""

    cell = 0.0

    def __init__(self, geometry: Tree) -> None:
        self.parent = [int(node) for node in geometry.parent]
        self.first = [float(leaf) for leaf in geometry.first]
        self.last = [float(leaf) for leaf in geometry.last]
        self.leaf = [int(node) for node in geometry.leaf]

    def see(self, x: float) -> None:
        pass

    def width(self) -> float:
        return float(len(self.leaf) - 1)

    def whole(self) -> tuple[float, float]:
        return 0.0, float(len(self.leaf) - 1)

    def span(self, lo: float, hi: float) -> tuple[float, float]:
        node = self.leaf[int(lo)]
        while self.last[node] < hi:
            node = self.parent[node]
        return self.first[node], self.last[node]


class RadixAxis:
    """A range is published as the block of all numbers with the common prefix."""

    cell = 0.0

    def __init__(self, geometry: Radix) -> None:
        self.base = int(geometry.base)
        self.length = int(geometry.length)

    def see(self, x: float) -> None:
        pass

    def width(self) -> float:
        return float(self.base**self.length - 1)

    def whole(self) -> tuple[float, float]:
        return 0.0, float(self.base**self.length - 1)

    def span(self, lo: float, hi: float) -> tuple[float, float]:
        first, last, block = int(lo), int(hi), 1
        while first // block != last // block:
            block *= self.base
        start = first // block * block
        return float(start), float(start + block - 1)


Axis = IntervalAxis | TreeAxis | RadixAxis


def axis_of(geometry: Any) -> Axis:
    if isinstance(geometry, Interval):
        return IntervalAxis(geometry)
    if isinstance(geometry, Tree):
        return TreeAxis(geometry)
    return RadixAxis(geometry)


class Cluster:
    """Rows with their box and its span, their persons, and their sensitive values."""

    def __init__(self, axes: list[Axis], rows: Iterable[Row]) -> None:
        self.axes = axes
        self.fill(rows)

    def fill(self, rows: Iterable[Row]) -> None:
        self.rows: dict[int, Row] = {}
        self.persons: Counter[int] = Counter()
        self.values: list[Counter[int]] = []
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        if not self.rows:
            self.lo = list(row.qi)
            self.hi = list(row.qi)
            self.values = [Counter() for _ in row.sensitive]
            self.widen()
        elif not all(lo <= x <= hi for lo, x, hi in zip(self.lo, row.qi, self.hi, strict=True)):
            self.lo = [min(lo, x) for lo, x in zip(self.lo, row.qi, strict=True)]
            self.hi = [max(hi, x) for hi, x in zip(self.hi, row.qi, strict=True)]
            self.widen()
        self.rows[row.number] = row
        self.persons[row.person] += 1
        for counts, value in zip(self.values, row.sensitive, strict=True):
            counts[value] += 1

    def widen(self) -> None:
        spans = [axis.span(lo, hi) for axis, lo, hi in zip(self.axes, self.lo, self.hi, strict=True)]
        self.span_lo = [lo for lo, _ in spans]
        self.span_hi = [hi for _, hi in spans]

    def remove(self, row: Row) -> None:
        """Take one row out. The box becomes that of the remaining rows."""
        self.fill([other for other in self.rows.values() if other is not row])

    def in_order(self) -> list[Row]:
        return [self.rows[number] for number in sorted(self.rows)]


@dataclass
class Reusable:
    """One entry of Omega."""

    lo: tuple[float, ...]
    hi: tuple[float, ...]
    persons: int
    group: int
    values: list[Counter[int]]

    def contains(self, row: Row) -> bool:
        return all(lo <= x <= hi for lo, x, hi in zip(self.lo, row.qi, self.hi, strict=True))


class Oracle:
    """The method ``castle`` on one shard's rows.

    Args:
        geometries: One per quasi-identifier.
        weights: One per quasi-identifier.
        k: The least number of persons in a group.
        key: The 32 bytes that seed the random generator.
        l: The least number of values of each sensitive column in a group.
        t: The greatest distance of a group's sensitive values from the stream's.
        sensitive: One ``(ordered, size)`` per sensitive column. If the size is None, the values are learned.
        delay: In microseconds.
        delay_rows: The number of later arrivals that a row may wait for.
        disorder: In microseconds.
        beta: The greatest number of clusters.
        mu: The number of recent losses that ``tau`` is the mean of.
        reuse: Whether published generalizations may be used again.
        max_reusable: The greatest number of generalizations kept for reuse.
    """

    def __init__(
        self,
        *,
        geometries: Sequence[Any],
        weights: Sequence[float],
        k: int,
        key: bytes,
        l: int | None = None,
        t: float | None = None,
        sensitive: Sequence[Any] = (),
        delay: int | None = None,
        delay_rows: int | None = None,
        disorder: int = 0,
        beta: int = 50,
        mu: int = 100,
        reuse: bool = True,
        max_reusable: int = 1000,
    ) -> None:
        self.axes = [axis_of(geometry) for geometry in geometries]
        self.k, self.l, self.t = k, l, t
        self.sensitive = [
            column if isinstance(column, tuple) else (column.ordered, column.size) for column in sensitive
        ]
        self.delay, self.delay_rows, self.disorder = delay, delay_rows, disorder
        self.beta, self.reuse, self.max_reusable = beta, reuse, max_reusable
        self.random = Random(key)

        total = 0.0
        for weight in weights:
            total += weight
        self.shares = [weight / total for weight in weights]
        self.scale = self.scales()

        self.clusters: list[Cluster] = []  # oldest first
        self.omega: list[Reusable] = []  # oldest first
        self.losses: deque[float] = deque(maxlen=mu)
        self.tau = 0.0
        self.held: dict[int, tuple[Row, Cluster]] = {}
        self.deadlines: list[tuple[int, int]] = []  # a heap, which may contain rows that have left
        self.stream: list[dict[int, int]] = [dict.fromkeys(range(size or 0), 0) for _, size in self.sensitive]
        self.clock = FIRST_MOMENT
        self.arrivals = 0
        self.releases = 0
        self.out: list[OracleRelease] = []

    # The contract

    def push(self, rows: Iterable[tuple[Sequence[float], int, Sequence[int], int]]) -> list[OracleRelease]:
        for qi, person, sensitive, time in rows:
            self.push_one(
                tuple(float(x) for x in qi),
                int(person),
                tuple(int(v) for v in sensitive),
                int(time),
            )
        return self.take()

    def advance(self, now: int) -> list[OracleRelease]:
        self.move_clock(now)
        return self.take()

    def flush(self) -> list[OracleRelease]:
        """End of the stream."""
        for cluster in list(self.clusters):
            if self.ready(cluster.persons, cluster.values):
                self.output_cluster(cluster)
        if self.reuse:
            for number in sorted(self.held):
                self.leave_by_reuse(number)
        if self.held:
            if self.all_ready():
                left = [self.held[number][0] for number in sorted(self.held)]
                self.clusters = [Cluster(self.axes, left)]
                self.output_cluster(self.clusters[0])
            else:
                for number in sorted(self.held):
                    self.suppress(number)
        return self.take()

    def take(self) -> list[OracleRelease]:
        out, self.out = self.out, []
        return out

    # One row

    def push_one(self, qi: tuple[float, ...], person: int, sensitive: tuple[int, ...], time: int) -> None:
        self.move_clock(saturate(time - self.disorder))

        deadline = None if self.delay is None else self.deadline(time)
        row = Row(self.arrivals, qi, person, sensitive, deadline)
        self.arrivals += 1
        for axis, x in zip(self.axes, qi, strict=True):
            axis.see(x)
        self.scale = self.scales()
        if self.t is not None:
            for counts, value in zip(self.stream, sensitive, strict=True):
                counts[value] = counts.get(value, 0) + 1

        cluster = self.best_selection(row)
        if cluster is None:
            cluster = Cluster(self.axes, [row])
            self.clusters.append(cluster)
        else:
            cluster.add(row)
        self.held[row.number] = (row, cluster)
        if row.deadline is not None:
            heapq.heappush(self.deadlines, (row.deadline, row.number))

        # At most one row is too old: earlier rows expired at earlier pushes.
        if self.delay_rows is not None and row.number - self.delay_rows in self.held:
            self.delay_constraint(row.number - self.delay_rows)
        self.move_clock(self.clock)  # releases the row itself if it arrived after its deadline

    def deadline(self, time: int) -> int:
        """Round down to a multiple of a sixteenth of the delay, so that a row that leaves alone hides its time."""
        assert self.delay is not None
        latest = saturate(time + self.delay)
        return saturate(latest - latest % max(self.delay // 16, 1))

    def move_clock(self, now: int) -> None:
        """Advance the clock, and stop at each deadline on the way to release the rows that expire there."""
        now = max(self.clock, now)
        while self.deadlines and self.deadlines[0][0] <= now:
            deadline, number = heapq.heappop(self.deadlines)
            if number in self.held:
                self.clock = max(self.clock, deadline)
                self.delay_constraint(number)
        self.clock = now

    def best_selection(self, row: Row) -> Cluster | None:
        enlargements = [self.enlargement(cluster, row.qi, row.qi) for cluster in self.clusters]
        smallest = min(enlargements, default=0.0)
        nearest = [
            cluster for cluster, enlargement in zip(self.clusters, enlargements, strict=True) if enlargement == smallest
        ]
        candidates = [cluster for cluster in nearest if self.loss_with(cluster, row) <= self.tau]
        if candidates:
            return min(candidates, key=lambda cluster: len(cluster.persons))
        if len(self.clusters) < self.beta:
            return None
        return min(nearest, key=lambda cluster: len(cluster.persons))

    def delay_constraint(self, number: int) -> None:
        _, cluster = self.held[number]
        if self.ready(cluster.persons, cluster.values):
            self.output_cluster(cluster)
            return
        if self.reuse and self.leave_by_reuse(number):
            return
        larger = [other for other in self.clusters if len(other.persons) > len(cluster.persons)]
        if 2 * len(larger) > len(self.clusters) or not self.all_ready():
            self.suppress(number)
            return
        while not self.ready(cluster.persons, cluster.values):
            nearest = min(
                (other for other in self.clusters if other is not cluster),
                key=lambda other: self.enlargement(cluster, other.lo, other.hi),
            )
            self.clusters.remove(nearest)
            for other_row in nearest.rows.values():
                cluster.add(other_row)
        self.output_cluster(cluster)

    def leave_by_reuse(self, number: int) -> bool:
        row, _ = self.held[number]
        fitting = [reusable for reusable in self.omega if reusable.contains(row) and self.stays_close(reusable, row)]
        if not fitting:
            return False
        chosen = self.choose(fitting)
        self.leave_alone(number)
        for counts, value in zip(chosen.values, row.sensitive, strict=True):
            counts[value] += 1
        self.release(
            [number],
            REUSE,
            chosen.lo,
            chosen.hi,
            persons=chosen.persons,
            group=chosen.group,
        )
        return True

    def choose(self, fitting: list[Reusable]) -> Reusable:
        return fitting[self.random.below(len(fitting))]

    def stays_close(self, reusable: Reusable, row: Row) -> bool:
        if self.t is None:
            return True
        values = []
        for counts, value in zip(reusable.values, row.sensitive, strict=True):
            values.append(counts + Counter([value]))
        return self.within_t(values)

    def suppress(self, number: int) -> None:
        self.leave_alone(number)
        whole = [axis.whole() for axis in self.axes]
        lo = tuple(lo for lo, _ in whole)
        hi = tuple(hi for _, hi in whole)
        self.release([number], SUPPRESSED, lo, hi, persons=1)

    def leave_alone(self, number: int) -> None:
        row, cluster = self.held.pop(number)
        if len(cluster.rows) == 1:
            self.clusters.remove(cluster)
        else:
            cluster.remove(row)

    # output_cluster and tau

    def output_cluster(self, cluster: Cluster) -> None:
        self.clusters.remove(cluster)
        for part in self.parts(cluster):
            rows = [row.number for row in part.in_order()]
            for number in rows:
                del self.held[number]
            self.shuffle(rows)
            lo, hi = tuple(part.span_lo), tuple(part.span_hi)
            loss = self.loss(lo, hi)
            group = self.releases
            self.release(rows, CLUSTER, lo, hi, persons=len(part.persons))
            self.losses.append(loss)
            total = 0.0
            for one in self.losses:
                total += one
            self.tau = total / len(self.losses)
            if loss < self.tau:
                self.keep(Reusable(lo, hi, len(part.persons), group, part.values))

    def keep(self, new: Reusable) -> None:
        for at, old in enumerate(self.omega):
            if (old.lo, old.hi) == (new.lo, new.hi):
                if self.t is not None:
                    self.omega[at] = new
                return
        self.omega.append(new)
        if len(self.omega) > self.max_reusable:
            del self.omega[0]

    def parts(self, cluster: Cluster) -> list[Cluster]:
        """Split the cluster into parts that are all ready to be published."""
        if len(cluster.persons) < 2 * self.k:
            return [cluster]
        parts = self.split(cluster) if self.l is None else self.split_l(cluster)
        while True:
            failing = [part for part in parts if not self.ready(part.persons, part.values)]
            if not failing:
                return parts
            first = failing[0]
            parts = [part for part in parts if part is not first]
            nearest = min(parts, key=lambda part: self.enlargement(first, part.lo, part.hi))
            for row in first.rows.values():
                nearest.add(row)

    def split(self, cluster: Cluster) -> list[Cluster]:
        by_person: dict[int, list[Row]] = {}
        for row in cluster.in_order():
            by_person.setdefault(row.person, []).append(row)
        buckets = list(by_person.values())
        parts = []
        while len(buckets) >= self.k:
            b = self.random.below(len(buckets))
            seed = buckets[b].pop(0)
            part = Cluster(self.axes, [seed])
            candidates = [(self.distance(seed, bucket[0]), place) for place, bucket in enumerate(buckets) if place != b]
            for _, place in heapq.nsmallest(self.k - 1, candidates):
                part.add(buckets[place].pop(0))
            parts.append(part)
            buckets = [bucket for bucket in buckets if bucket]
        for bucket in buckets:
            for row in bucket:
                self.nearest_part(parts, row).add(row)
        return parts

    def split_l(self, cluster: Cluster) -> list[Cluster]:
        column = min(range(len(self.sensitive)), key=lambda column: len(cluster.values[column]))
        buckets = self.generate_buckets(cluster, column)
        if len(buckets) < self.l:
            return [cluster]
        parts = []
        while len(buckets) >= self.l:
            n = sum(len(bucket) for bucket in buckets)
            if n < self.k:
                break
            bucket = buckets[self.random.below(len(buckets))]
            seed = bucket.pop(self.random.below(len(bucket)))
            part = Cluster(self.axes, [seed])
            for bucket in buckets:
                share = -(-self.k * len(bucket) // n)
                by_place = [(self.enlargement(part, row.qi, row.qi), place) for place, row in enumerate(bucket)]
                taken = {place for _, place in heapq.nsmallest(share, by_place)}
                for place in sorted(taken):
                    part.add(bucket[place])
                bucket[:] = [row for place, row in enumerate(bucket) if place not in taken]
            parts.append(part)
            buckets = [bucket for bucket in buckets if bucket]
        for bucket in buckets:
            for row in bucket:
                self.nearest_part(parts, row).add(row)
        home = {person: part for part in parts for person in part.persons}
        placed = {number for part in parts for number in part.rows}
        for row in cluster.in_order():
            if row.number not in placed:
                home[row.person].add(row)
        return parts

    def generate_buckets(self, cluster: Cluster, column: int) -> list[list[Row]]:
        """Make one bucket per value of the column, with one row of each person."""
        by_person: dict[int, list[Row]] = {}
        for row in cluster.in_order():
            by_person.setdefault(row.person, []).append(row)
        buckets: dict[int, list[Row]] = {}
        for rows in by_person.values():
            chosen = min(rows, key=lambda row: len(buckets.get(row.sensitive[column], ())))
            buckets.setdefault(chosen.sensitive[column], []).append(chosen)
        return list(buckets.values())

    def nearest_part(self, parts: list[Cluster], row: Row) -> Cluster:
        return min(parts, key=lambda part: self.enlargement(part, row.qi, row.qi))

    # Guarantees

    def ready(self, persons: Collection[int], values: Sequence[Counter[int]]) -> bool:
        if len(persons) < self.k:
            return False
        if self.l is not None and any(len(counts) < self.l for counts in values):
            return False
        return self.t is None or self.within_t(values)

    def all_ready(self) -> bool:
        """Whether all held rows could be published as one group."""
        persons: set[int] = set()
        values: list[Counter[int]] = [Counter() for _ in self.sensitive]
        for cluster in self.clusters:
            persons.update(cluster.persons)
            for counts, more in zip(values, cluster.values, strict=True):
                counts.update(more)
        return self.ready(persons, values)

    def within_t(self, values: Sequence[Counter[int]]) -> bool:
        return all(self.closeness(column, counts) <= self.t for column, counts in enumerate(values))

    def closeness(self, column: int, counts: Counter[int]) -> float:
        """Return the distance between the distributions of a column's values in the group and in the stream."""
        ordered, _ = self.sensitive[column]
        stream = self.stream[column]
        group_total = sum(counts.values())
        distance = cumulative = 0.0
        for value, seen in stream.items():
            difference = counts[value] / group_total - seen / self.arrivals
            if ordered:
                cumulative += difference
                distance += abs(cumulative)
            else:
                distance += abs(difference)
        if not ordered:
            return distance / 2
        return distance / (len(stream) - 1) if len(stream) > 1 else 0.0

    # Loss, enlargement, distance

    def scales(self) -> list[float]:
        scales = []
        for share, axis in zip(self.shares, self.axes, strict=True):
            width = axis.width()
            scales.append(share / width if width > 0 else 0.0)
        return scales

    def loss(self, lo: Sequence[float], hi: Sequence[float]) -> float:
        """Return the loss of a span."""
        total = 0.0
        for i, scale in enumerate(self.scale):
            total += scale * (hi[i] - lo[i] + self.axes[i].cell)
        return total

    def enlargement(self, box: Cluster, lo: Sequence[float], hi: Sequence[float]) -> float:
        total = 0.0
        for i, axis in enumerate(self.axes):
            new_lo, new_hi = axis.span(min(box.lo[i], lo[i]), max(box.hi[i], hi[i]))
            total += self.scale[i] * ((new_hi - new_lo) - (box.span_hi[i] - box.span_lo[i]))
        return total

    def loss_with(self, box: Cluster, row: Row) -> float:
        total = 0.0
        for i, axis in enumerate(self.axes):
            lo, hi = axis.span(min(box.lo[i], row.qi[i]), max(box.hi[i], row.qi[i]))
            total += self.scale[i] * (hi - lo + axis.cell)
        return total

    def distance(self, one: Row, other: Row) -> float:
        total = 0.0
        for i, axis in enumerate(self.axes):
            lo, hi = axis.span(min(one.qi[i], other.qi[i]), max(one.qi[i], other.qi[i]))
            total += self.scale[i] * (hi - lo)
        return total

    # Release

    def shuffle(self, rows: list[int]) -> None:
        for i in range(len(rows) - 1, 0, -1):
            j = self.random.below(i + 1)
            rows[i], rows[j] = rows[j], rows[i]

    def release(
        self,
        rows: list[int],
        kind: int,
        lo: tuple[float, ...],
        hi: tuple[float, ...],
        *,
        persons: int,
        group: int | None = None,
    ) -> None:
        self.out.append(
            OracleRelease(
                rows=rows,
                kind=kind,
                lo=lo,
                hi=hi,
                loss=1.0 if kind == SUPPRESSED else self.loss(lo, hi),
                persons=persons,
                moment=self.clock,
                arrivals=self.arrivals,
                group=self.releases if group is None else group,
            )
        )
        self.releases += 1


def saturate(moment: int) -> int:
    """Return the nearest moment that fits into 64 bits."""
    return max(FIRST_MOMENT, min(LAST_MOMENT, moment))
