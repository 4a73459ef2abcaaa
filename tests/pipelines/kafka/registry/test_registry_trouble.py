"""What a run does if the registry, the policy and the schemas do not agree. With a real registry and a real broker."""

from __future__ import annotations

import io
import json
import pickle
import struct
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from apache_beam.internal import pickler

from crenel.pipelines.cli import main
from crenel.pipelines.kafka.messages.value_formats import reading
from crenel.pipelines.kafka.messages.values import Unavailable, Unreadable
from crenel.pipelines.kafka.registry import framed_values
from crenel.pipelines.kafka.registry.agreement import agreed, registered
from crenel.pipelines.kafka.registry.framed_values import FramedReader
from crenel.pipelines.kafka.source import ReadPartition
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.runners import JobFailed
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker
from tests.pipelines.kafka.registry import writers
from tests.pipelines.kafka.registry_gate import Gate
from tests.pipelines.kafka.registry_server import Registry

pytestmark = pytest.mark.kafka

AVRO = writers.avro()
FIRST = AVRO.schemas["first"]
#: How many rows come too late for a group depends on how partitions race. That is not tested here.
ANY = ("--most-suppressed", "100%")


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(made.POLICY)
    return str(path)


@pytest.fixture
def topics(kafka: Broker) -> tuple[str, str]:
    source, published = (f"g-{uuid4().hex[:8]}" for _ in range(2))
    kafka.create(source, published)
    return source, published


def run(policy: str, source: str, published: str, *flags: str) -> int:
    return main(["run", policy, "--input", source, "--output", published, *ANY, *flags])


# --- At the start ---


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "http://localhost:9",
            "the schema registry http://localhost:9 does not answer as one: ConnectError. Check that",
        ),
        ("{root}", "does not answer as one: it answers 404"),
    ],
)
def test_a_registry_that_is_none_is_named(
    kafka: Broker,
    registry: Registry,
    policy: str,
    topics: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    url: str,
    said: str,
) -> None:
    source, published = topics
    url = url.format(root=registry.url.partition("/apis")[0])
    assert run(policy, kafka.url(source, registry=url), kafka.url(published)) == 2
    told = capsys.readouterr().err
    assert f"kafka://{kafka.address}/{source}: " in told
    assert said in told


def test_a_wrong_login_is_named_and_the_right_one_does(
    kafka: Broker,
    registry: Registry,
    policy: str,
    topics: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, published = topics
    number = registry.register(f"{source}-value", FIRST)
    rows = made.make(30)
    kafka.produce(source, [AVRO.value("first", number, row) for row in rows])
    gate = Gate(registry.url, "me:hush")
    (tmp_path / "client").write_text("schema.registry.basic.auth.user.info=env:CRENEL_TEST_LOGIN\n")
    options = {"registry": gate.url, "config": str(tmp_path / "client")}
    given = kafka.url(source, until="end", **options), kafka.url(published, **options)
    monkeypatch.setenv("CRENEL_TEST_LOGIN", "me:wrong")
    assert run(policy, *given) == 2
    told = capsys.readouterr().err
    assert f"the schema registry {gate.url} refuses the login (401). Check schema.registry.basic.auth.user.info" in told
    assert "wrong" not in told
    monkeypatch.setenv("CRENEL_TEST_LOGIN", "me:hush")
    assert run(policy, *given) == 0
    assert len(kafka.read(published)) == len(rows)
    # Each schema is fetched once, however many rows and partitions there are.
    assert len([path for path in gate.asked if f"/schemas/ids/{number}" in path]) == 1

    topic, _, _ = agreed(Policy.from_yaml(policy), Topic.of(given[0], read=True))
    step = pickler.dumps(ReadPartition(topic, Policy.from_yaml(policy), 1.0, Topic.of(given[1])))
    assert b"hush" not in step + pickle.dumps(topic), "a job's description holds no login"
    assert pickle.loads(pickle.dumps(topic)) == topic
    gate.close()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (None, "has no subject"),
        ("lacking", "lacks the column 'note'. The policy needs 6 columns: who, at, age, zip, ill, note."),
        ("nested", "has records, lists or maps in the column 'note'"),
        ("several", "has values of several types in the column 'note'"),
    ],
)
def test_a_schema_that_the_policy_cannot_use_is_named(
    kafka: Broker,
    registry: Registry,
    policy: str,
    topics: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    version: str | None,
    said: str,
) -> None:
    source, published = topics
    schemas = {
        **AVRO.schemas,
        "nested": _with_note({"type": "array", "items": "int"}),
        "several": _with_note(["int", "string"]),
    }
    number = "" if version is None else str(registry.register(f"{source}-value", schemas[version]))
    assert run(policy, kafka.url(source, registry=registry.url), kafka.url(published)) == 2
    told = capsys.readouterr().err
    assert said in told
    assert number == "" or f"schema {number} (version 1 of {source}-value) " in told


