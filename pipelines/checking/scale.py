"""How far a policy scales, in rows per second, shards and state: the rule of thumb of `docs/scale.md`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from crenel.policy import Policy, ShardBy

__all__ = ["MEASURED", "Calibration", "Plan", "Shards", "make_plan"]

_SECOND = 1_000_000

#: The numbers of shards that are considered.
_CHOICES = tuple(2**i for i in range(13))


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measurements, by `python -m benchmarks.scale` unless a comment says otherwise."""

    #: Processor time that a shard needs for a row, and for a pack of rows, in microseconds.
    row_us: float = 4.6
    pack_us: float = 255.0

    #: Processor time for a row before and after its shard: encoding dicts, unpacking (`benchmarks.transform`, c less
    #: the engine). These steps are stateless, so they spread over all workers.
    spread_us: float = 5.7

    #: Rows of a bundle: Flink's default in streaming. A bundle has one pack for each shard.
    bundle: int = 1_000

    #: Bytes of a held row in the snapshot and of a row in the log, and those that each quasi-identifier adds.
    held_bytes: float = 58.0
    held_bytes_qi: float = 16.0
    log_bytes: float = 24.0
    log_bytes_qi: float = 8.0

    #: The log grows to the size of this many snapshots, or to `shortest_log` bytes if that is more. Not measured: the
    #: HOLD step is written so.
    log_snapshots: int = 2
    shortest_log: int = 1 << 20

    #: Microseconds to write a held row to a snapshot and to read it back (`benchmarks.engine`); and the most bytes that
    #: a shard should have to write at once. The latter is a convention, not a measurement.
    snapshot_us: float = 1.0
    largest: int = 100_000_000

    #: With `shard_by: person`, loss grows with the number of shards to this power: 1.2 times with 2 shards, 2.7 times
    #: with 32.
    loss_power: float = 0.29

    #: A shard should see this many times k persons within the deadline. With that many, up to 0.5% of the rows were
    #: suppressed; with 6 times k, up to 1.4%.
    crowd: float = 25.0

    #: With `shard_by: locality` and at least 8 shards: the share of the rows in the fullest shard. It was 0.75 for
    #: Adult and 0.36 for the census.
    fullest: float = 0.6

    #: How busy a shard may be, so that it can catch up after a failure. A convention, not a measurement.
    busy: float = 0.5


MEASURED = Calibration()


@dataclass(frozen=True, kw_only=True)
class Shards:
    """What a number of shards means."""

    shards: int
    #: Distinct persons that a shard sees within the deadline; and how many times k that is.
    persons: float
    crowd: float
    #: The share of its time in which the fullest shard works.
    busy: float
    #: Loss, relative to that of one shard.
    loss: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a policy needs at a rate of rows."""

    rate: float
    #: Seconds that a row waits at most, with the policy's shards.
    deadline: float
    #: Rows and distinct persons of the whole stream within the deadline.
    rows: float
    persons: float
    #: The policy's shards, and the advised ones: the fewest that keep up, or None if no number does.
    asked: Shards
    advised: Shards | None
    #: The most shards that each see enough persons; 0 if not even one does.
    most: int
    #: The shortest deadline, in seconds, within which one shard sees enough persons.
    shortest: float
    #: Processor cores for all steps together, each as busy as it may be.
    cores: float
    #: Bytes: the snapshots of all shards; the most that is stored at once; what is written per second.
    held_bytes: float
    stored_bytes: float
    written_bytes: float

    @property
    def shard_bytes(self) -> float:
        """The bytes of one shard's snapshot, if all shards are alike."""
        return self.held_bytes / self.asked.shards


def make_plan(policy: Policy, rate: float, persons: int | None = None, known: Calibration = MEASURED) -> Plan:
    """Apply the rule of thumb.

    Args:
        policy: The policy.
        rate: Rows per second, of the whole stream.
        persons: How many persons the stream is about; None if every row within the deadline is of another person.
        known: The measurements.
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
        # The log, and the snapshot that replaces it when it has grown.
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
        """Compute the deadline in seconds. `delay_rows` counts a shard's arrivals: more shards, longer waits."""
        by_time = math.inf if self._policy.delay is None else self._policy.delay / _SECOND
        by_rows = math.inf if self._policy.delay_rows is None else self._policy.delay_rows * shards / self._rate
        return min(by_time, by_rows)

    def rows(self, shards: int) -> float:
        return self._rate * self.deadline(shards)

    def distinct(self, rows: float) -> float:
        """Expected distinct persons among `rows` rows, if all persons are equally active."""
        if self._persons is None:
            return rows
        return self._persons * -math.expm1(-rows / self._persons)

    def row_us(self, shards: int) -> float:
        """Compute microseconds per row in its shard. More shards cut a bundle into more packs, and each pack costs."""
        rows_of_a_pack = max(self._known.bundle / shards, 1.0)
        return self._known.row_us + self._known.pack_us / rows_of_a_pack

    def most(self) -> int:
        """Find the most shards that each see enough persons."""
        if self._policy.delay is None:
            # Each shard waits for its own rows, so only the number of persons limits the shards.
            return max((choice for choice in _CHOICES if self.of(choice).crowd >= self._known.crowd), default=0)
        return int(self.distinct(self.rows(1)) // (self._known.crowd * self._policy.k))

    def shortest(self) -> float:
        """Compute the seconds until one shard has seen enough persons; infinite if there are too few."""
        wanted = self._known.crowd * self._policy.k
        if self._persons is None:
            return wanted / self._rate
        if wanted >= self._persons:
            return math.inf
        return -self._persons * math.log1p(-wanted / self._persons) / self._rate
