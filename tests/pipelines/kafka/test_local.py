"""`crenel run` from topic to topic on this machine, with a real broker."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest

from crenel.pipelines.cli import main
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker

pytestmark = pytest.mark.kafka

#: Few rows may be suppressed at the start and at the end. That is not tested here.
ANY = ("--most-suppressed", "100%")


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(made.POLICY)
    return str(path)


def names(count: int) -> list[str]:
    return [f"t-{uuid4().hex[:8]}" for _ in range(count)]


def test_json_from_topic_to_topic(
    kafka: Broker, policy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, published, rejected = names(3)
    kafka.create(source, published, rejected)
    rows = made.make()
    broken: list[bytes | None] = [b"{", b"\xff\xfe", b"[1]", None, b'{"who": NaN}']
    kafka.produce(source, [*made.as_json(rows), *broken, json.dumps({**rows[0], "age": 200}).encode()])
    given = ["--input", kafka.url(source, until="end"), "--output", kafka.url(published)]
    owners = ["--rejected", kafka.url(rejected), "--suppressed", str(tmp_path / "s.jsonl")]
    told = main(["run", policy, *given, *owners, "--json", *ANY])
    captured = capfd.readouterr()
    outcome = json.loads(captured.out)
    assert told == 0
    assert outcome["rows"] == len(rows) + 6 == outcome["published"] + outcome["suppressed"] + outcome["rejected"]

    messages = kafka.read(published)
    out = [json.loads(message.value()) for message in messages]
    assert sorted(row["note"] for row in out) == list(range(len(rows)))
    assert all(made.covers(row, rows[row["note"]]) for row in out)
    assert all(set(row) == {"age", "zip", "ill", "note"} for row in out)
    # Each row has its own name, and both partitions have rows.
    assert len({message.key() for message in messages}) == len(messages)
    assert not any(message.headers() for message in messages)
    assert {message.partition() for message in messages} == {0, 1}
    # The owner gets all rejected messages.
    refused = [json.loads(message.value()) for message in kafka.read(rejected)]
    reasons = sorted(record["reason"] for record in refused)
    assert reasons == sorted(["not JSON"] * 3 + ["not a JSON object", "no value", "outside the domain"])
    assert {"{", "base64://4=", "[1]", ""} <= {record["row"] for record in refused}
    assert "SECRET" not in captured.out + captured.err
    stars = (tmp_path / "s.jsonl").read_text().splitlines()
    assert len(stars) == outcome["suppressed"]
    assert (tmp_path / "s.jsonl").stat().st_mode & 0o777 == 0o600


def test_ranges_as_columns_are_published_and_audited(
    kafka: Broker, policy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, published = names(2)
    kafka.create(source, published)
    rows = made.make(200)
    kafka.produce(source, made.as_json(rows))
    given = ["--input", kafka.url(source, until="end"), "--output", kafka.url(published)]
    assert main(["run", policy, *given, "--ranges", "columns", "--json", *ANY]) == 0
    outcome = json.loads(capfd.readouterr().out)
    out = [json.loads(message.value()) for message in kafka.read(published)]
    assert outcome["rejected"] == 0, outcome
    assert len(out) == len(rows) == outcome["published"] + outcome["suppressed"]
    for row in out:
        assert set(row) == {"age_lo", "age_hi", "zip", "ill", "note"}
        assert type(row["age_lo"]) is type(row["age_hi"]) is int
        assert made.covers({**row, "age": {"lo": row["age_lo"], "hi": row["age_hi"]}}, rows[row["note"]])
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in out))
    capfd.readouterr()
    assert main(["audit", policy, "--published", str(tmp_path / "out.jsonl"), "--json", "--queries", "0"]) == 0
    assert json.loads(capfd.readouterr().out)["rows"]["published"] == outcome["published"]


def test_a_compacted_topic_with_tombstones(kafka: Broker, policy: str, tmp_path: Path) -> None:
    """What compaction has left is read to the end; a tombstone is rejected, and deletes nothing."""
    source, published, rejected = names(3)
    compact = {"cleanup__policy": "compact", "min__cleanable__dirty__ratio": "0.01", "segment__ms": "100"}
    kafka.create(source, partitions=1, **compact)
    kafka.create(published, rejected)
    rows = made.make(300)
    keys = [b"%d" % (number % 150) for number in range(300)]
    kafka.produce(source, made.as_json(rows), keys=keys)
    time.sleep(0.2)
    kafka.produce(source, [None], keys=[b"tombstone"])  # in a segment of its own, so that the first may be compacted
    until = time.monotonic() + 120
    while len(kafka.read(source)) > 151:
        assert time.monotonic() < until, "too slow"
        time.sleep(0.5)
    given = ["--input", kafka.url(source, until="end", group="watched"), "--output", kafka.url(published)]
    assert main(["run", policy, *given, "--rejected", kafka.url(rejected), *ANY]) == 0
    assert {json.loads(message.value())["note"] for message in kafka.read(published)} == set(range(150, 300))
    assert [json.loads(message.value())["reason"] for message in kafka.read(rejected)] == ["no value"]
    assert kafka.lag("watched") == {0: 0}


def test_a_header_is_published_only_if_the_policy_names_it(kafka: Broker, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    source, published = names(2)
    kafka.create(source, published)
    rows = made.make(60)
    producer = Producer({"bootstrap.servers": kafka.address})
    for row, value in zip(rows, made.as_json(rows), strict=True):
        headers = [("region", f"region {row['note']}".encode()), ("trace", b"SECRET")]
        producer.produce(source, value, headers=headers)
    assert producer.flush(60) == 0
    path = tmp_path / "policy.yaml"
    path.write_text(made.POLICY.replace("publish: [note]", "publish: [note, 'header:region']"))
    given = ["--input", kafka.url(source, until="end"), "--output", kafka.url(published)]
    assert main(["run", str(path), *given, *ANY]) == 0
    messages = kafka.read(published)
    out = [json.loads(message.value()) for message in messages]
    assert {row["note"]: row["header:region"] for row in out} == {i: f"region {i}" for i in range(len(rows))}
    assert not any(message.headers() for message in messages)
    assert not any(b"SECRET" in message.value() for message in messages)


@pytest.mark.parametrize("encoding", ["bare", "single"])
def test_avro_from_topic_to_topic(kafka: Broker, policy: str, tmp_path: Path, encoding: str) -> None:
    source, published = names(2)
    kafka.create(source, published)
    rows = made.make(200)
    schema = fastavro.parse_schema(made.SCHEMA)
    (tmp_path / "visit.avsc").write_text(json.dumps(made.SCHEMA))
    heads = {"bare": b"", "single": b"\xc3\x01" + _fingerprint(made.SCHEMA)}
    kafka.produce(source, [_avro(row, schema, heads[encoding]) for row in rows])
    avro = {"format": "avro", "encoding": encoding}
    read = kafka.url(source, until="end", schema=str(tmp_path / "visit.avsc"), **avro)
    written_to = kafka.url(published, schema=str(tmp_path / "out.avsc"), **avro)
    assert main(["run", policy, "--input", read, "--output", written_to, *ANY]) == 0
    written = json.loads((tmp_path / "out.avsc").read_text())
    head = {"bare": b"", "single": b"\xc3\x01" + _fingerprint(written)}[encoding]
    out = []
    for message in kafka.read(published):
        assert message.value().startswith(head)
        out.append(fastavro.schemaless_reader(io.BytesIO(message.value()[len(head) :]), written, None))
    assert sorted(row["note"] for row in out) == list(range(len(rows)))
    assert all(made.covers(row, rows[row["note"]]) for row in out)


def _avro(row: dict[str, Any], schema: Any, head: bytes) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, {**row, "at": int(row["at"] * 1000)})
    return head + stream.getvalue()


def _fingerprint(schema: Any) -> bytes:
    """CRC-64-AVRO of the canonical form, as Avro's specification computes it."""
    from fastavro.schema import to_parsing_canonical_form

    empty = 0xC15D213AA4D7A795
    found = empty
    for byte in to_parsing_canonical_form(schema).encode():
        step = (found ^ byte) & 0xFF
        for _ in range(8):
            step = (step >> 1) ^ (empty & -(step & 1))
        found = (found >> 8) ^ step
    return found.to_bytes(8, "little")


