"""From topic to topic: processor time a row, rows per second and latency, beside a plain loop of confluent-kafka.

    python -m benchmarks.kafka                about an hour
    python -m benchmarks.kafka --quick        small, as a smoke test
    python -m benchmarks.kafka --only cost    processor time a row on the local runner alone

A broker on this machine has topics of JSON and of Avro records, with 1 and with 8 partitions. They are read by

    plain      a loop that consumes records and produces their values again, many at a time: the limit
    plain each the same, a record at a time, as the examples of confluent-kafka do
    engine     the engine alone, with the same rows in memory: what a method costs, whatever is around it
    local      crenel run, on the local runner
    flink 1    crenel run --runner flink with one worker, on a cluster with one slot
    flink 2    the same with two

Processor time is that of a program and of all processes that it starts, without the broker's. The loops and the local
runner run twice, with all rows and with few, and the difference counts. On Flink, a job that has published some rows is
given all others. Rows per second count from the first record that is sent to the job until nine tenths are published,
through all checkpoints that they wait for. Then rows come at a steady pace, also on the local runner: their latency is
the time from a row's event time to the timestamp of its published record, of which the policy's delay may be a part;
lag is the most records that were not read yet.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import kafka_rows
from benchmarks.children import Copy, add_against, copies, crenel, run
from benchmarks.tables import finish, rounded, table
from crenel.pipelines.command_errors import CommandError
from crenel.runners.flink import flink_run
from crenel.runners.flink.cluster import Cluster, until
from crenel.runners.flink.job_metrics import JobMetrics
from tests.pipelines.kafka import broker

FORMATS, PARTITIONS, SLOTS = ("json", "avro"), (1, 8), (1, 2)
#: Processor time on the local runner, the latency there, and Flink.
PARTS = ("cost", "steady", "flink")
#: Seconds that one thing may take on a busy machine.
_PATIENCE = 900.0
#: Milliseconds between two checkpoints.
_CHECKPOINTS = 1_000
#: Rows with which a job starts, and their event times: how many a second.
_FEW, _SLOW = 2_000, 10
#: Seconds of event time that all rows span, and for which rows are held: the policy's delay and disorder.
_SPAN, _HELD = 1_000, 11
#: The most rows of the engine alone.
_ENGINE = 100_000
#: Shorter times, in seconds, cannot be told from the difference between two runs.
_LEAST = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rows: int = 1_000_000
    #: Rows a second of the steady pace, and for how many seconds.
    pace: int = 1_000
    seconds: float = 60.0
    formats: Sequence[str] = FORMATS
    partitions: Sequence[int] = PARTITIONS
    slots: Sequence[int] = SLOTS

    @property
    def few(self) -> int:
        """Rows of a run that is subtracted: enough that it loads the kernels, too."""
        return max(self.rows // 10, _FEW)


QUICK = Scale(rows=6_000, pace=200, seconds=3.0, formats=FORMATS, partitions=(1,), slots=(1,))


@dataclass
class Bench:
    """A broker, and the topics that were filled."""

    kafka: broker.Broker
    folder: Path
    scale: Scale
    #: The first event time: no row is of the future.
    began: float = field(default_factory=lambda: time.time() - 2 * _SPAN)
    _made: int = 0

    def __post_init__(self) -> None:
        (self.folder / "policy.yaml").write_text(kafka_rows.POLICY)
        (self.folder / "visit.avsc").write_text(json.dumps(kafka_rows.SCHEMA))

    def topic(self, partitions: int) -> str:
        """Make an empty topic."""
        self._made += 1
        name = f"topic-{self._made}"
        self.kafka.create(name, partitions=partitions)
        return name

    def filled(self, form: str, partitions: int, count: int) -> str:
        """Make a topic with rows."""
        name = self.topic(partitions)
        self.send(name, form, partitions, kafka_rows.rows(count, self.began, self.scale.rows / _SPAN))
        return name

    def send(self, topic: str, form: str, partitions: int, rows: Iterable[dict[str, Any]]) -> None:
        """Send rows to the partitions of a topic in turn."""
        values = map(kafka_rows.encoder(form), rows)
        kafka_rows.fill(self.kafka.address, topic, values, partitions=partitions)

    def urls(self, form: str, source: str, target: str, **options: str) -> list[str]:
        """The arguments of crenel run for these topics."""
        avro = {"format": "avro", "schema": str(self.folder / "visit.avsc")} if form == "avro" else {}
        out = {**avro, "schema": str(self.folder / "published.avsc")} if avro else {}
        there = ["--input", self.kafka.url(source, **avro, **options), "--output", self.kafka.url(target, **out)]
        return ["run", str(self.folder / "policy.yaml"), *there]


# -- The local runner, and the plain loop -------------------------------------------------------------


def locally(bench: Bench, against: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure processor time on the local runner, and that of the plain loop."""
    for one in copies(against):
        run(crenel("compile", "bastion"), one.environment())
    # A part of the rows suffices, and some of many rows are held.
    alone = kafka_rows.engine_alone(min(bench.scale.rows, _ENGINE), bench.scale.rows / _SPAN)
    yield "engine alone", {"us_per_row": rounded(alone)}
    for form in bench.scale.formats:
        for partitions in bench.scale.partitions:
            topics = [bench.filled(form, partitions, count) for count in (bench.scale.rows, bench.scale.few)]
            plainly = _difference(bench, topics, form, None)
            yield f"plain, {form}, {partitions}", plainly
            each = _difference(bench, topics, form, None, "each")
            yield f"plain each, {form}, {partitions}", {**each, "to_plain": _ratio_of(each, plainly)}
            for one in copies(against):
                found = _difference(bench, topics, form, one)
                found["to_plain"], found["to_each"] = _ratio_of(found, plainly), _ratio_of(found, each)
                name = "local" if one.site is None else "local, other copy"
                yield f"{name}, {form}, {partitions}", found


