"""Records that a topic does not take, rows that do not fit it, and brokers that refuse. With a real broker."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from crenel.pipelines.cli import main
from crenel.pipelines.kafka.broker_errors import refusal
from crenel.pipelines.kafka.sender import Sender
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed
from tests.pipelines.kafka import broker
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker

pytestmark = pytest.mark.kafka

ANY = ("--most-suppressed", "100%", "--most-rejected", "100%", "--json")


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(made.POLICY)
    return str(path)


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "dead"


def names(count: int) -> list[str]:
    return [f"t-{uuid4().hex[:8]}" for _ in range(count)]


def run(policy: str, dead: Path, *flags: str) -> int:
    return main(["run", policy, *flags, "--dead-letters", str(dead), *ANY])


def letters(dead: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(dead.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_a_large_value_that_is_no_row_is_rejected_in_short(
    kafka: Broker, policy: str, dead: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In base64 it would pass the megabyte that a topic takes."""
    source, published, rejected = names(3)
    kafka.create(source, published, rejected)
    rows = made.make(200)
    large = bytes(range(256)) * 3516
    wide = {**rows[0], "age": 200, "secret": "\x00" * 150_000}
    values = [*made.as_json(rows[:100]), large, json.dumps(wide).encode(), *made.as_json(rows[100:])]
    kafka.produce(source, values)
    given = ["--input", kafka.url(source, until="end"), "--output", kafka.url(published)]
    assert run(policy, dead, *given, "--rejected", kafka.url(rejected)) == 0
    outcome = json.loads(capfd.readouterr().out)
    assert outcome["rows"] == 202
    assert outcome["rejected"] == 2
    assert {json.loads(message.value())["note"] for message in kafka.read(published)} == set(range(200))
    found = {record["reason"]: record for record in (json.loads(m.value()) for m in kafka.read(rejected))}
    assert found["not JSON"]["row"].endswith(
        f"... [shortened: {len(large):,} bytes, sha256 {hashlib.sha256(large).hexdigest()}]"
    )
    assert "[shortened: " in found["outside the domain"]["row"]
    assert letters(dead) == []


