"""Streams for tests on a cluster: a source that tests can pause, and sinks that write files for tests to read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam import typehints
from apache_beam.coders import BytesCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from crenel.audit import Published, Report, audit
from crenel.encoding.encoder import Encoder
from crenel.policy import Policy
from crenel.policy.secret import secret_of
from crenel.transforms._pack.row_pack import Packer

SECOND = 1_000_000

#: The event time of the first row, in seconds.
EPOCH = 1_000_000

#: How far a row may be behind the latest of its partition, in rows.
DISORDER = 50


def policy(**changes: Any) -> Policy:
    """Return a policy with two quasi-identifiers. It publishes the row number, by which tests find rows again."""
    said: dict[str, Any] = {
        "version": 1,
        "person": "person",
        "event_time": "at",
        "quasi_identifiers": {
            "age": {"type": "numeric", "domain": [0, 100]},
            "income": {"type": "numeric", "domain": [0, 1000]},
        },
        "publish": ["number"],
        "k": 5,
        "delay": "60s",
        "parameters": {"reuse": "weighted"},
        "on_suppress": "star",
        "shards": 16,
        "seed": 7,
    }
    return Policy.from_dict(said | changes)


class Stream:
    """A partitioned stream. The columns of a row depend only on its number, so that tests can compute them again.

    Args:
        rows: The number of rows.
        persons: The number of persons.
        partitions: The number of partitions; row i is in partition i % partitions.
        every: Milliseconds of event time between two rows.
        lonely: The range (end excluded) of rows that all belong to one person, so that all shards but one are idle.
    """

    def __init__(
        self, rows: int, persons: int, partitions: int = 4, every: int = 10, lonely: tuple[int, int] = (0, 0)
    ) -> None:
        self.lonely = lonely
        self.rows = rows
        self.persons = persons
        self.partitions = partitions
        self.every = every

    def columns(self, number: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of the rows with these numbers. Their event times are out of order."""
        mixed = _mixed(number)
        jitter = mixed % (DISORDER * self.partitions)
        alone = (number >= self.lonely[0]) & (number < self.lonely[1])
        return {
            "person": np.where(alone, 0, (mixed >> 8) % self.persons),
            "at": EPOCH + (number + jitter) * self.every / 1000,
            "age": ((mixed >> 20) % 101).astype(np.float64),
            "income": ((mixed >> 28) % 1001).astype(np.float64),
            "number": number,
        }

    def shards(self, of: Policy, number: np.ndarray) -> np.ndarray:
        """Return the shards of the rows with these numbers."""
        packed = Packer(of, secret_of(of)).pack_arrow(pa.RecordBatch.from_pydict(self.columns(number)), None)
        return np.asarray(packed.shard)

    def part(self, partition: int) -> int:
        """Return the number of rows of a partition."""
        return len(range(partition, self.rows, self.partitions))

    def since(self, number: int) -> int:
        """Return the earliest event time, in microseconds, of the rows with this number or a larger one."""
        return EPOCH * SECOND + number * self.every * 1000


class Drifting(Stream):
    """A stream whose rows, from one number on, all lie in a corner of where they lay before.

    Args:
        rows: The number of rows.
        since_row: The first row in the corner.
    """

    def __init__(self, rows: int, since_row: int) -> None:
        super().__init__(rows, persons=rows, partitions=1)
        self.since_row = since_row

    def columns(self, number: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of the rows with these numbers."""
        found = super().columns(number)
        part = np.where(number < self.since_row, 1.0, 0.1)
        return found | {"age": found["age"] * part, "income": found["income"] * part}


def _mixed(number: np.ndarray) -> np.ndarray:
    """Hash row numbers to reproducible pseudo-random numbers."""
    with np.errstate(over="ignore"):
        x = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x ^= x >> np.uint64(29)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(32)
    return (x >> np.uint64(2)).astype(np.int64)


class Gate:
    """A file in which the test says how many rows of each partition the source may read."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def open_to(self, rows: int) -> None:
        """Allow the source to read this many rows of each partition."""
        unfinished = f"{self.path}.unfinished"
        Path(unfinished).write_text(str(rows))
        os.replace(unfinished, self.path)

    def allowed(self) -> int:
        """Return how many rows of each partition are allowed."""
        return int(Path(self.path).read_text())

    def reach(self, partition: int, rows: int) -> None:
        """Report how many rows of a partition were read."""
        Path(f"{self.path}.{partition}").write_text(str(rows))

    def reached(self, partitions: int) -> int:
        """Return the least number of rows that were reported as read of any partition."""
        told = [Path(f"{self.path}.{partition}") for partition in range(partitions)]
        return min(int(path.read_text() or 0) if path.exists() else 0 for path in told)


class _Partition(RestrictionProvider):
    def initial_restriction(self, element: tuple[int, int]) -> OffsetRange:
        return OffsetRange(0, element[1])

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: tuple[int, int], restriction: OffsetRange) -> int:
        return restriction.size()


