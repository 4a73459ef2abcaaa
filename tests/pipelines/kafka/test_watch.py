"""`crenel watch` on real topics: what a run published raises no alarm, and each weak stream raises its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from crenel.pipelines.cli import main
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker

pytestmark = pytest.mark.kafka

DOCS = Path(__file__).resolve().parents[3] / "docs"

POLICY = """\
person: who
event_time: at
quasi_identifiers:
  age: {type: numeric, domain: [0, 100], step: 5}
  zip: {type: prefix, length: 5}
sensitive: [ill]
publish: [note]
k: 3
l: 2
delay: 60s
disorder: 5s
"""
Rows = list[dict[str, Any]]


def names(count: int) -> list[str]:
    return [f"w-{uuid4().hex[:8]}" for _ in range(count)]


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return str(path)


@pytest.fixture
def watch(kafka: Broker, policy: str, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(published: str, *flags: str, **options: str) -> tuple[int, dict[str, Any]]:
        url = kafka.url(published, until="end", **options)
        told = main(["watch", policy, "--published", url, "--settle", "5s", "--json", *flags])
        captured = capfd.readouterr()
        assert "flu" not in captured.out + captured.err
        return told, json.loads(captured.out)

    return run


@pytest.mark.parametrize("flags", [(), ("--ranges", "columns")], ids=["struct", "columns"])
def test_a_run_raises_no_alarm(
    kafka: Broker, policy: str, watch: Any, capfd: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    source, published, releases = names(3)
    kafka.create(source, published, releases)
    kafka.produce(source, made.as_json([{**row, "ill": row["ill"] or "none"} for row in made.make()]))
    given = ["--input", kafka.url(source, until="end"), "--output", kafka.url(published)]
    given += ["--releases", kafka.url(releases), "--most-suppressed", "100%", "--json"]
    assert main(["run", policy, *given, *flags]) == 0
    outcome = json.loads(capfd.readouterr().out)
    told, seen = watch(published, "--releases", kafka.url(releases, until="end"))
    assert told == 0
    assert seen["alarms"] == {}
    assert seen["verdict"] == "nothing against it"
    assert seen["rows"] == seen["released_rows"] == outcome["published"] > 300
    assert seen["least_rows"] >= 3
    assert seen["least_values"]["ill"] >= 2
    # The loss of the summary counts suppressed rows, too.
    assert 0 < seen["loss"] <= outcome["loss"]


def group(number: int, rows: int = 4) -> Rows:
    """Rows of one release."""
    common = {"age": {"lo": 5 * (number % 10), "hi": 5 * (number % 10) + 50}, "zip": f"{number % 7}****"}
    return [{**common, "ill": ("flu", "cold")[n % 2], "note": 10 * number + n} for n in range(rows)]


def few_rows(groups: list[Rows]) -> None:
    del groups[5][2:]


def one_value(groups: list[Rows]) -> None:
    for row in groups[5]:
        row["ill"] = "flu"


def a_person(groups: list[Rows]) -> None:
    groups[5][1]["who"] = 17


def an_exact_value(groups: list[Rows]) -> None:
    groups[5][1]["age"] = {"lo": 33, "hi": 33}


WEAK: dict[str, tuple[Callable[[list[Rows]], None], tuple[str, ...]]] = {
    "k": (few_rows, ("k",)),
    "l": (one_value, ("l",)),
    "columns": (a_person, ("columns",)),
    "values": (an_exact_value, ("values",)),
}


@pytest.mark.parametrize("name", WEAK)
def test_a_weak_stream_raises_its_alarm(kafka: Broker, watch: Any, name: str) -> None:
    weaken, expected = WEAK[name]
    (published,) = names(1)
    kafka.create(published)
    groups = [group(number) for number in range(10)]
    kafka.produce(published, made.as_json([row for rows in groups for row in rows]))
    assert watch(published)[0] == 0
    weaken(groups)
    (published,) = names(1)
    kafka.create(published)
    kafka.produce(published, made.as_json([row for rows in groups for row in rows]))
    told, seen = watch(published)
    assert told == 1
    assert tuple(seen["alarms"]) == expected
    assert seen["verdict"] == "broken"
    assert watch(published, start="latest")[1]["rows"] == 0


def test_records_that_come_again(kafka: Broker, watch: Any) -> None:
    """After a failure a record may come again as it was; under another generalization it is an alarm."""
    (published,) = names(1)
    kafka.create(published)
    values = made.as_json(group(1))
    keys = [b"%d" % number for number in range(4)]
    kafka.produce(published, [*values, values[0]], keys=[*keys, keys[0]])
    told, seen = watch(published)
    assert (told, seen["rows"], seen["repeats"]) == (0, 4, 1)
    kafka.produce(published, [*made.as_json(group(2)), b"{"], keys=[*keys[:1], b"x", b"y", b"z", b"broken"])
    told, seen = watch(published)
    assert told == 1
    # Of the second group three rows are left, which are enough.
    assert seen["alarms"] == {"twice": 1, "values": 1}


def test_what_the_run_says_of_its_releases(kafka: Broker, watch: Any) -> None:
    published, releases = names(2)
    kafka.create(published, releases)
    kafka.produce(published, made.as_json(group(1)))
    common = {"shard": 0, "loss": 0.1, "arrivals": 9, "group": 1, "moment": "2020-01-01T00:00:00.000000Z"}
    kafka.produce(releases, made.as_json([{**common, "kind": "cluster", "rows": 4, "persons": 4}]))
    given = ("--releases", kafka.url(releases, until="end"))
    assert watch(published, *given)[0] == 0
    told, seen = watch(published, *given, "--most-late", "1h")
    assert (told, seen["alarms"]) == (3, {"late": 1})
    told, seen = watch(published, "--most-loss", "0.01")
    assert told == 0, "a thousand rows are needed"
    few = {**common, "kind": "cluster", "rows": 3, "persons": 2}
    kafka.produce(releases, [*made.as_json([few, {**common, "kind": "reuse", "rows": 1, "persons": 3}]), b"[]"])
    told, seen = watch(published, *given)
    assert told == 1
    assert seen["alarms"] == {"k": 2, "releases": 1, "rows": 1}


def test_the_loss_has_a_limit(kafka: Broker, watch: Any) -> None:
    (published,) = names(1)
    kafka.create(published)
    kafka.produce(published, made.as_json([row for number in range(300) for row in group(number)]))
    assert watch(published, "--most-loss", "0.9")[0] == 0
    told, seen = watch(published, "--most-loss", "0.1")
    assert (told, seen["alarms"]) == (3, {"loss": 1})


def test_an_endless_topic_is_watched_until_ctrl_c(kafka: Broker, policy: str) -> None:
    (published,) = names(1)
    kafka.create(published)
    kafka.produce(published, made.as_json([row for number in range(10) for row in group(number)]))
    command = [sys.executable, "-m", "crenel", "watch", policy, "--published", kafka.url(published)]
    command += ["--settle", "1s", "--metrics", ":0"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heard,  # noqa: PLW1509 - it only sets a signal
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        (address,) = re.findall(r"metrics are at (\S+)", said)
        _await(address, "crenel_watch_group_rows_count", 10)
        assert _figures(address)["crenel_watch_alarms_total,k"] == 0
        documented = (DOCS / "metrics.md").read_text("utf-8")
        assert all(f"| `{name}` |" in documented for name in _names(address))
        kafka.produce(published, made.as_json(group(1, rows=2)))
        _await(address, "crenel_watch_alarms_total,k", 1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "crenel: alarm (k): 2 rows are under a generalization of their own, fewer than k = 3." in err
    assert re.search(r"^k +broken +at least 2 rows in each group of 11; their persons are unknown$", out, re.MULTILINE)
    assert re.search(r"^deadline +not judged ", out, re.MULTILINE)


def test_fail_fast_ends_with_the_first_alarm(kafka: Broker, policy: str, capfd: pytest.CaptureFixture[str]) -> None:
    (published,) = names(1)
    kafka.create(published)
    kafka.produce(published, [*made.as_json([{**row, "who": 1} for row in group(1)])])
    assert main(["watch", policy, "--published", kafka.url(published), "--fail-fast"]) == 1
    assert "alarm (columns): a row has a column that the policy does not publish." in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--published", "out.jsonl"], "crenel audit judges files"),
        (["--published", "kafka://a:1/b", "--most-late", "1h"], "--most-late needs --releases"),
        (["--published", "kafka://a:1/b?registry=http://r:1"], "watch reads JSON, and Avro by schema=FILE"),
        (["--published", "kafka://a:1/b", "--settle", "soon"], "must be a duration"),
        (["--published", "kafka://a:1/b", "--most-loss", "7"], "must be a number from 0 to 1"),
    ],
)
def test_what_is_refused(policy: str, flags: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        told = main(["watch", policy, *flags])
    except SystemExit as error:
        told = int(error.code or 0)
    assert told == 2
    assert said in capfd.readouterr().err


def _figures(address: str) -> dict[str, float]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        page = answer.read().decode()
    return {
        ",".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def _names(address: str) -> set[str]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return set(re.findall(r"^# TYPE (\w+)", answer.read().decode(), re.MULTILINE))


def _await(address: str, name: str, value: float) -> None:
    until = time.monotonic() + 60
    while _figures(address).get(name, 0) < value:
        assert time.monotonic() < until, _figures(address)
        time.sleep(0.3)
