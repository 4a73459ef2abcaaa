"""How far a policy scales, in rows per second, shards and state: the rule of thumb of `docs/scale.md`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from crenel.encoding.tree_learning import CROWD, expected_persons, needed_shards
from crenel.policy import Policy, ShardBy
from crenel.policy.sharding.shard_rule import AUTO, TREES

__all__ = ["MEASURED", "Calibration", "Plan", "Shards", "is_near", "make_plan"]

_SECOND = 1_000_000

#: The numbers of shards that are considered.
_CHOICES = tuple(2**i for i in range(13))


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measurements, by `python -m benchmarks.scale` unless a comment says otherwise."""

    #: Processor time that a shard needs for a row, and for a pack of rows, in microseconds.
    row_us: float = 1.8
    pack_us: float = 115.0

    #: Processor time for a row before and after its shard: encoding dicts, unpacking (`benchmarks.transform`, c less
    #: the engine). These steps are stateless, so they spread over all workers.
    spread_us: float = 3.6

    #: Processor time for a row in the one key that follows a stream, with 32 shards and this many rows of a bundle.
    learn_us: float = 1.5

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
    shortest_log: int = 1 << 16

    #: Microseconds to write a held row to a snapshot and to read it back (`benchmarks.engine`); and the most bytes that
    #: a shard should have to write at once. The latter is a convention, not a measurement.
    snapshot_us: float = 1.0
    largest: int = 100_000_000

    #: Loss grows with the number of shards to this power: with `shard_by: person`, and with a tree.
    loss_power: float = 0.31
    loss_power_tree: float = 0.06

    #: A shard should see this many times k persons within the deadline.
    crowd: float = CROWD

    #: With a tree, the rows of the fullest shard, to the mean.
    fullest: float = 1.6

    #: Checkpoints that a record waits for in the outbox, and the seconds that reading, bundles and the outbox itself
    #: add at most, for 99 of 100 rows (`benchmarks.checkpoints`).
    confirmations: int = 3
    steps_seconds: float = 3.0

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
    #: Seconds between checkpoints, and those from a row's deadline until its record is sent, from topic to topic.
    checkpoints: float
    sent: float

    @property
    def shard_bytes(self) -> float:
        """The bytes of one shard's snapshot, if all shards are alike."""
        return self.held_bytes / self.asked.shards


def make_plan(
    policy: Policy,
    rate: float,
    persons: int | None = None,
    known: Calibration = MEASURED,
    *,
    checkpoints: float = 10.0,
) -> Plan:
    """Apply the rule of thumb.

    Args:
        policy: The policy.
        rate: Rows per second, of the whole stream.
        persons: How many persons the stream is about; None if every row within the deadline is of another person.
        known: The measurements.
        checkpoints: Seconds between checkpoints on Flink.
    """
    model = _Model(policy, rate, persons, known)
    shards = model.auto() if policy.shards == AUTO else policy.shards
    asked = model.of(shards)
    fine = [choice for choice in map(model.of, _CHOICES) if choice.busy <= known.busy]
    advised = fine[0] if fine else None
    qis = len(policy.quasi_identifiers)
    rows = model.rows(shards)
    held = rows * (known.held_bytes + known.held_bytes_qi * qis)
    log = max(known.log_snapshots * held, known.shortest_log * shards)
    used = rate * (model.row_us(shards) + known.spread_us) / _SECOND
    return Plan(
        rate=rate,
        deadline=model.deadline(shards),
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
        checkpoints=checkpoints,
        sent=known.confirmations * checkpoints + known.steps_seconds,
    )


def is_near(policy: Policy) -> bool:
    """Tell whether the rows of a shard are near each other."""
    return policy.shard_by is ShardBy.LOCALITY or isinstance(policy.shard_by, TREES)


class _Model:
    def __init__(self, policy: Policy, rate: float, persons: int | None, known: Calibration) -> None:
        self._policy = policy
        self._rate = rate
        self._persons = persons
        self._known = known

    def of(self, shards: int) -> Shards:
        persons = self.distinct(self.rows(shards)) / shards
        near = is_near(self._policy)
        fullest = min(self._known.fullest / shards, 1.0) if near else 1 / shards
        return Shards(
            shards=shards,
            persons=persons,
            crowd=persons / self._policy.k,
            busy=self._rate * fullest * self.row_us(shards) / _SECOND,
            loss=shards ** (self._known.loss_power_tree if near else self._known.loss_power),
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
        return expected_persons(rows, math.inf if self._persons is None else self._persons)

    def row_us(self, shards: int) -> float:
        """Compute microseconds per row in its shard. More shards cut a bundle into more packs, and each pack costs."""
        rows_of_a_pack = max(self._known.bundle / shards, 1.0)
        return self._known.row_us + self._known.pack_us / rows_of_a_pack

    def auto(self) -> int:
        """Compute what `shards: auto` means: the fewest that keep up, as far as each sees enough persons."""
        return min(needed_shards(self.rows(1), self._rate), max(self.most(), 1))

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