def _with_note(kind: Any) -> str:
    schema = json.loads(FIRST)
    schema["fields"][5]["type"] = kind
    return json.dumps(schema)


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
def test_an_output_that_its_readers_could_not_read_is_refused(
    kafka: Broker,
    registry: Registry,
    policy: str,
    topics: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    source, published = topics
    registry.register(f"{source}-value", FIRST)
    read = kafka.url(source, until="end", registry=registry.url)
    written = kafka.url(published, registry=registry.url, format=form)
    assert run(policy, read, written) == 0
    before = registry.latest(f"{published}-value")
    registry.demand(f"{published}-value", "BACKWARD")
    # The same schema is the same schema, and asks nobody.
    assert run(policy, read, written) == 0
    assert registry.latest(f"{published}-value") == before
    # Now `note` is text.
    registry.register(f"{source}-value", _with_note("string"))
    capsys.readouterr()
    assert run(policy, read, written) == 2
    told = capsys.readouterr().err
    assert f"not compatible with the latest version of {published}-value" in told
    assert "Publish to another topic, or change the compatibility of this subject. Nothing was registered." in told
    assert registry.latest(f"{published}-value") == before


# --- In the middle ---


def test_rows_wait_for_a_registry_that_is_away(
    kafka: Broker, registry: Registry, policy: str, topics: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    source, published = topics
    first = registry.register(f"{source}-value", FIRST)
    swapped = registry.register(f"{source}-value", AVRO.schemas["swapped"])
    rows = made.make(60)
    kafka.produce(source, [AVRO.value("first", first, row) for row in rows[:30]])
    kafka.produce(source, [AVRO.value("swapped", swapped, row) for row in rows[30:]])
    gate = Gate(registry.url)
    given = kafka.url(source, until="end", registry=gate.url), kafka.url(published)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run(policy, *given)))
    thread.start()
    until = time.monotonic() + 60
    while not gate.asked and time.monotonic() < until:
        time.sleep(0.001)
    gate.close()  # after the first question: before the schemas of the rows are fetched, or between them
    told = ""
    while "Rows wait until it does." not in told and time.monotonic() < until:
        time.sleep(0.1)
        told += capfd.readouterr().err
    assert f"crenel: kafka://{kafka.address}/{source}: the schema registry {gate.url} does not give schema " in told
    assert kafka.read(published) == []
    gate.open()
    thread.join(90)
    gate.close()
    assert codes == [0]
    assert sorted(json.loads(message.value())["note"] for message in kafka.read(published)) == list(range(60))


def test_a_login_that_is_taken_away_stops_the_run_and_an_unknown_id_does_not(registry: Registry) -> None:
    name = f"g-{uuid4().hex[:8]}"
    # A schema that the registry has has one id, under whatever subject: so these are new ones.
    first, swapped = (
        AVRO.schemas[version].replace("Visit", name.replace("-", "_")) for version in ("first", "swapped")
    )
    number = registry.register(f"{name}-value", first)
    gate = Gate(registry.url, "me:hush")
    topic = Topic(servers="a:1", name=name, registry=gate.url, columns=(("note", ("integer",)),))
    value = AVRO.value("first", number, made.make(1)[0])
    with pytest.raises(JobFailed, match=r"a:1/.*: the schema registry .* refuses the login \(401\)"):
        reading(topic).read(value)
    gate.close()
    # Every reader of the process shares what was fetched.
    assert reading(topic) is reading(topic)
    now = [0.0]
    reader = FramedReader(Topic(servers="a:1", name=name, registry=registry.url, columns=topic.columns), lambda: now[0])
    later = AVRO.value("swapped", number + 1, made.make(1)[0])
    with pytest.raises(Unreadable, match=f"schema {number + 1} is not in the registry"):
        reader.read(later)
    assert reader.read(value) == {"note": 0}
    # It may be registered later.
    assert registry.register(f"{name}-value", swapped) == number + 1
    with pytest.raises(Unreadable):
        reader.read(later)
    now[0] = 61.0
    assert reader.read(later) == {"note": 0}


