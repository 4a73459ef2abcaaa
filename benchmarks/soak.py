"""The soak: a stream from Kafka to Kafka on Flink, as it is shipped, while one thing after another breaks.

    make soak MINUTES=30
    python -m benchmarks.soak --minutes 2 --seed 7    a smoke test

A broker, a cluster with high availability and `crenel run` with its default flags run on this machine. Rows come at a
steady rate, and every minute something is broken: a worker, a TaskManager or the JobManager is killed, the job is
stopped with a savepoint and goes on from it, the broker is killed and started again, or a TaskManager cannot write
files any more, as if its disk were full. One seed is one sequence of faults. At the end the stream gets time to settle,
and a judge compares both topics, row by row.

The exit code is 0 if no row is lost and none was published under two generalizations.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.soak_judge import Judge, row
from benchmarks.tables import finish, table
from crenel.runners.flink.cluster import Cluster, until
from tests.pipelines.kafka.broker import Server

POLICY = """\
version: 1
person: who
event_time: at
quasi_identifiers:
  age: {{type: numeric, domain: [0, 100]}}
  zip: {{type: prefix, length: 5}}
sensitive: [ill]
publish: [note]
k: 5
delay: {delay}s
disorder: 2s
on_suppress: star
shards: 4
secret: file:{secret}
"""
SOURCE, PUBLISHED, REJECTED = "visits", "visits-anonymous", "visits-rejected"
PARTITIONS, WORKERS = 4, 2
#: Seconds from a row's event time to its deadline.
DELAY = 20
#: Seconds for one thing to happen on a busy machine; and for the stream to settle at the end.
PATIENCE, SETTLING = 600.0, 1200.0
#: The largest file that a TaskManager can write while its disk is "full", in bytes, and for how many seconds.
FULL, FULL_FOR = 16_384, 20.0


def log(began: float, line: str) -> None:
    """Tell what happens, on standard error."""
    passed = int(time.monotonic() - began)
    print(f"[{passed // 60:3}:{passed % 60:02}] {line}", file=sys.stderr, flush=True)


class Feeder(threading.Thread):
    """Sends rows at a steady rate. Those that the broker cannot take now wait."""

    def __init__(self, address: str, rate: int) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        settings = {"enable.idempotence": True, "message.timeout.ms": 0, "queue.buffering.max.messages": 2_000_000}
        self._producer = Producer({"bootstrap.servers": address, "log_level": 0, **settings})
        self._rate = rate
        self._over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(0.1):
            due = int((time.monotonic() - began) * self._rate)
            for number in range(self.sent, due):
                self._producer.produce(SOURCE, json.dumps(row(number, time.time())).encode(), str(number))
            self.sent = max(due, self.sent)
            self._producer.poll(0)

    def stop(self) -> None:
        """Stop, and wait until everything has arrived."""
        self._over.set()
        self.join()
        if self._producer.flush(PATIENCE):
            msg = "the broker has not taken all rows of the input"
            raise RuntimeError(msg)


@dataclass
class Run:
    """A `crenel run` in the background."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> list[str]:
        """The lines that it has said."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if "warning" not in line]


@dataclass(frozen=True)
class Completed:
    """A checkpoint: where it is, when it began (seconds since the epoch), and how many bytes it has."""

    path: str
    began: float
    size: int


class World:
    """Everything that runs, and everything that can break.

    Args:
        folder: The folder of all files.
        draw: Chooses among several workers or TaskManagers.
        flags: Flags of `crenel run` that are not the default.
    """

    def __init__(self, folder: Path, draw: random.Random, flags: Sequence[str] = ()) -> None:
        self._flags = flags
        self.folder = folder
        self._draw = draw
        self.server = Server(folder / "broker")
        # One TaskManager is spare.
        self.cluster = Cluster(folder / "flink", task_managers=WORKERS + 1, available=True)
        (folder / "secret").touch(mode=0o600)
        (folder / "secret").write_text(secrets.token_hex(32))
        (folder / "policy.yaml").write_text(POLICY.format(secret=folder / "secret", delay=DELAY))
        self._runs = 0
        self.run: Run | None = None
        self.savepoints = 0

    def start(self) -> None:
        """Start everything."""
        self.server.start()
        self.server.broker.create(SOURCE, PUBLISHED, REJECTED, partitions=PARTITIONS)
        self.cluster.start()
        self.launch()

    def stop(self) -> None:
        """Stop everything."""
        if self.run is not None:
            self.run.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.run.process.wait(60)
            self.run.process.kill()
        self.cluster.stop()
        self.server.stop()

    def launch(self, savepoint: str | None = None) -> None:
        """Start `crenel run`, with its default flags."""
        self._runs += 1
        kafka = self.server.broker
        command = [sys.executable, "-m", "crenel.pipelines.cli", "run", str(self.folder / "policy.yaml")]
        command += ["--input", kafka.url(SOURCE), "--output", kafka.url(PUBLISHED), "--rejected", kafka.url(REJECTED)]
        command += ["--runner", "flink", "--workers", str(WORKERS), "--flink-master", self.cluster.rest.master]
        command += [f"--job_name=soak-{self._runs}", "--dead-letters", str(self.folder / "dead")]
        command += [*self._flags, *([f"--savepoint_path={savepoint}"] if savepoint else [])]
        path = self.folder / f"run-{self._runs}.log"
        with path.open("wb") as out:
            self.run = Run(subprocess.Popen(command, stdout=out, stderr=out), path)

    def check(self) -> None:
        """Stop the soak if the run has ended by itself."""
        if self.run is not None and self.run.process.poll() is not None:
            msg = f"crenel run ended by itself: {' '.join(self.run.said[-1:])}"
            raise RuntimeError(msg)

    # -- The job ------------------------------------------------------------------------------------

    def ask(self, path: str) -> Any:
        """Ask about the job of the current run; None if there is no answer now."""
        try:
            job = self.cluster.rest.job(f"soak-{self._runs}")
            return None if job is None else self.cluster.rest.get(f"/jobs/{job}{path}")
        except (OSError, ValueError):
            return None

    def completed(self) -> Completed | None:
        """The last checkpoint that was completed."""
        found = self.ask("/checkpoints")
        latest = found and found["latest"]["completed"]
        if not latest:
            return None
        return Completed(latest["external_path"], latest["trigger_timestamp"] / 1000, latest["state_size"])

    def is_running(self) -> bool:
        """Whether the cluster runs the job of the current run."""
        found = self.ask("")
        return found is not None and found["state"] == "RUNNING"

    def workers(self) -> dict[int, Any]:
        """The Python workers, each with its TaskManager."""
        managers = {process.pid: process for process in self.cluster.task_managers}
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError, IndexError):
                    state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                    if int(parent) in managers and state != "Z":
                        found[int(entry.name)] = managers[int(parent)]
        return found

    def _busy(self) -> tuple[int, Any]:
        """A worker and its TaskManager, once there are any."""
        until(lambda: bool(self.workers()), PATIENCE, self.check)
        return self._draw.choice(sorted(self.workers().items(), key=lambda one: one[0]))

    # -- The faults ---------------------------------------------------------------------------------

    def kill_worker(self) -> None:
        """Kill a Python worker."""
        with suppress(ProcessLookupError):
            os.kill(self._busy()[0], signal.SIGKILL)

    def kill_task_manager(self) -> None:
        """Kill a TaskManager that has work, and start another."""
        self.cluster.replace(self._busy()[1])

    def kill_job_manager(self) -> None:
        """Kill the JobManager; start another a little later, as a supervisor would."""
        if self.cluster.job_manager is not None:
            self.cluster.job_manager.kill()
        time.sleep(self._draw.uniform(1, 5))
        self.cluster.start_job_manager()

    def restart_broker(self) -> None:
        """Kill the broker, and start it again."""
        self.server.stop()
        time.sleep(self._draw.uniform(1, 10))
        self.server.start()

    def fill_disk(self) -> None:
        """Let a TaskManager write no file of more than some kilobytes for a while."""
        pid = self._busy()[1].pid
        with suppress(ProcessLookupError):
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL, resource.RLIM_INFINITY))
            time.sleep(FULL_FOR)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    def stop_and_go_on(self) -> None:
        """Stop the job with a savepoint, and start it again from there."""
        end = time.monotonic() + PATIENCE
        while (path := self._stopped()) is None:
            self.check()
            if time.monotonic() > end:
                msg = "the job cannot be stopped with a savepoint"
                raise RuntimeError(msg)
            time.sleep(2)
        assert self.run is not None
        if self.run.process.wait(PATIENCE):
            self.check()
        self.savepoints += 1
        self.launch(path)
        until(self.is_running, PATIENCE, self.check)

    def _stopped(self) -> str | None:
        """Try to stop the job once; return the path of the savepoint, or None while it is being restarted."""
        rest, found = self.cluster.rest, self.ask("")
        if found is None or found["state"] != "RUNNING":
            return None
        try:
            asked = rest.post(f"/jobs/{found['jid']}/stop", {"drain": False})["request-id"]
            answer: dict[str, Any] = {"status": {"id": "IN_PROGRESS"}}
            end = time.monotonic() + PATIENCE
            while answer["status"]["id"] != "COMPLETED" and time.monotonic() < end:
                time.sleep(1)
                answer = rest.get(f"/jobs/{found['jid']}/savepoints/{asked}")
        except (OSError, ValueError):
            return None
        location = answer.get("operation", {}).get("location")
        return None if location is None else str(location)


#: The faults, by the name that the table has for them.
FAULTS: dict[str, Callable[[World], None]] = {
    "worker killed": World.kill_worker,
    "TaskManager killed": World.kill_task_manager,
    "JobManager killed": World.kill_job_manager,
    "stopped, went on": World.stop_and_go_on,
    "broker killed": World.restart_broker,
    "disk full": World.fill_disk,
}


def sequence(draw: random.Random) -> Iterator[str]:
    """The faults of a seed: all kinds in random order, again and again."""
    while True:
        kinds = sorted(FAULTS)
        draw.shuffle(kinds)
        yield from kinds


@dataclass
class Recovery:
    """When a fault came, and how long it took until a checkpoint that began later was complete."""

    kind: str
    #: In seconds since the epoch.
    at: float
    seconds: float | None = None

    def note(self, checkpoint: Completed, now: float) -> None:
        """Note that a checkpoint is complete."""
        if self.seconds is None and checkpoint.began > self.at:
            self.seconds = now - self.at


class Monitor(threading.Thread):
    """Notes when checkpoints are completed, and how large they are."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._over = threading.Event()
        self._last = ""
        #: The sizes of all checkpoints that were seen, and when each began, in seconds since the epoch.
        self.sizes: list[int] = []
        self.moments: list[float] = []
        self.recoveries: list[Recovery] = []

    def run(self) -> None:
        while not self._over.wait(1.0):
            found = self._world.completed()
            if found is None or found.path == self._last:
                continue
            self._last = found.path
            self.sizes.append(found.size)
            self.moments.append(found.began)
            for recovery in self.recoveries:
                recovery.note(found, time.time())

    def stop(self) -> None:
        self._over.set()
        self.join()


