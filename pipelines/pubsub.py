"""Anonymizes a stream of JSON messages, from a Pub/Sub subscription to a topic.

    Read -> Parse -> Anonymize -> Encode -> Commit -> Write

A message is one row, a JSON object. Released rows are committed (by a `Reshuffle`) before they are
sent. So a message that is sent again after a failure is the same message: an attacker could
intersect two generalizations of one row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import ReadFromPubSub, WriteToPubSub, parse_subscription, parse_topic
from apache_beam.metrics import Metrics

from crenel.pipelines.command_errors import CommandError
from crenel.policy import Policy
from crenel.transforms import Anonymize
from crenel.transforms._pack.element_coders import RECORD
from crenel.transforms._publish.emitter import NAMESPACE
from crenel.transforms.anonymize import with_outputs

__all__ = ["SCHEME", "Topics", "build"]

SCHEME = "pubsub://"

_NOT_JSON = "not a JSON object"


@dataclass(frozen=True, kw_only=True)
class Topics:
    """The input `pubsub://projects/P/subscriptions/S` and the outputs `pubsub://projects/P/topics/T`.

    Raises:
        CommandError: an address is wrong.
    """

    #: A subscription.
    source: str
    published: str
    #: For the owner: exact values. With None they are counted but not sent.
    suppressed: str | None = None
    rejected: str | None = None

    def __post_init__(self) -> None:
        _check("--input", self.source, "subscriptions")
        for flag in ("published", "suppressed", "rejected"):
            if getattr(self, flag) is not None:
                _check("--output" if flag == "published" else f"--{flag}", getattr(self, flag), "topics")
        sent = [topic for topic in (self.published, self.suppressed, self.rejected) if topic is not None]
        if len(set(sent)) < len(sent):
            msg = "the outputs must be different topics."
            raise CommandError(msg)


def _check(flag: str, address: str, kind: str) -> None:
    name = address.removeprefix(SCHEME)
    try:
        if name == address:
            raise ValueError
        parse_topic(name) if kind == "topics" else parse_subscription(name)
    except ValueError:
        msg = f"{flag} must be {SCHEME}projects/PROJECT/{kind}/NAME, not {address!r}."
        raise CommandError(msg) from None


def build(pipeline: beam.Pipeline, policy: Policy, topics: Topics) -> None:
    """Add the steps to a pipeline. Their labels are part of the interface: an updated job finds its state by them."""
    messages = pipeline | "Read" >> ReadFromPubSub(subscription=topics.source.removeprefix(SCHEME))
    parsed = messages | "Parse" >> with_outputs(_Parse(), _Parse.BROKEN, main="rows")
    rows = parsed.rows
    rows.element_type = RECORD
    result = rows | "Anonymize" >> Anonymize(policy)
    for output in (result.published, result.suppressed, result.rejected):
        output.element_type = RECORD
    _send(result.published, "published", topics.published)
    if topics.suppressed is not None:
        _send(result.suppressed, "suppressed", topics.suppressed)
    if topics.rejected is not None:
        broken = parsed[_Parse.BROKEN]
        broken.element_type = result.rejected.element_type
        _send((result.rejected, broken) | "All rejected" >> beam.Flatten(), "rejected", topics.rejected)


def _send(rows: beam.PCollection, name: str, address: str) -> None:
    messages = rows | f"Encode {name}" >> beam.Map(_message).with_output_types(bytes)
    committed = messages | f"Commit {name}" >> beam.Reshuffle()
    _ = committed | f"Write {name}" >> WriteToPubSub(address.removeprefix(SCHEME))


def _message(row: dict[str, Any]) -> bytes:
    return json.dumps(row, default=str, separators=(",", ":")).encode()


class _Parse(beam.DoFn):
    """Reads messages. A message that is no row is rejected unchanged."""

    BROKEN = "broken"

    def setup(self) -> None:
        """Create what cannot be pickled."""
        self._counters = [Metrics.counter(NAMESPACE, name) for name in ("rows", "rejected", f"rejected: {_NOT_JSON}")]

    def process(self, element: bytes) -> Iterator[Any]:
        """Read a message."""
        try:
            row = json.loads(element)
        except ValueError:
            row = None
        if isinstance(row, dict):
            yield row
            return
        for counter in self._counters:
            counter.inc()
        text = element.decode(errors="backslashreplace")
        yield beam.pvalue.TaggedOutput(self.BROKEN, {"row": text, "field": "", "reason": _NOT_JSON})
