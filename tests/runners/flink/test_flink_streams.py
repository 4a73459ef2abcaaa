"""A stream on a cluster: timers follow the watermark, state stays bounded, and a job continues from a savepoint.

One job goes through all of this, and each test examines another part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from crenel.transforms import Anonymize
from crenel.transforms._hold.hold_step import _SHORTEST_LOG
from tests.runners.flink import streams
from tests.runners.harness import Flink, Running

pytestmark = pytest.mark.flink

#: The ends of three phases: rows of many persons, then of one person alone, then of many again.
EARLY, LONELY, ROWS = 4_000, 20_000, 260_000
PARTITIONS, SHARDS, STEPS = 2, 2, 6

#: A snapshot contains reusable boxes and the rows of one delay: a shard holds all of them while one person is alone.
PARAMETERS = {"reuse": "weighted", "max_reusable": 500}
SNAPSHOT = 6_000 * 100 + 500 * 100
#: The most bytes of state of all shards. A snapshot replaces a log that is longer than both `_SHORTEST_LOG` and twice
#: the last snapshot, so the size of the state goes up and down.
BOUND = SHARDS * (max(_SHORTEST_LOG, 2 * SNAPSHOT) + SNAPSHOT)
#: Five columns of 8-byte numbers.
ROW_BYTES = 40
#: Only a checkpoint ends a bundle. Rows released at that time must not wait for the next bundle, which never comes for
#: a shard without new rows.
FLAGS = ["--max_bundle_time_mills=600000", "--max_bundle_size=1000000"]


@dataclass
class Life:
    """A job from start to end, and what was observed of it."""

    policy: Any
    stream: streams.Stream
    gate: streams.Gate
    out: Path
    #: The rows of the first phase, as released when the rows of idle shards were due.
    early: list[Any] = field(default_factory=list)
    #: Bytes of state, measured while more and more rows arrived.
    sizes: list[int] = field(default_factory=list)
    #: How many rows were released at the savepoint, and all rows released in the end.
    before: int = 0
    left: list[Any] = field(default_factory=list)
    savepoint: str = ""
    #: What the second job was restored from, as Flink reports it.
    restored: dict[str, Any] = field(default_factory=dict)

    def build(self, pipeline: Any) -> None:
        """Build the pipeline. Its source reads many batches in one bundle."""
        source = streams.source(self.stream, self.gate, batches=40)
        anonymized = pipeline | "Source" >> source | Anonymize(self.policy)
        _ = anonymized | "Append" >> beam.ParDo(streams.Append(self.out))

    def read(self, job: Running, rows: int) -> None:
        """Let the source read up to this many rows, and wait until it has read them."""
        self.gate.open_to(rows // PARTITIONS)
        job.wait(lambda: self.gate.reached(PARTITIONS) >= rows // PARTITIONS, f"{rows} rows were read")

    def begin(self, job: Running) -> None:
        """Run from the start to the savepoint: all shards are busy, then only one, then all for a long time."""
        # The rows of the first phase are within one delay, so that none can arrive late.
        self.read(job, EARLY)
        self.read(job, LONELY)
        job.wait(lambda: len(self._early()) == EARLY, "rows of idle shards have left")
        self.early = self._early()
        for step in range(STEPS):
            self.read(job, LONELY + (ROWS - LONELY) * (step + 1) // (STEPS + 1) // PARTITIONS * PARTITIONS)
            job.wait_checkpoints()
            # Measure the step that holds rows, which Flink fuses with "Append". Do not measure the source: Beam 2.70
            # leaves some bytes there whenever a source pauses.
            self.sizes.append(job.size("Append"))
        self.savepoint = job.stop()
        self.before = len(streams.written(self.out))

    def go_on(self, job: Running) -> None:
        """Run from the savepoint to the end of the stream."""
        self.restored = job.checkpoints()["latest"]["restored"]
        self.read(job, ROWS)
        job.stop(drain=True)
        self.left = streams.written(self.out)

    def _early(self) -> list[Any]:
        return [row for row in streams.written(self.out) if row[0] < EARLY]


@pytest.fixture(scope="module")
def life(flink: Flink, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """A job that runs to a savepoint with two tasks per step, and from there to its end with one."""
    folder = tmp_path_factory.mktemp("life")
    stream = streams.Stream(ROWS, 3_000, partitions=PARTITIONS, lonely=(EARLY, LONELY))
    policy = streams.policy(shards=SHARDS, parameters=PARAMETERS)
    seen = Life(policy, stream, streams.Gate(folder / "gate"), folder / "out")
    seen.out.mkdir()
    seen.gate.open_to(0)
    with flink.submit("life", seen.build, flags=FLAGS) as job:
        seen.begin(job)
    restore = [*FLAGS, f"--savepoint_path={seen.savepoint}"]
    with flink.submit("life again", seen.build, parallelism=1, flags=restore) as job:
        seen.go_on(job)
    return seen


def test_idle_shards_release_in_time(life: Life) -> None:
    """The rows of a shard that gets no more rows are released in time, because the watermark advances."""
    shard = life.stream.shards(life.policy, np.arange(EARLY + 1))
    idle_rows = set(np.flatnonzero(shard[:EARLY] != shard[EARLY]).tolist())
    # Leave out the busy shard: new rows, which are ahead of the watermark, trigger its releases.
    idle = [row for row in life.early if row[0] in idle_rows]
    assert len(idle) > EARLY // 4
    assert streams.late(life.policy, life.stream, idle) == 0


def test_state_stays_bounded(life: Life) -> None:
    """However many rows arrive, checkpoints contain only the held rows and a log of limited length."""
    assert len(life.sizes) == STEPS
    assert max(life.sizes) < BOUND, life.sizes
    assert ROWS * STEPS // (STEPS + 1) * ROW_BYTES > 2 * BOUND, "too few rows to tell"


def test_a_savepoint_is_all_that_a_job_needs(life: Life) -> None:
    """The job continues with one task instead of two: no row is lost, and none is released twice."""
    assert 0 < life.before < ROWS
    assert life.restored["is_savepoint"]
    assert life.restored["external_path"].endswith(life.savepoint.split(":")[-1])
    streams.check(life.policy, life.stream, life.left)
