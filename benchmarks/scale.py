"""The cost of shards: loss by their number and by how rows are assigned; and state, bytes written and time.

    python -m benchmarks.scale            all of it, with the plot in docs/scale.png: about ten minutes
    python -m benchmarks.scale --quick    small, as a smoke test; writes nothing

Loss is simulated without Beam. A stream of a thousand rows per second has a deadline in event time. Its rows are
assigned to shards as the transform does it, and the clock of all shards advances every half second. So with more
shards, each has fewer rows within the deadline. Every shard of every run is audited.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import memory
from benchmarks.datasets import NUMERIC, ROOT, SFU, Stream, adult, census
from benchmarks.runs import PACK, BrokenPromiseError
from benchmarks.tables import finish, rounded, table
from crenel.audit import audit
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases, create_engine
from crenel.policy import Policy
from crenel.transforms._hold.shard_holder import ShardHolder
from crenel.transforms._pack.row_pack import Packer, RowPack
from crenel.transforms._pack.sharding import ShardRouter
from crenel.transforms._publish.publisher import Publisher

SHARDS = (1, 2, 4, 8, 16, 32)
WAYS = ("person", "locality")
#: Microseconds between two rows.
STEP = 1_000


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    seeds: int = 3
    shards: Sequence[int] = SHARDS
    #: k, and the number of rows of the whole stream within the deadline.
    crowds: Sequence[tuple[int, int]] = ((10, 10_000), (50, 10_000), (100, 10_000), (50, 40_000))
    #: The most rows of a stream, and the number of rows over which time is measured.
    rows: int = 1_000_000
    timed: int = 300_000
    held: Sequence[int] = (1_000, 10_000, 50_000)


FULL = Scale()
QUICK = Scale(1, (1, 4), ((5, 400),), 2_000, 20_000, (500,))


@dataclass(frozen=True)
class Point:
    """One number of shards, as means over the seeds."""

    loss: float
    suppressed: float
    #: The share of the rows in the fullest shard.
    fullest: float


def sharding(scale: Scale) -> dict[str, Any]:
    """Measure loss and suppressed rows by data set, guarantee, assignment and number of shards."""
    figures: dict[str, Any] = {}
    for stream in map(_timed, (adult(NUMERIC, rows=SFU).first(scale.rows), census().first(scale.rows))):
        for k, inside in scale.crowds:
            name = f"{stream.name}, k={k}, {inside:,} rows inside the deadline"
            points = {way: [_point(stream, k, inside, way, n, scale) for n in scale.shards] for way in WAYS}
            _show(name, scale.shards, k, inside, points)
            figures[name] = {
                "k": k,
                "inside": inside,
                "shards": list(scale.shards),
                **{
                    way: {field: [rounded(getattr(point, field)) for point in line] for field in Point.__annotations__}
                    for way, line in points.items()
                },
            }
    return figures


def _timed(stream: Stream) -> Stream:
    return replace(stream, rows=replace(stream.rows, time=np.arange(len(stream.rows), dtype=np.int64) * STEP))


def _point(stream: Stream, k: int, inside: int, way: str, shards: int, scale: Scale) -> Point:
    found = []
    for seed in range(scale.seeds):
        policy = Policy(
            person="person",
            quasi_identifiers=stream.quasi_identifiers,
            k=k,
            delay=inside * STEP,
            shards=shards,
            shard_by=way,
            method="castle",
            seed=seed,
        )
        # The seed also decides which person is in which shard.
        mixed = np.random.default_rng(seed).permutation(len(stream.rows)).astype(np.int64)
        found.append(simulate(policy, replace(stream.rows, person=mixed)))
    return Point(*(fmean(getattr(point, name) for point in found) for name in Point.__annotations__))


def simulate(policy: Policy, rows: Rows) -> Point:
    """Run a stream through its shards, each with its own engine.

    Raises:
        BrokenPromiseError: The audit of a shard found a broken promise.
    """
    shard = ShardRouter(policy, b"").shards(rows, {}, np.arange(len(rows)))
    engines = [create_engine(policy, shard=str(i).encode()) for i in range(policy.shards)]
    left: list[list[Releases]] = [[] for _ in engines]
    told: list[list[tuple[int, int]]] = [[] for _ in engines]
    pushed = [0] * policy.shards
    for start in range(0, len(rows), PACK):
        stop = min(start + PACK, len(rows))
        now = int(rows.time[stop - 1])
        for i, engine in enumerate(engines):
            mine = start + np.flatnonzero(shard[start:stop] == i)
            if len(mine):
                left[i].append(engine.push(rows.take(mine)))
                pushed[i] += len(mine)
            left[i].append(engine.advance(now))
            told[i].append((pushed[i], now))
    loss = suppressed = 0.0
    for i, engine in enumerate(engines):
        releases = Releases.concat([*left[i], engine.flush()])
        report = audit(policy, rows.take(np.flatnonzero(shard == i)), releases, calls=told[i])
        if not report.ok:
            raise BrokenPromiseError("\n".join(report.problems() + report.unchecked()))
        loss += float((releases.loss * releases.sizes).sum())
        suppressed += float(releases.sizes[releases.kind == Kind.SUPPRESSED].sum())
    fullest = np.bincount(shard, minlength=policy.shards).max() / len(rows)
    return Point(loss / len(rows), suppressed / len(rows), float(fullest))


def _show(name: str, shards: Sequence[int], k: int, inside: int, points: Mapping[str, Sequence[Point]]) -> None:
    header = ["shards", "persons inside / k"]
    header += [f"{way}: {what}" for way in WAYS for what in ("loss", "to 1 shard", "suppressed", "fullest")]
    lines = [
        [
            f"{n}",
            inside / n / k,
            *(
                value
                for way in WAYS
                for value in (
                    points[way][i].loss,
                    points[way][i].loss / points[way][0].loss,
                    points[way][i].suppressed,
                    points[way][i].fullest,
                )
            ),
        ]
        for i, n in enumerate(shards)
    ]
    print(f"\n{name}\n\n{table(header, lines)}", flush=True)


# --- What one shard costs ---


def cost(scale: Scale) -> dict[str, Any]:
    """Measure state, bytes written per bundle, and time, of one shard with 6 quasi-identifiers and a published word."""
    state = {str(held): _state(held) for held in scale.held}
    print(f"\nState by rows held\n\n{table(['rows held', 'snapshot, bytes', 'bytes a row'], _lines(state))}")
    packs = {str(size): _pack(size, scale.timed) for size in (10, 50, 200, 1_000)}
    header = ["rows of a pack", "bytes written", "bytes a row", "us a row"]
    print(f"\nA bundle's pack: what is appended to the log, and processor time\n\n{table(header, _lines(packs))}")
    return {"state": state, "packs": packs}


def _lines(figures: Mapping[str, Mapping[str, float]]) -> list[list[Any]]:
    return [[f"{int(name):,}", *values.values()] for name, values in figures.items()]


def _state(held: int) -> dict[str, float]:
    """Measure the snapshot of a shard that holds `held` rows."""
    policy = memory.policy(k=100, delay_rows=held)
    packer, holder = Packer(policy, b""), ShardHolder(policy, b"", b"0")
    for number in range(2 * held // memory.BATCH + 2):
        _through(holder, _packed(packer, memory.batch(number)))
    size = len(holder.snapshot())
    return {"snapshot": float(size), "row": rounded(size / holder.held)}


def _pack(size: int, rows: int) -> dict[str, float]:
    """Send packs of `size` rows through one shard: decode, hold, publish."""
    policy = memory.policy()
    packer, publisher = Packer(policy, b""), Publisher(policy)
    given = pa.Table.from_batches(memory.batches(0, 5))
    count = min(max(200, rows // size), 2_000)
    batches = [given.slice(i * size % len(given), size).combine_chunks().to_batches()[0] for i in range(count)]
    packs = [pack for batch in batches if len(batch) == size for pack in _packed(packer, batch)]
    times = []
    for _ in range(3):
        holder = ShardHolder(policy, b"", b"0")
        start = time.process_time()
        for left in _through(holder, packs):
            publisher.published_batch(left)
        times.append((time.process_time() - start) / (len(packs) * size) * 1e6)
    written = fmean(map(len, packs))
    return {"written": rounded(written), "row": rounded(written / size), "us": rounded(median(times))}


def _packed(packer: Packer, batch: pa.RecordBatch) -> list[bytes]:
    times = np.zeros(batch.num_rows, dtype=np.int64)
    return [pack.to_bytes() for pack in packer.pack_arrow(batch, times).packs]


def _through(holder: ShardHolder, packs: Sequence[bytes]) -> list[Any]:
    return [left for pack in packs for left in holder.push(RowPack.from_bytes(pack))]


# --- The plot ---


def plot(figures: Mapping[str, Any], path: Path) -> None:
    """Plot the loss relative to one shard, by the number of shards."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots(1, len(WAYS), sharey=True)
    for axis, way in zip(axes, WAYS, strict=True):
        for name, found in figures.items():
            loss = found[way]["loss"]
            is_adult = "Adult" in name
            label = f"{'Adult' if is_adult else 'census'}, k={found['k']}, {found['inside']:,} rows"
            style = {"marker": "o" if is_adult else "s", "linestyle": "-" if is_adult else "--", "markersize": 3}
            axis.plot(found["shards"], [value / loss[0] for value in loss], label=label, linewidth=1, **style)
        axis.set_xscale("log", base=2)
        axis.set_xticks(found["shards"], [str(n) for n in found["shards"]])
        axis.set_title(f"shard_by: {way}", fontsize=9)
        axis.set_xlabel("shards", fontsize=8)
        axis.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
        axis.tick_params(labelsize=7)
    axes[0].set_ylabel("loss, to that of one shard", fontsize=8)
    axes[-1].legend(fontsize=6)
    figure.savefig(path, dpi=110, metadata={"Software": None})


PARTS = {"sharding": sharding, "cost": cost}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="small, as a smoke test")
    parser.add_argument("--only", help="some of: " + ", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="the folder of the plot")
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    chosen = said.only.split(",") if said.only else list(PARTS)
    if not set(chosen) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}")
    figures = {part: PARTS[part](QUICK if said.quick else FULL) for part in chosen}
    if "sharding" in figures and not said.quick:
        plot(figures["sharding"], said.out / "scale.png")
    finish({"benchmark": "scale", "quick": said.quick, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