def test_a_record_that_the_broker_refuses_becomes_a_dead_letter(
    kafka: Broker, policy: str, dead: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, published = names(2)
    kafka.create(source)
    kafka.create(published, max__message__bytes="5000")
    rows = made.make(300)
    rows[70]["ill"] = "x" * 20_000
    kafka.produce(source, made.as_json(rows))
    given = ["--input", kafka.url(source, until="end"), "--output", kafka.url(published)]
    assert run(policy, dead, *given) == 3
    captured = capfd.readouterr()
    assert json.loads(captured.out)["dead_letters"] == 1
    assert "xxxx" not in captured.out + captured.err
    arrived = {json.loads(message.value())["note"] for message in kafka.read(published)}
    assert arrived == set(range(300)) - {70}
    (letter,) = letters(dead)
    assert letter["output"] == "published"
    assert letter["topic"] == f"kafka://{kafka.address}/{published}"
    assert "too large" in letter["reason"]
    assert json.loads(base64.b64decode(letter["value"]))["note"] == 70
    (path,) = dead.glob("*.jsonl")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_row_that_no_client_can_send_is_rejected_before_it_is_released(
    kafka: Broker, policy: str, dead: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rejected after its release, it would be missing from the crowd of the others."""
    source, published, rejected = names(3)
    kafka.create(source, max__message__bytes="5000000")
    kafka.create(published, rejected)
    rows = made.make(300)
    rows[70]["ill"] = "x" * 1_200_000
    kafka.produce(source, made.as_json(rows))
    given = ["--input", kafka.url(source, until="end"), "--output", kafka.url(published)]
    assert run(policy, dead, *given, "--rejected", kafka.url(rejected)) == 0
    assert json.loads(capfd.readouterr().out)["rejected_by"] == [
        {"field": "ill", "reason": "too large for the output topic", "rows": 1}
    ]
    arrived = {json.loads(message.value())["note"] for message in kafka.read(published)}
    assert arrived == set(range(300)) - {70}
    assert letters(dead) == []


OUT: dict[str, Any] = {
    "type": "record",
    "name": "Out",
    "fields": [
        {
            "name": "age",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Age",
                    "fields": [{"name": "lo", "type": "double"}, {"name": "hi", "type": "double"}],
                },
            ],
        },
        {"name": "zip", "type": ["null", "string"]},
        {"name": "ill", "type": ["null", "string"]},
        {"name": "note", "type": "int"},
    ],
}


def test_a_row_that_does_not_fit_the_avro_schema_of_the_output_is_rejected(
    kafka: Broker, policy: str, dead: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, published, rejected = names(3)
    kafka.create(source, published, rejected)
    (tmp_path / "out.avsc").write_text(json.dumps(OUT))
    rows = made.make(300)
    rows[137]["note"] = 1 << 40
    rows[138]["ill"] = {"not": "text"}
    kafka.produce(source, made.as_json(rows))
    given = ["--input", kafka.url(source, until="end"), "--rejected", kafka.url(rejected)]
    out = kafka.url(published, format="avro", schema=str(tmp_path / "out.avsc"))
    assert run(policy, dead, *given, "--output", out) == 0
    reason = "does not fit the schema of the output"
    assert json.loads(capfd.readouterr().out)["rejected_by"] == [
        {"field": "ill", "reason": reason, "rows": 1},
        {"field": "note", "reason": reason, "rows": 1},
    ]
    assert len(kafka.read(published)) == 298
    refused = [json.loads(message.value()) for message in kafka.read(rejected)]
    assert sorted(json.loads(record["row"])["who"] for record in refused) == sorted(rows[i]["who"] for i in (137, 138))


def test_a_schema_that_takes_no_generalization_rejects_with_field_and_reason(
    kafka: Broker, policy: str, dead: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, published, rejected = names(3)
    kafka.create(source, published, rejected)
    wrong = {**OUT, "fields": [{"name": "age", "type": "int"}, *OUT["fields"][1:]]}
    (tmp_path / "out.avsc").write_text(json.dumps(wrong))
    kafka.produce(source, made.as_json(made.make(100)))
    given = ["--input", kafka.url(source, until="end"), "--rejected", kafka.url(rejected)]
    out = kafka.url(published, format="avro", schema=str(tmp_path / "out.avsc"))
    assert run(policy, dead, *given, "--output", out) == 3
    assert json.loads(capfd.readouterr().out)["misfits"] == 100
    refused = [json.loads(message.value()) for message in kafka.read(rejected)]
    assert {(record["field"], record["reason"]) for record in refused} == {
        ("age", "does not fit the schema of the output")
    }
    assert len(refused) == 100


def test_neighbours_of_a_refused_record_arrive(kafka: Broker) -> None:
    """A broker refuses a whole batch, be it for one record or because all of them together are too large."""
    (topic,) = names(1)
    kafka.create(topic, max__message__bytes="4000")
    sender = Sender({"published": Topic(servers=kafka.address, name=topic)})
    for number in range(400):
        size = 9000 if number in (5, 333) else 500
        sender.send([("published", number.to_bytes(16, "big"), b"x" * size)])
    dead = [json.loads(line) for line in sender.flush()]
    assert sorted(int(letter["key"], 16) for letter in dead) == [5, 333]
    arrived = {int.from_bytes(message.key(), "big") for message in kafka.read(topic)}
    assert arrived == set(range(400)) - {5, 333}
    assert sender.flush() == []


def test_an_output_topic_that_was_deleted_is_named(kafka: Broker) -> None:
    (topic,) = names(1)
    kafka.create(topic)
    soon = (("topic.metadata.propagation.max.ms", "1000"),)  # not after half a minute
    sender = Sender({"published": Topic(servers=kafka.address, name=topic, settings=soon)})
    sender.send([("published", b"1", b"1")])
    assert sender.flush() == []
    kafka.delete(topic)
    sender.send([("published", b"2", b"2")])
    with pytest.raises(JobFailed) as raised:
        for _ in range(3):
            sender.flush()
            sender.send([("published", b"3", b"3")])
    said = str(raised.value)
    assert f"kafka://{kafka.address}/{topic}: " in said
    assert "The topic does not exist, or was deleted: create it." in said


def test_of_what_a_client_said_the_longest_is_repeated() -> None:
    """It tries again and again, and does not always say as much."""

    class Error:
        def str(self) -> str:
            return "Local: Broker transport failure"

        def name(self) -> str:
            return "_TRANSPORT"

    closed = "ssl://a:1/bootstrap: Disconnected: SSL connection closed by peer"
    heard = [f"{closed}: connecting to a PLAINTEXT broker listener? (after 2ms in state SSL_HANDSHAKE)"]
    heard += [f"{closed} (after 1ms in state SSL_HANDSHAKE)", "1/1 brokers are down"]
    said = refusal(Topic(servers="a:1", name="visits"), Error(), heard)
    assert "connecting to a PLAINTEXT broker listener?). Check that" in said


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that has a listener with TLS, too."""
    if broker.missing() is not None:
        pytest.skip(str(broker.missing()))
    folder = tmp_path_factory.mktemp("secured")
    store = ["-keystore", str(folder / "store.p12"), "-storetype", "PKCS12", "-storepass", "for a test"]
    key = ["-genkeypair", "-alias", "broker", "-keyalg", "RSA", "-dname", "CN=localhost", "-validity", "2"]
    subprocess.run(["keytool", *key, *store], check=True, capture_output=True, timeout=120)
    ways = "PLAINTEXT://localhost:{port},CONTROLLER://localhost:{controller},SSL://localhost:{tls}"
    settings = {
        "listeners": ways,
        "advertised.listeners": "PLAINTEXT://localhost:{port},SSL://localhost:{tls}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        "ssl.keystore.location": str(folder / "store.p12"),
        "ssl.keystore.password": "for a test",
    }
    with broker.running(folder / "broker", settings) as running:
        running.create("visits", "anonymous")
        yield running


@pytest.mark.parametrize(
    ("tls", "options", "said"),
    [
        (False, "?security.protocol=SSL", "connecting to a PLAINTEXT broker listener?"),
        (True, "", "the broker cannot be reached"),
        (True, "?security.protocol=SSL", "certificate"),
    ],
)
def test_a_tls_mismatch_is_explained(
    secured: Broker, policy: str, tls: bool, options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address = secured.tls if tls else secured.address
    given = ["--input", f"kafka://{address}/visits{options}", "--output", f"kafka://{secured.address}/anonymous"]
    assert main(["run", policy, *given]) == 2
    told = capsys.readouterr().err
    assert f"kafka://{address}/visits: " in told
    assert said in told
    assert "security.protocol must be SSL, SASL_SSL or SASL_PLAINTEXT" in told