def test_rows_of_a_release_do_not_lie_together(kafka: Broker, policy: str, tmp_path: Path) -> None:
    """A topic and a file are in random order, and the owner's record of releases has one schema everywhere."""
    source, published = names(2)
    kafka.create(source, published, partitions=1)
    rows = made.make(1000)
    for row in rows:  # groups of three rows that are alike, which the engine releases together
        row["age"] = row["note"] // 3 % 100
        row["who"] = row["note"]
    kafka.produce(source, made.as_json(rows))
    releases = tmp_path / "releases.jsonl"
    given = ["--input", kafka.url(source, until="end"), "--releases", str(releases), *ANY]
    assert main(["run", policy, *given, "--output", kafka.url(published)]) == 0
    lines = [json.loads(line) for line in releases.read_text().splitlines()]
    assert {tuple(line) for line in lines} == {
        ("shard", "kind", "rows", "persons", "loss", "moment", "arrivals", "group")
    }
    assert all(datetime.fromisoformat(line["moment"]).tzinfo is not None for line in lines)
    assert sum(line["rows"] for line in lines) == len(rows)

    out = [json.loads(message.value()) for message in sorted(kafka.read(published), key=lambda one: one.offset())]
    _check_mixed(out)
    assert main(["run", policy, *given, "--output", str(tmp_path / "out.jsonl")]) == 0
    _check_mixed([json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()])
    assert releases.stat().st_mode & 0o777 == 0o600