def soak(world: World, *, minutes: float, every: float, rate: int, draw: random.Random) -> dict[str, Any]:
    """Break one thing after another; return what was seen."""
    began = time.monotonic()
    world.start()
    until(lambda: world.completed() is not None, PATIENCE, world.check)
    feeder, monitor = Feeder(world.server.broker.address, rate), Monitor(world)
    feeder.start()
    monitor.start()
    log(began, f"the stream runs, {rate} rows a second")
    start, faults = time.monotonic(), sequence(draw)
    due = start + every / 2
    while due < start + 60 * minutes:
        while time.monotonic() < due:
            world.check()
            time.sleep(0.5)
        kind = next(faults)
        log(began, kind)
        monitor.recoveries.append(Recovery(kind, time.time()))
        FAULTS[kind](world)
        due = max(due + every, time.monotonic() + 1)
    while time.monotonic() < start + 60 * minutes:
        world.check()
        time.sleep(0.5)
    feeder.stop()
    log(began, f"{feeder.sent:,} rows were sent; the stream settles")
    figures = settle(world, began)
    monitor.stop()
    return {
        "minutes": minutes,
        "rows_per_second": rate,
        "faults": len(monitor.recoveries),
        "faults_by_kind": dict(Counter(recovery.kind for recovery in monitor.recoveries)),
        **figures,
        "rejected": len(world.server.broker.read(REJECTED)),
        "savepoints": world.savepoints,
        "dead_letters": sum(path.read_bytes().count(b"\n") for path in (world.folder / "dead").glob("*")),
        **growth(monitor.sizes),
        "recovery": recoveries(monitor.recoveries),
    }


