"""The benchmark from topic to topic runs on the local runner, and ends with one line of JSON. It needs a broker."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks import kafka
from tests.pipelines.kafka import broker

pytestmark = pytest.mark.kafka


def test_from_topic_to_topic(capfd: pytest.CaptureFixture[str]) -> None:
    missing = broker.missing()
    if missing is not None:
        if os.environ.get("CRENEL_REQUIRE_KAFKA"):
            pytest.fail(missing)
        pytest.skip(missing)
    assert kafka.main(["--quick", "--only", "cost,steady", "--formats", "json"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert {"plain, json, 1", "local, json, 1"} <= set(figures)
    assert figures["local, steady, json, 1"]["latency_p99_s"] > 0


def test_processor_time_counts_children() -> None:
    assert kafka.cpu([os.getpid()]) > 0
    assert kafka.cpu([]) == 0
