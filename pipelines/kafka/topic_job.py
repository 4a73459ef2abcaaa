"""The job of `crenel run` for topics: rows from Kafka in, anonymized rows out, as they arrive.

    Partitions -> Read -> Anonymize -> Encode -> Durable -> Write
                     `-> Durable -> Commit

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
from crenel.pipelines.files.cells import range_names
from crenel.pipelines.files.file_job import Launch, Outcome
from crenel.pipelines.files.scratch import Scratch
from crenel.pipelines.kafka import clients
from crenel.pipelines.kafka.committed_offsets import OFFSETS, CommitOffsets
from crenel.pipelines.kafka.dead_letters import DEAD
from crenel.pipelines.kafka.messages.value_formats import reading, writing
from crenel.pipelines.kafka.messages.values import derived, whole_numbers
from crenel.pipelines.kafka.partition_ranges import Partition, elements
from crenel.pipelines.kafka.sink import EncodeRows, WriteRecords
from crenel.pipelines.kafka.source import IGNORED, ReadPartition
from crenel.pipelines.kafka.topics import HEADER_COLUMN, Topic, is_topic
from crenel.pipelines.kafka.transactions import WriteInTransactions
from crenel.pipelines.metrics.live_figures import Tap
from crenel.policy import Policy
from crenel.policy.secret import without_secret
from crenel.runners import JobFailed
from crenel.transforms import Counts
from crenel.transforms._pack.element_coders import RECORD
from crenel.transforms._pack.nested_fields import colliding
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms._pack.row_options import Clock
from crenel.transforms._pack.text_columns import named_columns
from crenel.transforms._publish.emitter import PUBLISHED, REJECTED, RELEASES, SUPPRESSED
from crenel.transforms._publish.range_form import RangeForm, Ranges
from crenel.transforms.anonymize import Anonymize, with_outputs
from crenel.transforms.durable import Durable

__all__ = ["Request", "build", "range_form", "run"]

_ROW = RECORD
#: Rows of many messages in one element, and records of many rows: Beam's cost of an element is a multiple of theirs.
_ROWS, _RECORDS = RowBatch, typehints.List[typehints.Tuple[str, bytes, bytes]]
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
    #: The form of published and suppressed ranges.
    ranges: Ranges = Ranges.STRUCT
    #: What moves the clock of a shard. Partitions that are not kept together in event time need the watermark.
    clock: Clock = Clock.ROWS

    @classmethod
    def of(
        cls,
        policy: Policy,
        inputs: Iterable[str],
        outputs: Mapping[str, str | None],
        *,
        local: bool,
        dead_letters: str | None = None,
        ranges: Ranges = Ranges.STRUCT,
    ) -> Request:
        """The request of a command line.

        Raises:
            CommandError: it cannot be done.
        """
        range_names.check(policy, ranges)
        first, *others = inputs
        if others or not is_topic(first):
            msg = "--input must be one topic if any input or output is kafka://."
            raise CommandError(msg)
        source = Topic.of(first, read=True)
        if source.until is not None and not local:
            msg = f"{source!r}: until=end is for the local runner; on others the last rows would not be durable."
            raise CommandError(msg)
        wanted = {name: _output(url, local=local) for name, url in outputs.items() if url is not None}
        _check_registries(source, wanted)
        wanted = {name: _with_schema(policy, source, name, place, ranges) for name, place in wanted.items()}
        _check_distinct(source, wanted)
        _check_names(policy, source, wanted[PUBLISHED])
        _check_transactions(wanted, local=local)
        source = _with_group(source, wanted[PUBLISHED])
        # Workers may have another working directory.
        folder = None if dead_letters is None else os.path.abspath(dead_letters)
        clock = Clock.ROWS if local else Clock.WATERMARK
        return cls(policy=policy, source=source, outputs=wanted, dead_letters=folder, ranges=ranges, clock=clock)


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


def _check_registries(source: Topic, outputs: Mapping[str, Topic | Path]) -> None:
    """Refuse a registry where no schema could be derived."""
    for name, place in outputs.items():
        if not isinstance(place, Topic) or place.registry is None:
            continue
        if name != PUBLISHED:
            msg = f"{place!r}: registry is for --input and --output; the owner's records are JSON, without a schema."
            raise CommandError(msg)
        if source.registry is None:
            msg = (
                f"{place!r}: registry needs registry= for --input, too: the schema of published rows is derived from "
                "the schema of the input."
            )
            raise CommandError(msg)


def _with_schema(policy: Policy, source: Topic, name: str, place: Topic | Path, ranges: Ranges) -> Topic | Path:
    """Derive the schema of an Avro topic whose schema file does not exist, and write the file."""
    if not isinstance(place, Topic) or place.registry is not None:
        return place
    if place.format != "avro" or place.schema_text is not None:
        return place
    if name != PUBLISHED or source.schema_text is None:
        msg = f"{place!r}: there is no {place.schema}. It can be derived only for --output, if --input has schema= too."
        raise CommandError(msg)
    text = derived(policy, source, ranges)
    try:
        Path(str(place.schema)).write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{place.schema} cannot be written: {os.strerror(error.errno or 5).lower()}."
        raise CommandError(msg) from None
    return replace(place, schema_text=text)


def _with_group(source: Topic, published: Topic | Path) -> Topic:
    """Name the group of a topic after what becomes of it, unless the user names it."""
    if source.group is not None:
        return source
    return replace(source, group=f"crenel-{source.name}-to-{published.name}")


def _check_transactions(outputs: Mapping[str, Topic | Path], *, local: bool) -> None:
    """Require that all outputs can be part of a transaction, if it is asked for."""
    asked = {name: place for name, place in outputs.items() if isinstance(place, Topic) and place.transactions}
    published = asked.pop(PUBLISHED, None)
    for place in asked.values():
        msg = f"{place!r}: transactions must be asked for with --output; they contain all outputs."
        raise CommandError(msg)
    if published is None:
        return
    if local:
        msg = f"{published!r}: transactions are for a runner with checkpoints (--runner flink)."
        raise CommandError(msg)
    others = [place for place in outputs.values() if isinstance(place, Topic)]
    if any((place.servers, place.settings) != (published.servers, published.settings) for place in others):
        msg = f"{published!r}: transactions must be of one cluster: give all outputs the same brokers and options."
        raise CommandError(msg)


def _check_distinct(source: Topic, outputs: Mapping[str, Topic | Path]) -> None:
    places = [str(place) for place in (source, *outputs.values())]
    if len(set(places)) < len(places):
        msg = "the input and the outputs must be different topics and files."
        raise CommandError(msg)


def _check_names(policy: Policy, source: Topic, published: Topic | Path) -> None:
    """Refuse headers where a schema describes the columns (its names have no colon), and paths that become one name."""
    headers = [name for name in named_columns(policy) if name.startswith(HEADER_COLUMN)]
    has_schema = source.registry is not None or (isinstance(published, Topic) and published.format != "json")
    is_avro = isinstance(published, Topic) and published.format == "avro"
    twice = colliding([*policy.quasi_identifiers, *policy.sensitive, *policy.publish]) if is_avro else None
    if twice is not None:
        msg = f"{published!r}: names in Avro cannot have dots, and {twice}."
        raise CommandError(msg)
    if headers and has_schema:
        msg = f"{source!r}: the policy must name no header ({headers[0]}) if a topic has a schema."
        raise CommandError(msg)


def run(
    request: Request,
    launch: Launch,
    watch: Callable[[Scratch], Any] | None = None,
    tap: Tap | None = None,
    *,
    local: bool = True,
) -> Outcome | None:
    """Anonymize the topic until its input ends or the user stops it.

    Args:
        request: What to do.
        launch: Launches the pipeline.
        watch: Shows the progress of a local run.
        tap: Where the steps of a local run report what they have counted.
        local: Whether the pipeline runs on this machine.

    Returns:
        What became of the rows; None if the run was not local.

    Raises:
        CommandError: a broker does not answer, or there is no such topic.
        JobFailed: the run failed.
    """
    began = time.monotonic()
    partitions = _partitions(request.source)
    if request.source.until is not None and len(partitions) > 1:
        # Long reads, of which each lets a partition get far ahead of the others: see `source._span`.
        request = replace(request, clock=Clock.WATERMARK)
    for place in request.outputs.values():
        if isinstance(place, Topic):
            clients.exists(place)
    request = _registered(request)
    for place in request.outputs.values():
        if isinstance(place, Topic):
            writing(place)
    reading(request.source)
    if not local:
        launch(lambda pipeline: build(pipeline, request, partitions), request.policy.most_shards)
        return None
    with Scratch.begin(None, watched=watch is not None) as scratch:
        with nullcontext() if watch is None else watch(scratch):
            launch(lambda pipeline: build(pipeline, request, partitions, scratch, tap), 1)
        outcome = _outcome(scratch)
        outcome.seconds = time.monotonic() - began
        return outcome


def _registered(request: Request) -> Request:
    """The request with what the schema registry says of its columns, and with the id of the output's schema.

    Raises:
        CommandError: the registry does not answer, or its schemas and the policy do not agree.
    """
    if request.source.registry is None:
        return request
    from crenel.pipelines.kafka.registry.agreement import agreed, registered

    source, kinds, form = agreed(request.policy, request.source)
    published = request.outputs[PUBLISHED]
    if not isinstance(published, Topic) or published.registry is None:
        return replace(request, source=source)
    published = registered(request.policy, published, kinds, form, request.ranges)
    return replace(request, source=source, outputs={**request.outputs, PUBLISHED: published})


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
    pipeline: beam.Pipeline,
    request: Request,
    partitions: Sequence[Partition],
    scratch: Scratch | None = None,
    tap: Tap | None = None,
) -> None:
    """Add the steps to a pipeline.

    Args:
        pipeline: The pipeline.
        request: What to do.
        partitions: The partitions to read.
        scratch: Where a run on this machine keeps its counts.
        tap: Where its steps report them while it goes on.
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
        tap,
    )
    ignored = [IGNORED] if request.source.envelope else []
    read = parts | "Read" >> with_outputs(source, REJECTED, OFFSETS, *ignored, main="rows")
    rows, unreadable = read["rows"], read[REJECTED]
    rows.element_type, unreadable.element_type = _ROWS, _ROW
    for tag in ignored:
        read[tag].element_type = int
    result = rows | "Anonymize" >> Anonymize(request.policy, clock=request.clock)
    result.rejected.element_type = _ROW
    found = {PUBLISHED: result.published, SUPPRESSED: result.suppressed, RELEASES: result.releases}
    encoded, misfits = [], []
    for name in (name for name in found if name in request.outputs):
        fit, unfit = _encode(found[name], name, request.outputs[name], range_form(request, name))
        encoded.append(fit)
        misfits.append(unfit)
    if REJECTED in request.outputs:
        everyone = [unreadable, result.rejected, *misfits] | "All rejected" >> beam.Flatten()
        encoded.append(_encode(everyone, REJECTED, request.outputs[REJECTED])[0])
    everything = encoded | "Together" >> beam.Flatten()
    everything.element_type = _RECORDS
    whole = isinstance(published, Topic) and published.transactions is not None
    outbox = Durable(keys=request.policy.most_shards, policy=request.policy, lists=True, whole=whole)
    durable = everything | "Durable" >> outbox
    if whole:
        write: WriteRecords = WriteInTransactions(request.outputs, request.dead_letters)
    else:
        write = WriteRecords(request.outputs, request.dead_letters, scratch, tap)
    _ = durable | "Write" >> beam.ParDo(write)
    if request.source.group:
        _commit(read[OFFSETS], request)
    if scratch is not None:
        counts = [unreadable | "Count unreadable" >> beam.Map(_unreadable).with_output_types(_ROW), result.counts]
        if ignored:
            counts.append(read[IGNORED] | "Count ignored" >> beam.Map(_ignored).with_output_types(_ROW))
        _ = counts | "All counts" >> beam.Flatten() | "Add up" >> beam.ParDo(_AddUp(scratch, tap))
        _ = misfits | "All misfits" >> beam.Flatten() | "Count misfits" >> beam.ParDo(_CountMisfits(scratch, tap))


