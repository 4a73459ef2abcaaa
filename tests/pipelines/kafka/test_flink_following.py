"""`crenel run` follows its job on Flink: it ends when the job cannot go on, and says how to. With a real cluster."""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import fastavro
import pytest

from crenel.errors import INCURABLE
from crenel.runners.flink.cluster import until
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker
from tests.pipelines.kafka.flink_runs import FlinkRun, feed, told
from tests.pipelines.kafka.registry import writers
from tests.pipelines.kafka.registry_gate import Gate
from tests.pipelines.kafka.registry_server import Registry
from tests.runners.harness import PATIENCE, Flink, need_flink

pytestmark = [pytest.mark.kafka, pytest.mark.flink]


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    need_flink()
    with Flink(tmp_path_factory.mktemp("flink")) as running:
        yield running


def wait(run: FlinkRun, met: Callable[[], bool]) -> None:
    """Wait while the run goes on."""

    def check() -> None:
        assert run.process.poll() is None, run.said

    until(met, PATIENCE, check)


def test_a_deleted_output_topic_is_named_and_waited_for(kafka: Broker, flink: Flink, tmp_path: Path) -> None:
    kafka.create("sink-in", "sink-out")
    rows = made.make(1_000)
    with FlinkRun(kafka, flink, tmp_path, "sink") as run:
        run.job()
        feed(kafka, "sink-in", rows[:500])
        wait(run, lambda: len(told(kafka, "sink-out")) > 0)
        kafka.delete("sink-out")
        feed(kafka, "sink-in", rows[500:])
        wait(run, lambda: "the job failed: " in run.said)
        said = next(line for line in run.said.splitlines() if "the job failed: " in line)
        assert "records could not be written. " in said
        assert f"kafka://{kafka.address}/sink-out: " in said
        assert "The topic does not exist, or was deleted: create it." in said
        assert "Flink restarts it from checkpoint " in said
        kafka.create("sink-out")
        wait(run, lambda: set(told(kafka, "sink-out")) >= set(range(500, 1_000)))
        assert "SECRET" not in run.said


def test_rows_of_a_backlog_are_not_late(kafka: Broker, flink: Flink, tmp_path: Path) -> None:
    """Partitions are read one after the other, each far ahead of the next, and rows are held for seconds only."""
    kafka.create("backlog-in", partitions=4)
    kafka.create("backlog-out")
    rows = made.make(4_000)
    for partition in range(4):
        kafka.produce("backlog-in", made.as_json(rows[partition::4]), partition=partition)
    with FlinkRun(kafka, flink, tmp_path, "backlog", made.POLICY.replace("delay: 60s", "delay: 20s")) as run:
        run.job()
        wait(run, lambda: len(kafka.read("backlog-out")) >= len(rows))
    published = [json.loads(message.value()) for message in kafka.read("backlog-out")]
    assert sorted(row["note"] for row in published) == list(range(len(rows)))
    suppressed = sum(not row["zip"].strip("*") and row["age"] == {"lo": 0, "hi": 100} for row in published)
    assert suppressed < len(rows) / 100


def test_workers_ask_the_registry_themselves(kafka: Broker, flink: Flink, registry: Registry, tmp_path: Path) -> None:
    """They log in by themselves, and the writers' schema changes while they run."""
    kafka.create("schemas-in", "schemas-out", "schemas-mistakes")
    avro, rows = writers.avro(), made.make(400)
    ids = {version: registry.register("schemas-in-value", avro.schemas[version]) for version in ("swapped", "lacking")}
    ids["first"] = registry.register("schemas-in-value", avro.schemas["first"].replace("Visit", "Stay"))
    gate = Gate(registry.url, "me:hush")
    (tmp_path / "login").write_text("me:hush\n")
    (tmp_path / "login").chmod(0o600)
    (tmp_path / "client").write_text(f"schema.registry.basic.auth.user.info=file:{tmp_path / 'login'}\n")
    options = {"registry": gate.url, "config": str(tmp_path / "client")}
    owners = ("--rejected", kafka.url("schemas-mistakes"))
    with FlinkRun(kafka, flink, tmp_path, "schemas", flags=owners, options=options) as run:
        run.job()
        for version, start in (("first", 0), ("swapped", 200), ("lacking", 300)):
            some = rows[start : start + (200 if start == 0 else 100)]
            kafka.produce("schemas-in", [avro.value(version, ids[version], row) for row in some])
        wait(run, lambda: len(kafka.read("schemas-out")) >= 300 and len(kafka.read("schemas-mistakes")) >= 100)
        assert "SECRET" not in run.said
    gate.close()
    schema = registry.latest("schemas-out-value")
    parsed = fastavro.parse_schema(json.loads(schema["schema"]))
    published = {}
    for message in kafka.read("schemas-out"):
        assert message.value()[:5] == struct.pack(">BI", 0, schema["id"])
        row = fastavro.schemaless_reader(io.BytesIO(message.value()[5:]), parsed, None)
        published[row["note"]] = row
    assert sorted(published) == list(range(300))
    assert all(made.covers(row, {**rows[note], "ill": rows[note]["ill"] or "none"}) for note, row in published.items())
    reasons = {json.loads(message.value())["reason"] for message in kafka.read("schemas-mistakes")}
    assert reasons == {f"schema {ids['lacking']} lacks the column 'note'"}


