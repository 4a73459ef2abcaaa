"""How far a policy scales: rows a second, shards, state. The rule of thumb of `docs/scale.md`, and what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from crenel.policy import Policy, ShardBy

__all__ = ["MEASURED", "Calibration", "Plan", "Shards", "make_plan"]

_SECOND = 1_000_000

#: Numbers of shards that are thought of.
_CHOICES = tuple(2**i for i in range(13))


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was measured, by `python -m benchmarks.scale` unless something else is said."""

    #: Processor time of a shard, in microseconds: for a row, and for a pack of rows.
    row_us: float = 4.6
    pack_us: float = 255.0

    #: The same before the rows come to their shard, and after: encoding dicts, unpacking (`benchmarks.transform`, c
    #: less the engine). Stateless, so it spreads over all workers.
    spread_us: float = 5.7

    #: Rows of a bundle: Flink's default in streaming. A bundle has a pack for each shard.
    bundle: int = 1_000

    #: Bytes of a held row in the snapshot, and of a row in the log; then for each quasi-identifier.
    held_bytes: float = 58.0
    held_bytes_qi: float = 16.0
    log_bytes: float = 24.0
    log_bytes_qi: float = 8.0

    #: The log grows to so many snapshots, or to so many bytes if that is more (`transforms/hold.py`).
    log_snapshots: int = 2
    shortest_log: int = 1 << 20

    #: Microseconds to write a held row in a snapshot and to read it again (`benchmarks.engine`); and the most bytes
    #: that a shard should have to write at once. The second is not measured: a custom.
    snapshot_us: float = 1.0
    largest: int = 100_000_000

    #: `shard_by: person`: loss grows with the number of shards to this power (2 shards 1.2, 32 shards 2.7 times).
    loss_power: float = 0.29

    #: A shard has so many times k persons inside the deadline; with as many, up to 0.5% of the rows were
    #: suppressed, with 6 times k up to 1.4%.
    crowd: float = 25.0

    #: `shard_by: locality`: the share of the rows in the fullest shard, from 8 shards on. Adult 0.75, the census 0.36.
    fullest: float = 0.6

    #: How busy a shard may be, so that it catches up after a failure. Not measured: a custom.
    busy: float = 0.5


MEASURED = Calibration()


@dataclass(frozen=True, kw_only=True)
class Shards:
    """What a number of shards means."""

    shards: int
    #: Distinct persons that a shard meets inside the deadline; that many times k.
    persons: float
    crowd: float
    #: The part of its time that the fullest shard works.
    busy: float
    #: Loss, to that of one shard.
    loss: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a policy needs at a rate."""

    rate: float
    #: Seconds that a row waits at the longest, with the shards that the policy has.
    deadline: float
    #: Rows and distinct persons of the whole stream inside the deadline.
    rows: float
    persons: float
    #: As the policy has it, and as is advised: the fewest that keep up; None if there is no such number.
    asked: Shards
    advised: Shards | None
    #: The most shards that have their crowds; 0: not even one.
    most: int
    #: Seconds of deadline that one shard's crowd takes.
    shortest: float
    #: Processor cores, all steps together, at the share that is kept free.
    cores: float
    #: Bytes: snapshots of all shards; all that is stored at the most; what is written a second.
    held_bytes: float
    stored_bytes: float
    written_bytes: float

    @property
    def shard_bytes(self) -> float:
        """The snapshot of one shard, if all are alike."""
        return self.held_bytes / self.asked.shards


def make_plan(policy: Policy, rate: float, persons: int | None = None, known: Calibration = MEASURED) -> Plan:
    """Apply the rule of thumb.

    Args:
        policy: What is to be guaranteed.
        rate: Rows a second, of the whole stream.
        persons: How many persons the stream is about; None: every row inside the deadline is of another.
        known: What was measured.
    """
    model = _Model(policy, rate, persons, known)
    asked = model.of(policy.shards)
    fine = [choice for choice in map(model.of, _CHOICES) if choice.busy <= known.busy]
    advised = fine[0] if fine else None
    qis = len(policy.quasi_identifiers)
    rows = model.rows(policy.shards)
    held = rows * (known.held_bytes + known.held_bytes_qi * qis)
    log = max(known.log_snapshots * held, known.shortest_log * policy.shards)
    used = rate * (model.row_us(policy.shards) + known.spread_us) / _SECOND
    return Plan(
        rate=rate,
        deadline=model.deadline(policy.shards),
        rows=rows,
        persons=model.distinct(rows),
        asked=asked,
        advised=advised,
        most=model.most(),
        shortest=model.shortest(),
        cores=used / known.busy,
        held_bytes=held,
        stored_bytes=held + log,
        # The log, and the snapshot that takes its place when it has grown.
        written_bytes=rate * (known.log_bytes + known.log_bytes_qi * qis) * (1 + 1 / known.log_snapshots),
    )


class _Model:
    def __init__(self, policy: Policy, rate: float, persons: int | None, known: Calibration) -> None:
        self._policy = policy
        self._rate = rate
        self._persons = persons
        self._known = known

    def of(self, shards: int) -> Shards:
        persons = self.distinct(self.rows(shards)) / shards
        near = self._policy.shard_by is ShardBy.LOCALITY
        fullest = max(self._known.fullest, 1 / shards) if near else 1 / shards
        return Shards(
            shards=shards,
            persons=persons,
            crowd=persons / self._policy.k,
            busy=self._rate * fullest * self.row_us(shards) / _SECOND,
            loss=1.0 if near else shards**self._known.loss_power,
        )

    def deadline(self, shards: int) -> float:
        """Seconds. `delay_rows` counts the arrivals of a shard: the more shards, the longer they take."""
        by_time = math.inf if self._policy.delay is None else self._policy.delay / _SECOND
        by_rows = math.inf if self._policy.delay_rows is None else self._policy.delay_rows * shards / self._rate
        return min(by_time, by_rows)

    def rows(self, shards: int) -> float:
        return self._rate * self.deadline(shards)

    def distinct(self, rows: float) -> float:
        """Of how many persons so many rows are, if all are equally active: at most of so many as rows."""
        if self._persons is None:
            return rows
        return self._persons * -math.expm1(-rows / self._persons)

    def row_us(self, shards: int) -> float:
        """Microseconds of a row in its shard: a bundle is cut into as many packs, and each costs."""
        rows_of_a_pack = max(self._known.bundle / shards, 1.0)
        return self._known.row_us + self._known.pack_us / rows_of_a_pack

    def most(self) -> int:
        """The most shards that still have their crowds."""
        if self._policy.delay is None:
            # Each shard waits for its own rows, however many shards there are; more persons than there are do not come.
            return max((choice for choice in _CHOICES if self.of(choice).crowd >= self._known.crowd), default=0)
        return int(self.distinct(self.rows(1)) // (self._known.crowd * self._policy.k))

    def shortest(self) -> float:
        """Seconds until one shard has met its crowd; infinite if there are too few persons."""
        wanted = self._known.crowd * self._policy.k
        if self._persons is None:
            return wanted / self._rate
        if wanted >= self._persons:
            return math.inf
        return -self._persons * math.log1p(-wanted / self._persons) / self._rate
