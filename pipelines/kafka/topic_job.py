"""The job of `crenel run` for topics: rows from Kafka in, anonymized rows out, as they arrive.

    Partitions -> Read -> Anonymize -> Encode -> Durable -> Write

It is one pipeline for every runner. On this machine outputs may also be files of JSON lines, and
the run ends with counts of what became of the rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam import typehints
from apache_beam.pvalue import PCollection

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files.file_job import Launch, Outcome
from crenel.pipelines.files.scratch import Scratch
from crenel.pipelines.kafka import clients
from crenel.pipelines.kafka.dead_letters import DEAD
from crenel.pipelines.kafka.messages.values import derived, values
from crenel.pipelines.kafka.partition_ranges import Partition, elements
from crenel.pipelines.kafka.sink import EncodeRows, WriteRecords
from crenel.pipelines.kafka.source import ReadPartition
from crenel.pipelines.kafka.topics import Topic, is_topic
from crenel.policy import Policy
from crenel.policy.secret import without_secret
from crenel.runners import JobFailed
from crenel.transforms import Counts
from crenel.transforms._pack.element_coders import RECORD
from crenel.transforms._publish.emitter import PUBLISHED, REJECTED, RELEASES, SUPPRESSED
from crenel.transforms.anonymize import Anonymize, with_outputs
from crenel.transforms.durable import Durable

__all__ = ["Request", "build", "run"]

_ROW = RECORD
_RECORD = typehints.Tuple[str, bytes, bytes]
_LINES = (".jsonl", ".ndjson", ".json")
#: The names of the counts among the notes of a run.
_COUNTS, _MISFITS = "counts", "misfits"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to do. Outputs are topics, or on the local runner files of JSON lines."""

    policy: Policy
    source: Topic
    outputs: Mapping[str, Topic | Path]
    #: The folder for records that a topic does not take; None for the user's own.
    dead_letters: str | None = None

    @classmethod
    def of(
        cls,
        policy: Policy,
        inputs: Iterable[str],
        outputs: Mapping[str, str | None],
        *,
        local: bool,
        dead_letters: str | None = None,
    ) -> Request:
        """The request of a command line.

        Raises:
            CommandError: it cannot be done.
        """
        first, *others = inputs
        if others or not is_topic(first):
            msg = "--input must be one topic if any input or output is kafka://."
            raise CommandError(msg)
        source = Topic.of(first, read=True)
        if source.until is not None and not local:
            msg = f"{source!r}: until=end is for the local runner; on others the last rows would not be durable."
            raise CommandError(msg)
        wanted = {name: _output(url, local=local) for name, url in outputs.items() if url is not None}
        wanted = {name: _with_schema(policy, source, name, place) for name, place in wanted.items()}
        _check_distinct(source, wanted)
        # Workers may have another working directory.
        folder = None if dead_letters is None else os.path.abspath(dead_letters)
        return cls(policy=policy, source=source, outputs=wanted, dead_letters=folder)


def _output(text: str, *, local: bool) -> Topic | Path:
    if is_topic(text):
        return Topic.of(text)
    if not local:
        msg = f"{text}: must be a topic (kafka://...): workers of this runner cannot write files of this machine."
        raise CommandError(msg)
    path = Path(text)
    if path.suffix.lower() not in _LINES or not path.absolute().parent.is_dir():
        msg = (
            f"{text}: must be a topic (kafka://...), or a file of JSON lines ({', '.join(_LINES)}) in an existing "
            "folder."
        )
        raise CommandError(msg)
    return path.absolute()


def _with_schema(policy: Policy, source: Topic, name: str, place: Topic | Path) -> Topic | Path:
    """Derive the schema of an Avro topic whose schema file does not exist, and write the file."""
    if not isinstance(place, Topic) or place.format != "avro" or place.schema_text is not None:
        return place
    if name != PUBLISHED or source.format != "avro":
        msg = f"{place!r}: there is no {place.schema}. It can be derived only for --output, if --input is Avro too."
        raise CommandError(msg)
    text = derived(policy, source)
    try:
        Path(str(place.schema)).write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{place.schema} cannot be written: {os.strerror(error.errno or 5).lower()}."
        raise CommandError(msg) from None
    if place.encoding == "confluent" and place.schema_id is None:
        msg = f"{place!r}: {place.schema} was written. Register it, and give its id as schema_id=ID."
        raise CommandError(msg)
    return replace(place, schema_text=text)


def _check_distinct(source: Topic, outputs: Mapping[str, Topic | Path]) -> None:
    places = [str(place) for place in (source, *outputs.values())]
    if len(set(places)) < len(places):
        msg = "the input and the outputs must be different topics and files."
        raise CommandError(msg)


def run(
    request: Request, launch: Launch, watch: Callable[[Scratch], Any] | None = None, *, local: bool = True
) -> Outcome | None:
    """Anonymize the topic until its input ends or the user stops it.

    Args:
        request: What to do.
        launch: Launches the pipeline.
        watch: Shows the progress of a local run.
        local: Whether the pipeline runs on this machine.

    Returns:
        What became of the rows; None if the run was not local.

    Raises:
        CommandError: a broker does not answer, or there is no such topic.
        JobFailed: the run failed.
    """
    began = time.monotonic()
    partitions = _partitions(request.source)
    for place in request.outputs.values():
        if isinstance(place, Topic):
            clients.exists(place)
            values(place)
    values(request.source)
    if not local:
        launch(lambda pipeline: build(pipeline, request, partitions), request.policy.shards)
        return None
    with Scratch.begin(None, watched=watch is not None) as scratch:
        with nullcontext() if watch is None else watch(scratch):
            launch(lambda pipeline: build(pipeline, request, partitions, scratch), 1)
        outcome = _outcome(scratch)
        outcome.seconds = time.monotonic() - began
        return outcome