def _check_mixed(out: list[dict[str, Any]]) -> None:
    """Neighbours are of one release about as rarely as in a random order, and not in the order of arrival."""
    assert len(out) == 1000
    boxes = [json.dumps([row["age"], row["zip"]]) for row in out]
    sizes = Counter(boxes)
    by_chance = sum(size * (size - 1) for size in sizes.values()) / len(out)
    together = sum(before == after for before, after in pairwise(boxes))
    assert max(sizes.values()) <= 30, "releases are small, or the test proves nothing"
    assert together <= by_chance + 8 * (by_chance**0.5 + 1)
    assert together < len(out) / 4
    assert sum(after == before + 1 for before, after in pairwise(row["note"] for row in out)) < len(out) / 20


@pytest.mark.parametrize("spread", ["evenly", "the later half in one"])
def test_partitions_are_read_side_by_side_in_event_time(
    kafka: Broker, policy: str, spread: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A topic of a week is read in seconds. If one partition were read far ahead, all others would come too late."""
    source, published = names(2)
    kafka.create(source, partitions=4)
    kafka.create(published)
    rows = made.make(4_000)
    parts = [rows[partition::4] for partition in range(4)]
    if spread != "evenly":
        parts = [*(rows[partition:2_000:3] for partition in range(3)), rows[2_000:]]
    for partition, part in enumerate(parts):
        kafka.produce(source, made.as_json(part), partition=partition)
    given = ["--input", kafka.url(source, until="end"), "--output", kafka.url(published)]
    assert main(["run", policy, *given, "--json", "--most-suppressed", "1%"]) == 0
    outcome = json.loads(capfd.readouterr().out)
    assert outcome["rows"] == len(rows) == outcome["published"] + outcome["suppressed"]


def test_rows_are_released_on_time_and_the_run_ends_with_ctrl_c(kafka: Broker, policy: str) -> None:
    """An empty partition does not hold rows back forever; the first Ctrl-C releases the rest."""
    source, published, rejected = names(3)
    kafka.create(source, published, rejected)
    now = time.time()
    rows = made.make(300)
    for row in rows:  # all deadlines have passed
        row["at"] += now - made.BEGAN - 400
    kafka.produce(source, made.as_json(rows), partition=0)
    command = [sys.executable, "-m", "crenel.pipelines.cli", "run", policy, "--json", *ANY]
    command += ["--input", kafka.url(source, idle="2s"), "--output", kafka.url(published)]
    command += ["--rejected", kafka.url(rejected)]
    # Tests that run in the background may ignore Ctrl-C, and so would their child processes.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heard,  # noqa: PLW1509 - it only sets a signal
    )
    try:
        _await_messages(kafka, published, len(rows))
        fresh = {**rows[0], "at": time.time(), "note": len(rows)}
        kafka.produce(source, [*made.as_json([fresh]), b"{"], partition=1)
        _await_messages(kafka, rejected, 1)  # the run has read what came before it
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert json.loads(out)["rows"] == len(rows) + 2
    assert "crenel: releasing held rows. Press Ctrl-C again to discard them." in err
    assert sorted(json.loads(m.value())["note"] for m in kafka.read(published)) == list(range(len(rows) + 1))


def _await_messages(kafka: Broker, topic: str, count: int) -> None:
    """Wait until a topic has this many messages. It has no more."""
    until = time.monotonic() + 240
    while time.monotonic() < until and len(kafka.read(topic)) < count:
        time.sleep(0.5)
    assert len(kafka.read(topic)) == count


def test_a_missing_topic_is_reported_in_a_sentence(
    kafka: Broker, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = names(1)
    assert main(["run", policy, "--input", kafka.url(source), "--output", kafka.url("other")]) == 2
    assert f"there is no topic {source}; create it first." in capsys.readouterr().err