def _commit(offsets: PCollection, request: Request) -> None:
    """Commit offsets when checkpoints have what was read below them; in order, so in an outbox of one key."""
    offsets.element_type = typehints.Tuple[int, int]
    durable = offsets | "Durable offsets" >> Durable(keys=1, policy=request.policy)
    _ = durable | "Commit" >> beam.ParDo(CommitOffsets(request.source))


def range_form(request: Request, name: str) -> RangeForm | None:
    """The form of the ranges of an output; None if it has none, or they stay structs."""
    if request.ranges is Ranges.STRUCT or name not in (PUBLISHED, SUPPRESSED):
        return None
    place = request.outputs[name]
    is_typed = isinstance(place, Topic) and place.format in ("avro", "protobuf")
    whole = whole_numbers(request.source)
    return RangeForm(without_secret(request.policy), request.ranges, whole, untyped=not is_typed)


def _encode(
    rows: PCollection, name: str, place: Topic | Path, form: RangeForm | None = None
) -> tuple[PCollection, PCollection]:
    """Make records; rows that do not fit are apart."""
    made = rows | f"Encode {name}" >> with_outputs(EncodeRows(name, place, form), REJECTED, main="records")
    made["records"].element_type = _RECORDS
    made[REJECTED].element_type = _ROW
    return made["records"], made[REJECTED]