def _partitions(source: Topic) -> Sequence[Partition]:
    """The partitions to read.

    Raises:
        CommandError: the broker does not answer, or has no such topic.
    """
    clients.exists(source)
    try:
        found = clients.described(source, clients.ANSWER)
    except clients.Silent as why:
        msg = f"{source!r}: the broker does not describe the topic: {why}."
        raise CommandError(msg) from None
    # After the id: offsets of a topic that is created again in between then belong to an id that does not fit.
    return elements(clients.bounds(source), "" if found is None else found.identity)


def build(
    pipeline: beam.Pipeline, request: Request, partitions: Sequence[Partition], scratch: Scratch | None = None
) -> None:
    """Add the steps to a pipeline.

    Args:
        pipeline: The pipeline.
        request: What to do.
        partitions: The partitions to read.
        scratch: Where a run on this machine keeps its counts.
    """
    parts = pipeline | "Partitions" >> beam.Create(partitions)
    parts.element_type = typehints.Tuple[int, int, int, int, str]
    published = request.outputs[PUBLISHED]
    # Without checkpoints to delay, the shortest calls let the runner choose the partition that is behind.
    source = ReadPartition(
        request.source,
        without_secret(request.policy),
        1.0 if scratch is None else 0.0,
        published if isinstance(published, Topic) else None,
    )
    read = parts | "Read" >> with_outputs(source, REJECTED, main="rows")
    rows, unreadable = read["rows"], read[REJECTED]
    rows.element_type = unreadable.element_type = _ROW
    result = rows | "Anonymize" >> Anonymize(request.policy)
    for output in (result.published, result.suppressed, result.rejected, result.releases):
        output.element_type = _ROW
    found = {PUBLISHED: result.published, SUPPRESSED: result.suppressed, RELEASES: result.releases}
    encoded, misfits = [], []
    for name in (name for name in found if name in request.outputs):
        fit, unfit = _encode(found[name], name, request.outputs[name])
        encoded.append(fit)
        misfits.append(unfit)
    if REJECTED in request.outputs:
        everyone = [unreadable, result.rejected, *misfits] | "All rejected" >> beam.Flatten()
        encoded.append(_encode(everyone, REJECTED, request.outputs[REJECTED])[0])
    everything = encoded | "Together" >> beam.Flatten()
    everything.element_type = _RECORD
    durable = everything | "Durable" >> Durable(keys=request.policy.shards, policy=request.policy)
    _ = durable | "Write" >> beam.ParDo(WriteRecords(request.outputs, request.dead_letters, scratch))
    if scratch is not None:
        counts = unreadable | "Count unreadable" >> beam.Map(_unreadable).with_output_types(_ROW)
        _ = (counts, result.counts) | "All counts" >> beam.Flatten() | "Add up" >> beam.ParDo(_AddUp(scratch))
        _ = misfits | "All misfits" >> beam.Flatten() | "Count misfits" >> beam.ParDo(_CountMisfits(scratch))


def _encode(rows: PCollection, name: str, place: Topic | Path) -> tuple[PCollection, PCollection]:
    """Make records; rows that do not fit are apart."""
    made = rows | f"Encode {name}" >> with_outputs(EncodeRows(name, place), REJECTED, main="records")
    made["records"].element_type = _RECORD
    made[REJECTED].element_type = _ROW
    return made["records"], made[REJECTED]


def _unreadable(record: Mapping[str, str]) -> dict[str, Any]:
    """The counts of a message that is no row."""
    counts = Counts()
    counts.arrive(1, [(record["field"], record["reason"])])
    return counts.as_dict()


class _AddUp(beam.DoFn):
    """Adds up all counts of a run, and reports progress."""

    def __init__(self, scratch: Scratch) -> None:
        self._work = scratch

    def setup(self) -> None:
        """Begin with nothing."""
        self._counts = Counts()

    def process(self, record: Mapping[str, Any]) -> None:
        """Add counts."""
        counts = Counts.of([record])
        self._counts.join(counts)
        self._work.tick("read", counts.rows)
        self._work.tick("left", sum(counts.kinds))

    def finish_bundle(self) -> None:
        """Stop if the run was abandoned."""
        self._work.check()

    def teardown(self) -> None:
        """Leave the counts for the end of the run."""
        self._work.note(_COUNTS, 0, self._counts.as_dict())


class _CountMisfits(beam.DoFn):
    """Counts released rows that do not fit the schema of their output."""

    def __init__(self, scratch: Scratch) -> None:
        self._work = scratch

    def setup(self) -> None:
        """Begin with nothing."""
        self._misfits = 0

    def process(self, record: Mapping[str, str]) -> None:
        """Count a row."""
        self._misfits += 1

    def teardown(self) -> None:
        """Leave the count for the end of the run."""
        self._work.note(_MISFITS, 0, self._misfits)


def _outcome(scratch: Scratch) -> Outcome:
    outcome = Outcome()
    outcome.take(Counts.of(scratch.notes(_COUNTS)), timed=True)
    outcome.misfits = sum(scratch.notes(_MISFITS))
    for note in scratch.notes(DEAD):
        outcome.dead_letters, outcome.dead_letters_file = note["records"], note["file"]
    if outcome.accounted != outcome.rows:
        msg = f"only {outcome.accounted:,} of {outcome.rows:,} rows are accounted for."
        raise JobFailed(msg)
    return outcome
