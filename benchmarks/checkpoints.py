"""Checkpoints of a stream that nobody disturbs: do they grow, and how long do rows wait for them?

    python -m benchmarks.checkpoints                               an hour, as the documentation has it
    python -m benchmarks.checkpoints --minutes 3 --interval 1000   how long rows wait, with checkpoints every second

A broker, a cluster and `crenel run` with its default flags run on this machine, from four partitions to four, at a
steady rate. Every completed checkpoint is measured. A line is fitted to their sizes from the tenth minute on, when the
buffers are full; its rise over that time is the growth. At the end, each published record is compared with its row: the
wait of a record is the time from the row's deadline until the record was sent.

The exit code is 0 if the growth is at most 5%.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import linear_regression, median, quantiles
from typing import Any

from benchmarks.soak import DELAY, PATIENCE, PUBLISHED, SOURCE, Feeder, Monitor, World, log
from benchmarks.soak_judge import Reader
from benchmarks.tables import finish, rounded, table
from crenel.runners.flink.cluster import until
from tests.pipelines.kafka.broker import Broker

#: The minute from which on checkpoints must not grow, and by how much they may.
FROM, LIMIT = 10.0, 0.05
#: Minutes of a line of the table.
SPAN = 10


def observe(world: World, *, minutes: float, rate: int) -> dict[str, Any]:
    """Let rows flow; return what was seen."""
    began = time.monotonic()
    world.start()
    until(lambda: world.completed() is not None, PATIENCE, world.check)
    feeder, monitor = Feeder(world.server.broker.address, rate), Monitor(world)
    feeder.start()
    monitor.start()
    start = time.time()
    for minute in range(1, int(minutes) + 1):
        while time.time() < start + 60 * min(minute, minutes):
            world.check()
            time.sleep(0.5)
        if monitor.sizes:
            log(began, f"minute {minute}: {len(monitor.sizes):,} checkpoints, the last of {monitor.sizes[-1]:,} bytes")
    feeder.stop()
    monitor.stop()
    seen = [((at - start) / 60, size) for at, size in zip(monitor.moments, monitor.sizes, strict=True)]
    return {
        "minutes": minutes,
        "rows_per_second": rate,
        "checkpoints": len(seen),
        **growth(seen, FROM if minutes > 2 * FROM else minutes / 2),
        "bytes_by_minute": by_minute(seen),
        "waits": waits(world.server.broker, SOURCE, PUBLISHED, DELAY),
    }


def growth(seen: Sequence[tuple[float, int]], since: float) -> dict[str, float]:
    """How checkpoints grew, by a line through the sizes since a minute."""
    later = [(at, size) for at, size in seen if at >= since]
    slope, level = linear_regression([at for at, _ in later], [size for _, size in later])
    first, last = (level + slope * at for at in (later[0][0], later[-1][0]))
    return {
        "since_minute": since,
        "bytes_first": int(first),
        "bytes_last": int(last),
        "bytes_a_minute": rounded(slope),
        "growth": rounded((last - first) / first),
    }


def by_minute(seen: Sequence[tuple[float, int]]) -> dict[int, int]:
    """The median size of the checkpoints of each minute."""
    sizes: dict[int, list[int]] = {}
    for at, size in seen:
        sizes.setdefault(int(at), []).append(size)
    return {minute: int(median(found)) for minute, found in sorted(sizes.items())}


def waits(kafka: Broker, source: str, published: str, delay: float) -> dict[str, float]:
    """Seconds from the deadlines of rows until their records were sent: how they are distributed.

    Args:
        kafka: The broker.
        source: The topic of the rows, each with its number as `note` and its event time as `at`.
        published: The topic of the records, with `note`.
        delay: The seconds from the event time to the deadline.
    """
    came, sent = Reader(kafka, source), Reader(kafka, published)
    due = {told["note"]: told["at"] + delay for told in (json.loads(message.value()) for message in came.read())}
    found = [message.timestamp()[1] / 1000 - due[json.loads(message.value())["note"]] for message in sent.read()]
    came.close()
    sent.close()
    hundredths = quantiles(found, n=100)
    return {
        "records": len(found),
        "p50": rounded(hundredths[49], 3),
        "p99": rounded(hundredths[98], 3),
        "most": rounded(max(found), 3),
    }


def report(figures: Mapping[str, Any]) -> str:
    """The figures as tables."""
    plain = [(name.replace("_", " "), value) for name, value in figures.items() if not isinstance(value, dict)]
    sizes = figures["bytes_by_minute"]
    spans: dict[int, list[int]] = {}
    for minute, size in sizes.items():
        spans.setdefault(minute // SPAN, []).append(size)
    lines = [
        (f"{span * SPAN} to {span * SPAN + SPAN}", min(found), int(median(found)), max(found))
        for span, found in spans.items()
    ]
    told = [(name, value) for name, value in figures["waits"].items()]
    return "\n\n".join(
        (
            table(("checkpoints", ""), plain),
            table(("minutes", "least bytes", "median", "most"), lines),
            table(("seconds beyond the deadline", ""), told),
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 if checkpoints do not grow."""
    said = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=said)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long rows flow (60)")
    parser.add_argument("--rate", type=int, default=100, help="rows a second (100)")
    parser.add_argument("--interval", type=int, metavar="MS", help="milliseconds between checkpoints (the default)")
    asked = parser.parse_args(arguments)
    flags = () if asked.interval is None else (f"--checkpointing_interval={asked.interval}",)
    folder = Path(tempfile.mkdtemp(prefix="crenel-checkpoints-"))
    world = World(folder, random.Random(1), flags)
    try:
        figures = observe(world, minutes=asked.minutes, rate=asked.rate)
    finally:
        world.stop()
    print(report(figures), end="\n\n")
    finish(figures)
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if figures["growth"] <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