def _unreadable(record: Mapping[str, str]) -> dict[str, Any]:
    """The counts of a message that is no row."""
    counts = Counts()
    counts.arrive(1, [(record["field"], record["reason"])])
    return counts.as_dict()


def _ignored(messages: int) -> dict[str, Any]:
    """The counts of messages that have no row."""
    counts = Counts()
    counts.ignore(messages)
    return counts.as_dict()


class _AddUp(beam.DoFn):
    """Adds up all counts of a run, and reports progress."""

    def __init__(self, scratch: Scratch, tap: Tap | None = None) -> None:
        self._work = scratch
        self._tap = tap

    def setup(self) -> None:
        """Begin with nothing."""
        self._counts = Counts()

    def process(self, record: Mapping[str, Any]) -> None:
        """Add counts."""
        counts = Counts.of([record])
        self._counts.join(counts)
        if self._tap is not None:
            self._tap.add(counts)
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

    def __init__(self, scratch: Scratch, tap: Tap | None = None) -> None:
        self._work = scratch
        self._tap = tap

    def setup(self) -> None:
        """Begin with nothing."""
        self._misfits = 0

    def process(self, record: Mapping[str, str]) -> None:
        """Count a row."""
        self._misfits += 1
        if self._tap is not None:
            self._tap.note("misfits", 1)

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
