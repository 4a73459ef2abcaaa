"""Clients have names by which the broker's metrics and quotas know them."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from crenel.pipelines.kafka import clients
from crenel.pipelines.kafka.topics import Topic

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka: pip install 'crenel[kafka]'")


def named(client: str, monkeypatch: pytest.MonkeyPatch, **settings: str) -> str:
    """The name of a client, in its own statistics."""
    seen: list[str] = []

    def telling(kind: Any) -> Any:
        return lambda given, **more: kind({**given, "statistics.interval.ms": 10, "stats_cb": seen.append}, **more)

    library = SimpleNamespace(Consumer=telling(confluent_kafka.Consumer), Producer=telling(confluent_kafka.Producer))
    monkeypatch.setattr(clients, "_library", lambda: library)
    topic = Topic(servers="127.0.0.1:1", name="visits", settings=tuple(settings.items()))
    made = clients.consumer(topic, 3) if client == "consumer" else clients.producer(topic)
    until = time.monotonic() + 30
    while not seen and time.monotonic() < until:
        made.poll(0.05)
    made.close()
    return str(json.loads(seen[0])["client_id"])


@pytest.mark.parametrize(
    ("client", "name"), [("consumer", "crenel-read-visits-3"), ("producer", "crenel-write-visits")]
)
def test_a_client_is_named_unless_the_user_names_it(client: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named(client, monkeypatch) == name
    assert named(client, monkeypatch, **{"client.id": "mine"}) == "mine"
