"""The cost of shards: loss by their number and by how rows are assigned; and state, bytes written, time, throughput.

    python -m benchmarks.scale            all of it: about ten minutes
    python -m benchmarks.scale --quick    small, as a smoke test

Loss is simulated without Beam, for the method bastion. A stream of a thousand rows per second has a deadline in event
time. Its rows are assigned to shards as the transform does it, and the clock of all shards advances every half second.
So with more shards, each has fewer rows within the deadline. Every shard of every run is audited.

Four ways to assign rows are compared: `tree` (learned from half of the first 8,000 rows, as by `crenel plan --write`),
`followed` (learned by the stream itself while one shard holds its first rows, as by `shard_by: locality`), `person`,
and `domains`: equal parts of a Z-order curve through the declared domains, which knows nothing of the rows.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from numpy.typing import NDArray

from benchmarks import memory
from benchmarks.datasets import ADULT, NUMERIC, SFU, Stream, adult, census, taxi
from benchmarks.held import PUSH, Case, quasi_identifiers
from benchmarks.runs import PACK, BrokenPromiseError
from benchmarks.tables import finish, rounded, table
from crenel.audit import audit
from crenel.encoding.rows import Rows
from crenel.encoding.tree_following import TreeFollower, Watch, one_shard
from crenel.encoding.tree_learning import Supply, learn_tree
from crenel.engine import Kind, Releases, create_engine
from crenel.engine.kernels.compiler import compile_from_now_on
from crenel.policy import Policy, ShardBy
from crenel.transforms._deal.learn_step import LearnRows
from crenel.transforms._hold.shard_holder import ShardHolder
from crenel.transforms._pack.pack_step import ONE_KEY
from crenel.transforms._pack.row_pack import KIND, Packer, RowPack
from crenel.transforms._pack.sharding import ShardRouter, shard_name
from crenel.transforms._publish.publisher import Publisher

WAYS = ("tree", "followed", "person", "domains")
#: Microseconds between two rows.
STEP = 1_000
#: Rows at the start of the stream, of which every second one is in the sample of the tree.
SAMPLED = 8_000


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    shards: Sequence[int] = (1, 8, 32, 128)
    #: k, the number of rows of the whole stream within the deadline, and the rows of the stream.
    crowds: Sequence[tuple[int, int, int]] = ((10, 10_000, 45_222), (50, 10_000, 45_222), (50, 40_000, 100_000))
    timed: int = 60_000
    held: Sequence[int] = (1_000, 10_000, 50_000)
    #: Rows inside the deadline, for the time of a row. About half of them are held.
    full: Sequence[int] = (25_000, 250_000, 2_500_000)
    #: Rows inside the deadline of a thin shard, in units of k, and how many streams of that kind.
    thin: Sequence[float] = (2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
    ends: int = 40
    processes: Sequence[int] = (1, 2, 4, 8)
    turns: int = 5


FULL = Scale()
QUICK = Scale((1, 4), ((5, 400, 2_000),), 20_000, (500,), (1_000, 2_000), (2.5,), 2, (1, 2), 1)


@dataclass(frozen=True)
class Point:
    """One number of shards that was asked for."""

    #: The shards that there are: a tree has fewer leaves if more would be thin.
    shards: int
    loss: float
    #: Shares of the rows that were suppressed while the stream ran, and at its end, where the last rows of each shard
    #: find no company any more.
    suppressed: float
    at_end: float
    #: The rows of the fullest shard, to the mean.
    fullest: float
    #: Processor time of the engines for a row, in microseconds.
    us: float


def sharding(scale: Scale) -> dict[str, Any]:
    """Measure loss and suppressed rows by data set, guarantee, assignment and number of shards."""
    compile_from_now_on()
    _point(_streams(1_000)[1], 5, 200, WAYS[0], 2)  # loads the kernels
    figures: dict[str, Any] = {}
    for k, inside, rows in scale.crowds:
        for stream in _streams(rows):
            if len(stream.rows) < 2 * inside:
                continue
            name = f"{stream.name}, k={k}, {inside:,} rows inside the deadline"
            one = _point(stream, k, inside, WAYS[0], 1)
            points = {way: [one if n == 1 else _point(stream, k, inside, way, n) for n in scale.shards] for way in WAYS}
            _show(name, scale.shards, points)
            lines = {
                way: {field: [rounded(asdict(point)[field]) for point in line] for field in Point.__annotations__}
                for way, line in points.items()
            }
            figures[name] = {"k": k, "inside": inside, "asked": list(scale.shards), **lines}
    return figures


def _streams(rows: int) -> list[Stream]:
    numbers, mixed = adult(NUMERIC, rows=SFU), adult(ADULT, rows=SFU)
    named = [replace(numbers, name="Adult, 6 QIs"), replace(mixed, name="Adult, 10 QIs"), census(), taxi(rows=rows)]
    return [_timed(stream.first(rows)) for stream in named]


def _timed(stream: Stream) -> Stream:
    return replace(stream, rows=replace(stream.rows, time=np.arange(len(stream.rows), dtype=np.int64) * STEP))


def _point(stream: Stream, k: int, inside: int, way: str, shards: int) -> Point:
    policy = Policy(
        person="person",
        event_time="time",
        quasi_identifiers=stream.quasi_identifiers,
        k=k,
        delay=inside * STEP,
        shards=shards,
        seed=0,
    )
    # Numbers that are hashes, as the transform's are.
    mixed = np.random.default_rng(0).permutation(len(stream.rows)).astype(np.int64)
    rows = replace(stream.rows, person=mixed)
    shard = _assigned(policy, rows, way, inside)
    return simulate(policy, rows, shard)


def _assigned(policy: Policy, rows: Rows, way: str, inside: int) -> NDArray[np.int64]:
    if way == "person":
        return ShardRouter(policy, b"").shards(rows, {}, np.arange(len(rows)))
    if way == "domains":
        return _z_order(policy, rows.qi)
    if way == "followed":
        return TreeFollower(policy, one_shard(policy), Watch(), lambda: ()).deal(rows)
    sample = rows.take(np.arange(0, min(SAMPLED, len(rows)), 2))
    return learn_tree(policy, sample, policy.most_shards, Supply.of(policy, len(sample), inside)).find(rows.qi)


def _z_order(policy: Policy, qi: NDArray[np.float64], levels: int = 8) -> NDArray[np.int64]:
    """Cut a Z-order curve through the domains into equal parts; the first quasi-identifier has the first bit."""
    widest = np.array([one.geometry.widest() for one in policy.quasi_identifiers.values()])
    cell = (qi - widest[:, 0]) / (widest[:, 1] - widest[:, 0])
    place, weight = np.zeros(len(qi)), 1.0
    for _ in range(min(levels, 52 // qi.shape[1])):
        cell = cell * 2.0
        upper = np.minimum(np.floor(cell), 1.0)
        cell = cell - upper
        for d in range(qi.shape[1]):
            weight /= 2.0
            place += upper[:, d] * weight
    return np.minimum(place * policy.most_shards, policy.most_shards - 1).astype(np.int64)


def simulate(policy: Policy, rows: Rows, shard: NDArray[np.int64]) -> Point:
    """Run a stream through its shards, each with its own engine.

    Raises:
        BrokenPromiseError: The audit of a shard found a broken promise.
    """
    sizes = np.bincount(shard)
    loss = suppressed = at_end = seconds = 0.0
    for i in np.flatnonzero(sizes):
        mine = rows.take(np.flatnonzero(shard == i))
        start = time.process_time()
        running, last, told = _through_engine(policy, mine, rows.time, str(i).encode())
        seconds += time.process_time() - start
        releases = Releases.concat([running, last])
        report = audit(policy, mine, releases, calls=told)
        if not report.ok:
            raise BrokenPromiseError("\n".join(report.problems() + report.unchecked()))
        loss += float((releases.loss * releases.sizes).sum())
        suppressed += _suppressed(running)
        at_end += _suppressed(last)
    count = len(rows)
    fullest = float(sizes.max() / sizes[sizes > 0].mean())
    return Point(
        int((sizes > 0).sum()), loss / count, suppressed / count, at_end / count, fullest, seconds / count * 1e6
    )


def _through_engine(
    policy: Policy, rows: Rows, clock: NDArray[np.int64], name: bytes
) -> tuple[Releases, Releases, list[tuple[int, int]]]:
    """Run the rows of a shard; return what left while the stream ran, what left at its end, and when it was told."""
    engine = create_engine(policy, shard=name)
    ticks = clock[np.minimum(np.arange(PACK, len(clock) + PACK, PACK), len(clock)) - 1]
    left, told, begin = [], [], 0
    for now, end in zip(ticks.tolist(), np.searchsorted(rows.time, ticks, side="right").tolist(), strict=True):
        if end > begin:
            left.append(engine.push(rows.slice(begin, end)))
        left.append(engine.advance(now))
        told.append((end, now))
        begin = end
    return Releases.concat(left), engine.flush(), told


def _suppressed(releases: Releases) -> int:
    return int(releases.sizes[releases.kind == Kind.SUPPRESSED].sum())


def _show(name: str, asked: Sequence[int], points: Mapping[str, Sequence[Point]]) -> None:
    header = ["way", "shards", "made", "loss", "to 1 shard", "suppressed", "at the end", "fullest to mean", "us a row"]
    lines = [
        [
            way,
            f"{n}",
            f"{point.shards}",
            point.loss,
            point.loss / line[0].loss,
            point.suppressed,
            point.at_end,
            point.fullest,
            point.us,
        ]
        for way, line in points.items()
        for n, point in zip(asked, line, strict=True)
        if n > 1 or way == WAYS[0]
    ]
    print(f"\n{name}\n\n{table(header, lines)}", flush=True)


# --- Thin shards ---


def thin(scale: Scale) -> dict[str, Any]:
    """Measure one of several shards with few rows inside the deadline, beside an engine that is the only one.

    Only the former releases its oldest rows first when it is thin, and suppresses nobody at the end who can join.
    """
    compile_from_now_on()
    streams = [stream for stream in _streams(45_222) if stream.name != "Adult, 10 QIs"]
    figures: dict[str, Any] = {}
    lines = []
    for stream, times_k in itertools.product(streams, scale.thin):
        alone, several = (_of_thin(stream, times_k, shards, scale.ends) for shards in (1, 2))
        figures[f"{stream.name}, {times_k}"] = {"alone": alone, "several": several}
        counts = [one[name] for name in ("running", "at_end", "ends") for one in (alone, several)]
        lines.append([f"{stream.name}, {times_k:g} k", *counts, several["loss"] / alone["loss"]])
    names = [f"{name}, {who}" for name in ("running", "at the end", "ends") for who in ("alone", "of several")]
    header = ["inside", *names, "loss to alone"]
    print(f"\nThin shards: rows suppressed, and loss\n\n{table(header, lines)}", flush=True)
    return figures


def _of_thin(stream: Stream, times_k: float, shards: int, ends: int, k: int = 20) -> dict[str, float]:
    """Run streams of twelve to thirteen deadlines that come at random moments and end at a random one.

    Returns shares of all rows, and of the ends at which rows were suppressed; a suppressed row loses 1.
    """
    inside = int(times_k * k)
    loss = running = at_end = count = suppressing = 0.0
    for seed in range(ends):
        random = np.random.default_rng(seed)
        size = 12 * inside + int(random.integers(0, inside))
        first = int(random.integers(0, len(stream.rows) - size))
        time = np.sort(random.integers(0, size * STEP, size))
        rows = replace(stream.rows.slice(first, first + size), time=time, person=np.arange(size))
        policy = Policy(
            person="person",
            event_time="time",
            quasi_identifiers=stream.quasi_identifiers,
            k=k,
            delay=inside * STEP,
            shards=shards,
            seed=seed,
        )
        engine = create_engine(policy)
        left, last = engine.push(rows), engine.flush()
        loss += sum(float((one.loss * one.sizes).sum()) for one in (left, last))
        running, at_end, count = running + _suppressed(left), at_end + _suppressed(last), count + size
        suppressing += _suppressed(last) > 0
    shares = {"running": running / count, "at_end": at_end / count, "ends": suppressing / ends}
    return {"loss": rounded(loss / count), **{name: rounded(share) for name, share in shares.items()}}


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
    policy = memory.policy(k=100, delay_rows=held, method="bastion")
    packer, holder = Packer(policy, b""), ShardHolder(policy, b"", b"0")
    for number in range(2 * held // memory.BATCH + 2):
        _through(holder, _packed(packer, memory.batch(number)))
    size = len(holder.snapshot())
    return {"snapshot": float(size), "row": rounded(size / holder.held)}


def _pack(size: int, rows: int) -> dict[str, float]:
    """Send packs of `size` rows through one shard: decode, hold, publish."""
    policy = memory.policy(method="bastion")
    packer, publisher = Packer(policy, b""), Publisher(policy)
    given = pa.Table.from_batches(memory.batches(0, 5))
    count = rows // size
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


# --- Rows held ---


def rows_held(scale: Scale) -> dict[str, Any]:
    """Measure a row's time in a shard that may hold many, when as many rows leave it as come.

    Where rows first become due, many more leave than come: each of them takes others along. So half as many rows again
    as may be held go through the shard before time is taken.
    """
    compile_from_now_on()
    figures: dict[str, Any] = {}
    lines = []
    for k in (10, 100):
        measured = [_settled_time(k, inside, scale.timed) for inside in scale.full]
        times, held = [one["us"] for one in measured], [f"{one['held']:,.0f}" for one in measured]
        figures[f"k={k}"] = dict(zip(map(str, scale.full), measured, strict=True))
        lines += [[f"k = {k}, us a row", *times, times[-1] / times[0]], [f"k = {k}, rows held", *held, ""]]
    header = ["", *(f"{inside:,} inside" for inside in scale.full), "last to first"]
    print(f"\nA row's time by rows inside the deadline\n\n{table(header, lines)}", flush=True)
    return figures


def _settled_time(k: int, inside: int, timed: int) -> dict[str, float]:
    """Return processor time a row, the median of four parts, and how many rows are held after each, on average."""
    first = inside * 3 // 2
    case = Case("bastion", k, inside, first + timed)
    qi = quasi_identifiers(case.rows)
    numbers = np.arange(case.rows, dtype=np.int64)
    rows = Rows(qi, numbers, np.zeros((case.rows, 0), dtype=np.int64), numbers)
    engine = create_engine(Policy.from_dict(case.policy()))
    for start in range(0, first, PUSH):
        engine.push(rows.slice(start, min(start + PUSH, first)))
    parts, held = [], []
    for part in range(4):
        begin, end = first + timed * part // 4, first + timed * (part + 1) // 4
        before = time.process_time()
        for start in range(begin, end, PUSH):
            engine.push(rows.slice(start, min(start + PUSH, end)))
        parts.append((time.process_time() - before) / (end - begin) * 1e6)
        held.append(engine.held)
    return {"us": rounded(median(parts)), "held": fmean(held)}


# --- What LEARN costs ---


def learning(scale: Scale) -> dict[str, Any]:
    """Measure the step that follows a stream with a tree: processor time a row, by the rows of a pack."""
    sizes = [size for size in (200, 1_000, 10_000) if size <= scale.timed // 6]
    figures = {
        str(size): {f"{shards} shards": _learn(size, shards, scale.timed) for shards in (8, 32)} for size in sizes
    }
    header = ["rows of a pack", "8 shards, us a row", "32 shards, us a row"]
    print(f"\nLEARN, by the rows of a pack\n\n{table(header, _lines(figures))}", flush=True)
    return figures


class _Cell:
    """A cell of state that costs nothing."""

    def __init__(self) -> None:
        self._found: list[bytes] = []

    def read(self) -> Any:
        return self._found[0] if self._found else None

    def write(self, data: bytes) -> None:
        self._found = [data]

    def clear(self) -> None:
        self._found = []


class _Bag(_Cell):
    def read(self) -> Any:
        return self._found

    def add(self, data: bytes) -> None:
        self._found.append(data)


def _learn(size: int, shards: int, rows: int) -> float:
    """Send packs of `size` rows through LEARN: opened, dealt out, sealed. Not those from which it learns first."""
    policy = replace(memory.policy(k=10, method="bastion"), delay_rows=None, delay="1m", shards=shards)
    policy = replace(policy, shard_by=ShardBy.LOCALITY)
    packer, step, window = Packer(policy, b""), LearnRows(policy, b""), GlobalWindow()
    step.setup()
    given = pa.Table.from_batches(memory.batches(0, 5))
    packs = []
    for start in range(0, rows, size):
        batch = given.slice(start % (len(given) - size + 1), size).combine_chunks()
        (pack,) = packer.pack_arrow(batch, np.arange(start, start + size, dtype=np.int64) * STEP).packs
        packs.append(packer.seal.close(KIND, pack.to_bytes(), shard_name(ONE_KEY, window)))
    cells = (_Cell(), _Cell(), _Bag())
    first = -(-2 * SAMPLED // size)
    took, dealt = 0.0, 0
    for number, data in enumerate(packs):
        start_time = time.process_time()
        parts = list(step.process((ONE_KEY, data), window, *cells))
        took += time.process_time() - start_time if number >= first else 0.0
        dealt = max(dealt, len(parts))
    if dealt < shards // 2:
        raise AssertionError(f"{dealt} shards, not {shards}")
    return rounded(took / (len(packs) - first) / size * 1e6)


# --- Throughput ---


def throughput(scale: Scale) -> dict[str, Any]:
    """Measure how many rows a second processes take side by side, each with shards of its own; 8 in all.

    More processes than cores gain nothing: they show what it costs to have them. Other work on the machine takes time
    from all of them, so numbers of processes take turns, and the best of a few turns counts. A row's processor time
    tells what cores that have nothing else to do would take.
    """
    cores = len(os.sched_getaffinity(0))
    turns = [{n: _rate(n, 40 * scale.timed) for n in scale.processes} for _ in range(scale.turns)]
    rates = {n: max(turn[n][0] for turn in turns) for n in scale.processes}
    times = {n: min(turn[n][1] for turn in turns) for n in scale.processes}
    lines = [[n, rates[n], rates[n] / rates[1], times[n]] for n in scale.processes]
    header = ["processes", "rows a second", "to 1", "processor, us a row"]
    print(f"\nThroughput of 8 shards on {cores} cores\n\n{table(header, lines)}", flush=True)
    return {"cores": cores, **{str(n): {"rate": rounded(rates[n]), "us": rounded(times[n])} for n in scale.processes}}


def _rate(processes: int, rows: int) -> tuple[float, float]:
    """Return rows a second, and microseconds of processor time a row."""
    parts = [list(range(first, 8, processes)) for first in range(processes)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(work, [(shards, 1) for shards in parts], chunksize=1)  # loads the kernels
        start = time.perf_counter()
        took = sum(pool.map(work, [(shards, rows // 8) for shards in parts], chunksize=1))
        return rows / (time.perf_counter() - start), took / rows * 1e6


def work(given: tuple[list[int], int]) -> float:
    """Pack, hold and publish the rows of some shards; return the processor time."""
    shards, rows = given
    policy = memory.policy(method="bastion", delay_rows=2_000)
    packer, publisher = Packer(policy, b""), Publisher(policy)
    start = time.process_time()
    for shard in shards:
        holder = ShardHolder(policy, b"", b"%d" % shard)
        for number in range(-(-rows // memory.BATCH)):
            for left in _through(holder, _packed(packer, memory.batch(1_000 * shard + number))):
                publisher.published_batch(left)
    return time.process_time() - start


PARTS = {
    "sharding": sharding,
    "thin": thin,
    "cost": cost,
    "held": rows_held,
    "learning": learning,
    "throughput": throughput,
}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="small, as a smoke test")
    parser.add_argument("--only", help="some of: " + ", ".join(PARTS))
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    chosen = said.only.split(",") if said.only else list(PARTS)
    if not set(chosen) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}")
    figures = {part: PARTS[part](QUICK if said.quick else FULL) for part in chosen}
    finish({"benchmark": "scale", "quick": said.quick, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
