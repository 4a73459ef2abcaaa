"""Workers and machines fail during a run: no row is lost, none is released twice, and groups stay whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crenel.transforms import Anonymize
from tests.runners.flink import streams
from tests.runners.harness import Flink

pytestmark = pytest.mark.flink

ROWS, PERSONS, PARTITIONS = 200_000, 5_000, 4
#: Rows of each partition between two failures. More rows follow after the last failure.
STEP = ROWS // PARTITIONS // 6


def test_each_row_is_released_once_though_workers_die(flink: Flink, tmp_path: Path) -> None:
    of = streams.policy()
    stream = streams.Stream(ROWS, PERSONS, PARTITIONS)
    gate = streams.Gate(tmp_path / "gate")
    gate.open_to(STEP)
    out = tmp_path / "out"
    out.mkdir()

    def build(pipeline: Any) -> None:
        anonymized = pipeline | "Source" >> streams.source(stream, gate) | Anonymize(of)
        streams.collect(anonymized.published, out)

    flink.stand_by()
    kills = [flink.kill_task_manager, flink.kill_worker, flink.kill_task_manager, flink.kill_task_manager]
    with flink.submit("failures", build) as job:
        for number, kill in enumerate(kills, start=1):
            # Now some rows are in a checkpoint, some were read after it, and some are still to come.
            job.wait(lambda n=number: gate.reached(PARTITIONS) >= STEP * n, f"step {number} was read")
            job.wait_checkpoints()
            gate.open_to(STEP * (number + 1))
            job.wait(lambda n=number: gate.reached(PARTITIONS) > STEP * n, f"step {number + 1} has begun")
            kill()
            job.wait(lambda n=number: job.restored() >= n, f"the job goes on after failure {number}")
        gate.open_to(ROWS)
        # No drain is needed: at the end of the source the held rows are released.
        job.wait(lambda: streams.lines(out) >= ROWS, "all rows have left")
        assert job.restored() >= len(kills)
    streams.check(of, stream, streams.written(out))
