"""A stream on a cluster: timers go by the watermark, state stays bounded, and a savepoint is all that is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from crenel.transforms import Anonymize
from crenel.transforms.hold import _SHORTEST_LOG
from tests.runners.flink import streams
from tests.runners.harness import Flink, Running

pytestmark = pytest.mark.flink

#: First rows of many persons, then of one alone, then again of many.
EARLY, LONELY, ROWS = 4_000, 20_000, 260_000
PARTITIONS, SHARDS, STEPS = 2, 2, 6

#: What the state of all shards may take. A log is replaced by a snapshot when it is longer than `_SHORTEST_LOG`, so
#: that its size goes up and down; the rest is for a snapshot and the latest pack.
BOUND = SHARDS * int(1.5 * _SHORTEST_LOG)
#: Five columns of numbers.
ROW_BYTES = 40


def test_a_stream_of_its_whole_life(flink: Flink, tmp_path: Path) -> None:
    of = streams.policy(shards=SHARDS)
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
        _read(again, gate, ROWS)
        again.stop(drain=True)
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

    shard = stream.shards(of, np.arange(EARLY + 1))
    idle_rows = set(np.flatnonzero(shard[:EARLY] != shard[EARLY]).tolist())
    job.wait(lambda: len(early()) == EARLY, "rows of idle shards have left")
    assert job.state == "RUNNING"
    # The other shard's rows leave by those that come, which are ahead of the watermark.
    idle = [row for row in early() if row[0] in idle_rows]
    assert len(idle) > EARLY // 4
    assert streams.late(of, stream, idle) == 0


def _state_stays_bounded(job: Running, gate: streams.Gate) -> None:
    """However many rows come, checkpoints hold no more than what is held and a log of limited length."""
    sizes = []
    for step in range(STEPS):
        _read(job, gate, LONELY + (ROWS - LONELY) * (step + 1) // (STEPS + 1) // PARTITIONS * PARTITIONS)
        job.wait_checkpoints()
        # Of the step that holds rows, whose output is appended. Not of the source: Beam 2.70 leaves some bytes there
        # whenever a source rests.
        sizes.append(job.size("Append"))
    assert max(sizes) < BOUND, sizes
    assert gate.reached(PARTITIONS) * PARTITIONS * ROW_BYTES > 2 * BOUND, "too few rows to tell"
