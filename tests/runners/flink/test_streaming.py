"""A stream on a cluster: timers go by the watermark, state stays bounded, and a savepoint is all that is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from crenel.transforms import Anonymize
from tests.runners.flink import streams
from tests.runners.harness import Flink, Running

pytestmark = pytest.mark.flink

#: First rows of many persons, then of one alone, then again of many.
EARLY, LONELY, ROWS = 4_000, 20_000, 180_000
PARTITIONS, STEPS = 2, 6


def test_a_stream_of_its_whole_life(flink: Flink, tmp_path: Path) -> None:
    of = streams.policy(shards=2)
    stream = streams.Stream(ROWS, 3_000, partitions=PARTITIONS, lonely=(EARLY, LONELY))
    gate = streams.Gate(tmp_path / "gate")
    gate.open_to(EARLY // PARTITIONS)
    out = tmp_path / "out"
    out.mkdir()

    def build(pipeline: Any) -> None:
        published = pipeline | "Source" >> streams.source(stream, gate) | Anonymize(of)
        _ = published | "Append" >> beam.ParDo(streams.Append(out))

    job = flink.submit("life", build)
    try:
        _idle_shards_release(job, gate, of, stream, out)
        _state_stays_bounded(job, gate)
        savepoint = job.stop()
    except BaseException:
        job.cancel()
        raise
    before = len(streams.written(out))
    assert before < ROWS
    again = flink.submit("life again", build, parallelism=1, flags=[f"--savepoint_path={savepoint}"])
    try:
        restored = again.checkpoints()["latest"]["restored"]
        assert restored["is_savepoint"] and restored["external_path"].endswith(savepoint.split(":")[-1])
        gate.open_to(ROWS)
        again.wait(lambda: len(streams.written(out)) >= ROWS, "all rows have left")
        streams.check(of, stream, streams.written(out))
    finally:
        again.cancel()


def _read(job: Running, gate: streams.Gate, rows: int) -> None:
    """Let rows come, and wait until they were read."""
    gate.open_to(rows // PARTITIONS)
    job.wait(lambda: gate.reached(PARTITIONS) >= rows // PARTITIONS, f"{rows} rows were read")


def _idle_shards_release(job: Running, gate: streams.Gate, of: Any, stream: streams.Stream, out: Path) -> None:
    """Rows of a shard that gets no more rows leave in time, since the watermark moves on."""
    # All that are early are within one delay, so that none can come late.
    _read(job, gate, EARLY)
    _read(job, gate, LONELY)

    def early() -> list[Any]:
        return [row for row in streams.written(out) if row[0] < EARLY]

    job.wait(lambda: len(early()) == EARLY, "rows of idle shards have left")
    assert job.state == "RUNNING"
    assert streams.late(of, stream, early()) == 0


def _state_stays_bounded(job: Running, gate: streams.Gate) -> None:
    """The more rows, the same size of checkpoints."""
    sizes = []
    for step in range(STEPS):
        _read(job, gate, LONELY + (ROWS - LONELY) * (step + 1) // (STEPS + 1) // PARTITIONS * PARTITIONS)
        job.wait_checkpoints()
        # Of the step that holds rows, whose output is appended. Not of the source: Beam 2.70 leaves some bytes there
        # whenever a source rests.
        sizes.append(job.size("Append"))
    assert max(sizes[STEPS // 2 :]) < 1.3 * max(sizes[: STEPS // 2]), sizes
