"""FAANST, passive and proactive, in plain Python, written from `docs/faanst.md`. It shares no code with the engine."""

from __future__ import annotations

from crenel.testing.engine_streams import Case
from tests.core.engine.buffer_oracle import BufferOracle
from tests.core.engine.methods.castle.castle_oracle import FIRST_MOMENT


class FaanstOracle(BufferOracle):
    """The method on one whole stream."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.last_clock, self.last_arrivals = FIRST_MOMENT, 0

    @property
    def mu(self) -> int:
        if self.parameters.mu is not None:
            return int(self.parameters.mu)
        assert self.policy.delay_rows is not None
        return max(self.policy.delay_rows // 2, self.policy.k)

    def is_full(self) -> bool:
        return len(self.held) >= self.mu and self.arrivals - self.last_arrivals >= self.policy.k

    def decide(self) -> None:
        if self.is_full():
            self.publish_good(self.clusters(), self.parameters.max_loss)
            for row in list(self.held):
                self.reuse(row)
            self.last_clock, self.last_arrivals = self.clock, self.arrivals
        for row in [row for row in self.due() if not self.reuse(row)]:
            self.suppress(row)

    def finish(self) -> None:
        self.publish_good(self.clusters(), float("inf"))
        for row in list(self.held):
            self.reuse(row)
        if self.enough(self.held):
            self.publish([list(self.held)])
        for row in list(self.held):
            self.suppress(row)

    def publish_good(self, clusters: list[list[int]], most: float) -> None:
        self.publish(
            [
                rows
                for rows in clusters
                if self.enough(rows)
                and (self.loss(self.box(rows)) <= most or any(self.would_expire(row) for row in rows))
            ]
        )

    def would_expire(self, row: int) -> bool:
        if self.policy.method == "faanst-passive":
            return False
        deadline, rows = self.deadline(row), self.policy.delay_rows
        if deadline is not None:
            first = min(int(self.rows.time[other]) for other in self.held)
            began = self.last_clock if self.last_clock != FIRST_MOMENT else first
            if deadline <= self.clock + max(self.clock - began, 0):
                return True
        return rows is not None and self.arrivals + (self.arrivals - self.last_arrivals) - row > rows

    def clusters(self) -> list[list[int]]:
        """Return the clusters of k-means that have rows."""
        scales = self.scales()
        places = [[x * scale for x, scale in zip(self.rows.qi[row], scales, strict=True)] for row in self.held]
        count = min(self.parameters.clusters or max(len(self.held) // self.policy.k, 1), len(self.held))
        order = list(range(len(self.held)))
        self.shuffle(order)
        cluster = [nearest(place, [places[i] for i in order[:count]]) for place in places]
        for _ in range(10):
            means = [mean([places[i] for i in members]) for members in by_number(cluster)]
            again = [nearest(place, means) for place in places]
            if again == cluster:
                break
            cluster = again
        return [[self.held[i] for i in members] for members in by_number(cluster)]


def by_number(cluster: list[int]) -> list[list[int]]:
    return [[i for i, own in enumerate(cluster) if own == number] for number in sorted(set(cluster))]


def nearest(place: list[float], means: list[list[float]]) -> int:
    distances = []
    for one in means:
        total = 0.0
        for x, y in zip(place, one, strict=True):
            total += (x - y) * (x - y)
        distances.append(total)
    return distances.index(min(distances))


def mean(places: list[list[float]]) -> list[float]:
    found = []
    for column in zip(*places, strict=True):
        total = 0.0
        for x in column:
            total += x
        found.append(total / len(places))
    return found