class Read(beam.DoFn):
    """Reads a partition, some batches at a time."""

    def __init__(self, stream: Stream, gate: Gate, *, batch: int = 500, batches: int = 4) -> None:
        self._stream = stream
        self._gate = gate
        self._batch = batch
        self._batches = batches

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: tuple[int, int],
        tracker: Any = beam.DoFn.RestrictionParam(_Partition()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        partition, count = element
        place = tracker.current_restriction().start
        for _ in range(self._batches):
            end = min(place + self._batch, count, self._gate.allowed())
            if place >= end:
                break
            if not tracker.try_claim(end - 1):
                return
            number = np.arange(place, end, dtype=np.int64) * self._stream.partitions + partition
            batch = pa.RecordBatch.from_pydict(self._stream.columns(number))
            since = self._stream.since(int(number[0]))
            yield TimestampedValue(batch, Timestamp(micros=since))
            place = end
            watermark.set_watermark(Timestamp(micros=self._stream.since(place * self._stream.partitions + partition)))
        self._gate.reach(partition, place)
        if place >= count:
            tracker.try_claim(count)  # the end of the partition
            return
        waiting = place >= self._gate.allowed()
        tracker.defer_remainder(Duration(seconds=1 if waiting else 0))


def source(stream: Stream, gate: Gate, **how: Any) -> beam.PTransform:
    """Return a source that reads the stream as RecordBatches."""
    parts = [(partition, stream.part(partition)) for partition in range(stream.partitions)]
    read = beam.ParDo(Read(stream, gate, **how)).with_output_types(pa.RecordBatch)
    # One element for each partition, because Flink distributes elements.
    return _Chain(beam.Create(parts, reshuffle=False), read)


class _Chain(beam.PTransform):
    def __init__(self, create: beam.PTransform, read: beam.PTransform) -> None:
        super().__init__()
        self._create, self._read = create, read

    def expand(self, begin: Any) -> Any:
        return begin | "Partitions" >> self._create | "Read" >> self._read


# --- Sinks ---


def as_lines(batch: pa.RecordBatch, stamp: int) -> str:
    """Format rows as lines of JSON: the number, the boxes, and the time of release."""
    rows = batch.to_pylist()
    boxes = ("age", "income")
    return "".join(
        json.dumps([row["number"], *(None if row[n] is None else [row[n]["lo"], row[n]["hi"]] for n in boxes), stamp])
        + "\n"
        for row in rows
    )


class Append(beam.DoFn):
    """Appends released rows to a file at once, as an attacker would see them. After a failure, some appear twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def setup(self) -> None:
        descriptor, self._path = tempfile.mkstemp(suffix=".jsonl", dir=self._folder)
        os.close(descriptor)

    def process(self, batch: pa.RecordBatch, timestamp: Any = beam.DoFn.TimestampParam) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(as_lines(batch, timestamp.micros))


class Collect(beam.DoFn):
    """Collects released rows in state, which is rolled back after a failure, and writes them to a file at the end.

    A file is named after its key and replaced as a whole, so that writing it again after a failure does no harm.
    """

    LINES = BagStateSpec("lines", BytesCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def process(
        self,
        element: tuple[int, bytes],
        lines: Any = beam.DoFn.StateParam(LINES),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        lines.add(element[1])
        end.set(GlobalWindow().max_timestamp())

    @on_timer(END)
    def over(self, key: Any = beam.DoFn.KeyParam, lines: Any = beam.DoFn.StateParam(LINES)) -> None:
        descriptor, path = tempfile.mkstemp(dir=self._folder, prefix=".unfinished-")
        with os.fdopen(descriptor, "wb") as file:
            for line in lines.read():
                file.write(line)
        os.replace(path, os.path.join(self._folder, f"{key}.jsonl"))


class _Keyed(beam.DoFn):
    def process(self, batch: pa.RecordBatch, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[tuple[int, bytes]]:
        yield batch["number"][0].as_py() % 8, as_lines(batch, timestamp.micros).encode()


def collect(published: beam.PCollection, folder: Path) -> None:
    """Send published rows to a collector."""
    keyed = published | "Key" >> beam.ParDo(_Keyed()).with_output_types(typehints.Tuple[int, bytes])
    _ = keyed | "Collect" >> beam.ParDo(Collect(folder))


def written(folder: Path) -> list[tuple[int, Any, Any, int]]:
    """Return all released rows as (number, age, income, moment)."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        text = path.read_text("utf-8")
        found += [tuple(json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
    return found


def lines(folder: Path) -> int:
    """Return how many rows were released."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))


def check(of: Policy, stream: Stream, left: list[tuple[int, Any, Any, int]]) -> Report:
    """Check that every row was released once, under one box, in a group of k persons.

    This does not check deadlines. Partitions run ahead of each other, so a row may arrive when its shard's clock is
    already past its deadline. Such a row is released at once, but late.
    """
    numbers = [row[0] for row in left]
    assert len(numbers) == stream.rows, f"{len(numbers)} rows left of {stream.rows}"
    assert len(set(numbers)) == stream.rows, "rows were released more than once"
    columns = {name: column.tolist() for name, column in stream.columns(np.arange(stream.rows)).items()}
    encoded = Encoder(of).encode(columns)
    assert not encoded.rejected
    boxes = np.array([[row[1], row[2]] for row in left], dtype=np.float64)
    report = audit(of, encoded.rows, Published(rows=np.array(numbers), lo=boxes[:, :, 0], hi=boxes[:, :, 1]))
    assert report.problems() == []
    assert report.published > stream.rows // 2
    return report


def late(of: Policy, stream: Stream, left: list[tuple[int, Any, Any, int]]) -> int:
    """Return how many rows were released after their deadlines."""
    at = stream.columns(np.array([row[0] for row in left]))["at"] * SECOND
    return int(np.count_nonzero(np.array([row[3] for row in left]) - at > (of.delay or 0)))