def test_workers_that_cannot_be_started_end_the_run(kafka: Broker, flink: Flink, tmp_path: Path) -> None:
    """However often Flink tries it."""
    kafka.create("boot-in", "boot-out")
    missing = ('--environment_config={"command": "/nowhere/crenel-boot"}',)
    with FlinkRun(kafka, flink, tmp_path, "boot", flags=missing) as run:
        job = run.job()
        assert run.end() == 70
        last = run.said.splitlines()[-1]
        assert "A TaskManager cannot start workers: install crenel on its machine, in the same folder." in last
        assert "This came 10 times, and no checkpoint was completed in between. The job was cancelled." in last
        until(lambda: job.state == "CANCELED", PATIENCE)


def test_a_savepoint_of_another_method_ends_the_run_with_a_sentence(
    kafka: Broker, flink: Flink, tmp_path: Path
) -> None:
    kafka.create("method-in", "method-out")
    rows = made.make(600)
    with FlinkRun(kafka, flink, tmp_path / "one", "method") as run:
        job = run.job()
        feed(kafka, "method-in", rows)
        job.wait(lambda: job.completed() >= 4, "some checkpoints")
        savepoint = job.stop()
        assert run.end() == 0
        assert "the job was stopped. Go on from its savepoint, once" in run.said
        assert f"--savepoint_path {savepoint}" in run.said
    other = made.POLICY + "method: castle\n"
    with FlinkRun(kafka, flink, tmp_path / "two", "method", other, (f"--savepoint_path={savepoint}",)) as run:
        job = run.job()
        kafka.produce("method-in", made.as_json(rows))
        assert run.end() == 70
        last = run.said.splitlines()[-1]
        assert "castle" in last
        assert f"{INCURABLE} The job was cancelled." in last
        assert "Traceback" not in run.said
        until(lambda: job.state == "CANCELED", PATIENCE)


def test_a_lost_job_manager_is_told_and_the_run_goes_on_from_its_checkpoint(
    kafka: Broker, flink: Flink, tmp_path: Path
) -> None:
    kafka.create("manager-in", "manager-out")
    rows = made.make(1_500)
    with FlinkRun(kafka, flink, tmp_path / "one", "manager") as run:
        job = run.job()
        feed(kafka, "manager-in", rows[:1_000])
        job.wait(lambda: len(told(kafka, "manager-out")) > 0, "rows are sent")
        assert flink.cluster.job_manager is not None
        flink.cluster.job_manager.kill()
        flink.cluster.start_job_manager()
        assert run.end() == 70
        last = run.said.splitlines()[-1]
        assert "does not know the job any more, and the job is lost with it" in last
        assert "would be published again, under other generalizations" in last
        found = re.search(r"--savepoint_path (\S+)", last)
        assert found is not None
    # The others would look for the new JobManager only when its heartbeats have been missing for two minutes.
    for task_manager in list(flink.cluster.task_managers):
        flink.cluster.replace(task_manager)
    until(lambda: flink.cluster.rest.task_managers() >= 2, PATIENCE)
    with FlinkRun(kafka, flink, tmp_path / "two", "manager", flags=(f"--savepoint_path={found[1]}",)) as run:
        job = run.job()
        feed(kafka, "manager-in", rows[1_000:])
        job.wait(lambda: len(told(kafka, "manager-out")) == len(rows), "all rows are sent")
        kafka.delete("manager-in")
        kafka.create("manager-in")
        assert run.end() == 70
        last = run.said.splitlines()[-1]
        assert "/manager-in: the topic was deleted and created again" in last
        assert f"{INCURABLE} The job was cancelled." in last
    assert all(len(forms) == 1 for forms in told(kafka, "manager-out").values()), "a row under two generalizations"


def test_with_high_availability_a_lost_job_manager_is_survived(kafka: Broker, tmp_path: Path) -> None:
    need_flink()
    kafka.create("available-in", "available-out")
    rows = made.make(1_500)
    with (
        Flink(tmp_path / "flink", available=True) as flink,
        FlinkRun(kafka, flink, tmp_path / "run", "available") as run,
    ):
        job = run.job()
        feed(kafka, "available-in", rows[:1_000])
        job.wait(lambda: len(told(kafka, "available-out")) > 0, "rows are sent")
        assert flink.cluster.job_manager is not None
        flink.cluster.job_manager.kill()
        flink.cluster.start_job_manager()
        # Half of the rest goes to partitions that were not there at the start.
        kafka.grow("available-in", 4)
        feed(kafka, "available-in", rows[1_000:])
        until(lambda: len(told(kafka, "available-out")) == len(rows), PATIENCE)
        lag = dict.fromkeys(range(4), 0)
        until(lambda: kafka.lag("crenel-available-in-to-available-out") == lag, PATIENCE)
        assert run.process.poll() is None, run.said
    assert all(len(forms) == 1 for forms in told(kafka, "available-out").values()), "a row under two generalizations"
