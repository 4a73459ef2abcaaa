"""URLs of topics, and the requests that are made from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crenel.errors import INCURABLE, SecretError
from crenel.pipelines.cli import main
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files.file_job import Outcome
from crenel.pipelines.kafka import topic_job
from crenel.pipelines.kafka.topic_job import Request
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.runners.flink import flink_run
from tests.pipelines.kafka import rows

POLICY = Policy.from_dict(
    {"version": 1, "person": "who", "quasi_identifiers": {"age": {"type": "numeric"}}, "k": 2, "delay_rows": 9}
)


def test_options_of_a_url() -> None:
    topic = Topic.of("kafka://a:1,b:2/visits?until=end&idle=2m&start=latest&client.id=me", read=True)
    assert (topic.servers, topic.name, topic.until, topic.idle, topic.start) == (
        "a:1,b:2",
        "visits",
        "end",
        120,
        "latest",
    )
    assert topic.settings == (("client.id", "me"),)


def test_passwords_come_from_a_file_and_appear_in_no_repr(tmp_path: Path) -> None:
    (tmp_path / "client").write_text("# mine\nsecurity.protocol = SASL_SSL\nsasl.password=hush=hush\n")
    topic = Topic.of(f"kafka://a:1/visits?config={tmp_path / 'client'}")
    assert dict(topic.settings) == {"security.protocol": "SASL_SSL", "sasl.password": "hush=hush"}
    assert "hush" not in repr(topic)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka://a:1", "must be kafka://HOST:PORT/TOPIC"),
        ("kafka:///visits", "must be kafka://HOST:PORT/TOPIC"),
        ("kafka://me:hush@a:1/visits", "passwords in a file"),
        ("kafka://a:1/visits?idel=3s", "Did you mean 'idle'?"),
        ("kafka://a:1/visits?idle=soon", "idle must be a duration such as 30s"),
        ("kafka://a:1/visits?until=later", "until must be end"),
        ("kafka://a:1/visits?format=xml", "format must be json or avro or protobuf"),
        ("kafka://a:1/visits?format=avro", "needs schema=FILE"),
        ("kafka://a:1/visits?format=avro&schema=/not/there", "cannot be read"),
        ("kafka://a:1/visits?encoding=single", "are of format=avro"),
        ("kafka://a:1/visits?schema_id=7", "'schema_id' must be one of"),
        ("kafka://a:1/visits?format=protobuf", "need registry=URL"),
        ("kafka://a:1/visits?subject=x", "need registry=URL"),
        ("kafka://a:1/visits?registry=r:8081", "registry must be http://HOST:PORT or https://HOST:PORT"),
        ("kafka://a:1/visits?registry=http://me:hush@r:8081", "schema.registry.basic.auth.user.info in a file"),
        ("kafka://a:1/visits?registry=http://r:8081&format=avro", "format must not be given beside registry"),
        ("kafka://a:1/visits?registry=http://r:8081&schema=x", "schema must not be given beside registry"),
        ("kafka://a:1/visits?schema.registry.url=http://r", "must not be set: crenel sets it by registry="),
        ("kafka://a:1/visits?group.id=x", "group.id must not be set"),
        ("kafka://a:1/visits?config=/not/there", "cannot be read"),
    ],
)
def test_a_mistake_is_reported_in_a_sentence(url: str, said: str) -> None:
    with pytest.raises(CommandError) as raised:
        Topic.of(url, read=True)
    assert said in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("inputs", "outputs", "local", "said"),
    [
        (["a.csv"], {"published": "kafka://a:1/b"}, True, "--input must be one topic"),
        (["kafka://a:1/a", "kafka://a:1/b"], {"published": "kafka://a:1/c"}, True, "--input must be one topic"),
        (["kafka://a:1/a"], {"published": "kafka://a:1/a"}, True, "must be different"),
        (["kafka://a:1/a"], {"published": "out.csv"}, True, "a file of JSON lines"),
        (["kafka://a:1/a"], {"published": "out.jsonl"}, False, "must be a topic"),
        (["kafka://a:1/a"], {"published": "kafka://a:1/b?start=latest"}, True, "'start' must be one of"),
        (
            ["kafka://a:1/a"],
            {"published": "kafka://a:1/b?format=avro&schema=/not/there"},
            True,
            "--input has schema=",
        ),
        (["kafka://a:1/a"], {"published": "kafka://a:1/b?registry=http://r"}, True, "registry= for --input, too"),
        (
            ["kafka://a:1/a?registry=http://r"],
            {"published": "kafka://a:1/b", "rejected": "kafka://a:1/c?registry=http://r"},
            True,
            "registry is for --input and --output",
        ),
    ],
)
def test_an_impossible_request_is_refused_before_a_broker_is_asked(
    inputs: list[str], outputs: dict[str, str], local: bool, said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        Request.of(POLICY, inputs, outputs, local=local)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--runner", "dataflow"], "kafka:// needs --runner local or flink"),
        (["--workers", "3"], "--workers needs --runner flink, not local."),
        (["--memory-limit", "1GB"], "--memory-limit is for files"),
        (["--output-format", "csv"], "are for files"),
    ],
)
def test_flags_that_do_not_go_with_topics(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.yaml").write_text(rows.POLICY)
    command = ["run", str(tmp_path / "policy.yaml"), "--input", "kafka://a:1/a", "--output", "kafka://a:1/b"]
    assert main([*command, *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_stream_is_judged_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Outcome(rows=100, alone=3, published=80, suppressed=20)
    monkeypatch.setattr(topic_job, "run", lambda *_, **__: outcome)
    (tmp_path / "policy.yaml").write_text(rows.POLICY.replace("seed: 7\n", ""))
    command = ["run", str(tmp_path / "policy.yaml"), "--input", "kafka://a:1/a", "--output", "kafka://a:1/b"]
    assert main(command) == 3
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.split()[:3] == ["without", "crowd", "3"]
    assert last.startswith("crenel: 20 rows (20%) were suppressed, 15 more than --most-suppressed 5% allows")
    assert main([*command, "--most-suppressed", "20%", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["alone"] == 3


def test_on_flink_it_is_a_stream_on_the_cluster_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[str] = []
    monkeypatch.setattr(flink_run, "check", lambda _: None)
    monkeypatch.setattr(flink_run, "launch", lambda job: flags.extend(job.flags) or 1)
    monkeypatch.setattr(topic_job, "run", lambda _request, launch, *_, local: launch(lambda _: None, 1) and None)
    (tmp_path / "policy.yaml").write_text(rows.POLICY)
    command = ["run", str(tmp_path / "policy.yaml"), "--input", "kafka://a:1/a", "--output", "kafka://a:1/b"]
    assert main([*command, "--runner", "flink", "--flink-master", "h:8081"]) == 0
    assert {"--flink_master=h:8081", "--streaming"} <= set(flags)


# --- Options that say where their value is ---


def test_an_option_may_say_where_its_value_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRENEL_TEST_PASSWORD", "of the variable")
    kept = tmp_path / "password"
    kept.write_text("of the file\n")
    kept.chmod(0o600)
    config = tmp_path / "client.properties"
    config.write_text(f"sasl.password=env:CRENEL_TEST_PASSWORD\nssl.key.password=file:{kept}\nsasl.username=me\n")
    topic = Topic.of(f"kafka://b:1/t?config={config}")
    assert topic.client_options() == {
        "sasl.password": "of the variable",
        "ssl.key.password": "of the file",
        "sasl.username": "me",
    }
    assert "of the" not in str(topic.settings) + repr(topic)
    monkeypatch.delenv("CRENEL_TEST_PASSWORD")
    with pytest.raises(SecretError, match=r"sasl\.password names the environment variable CRENEL_TEST_PASSWORD"):
        topic.client_options()


def test_the_login_of_a_registry_is_not_told_to_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRENEL_TEST_PASSWORD", "me:hush")
    config = tmp_path / "client.properties"
    config.write_text("schema.registry.basic.auth.user.info=env:CRENEL_TEST_PASSWORD\nsasl.username=me\n")
    topic = Topic.of(f"kafka://b:1/t?registry=https://r&config={config}", read=True)
    assert topic.client_options() == {"sasl.username": "me"}
    assert topic.registry_options() == {"basic.auth.user.info": "me:hush"}
    assert "hush" not in str(topic.settings) + repr(topic)
    monkeypatch.delenv("CRENEL_TEST_PASSWORD")
    with pytest.raises(CommandError, match=r"schema\.registry\.basic\.auth\.user\.info names the environment variable"):
        Topic.of(f"kafka://b:1/t?registry=https://r&config={config}", read=True)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("env:CRENEL_ABSENT", "names the environment variable CRENEL_ABSENT, which is not set on this machine."),
        ("file:/no/such/file", "names the file /no/such/file, which cannot be read on this machine: no such file or"),
    ],
)
def test_a_value_that_is_not_there_is_an_error_before_anything_begins(value: str, said: str) -> None:
    with pytest.raises(CommandError) as caught:
        Topic.of(f"kafka://b:1/t?sasl.password={value}")
    assert str(caught.value).startswith(f"kafka://b:1/t: sasl.password {said}")
    assert INCURABLE not in str(caught.value)


def test_a_file_that_all_users_may_read_is_no_place_for_a_password(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(CommandError, match="which every user of the machine may read or write: run chmod o-rw on it"):
        Topic.of(f"kafka://b:1/t?sasl.password=file:{tmp_path / 'password'}")