def settle(world: World, began: float) -> dict[str, Any]:
    """Wait until every row is published, or nothing more comes; return the verdict."""
    judge = Judge(world.server.broker, SOURCE, PUBLISHED)
    end = time.monotonic() + SETTLING
    left = judge.look()
    while left and time.monotonic() < end:
        world.check()
        time.sleep(5)
        left = judge.look()
    log(began, f"{left:,} rows are missing" if left else "every row is published")
    time.sleep(45)  # what comes twice, or in another form, may come late
    judge.look()
    judge.close()
    return judge.verdict()


def growth(sizes: Sequence[int]) -> dict[str, Any]:
    """How checkpoints grew: the median sizes of the first and of the last fifth."""
    fifth = max(len(sizes) // 5, 1)
    return {
        "checkpoints": len(sizes),
        "checkpoint_bytes_first": int(median(sizes[:fifth])),
        "checkpoint_bytes_last": int(median(sizes[-fifth:])),
    }


def recoveries(found: Sequence[Recovery]) -> dict[str, dict[str, float]]:
    """Seconds from a fault until a checkpoint that began later was complete, by kind."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for recovery in found:
        if recovery.seconds is not None:
            by_kind[recovery.kind].append(recovery.seconds)
    return {
        kind: {"median": round(median(seconds), 1), "most": round(max(seconds), 1)}
        for kind, seconds in sorted(by_kind.items())
    }


def report(figures: dict[str, Any]) -> str:
    """The figures as tables."""
    plain = [(name.replace("_", " "), value) for name, value in figures.items() if not isinstance(value, dict)]
    by_kind = figures["recovery"]
    faults = [
        (
            kind,
            times,
            by_kind.get(kind, {}).get("median", float("nan")),
            by_kind.get(kind, {}).get("most", float("nan")),
        )
        for kind, times in sorted(figures["faults_by_kind"].items())
    ]
    header = ("fault", "times", "s until a new checkpoint (median)", "most")
    return f"{table(('soak', ''), plain)}\n\n{table(header, faults)}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return 0 if nothing is lost, and nothing has two generalizations."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long things break (30)")
    parser.add_argument("--every", type=float, default=60.0, help="seconds from fault to fault (60)")
    parser.add_argument("--rate", type=int, default=200, help="rows a second (200)")
    parser.add_argument("--seed", type=int, default=1, help="one seed is one sequence of faults (1)")
    parser.add_argument("--keep", action="store_true", help="keep all files also if all is well")
    asked = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="crenel-soak-"))
    draw = random.Random(asked.seed)
    world = World(folder, draw)
    try:
        # Two generators, so that which worker is chosen does not change which fault comes next.
        figures = soak(world, minutes=asked.minutes, every=asked.every, rate=asked.rate, draw=random.Random(asked.seed))
    finally:
        world.stop()
    figures = {"seed": asked.seed, **figures}
    print(report(figures))
    finish(figures)
    is_well = not any(figures[name] for name in ("lost", "two_generalizations", "untrue", "invented"))
    if is_well and not asked.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"All files are in {folder}; logs may contain rows.", file=sys.stderr)
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