def test_ids_that_nobody_gave_stop_nothing(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of another format may begin with a zero, and each seems to have an id of its own."""
    monkeypatch.setattr(framed_values, "_MOST_UNKNOWN", 3)
    reader = FramedReader(Topic(servers="a:1", name="none", registry=registry.url, columns=(("note", ()),)))
    numbers = (0, 0x7FFFFFFF, 0x7FFFFFFE, 0x7FFFFFFD, 0x80000000, 0xFFFFFFFF)
    reasons = [str(why) for why in reader.read_many([struct.pack(">BI", 0, number) for number in numbers])]
    assert reasons == [
        "schema 0 is not in the registry",
        "schema 2147483647 is not in the registry",
        "schema 2147483646 is not in the registry",
        *["of a schema that is not in the registry"] * 3,
    ]


def test_a_silent_registry_is_asked_once_a_second(registry: Registry) -> None:
    gate = Gate(registry.url)
    name = f"g-{uuid4().hex[:8]}"
    number = registry.register(f"{name}-value", FIRST)
    now = [0.0]
    reader = FramedReader(Topic(servers="a:1", name=name, registry=gate.url, columns=(("note", ()),)), lambda: now[0])
    value = AVRO.value("first", number, made.make(1)[0])
    gate.close()
    with pytest.raises(Unavailable):
        reader.read_many([value])
    gate.open()
    with pytest.raises(Unavailable):
        reader.read(value)
    assert gate.asked == []
    now[0] = 1.1
    assert reader.read_many([value]) == [{"note": 0}]
    gate.close()


# --- References, and the clients of others ---


def test_a_schema_may_refer_to_others(registry: Registry) -> None:
    name = f"g-{uuid4().hex[:8]}"
    kinds = {"type": "enum", "name": "Kind", "namespace": "k", "symbols": ["FLU", "COLD"]}
    registry.register(f"{name}-kinds", kinds)
    refers = [{"name": "k.Kind", "subject": f"{name}-kinds", "version": 1}]
    record = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "note", "type": "int"}, {"name": "ill", "type": "k.Kind"}],
    }
    number = registry.register(f"{name}-value", record, references=refers)
    shared = 'syntax = "proto3"; package shared; enum Kind { NONE = 0; FLU = 1; }'
    registry.register(f"{name}-shared", shared, "PROTOBUF")
    refers = [{"name": "shared.proto", "subject": f"{name}-shared", "version": 1}]
    file = 'syntax = "proto3"; import "shared.proto"; message Row { int32 note = 1; shared.Kind ill = 2; }'
    other = registry.register(f"{name}-proto", file, "PROTOBUF", refers)
    columns = (("note", ("integer",)), ("ill", ("text",)))
    reader = FramedReader(Topic(servers="a:1", name=name, registry=registry.url, columns=columns))
    assert reader.read(b"\0" + number.to_bytes(4, "big") + b"\x0e\x02") == {"note": 7, "ill": "COLD"}
    assert reader.read(b"\0" + other.to_bytes(4, "big") + b"\0\x08\x07\x10\x01") == {"note": 7, "ill": "FLU"}


def test_confluents_own_clients_write_and_read_the_same(registry: Registry, policy: str) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    name, rules = f"g-{uuid4().hex[:8]}", Policy.from_yaml(policy)
    client = SchemaRegistryClient({"url": registry.url})
    write = AvroSerializer(client, FIRST)
    row = {**made.make(1)[0], "at": 1_600_000_000_000}
    value = write(row, SerializationContext(name, MessageField.VALUE))
    topic, kinds, form = agreed(rules, Topic(servers="a:1", name=name, registry=registry.url, format=""))
    found = FramedReader(topic).read(value)
    assert {**found, "at": int(found["at"].timestamp() * 1000)} == {key: row[key] for key in dict(topic.columns)}

    from crenel.pipelines.kafka.messages.value_formats import writing

    published = registered(
        rules, Topic(servers="a:1", name=f"{name}-out", registry=registry.url, format=""), kinds, form
    )
    told = {"age": {"lo": 1.0, "hi": 2.0}, "zip": "0****", "ill": None, "note": 7}
    read = AvroDeserializer(client)
    assert read(writing(published).write(told), SerializationContext(f"{name}-out", MessageField.VALUE)) == told
    schema = fastavro.parse_schema(json.loads(registry.latest(f"{name}-out-value")["schema"]))
    assert fastavro.schemaless_reader(io.BytesIO(writing(published).write(told)[5:]), schema, None) == told