def _ratio_of(found: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    one, base = found["us_per_row"], other["us_per_row"]
    return rounded(one / base, 3) if one and base else None


def _difference(
    bench: Bench, topics: Sequence[str], form: str, by: Copy | None, how: str = "batches"
) -> dict[str, Any]:
    """Measure a run with all rows and one with few; the difference is what rows cost."""
    spent = []
    for topic in topics:
        target = bench.topic(1)
        if by is None:
            command = [sys.executable, "-m", "benchmarks.kafka_rows", bench.kafka.address, topic, target, how]
            spent.append(run(command, dict(os.environ)))
        else:
            command = crenel(*bench.urls(form, topic, target, until="end"))
            spent.append(run(command, by.environment()))
        bench.kafka.delete(target)
    counted = bench.scale.rows - bench.scale.few
    cpu, wall = (getattr(spent[0], name) - getattr(spent[1], name) for name in ("cpu", "wall"))
    return {
        "us_per_row": rounded(cpu / counted * 1e6) if cpu > _LEAST else None,
        "rows_per_s": rounded(counted / wall) if wall > _LEAST else None,
        "start_s": rounded(spent[1].cpu),
    }


# -- Runs that do not end ----------------------------------------------------------------------------


class Endless:
    """A run that goes on until it is stopped.

    Args:
        bench: The broker.
        form: The format of the records.
        partitions: The number of partitions.
        flags: Further arguments of crenel run.
        roots: Processes whose processor time counts, too.
    """

    def __init__(self, bench: Bench, form: str, partitions: int, flags: Sequence[str], roots: Sequence[int]) -> None:
        self._bench, self._form, self._partitions = bench, form, partitions
        self._source, self._target = bench.topic(partitions), bench.topic(1)
        self._now = bench.began + _FEW / _SLOW
        bench.send(self._source, form, partitions, kafka_rows.rows(_FEW, bench.began, _SLOW))
        self._log = bench.folder / f"{self._target}.log"
        command = crenel(*bench.urls(form, self._source, self._target, idle="1h"), *flags)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._roots = [self._process.pid, *roots]

    def stop(self) -> None:
        """Stop it, and wait for it."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def started(self) -> None:
        """Wait until the first rows are published, but for those that are held."""
        self._wait(_FEW // 2)

    def loaded(self) -> dict[str, Any]:
        """Give it all rows at once; return processor time a row, and rows per second."""
        count = self._bench.scale.rows
        encode = kafka_rows.encoder(self._form)
        values = [encode(row) for row in kafka_rows.rows(count, self._now, count / _SPAN, _FEW)]
        before, began = cpu(self._roots), time.time()
        kafka_rows.fill(self._bench.kafka.address, self._source, iter(values), partitions=self._partitions)
        self._now += _SPAN
        self._wait(_FEW + count - 2 * _HELD * count // _SPAN)
        spent = cpu(self._roots) - before
        published = [(stamp, is_star) for number, stamp, is_star in self._published() if number >= _FEW]
        times = sorted(stamp for stamp, _ in published)
        rate = 0.9 * len(times) / (times[len(times) * 9 // 10] - began)
        stars = sum(is_star for _, is_star in published) / len(times)
        return {
            "us_per_row": rounded(spent / len(times) * 1e6),
            "rows_per_s": rounded(rate),
            "suppressed": rounded(stars, 3),
        }

    def paced(self, lag: Any) -> dict[str, Any]:
        """Give it rows at a steady pace; return their latency, and the largest lag."""
        from confluent_kafka import Producer

        scale = self._bench.scale
        encode = kafka_rows.encoder(self._form)
        producer = Producer({"bootstrap.servers": self._bench.kafka.address, "linger.ms": 0})
        first, began, sent, lags = 10 * scale.rows, time.time(), [], []
        measured = int(scale.seconds * scale.pace)
        # Rows go on until those that are measured are no longer held.
        until = began + _PATIENCE
        while len(sent) < measured or self._count() < self._expected + measured:
            passed = time.time() - began
            for number in range(len(sent), int(passed * scale.pace)):
                value = encode(kafka_rows.row(first + number, self._now + passed))
                producer.produce(self._source, value, partition=number % self._partitions)
                sent.append(time.time())
            producer.flush()
            lags += [found for found in [lag()] if found is not None]
            self._check()
            if time.time() > until:
                msg = f"{self._form}, {self._partitions}: {scale.pace} rows a second are too many for this machine now"
                raise RuntimeError(msg)
            time.sleep(0.05)
        found = [at - sent[number - first] for number, at, _ in self._published() if 0 <= number - first < measured]
        p50, p99 = np.percentile(found, [50, 99]).tolist()
        return {"latency_p50_s": rounded(p50, 3), "latency_p99_s": rounded(p99, 3), "lag": max(lags, default=None)}

    def _wait(self, count: int) -> None:
        """Wait until so many rows are published."""
        until(lambda: self._count() >= count, _PATIENCE, self._check)
        self._expected = _FEW if count < _FEW else _FEW + self._bench.scale.rows

    def _check(self) -> None:
        if self._process.poll() is not None:
            msg = f"crenel run ended by itself: {self._log.read_text()[-2000:]}"
            raise RuntimeError(msg)

    def _count(self) -> int:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._bench.kafka.address, "group.id": "count"})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(self._target, 0), 30)[1])
        finally:
            consumer.close()

    def _published(self) -> Iterator[tuple[int, float, bool]]:
        """The number of each published row, when it was sent, and whether it is suppressed: published as a star."""
        read = _reader(self._form, self._bench.folder / "published.avsc")
        for message in self._bench.kafka.read(self._target):
            row = read(message.value())
            yield row["note"], message.timestamp()[1] / 1000, not row["zip"].strip("*")


def _reader(form: str, path: Path) -> Any:
    if form == "json":
        return json.loads
    import io

    import fastavro

    schema = fastavro.parse_schema(json.loads(path.read_text()))
    return lambda value: fastavro.schemaless_reader(io.BytesIO(value), schema, None)


def cpu(roots: Sequence[int]) -> float:
    """Seconds of processor time of processes, and of all that they have started."""
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name of a program, in brackets, may have spaces.
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            children.setdefault(int(stat[1]), []).append(int(entry.name))
            spent[int(entry.name)] = sum(map(int, stat[11:15]))  # with the time of children that have ended
    found: set[int] = set()
    new = list(roots)
    while new:
        pid = new.pop()
        if pid not in found:
            found.add(pid)
            new += children.get(pid, [])
    return sum(spent.get(pid, 0) for pid in found) / _TICKS


def paced_locally(bench: Bench) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure latency on the local runner."""
    form, partitions = bench.scale.formats[0], bench.scale.partitions[-1]
    endless = Endless(bench, form, partitions, [], [])
    try:
        endless.started()
        yield f"local, steady, {form}, {partitions}", endless.paced(lambda: None)
    finally:
        endless.stop()


def on_flink(bench: Bench) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure jobs on Flink."""
    for slots in bench.scale.slots:
        for form in bench.scale.formats:
            for partitions in bench.scale.partitions:
                with _cluster(bench.folder / f"flink-{slots}-{form}-{partitions}", slots) as cluster:
                    name = f"flink {slots}, {form}, {partitions}"
                    yield name, _of_job(bench, cluster, form, partitions, slots)


@contextmanager
def _cluster(folder: Path, slots: int) -> Iterator[Cluster]:
    cluster = Cluster(folder, task_managers=slots)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


def _of_job(bench: Bench, cluster: Cluster, form: str, partitions: int, slots: int) -> dict[str, Any]:
    flags = ["--runner", "flink", "--workers", str(slots), "--flink-master", cluster.rest.master]
    flags += [f"--checkpointing_interval={_CHECKPOINTS}", "--job_name=kafka"]
    processes = [cluster.job_manager, *cluster.task_managers]
    endless = Endless(bench, form, partitions, flags, [one.pid for one in processes if one is not None])
    try:
        endless.started()
        job = cluster.rest.job("kafka") or ""
        metrics = JobMetrics(cluster.rest, job)
        vertices = [vertex["id"] for vertex in cluster.rest.get(f"/jobs/{job}")["vertices"]]

        def lag() -> int | None:
            metrics.read(vertices)
            return metrics.lag

        return {**endless.loaded(), **endless.paced(lag)}
    finally:
        endless.stop()


# -- The command ------------------------------------------------------------------------------------

_COLUMNS = ("us_per_row", "to_plain", "to_each", "rows_per_s", "suppressed", "latency_p50_s", "latency_p99_s", "lag")
_HEADER = ("", "us a row", "to plain", "to each", "rows/s", "suppressed", "latency p50, s", "p99, s", "lag")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kafka", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="small, as a smoke test")
    parser.add_argument("--rows", type=int, help="the number of rows of each topic")
    parser.add_argument("--pace", type=int, help="rows a second of the steady pace")
    parser.add_argument("--seconds", type=float, help="how long the steady pace is measured")
    parser.add_argument("--formats", help=f"some of {','.join(FORMATS)}")
    parser.add_argument("--partitions", help=f"numbers of partitions; by default {','.join(map(str, PARTITIONS))}")
    parser.add_argument("--slots", help=f"numbers of slots on Flink; by default {','.join(map(str, SLOTS))}")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"some of {','.join(PARTS)}")
    add_against(parser)
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    only = said.only.split(",")
    if not set(only) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}.")
    logging.disable(logging.WARNING)
    missing = broker.missing()
    if missing is None and "flink" in only:
        missing = _no_flink()
    if missing is not None:
        print(f"skipped: {missing}")
        finish({"benchmark": "kafka", "skipped": missing})
        return 0
    base = QUICK if said.quick else Scale()
    scale = Scale(
        rows=said.rows or base.rows,
        pace=said.pace or base.pace,
        seconds=said.seconds or base.seconds,
        formats=said.formats.split(",") if said.formats else base.formats,
        partitions=_numbers(said.partitions) or base.partitions,
        slots=_numbers(said.slots) or base.slots,
    )
    figures = _measured(scale, only, said.against)
    rows = [[name, *(_cell(found.get(column, "")) for column in _COLUMNS)] for name, found in figures.items()]
    print(f"{scale.rows:,} rows; then {scale.pace:,} a second for {scale.seconds:.0f} seconds, delay 10 s")
    print("\n" + table(_HEADER, rows), flush=True)
    finish({"benchmark": "kafka", "quick": said.quick, "rows": scale.rows, **figures})
    return 0


def _cell(value: Any) -> Any:
    return "unknown" if value is None else value


def _numbers(said: str | None) -> list[int]:
    return [int(number) for number in said.split(",")] if said else []


def _no_flink() -> str | None:
    try:
        flink_run.check([])
    except CommandError as error:
        return str(error)
    return None


def _measured(scale: Scale, only: Sequence[str], against: Path | None) -> dict[str, dict[str, Any]]:
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, broker.running(Path(folder) / "broker") as kafka:
        bench = Bench(kafka, Path(folder), scale)
        parts = {"cost": locally(bench, against), "steady": paced_locally(bench), "flink": on_flink(bench)}
        for part in only:
            for name, found in parts[part]:
                figures[name] = found
                print(f"  {name}: {found}", file=sys.stderr, flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
