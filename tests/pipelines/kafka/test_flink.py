"""`crenel run` from topic to topic on Flink, while a machine is lost: no row is published in two ways."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from crenel.runners.flink.cluster import until
from crenel.transforms.durable import CONFIRMATIONS
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker
from tests.runners.harness import PATIENCE, Flink, Running, need_flink

pytestmark = [pytest.mark.kafka, pytest.mark.flink]

ROWS, AT_ONCE = 4_000, 100


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """Two TaskManagers, one slot each."""
    need_flink()
    with Flink(tmp_path_factory.mktemp("flink")) as running:
        running.stand_by()
        yield running


def test_no_row_is_published_under_two_generalizations(kafka: Broker, flink: Flink, tmp_path: Path) -> None:
    kafka.create("visits", "mistakes", partitions=4)
    kafka.create("anonymous", partitions=4, max__message__bytes="400000")
    rows = made.make(ROWS, persons=300)
    for row in rows:
        row["at"] = made.BEGAN + row["note"] * 0.1
    # What no topic takes must not stop the stream: in base64 the first would pass a megabyte, and a broker refuses the
    # second.
    wide, refused = bytes(range(256)) * 3516, {**rows[0], "note": ROWS, "ill": "x" * 500_000}
    kafka.produce("visits", [*made.as_json(rows[:500]), b"no row", wide, *made.as_json([refused])])
    (tmp_path / "policy.yaml").write_text(made.POLICY.replace("shards: 2", "shards: 4"))
    command = [sys.executable, "-m", "crenel.pipelines.cli", "run", str(tmp_path / "policy.yaml")]
    command += ["--input", kafka.url("visits", idle="3s"), "--output", kafka.url("anonymous", transactions="anonymous")]
    command += ["--rejected", kafka.url("mistakes"), "--runner", "flink", "--workers", "2"]
    command += ["--flink-master", flink.cluster.rest.master, "--checkpointing_interval=1500", "--job_name=anonymous"]
    command += ["--dead-letters", str(tmp_path / "dead"), "--metrics", ":0"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until(lambda: _is_running(flink) or process.poll() is not None, PATIENCE)
            assert process.poll() is None, (tmp_path / "log").read_text()
            job = Running(flink.cluster.rest, str(flink.cluster.rest.job("anonymous")))
            _lose_a_machine(job, kafka, flink, rows)
            _scrape((tmp_path / "log").read_text())
        finally:
            process.terminate()
    _check(kafka.read("anonymous"), rows)
    committed = [json.loads(message.value())["note"] for message in kafka.read("anonymous", "read_committed")]
    assert sorted(committed) == list(range(ROWS)), "who reads committed records only has each row once"
    rejected = {json.loads(message.value())["row"] for message in kafka.read("mistakes")}
    digest = hashlib.sha256(wide).hexdigest()
    assert {row.rpartition("... ")[2] for row in rejected} == {
        "no row",
        f"[shortened: {len(wide):,} bytes, sha256 {digest}]",
    }
    letters = [line for path in (tmp_path / "dead").iterdir() for line in path.read_text().splitlines()]
    dead = {json.loads(base64.b64decode(json.loads(line)["value"]))["note"] for line in letters}
    assert dead == {ROWS}
    said = (tmp_path / "log").read_text()
    assert "SECRET" not in said
    assert "crenel: the job failed: " in said
    assert "crenel: the job runs again, after " in said
    # The state of a source that pauses has names: at most one for each partition, however often it paused.
    logs = [path.read_text(errors="replace") for path in flink.folder.rglob("db/LOG")]
    assert logs, "RocksDB leaves a log"
    assert all("max_manifest_file_size: 32768\n" in log for log in logs), "it would grow for ever"
    assert 0 < len({name for log in logs for name in re.findall(r"sdf_checkpoint:\d*:\d+", log)}) <= 4


def _is_running(flink: Flink) -> bool:
    jobs = flink.cluster.rest.get("/jobs/overview")["jobs"]
    return any(job["name"] == "anonymous" and job["state"] == "RUNNING" for job in jobs)


def _lose_a_machine(job: Running, kafka: Broker, flink: Flink, rows: list[dict[str, Any]]) -> None:
    job.wait(lambda: job.completed() >= CONFIRMATIONS, "the first checkpoints")
    history = [one for one in job.checkpoints()["history"] if one["status"] == "COMPLETED"]
    durable_since = sorted(one["latest_ack_timestamp"] for one in history)[CONFIRMATIONS - 1]
    job.wait(lambda: len(kafka.read("anonymous")) > 0, "the first rows are sent")
    assert min(message.timestamp()[1] for message in kafka.read("anonymous")) >= durable_since
    feeding = threading.Thread(target=_feed, args=(kafka, rows[500:]))
    feeding.start()
    job.wait(lambda: _numbers(kafka) > ROWS // 4, "a quarter of the rows is sent")
    flink.kill_task_manager()
    job.wait(lambda: job.restored() > 0, "the job goes on")
    feeding.join()
    job.wait(lambda: _numbers(kafka) == ROWS, "all rows are sent")


def _scrape(said: str) -> None:
    """Wait until the page has the figures of the job since its restart; it is renewed every ten seconds."""
    (address,) = re.findall(r"metrics are at (\S+)", said)

    def is_told() -> bool:
        with urllib.request.urlopen(address, timeout=30) as answer:
            page = answer.read().decode()
        found = {
            sample.name + "".join(sample.labels.values()): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }
        names = ("crenel_rows_totalpublished", "crenel_delay_seconds_count", "crenel_restarts_total")
        lags = [name for name in found if name.startswith("crenel_source_lag_records")]
        return "crenel_checkpoint_age_seconds" in found and len(lags) == 4 and all(found[name] > 0 for name in names)

    until(is_told, PATIENCE)


def _feed(kafka: Broker, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), AT_ONCE):
        kafka.produce("visits", made.as_json(rows[start : start + AT_ONCE]))
        time.sleep(0.2)


def _numbers(kafka: Broker) -> int:
    return len({json.loads(message.value())["note"] for message in kafka.read("anonymous")})


def _check(messages: list[Any], rows: list[dict[str, Any]]) -> None:
    """Check that each row is published, in one form, under one name, and correctly generalized."""
    told, named = defaultdict(set), defaultdict(set)
    for message in messages:
        published = json.loads(message.value())
        assert made.covers(published, rows[published["note"]])
        told[published["note"]].add(message.value())
        named[message.key()].add(message.value())
    assert sorted(told) == list(range(len(rows)))
    assert all(len(values) == 1 for values in told.values()), "a row under two generalizations"
    assert len(named) == len(rows), "a reader that keeps one record a key has each row once"
