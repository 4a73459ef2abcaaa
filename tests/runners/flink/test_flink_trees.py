"""Trees of shards on a cluster: the same releases as on the local runner, and savepoints while trees change.

The stream has one partition, and its deadline counts rows: so the order of the rows alone decides what is released.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest

from crenel.encoding.encoder import Encoder
from crenel.encoding.tree_learning import learn_tree, with_tree
from crenel.policy import Policy
from crenel.transforms import Anonymize
from tests.runners.flink import streams
from tests.runners.harness import Flink, Running

pytestmark = pytest.mark.flink

#: A tree is learned from 8,192 rows, and another one when 57,344 have been read.
ROWS, DRIFT, STOPPED = 70_000, 20_000, 45_000
STREAM = streams.Drifting(ROWS, DRIFT)
FOLLOWED = streams.policy(shards=4, shard_by="locality", parameters={}, delay=None, delay_rows=1_000)
#: Released rows and their boxes, by number; and the shards that released them.
Released = tuple[dict[int, Any], set[int]]


@dataclass
class Life:
    """A stream that is read in two jobs, one after the other."""

    out: Path
    gate: streams.Gate
    policy: Policy

    def build(self, pipeline: Any) -> None:
        """Build the pipeline."""
        anonymized = pipeline | "Source" >> streams.source(STREAM, self.gate) | Anonymize(self.policy)
        _ = anonymized | "Append" >> beam.ParDo(streams.Append(self.out))
        _ = anonymized.releases | "Releases" >> beam.ParDo(AppendShards(self.out))

    def read(self, job: Running, rows: int) -> None:
        """Let the source read up to this many rows, and wait until it has read them."""
        self.gate.open_to(rows)
        job.wait(lambda: self.gate.reached(1) >= rows, f"{rows} rows were read")


class AppendShards(beam.DoFn):
    """Notes which shards released something."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def process(self, batch: pa.RecordBatch) -> None:
        for shard in set(batch["shard"].to_pylist()):
            Path(self._folder, f"shard-{shard}").touch()


def on_flink(flink: Flink, folder: Path, first: Policy, then: Policy) -> Released:
    """Run the stream under one policy with two tasks, and from a savepoint under another with one."""
    life = Life(folder / "out", streams.Gate(folder / "gate"), first)
    life.out.mkdir()
    life.gate.open_to(0)
    with flink.submit(f"{folder.name} first", life.build) as job:
        life.read(job, STOPPED)
        savepoint = job.stop()
    life.policy = then
    flags = [f"--savepoint_path={savepoint}"]
    with flink.submit(f"{folder.name} then", life.build, parallelism=1, flags=flags) as job:
        life.read(job, ROWS)
        job.stop(drain=True)
    shards = {int(path.name.removeprefix("shard-")) for path in life.out.glob("shard-*")}
    left = streams.written(life.out)
    streams.check(then, STREAM, left)
    return {row[0]: row[1:3] for row in left}, shards


def on_this_machine(policy: Policy, folder: Path) -> Released:
    out = folder / "local"
    out.mkdir()
    starts = range(0, ROWS, 500)
    batches = [pa.RecordBatch.from_pydict(STREAM.columns(np.arange(start, start + 500))) for start in starts]
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        rows = pipeline | beam.Create(batches, reshuffle=False).with_output_types(pa.RecordBatch)
        anonymized = rows | Anonymize(policy)
        _ = anonymized | "Append" >> beam.ParDo(streams.Append(out))
        _ = anonymized.releases | "Releases" >> beam.ParDo(AppendShards(out))
    shards = {int(path.name.removeprefix("shard-")) for path in out.glob("shard-*")}
    return {row[0]: row[1:3] for row in streams.written(out)}, shards


def test_a_followed_stream_is_released_as_on_the_local_runner(flink: Flink, tmp_path: Path) -> None:
    """Also across a savepoint, after which the tree changes."""
    folder = tmp_path / "followed"
    folder.mkdir()
    rows, shards = on_flink(flink, folder, FOLLOWED, FOLLOWED)
    expected, of_shards = on_this_machine(FOLLOWED, tmp_path)
    assert shards == of_shards == {0, 1, 2, 3}
    assert rows == expected


def tree_of(rows: range) -> Policy:
    columns = {name: column.tolist() for name, column in STREAM.columns(np.array(rows)).items()}
    plain = streams.policy(shards=1, parameters={}, delay=None, delay_rows=1_000)
    return with_tree(plain, learn_tree(plain, Encoder(plain).encode(columns).rows, 4))


def test_a_savepoint_is_taken_up_under_another_tree(flink: Flink, tmp_path: Path) -> None:
    """Rows that are held leave from the shards they are in: no row is lost, and none is released twice."""
    folder = tmp_path / "named"
    folder.mkdir()
    before, after = tree_of(range(4_000)), tree_of(range(DRIFT, DRIFT + 4_000))
    assert before.shard_by != after.shard_by
    _, shards = on_flink(flink, folder, before, after)
    assert shards == {0, 1, 2, 3}
