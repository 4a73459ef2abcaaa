"""The job of `crenel run`: files of rows in, anonymized rows out, all or nothing.

    files -> Read (encode, pack) -> Group (by shard) -> Anonymize (sort, engine) -> parts -> the outputs

The rows of a shard are put in the order of their event times, ties by what the rows hold, or in
the order of the files where the policy names no event time. The outputs hold the rows of all
shards in an order drawn from the secret (`shuffle`). So they depend on the rows, the policy and
the secret alone, and what is published tells by its order neither times nor shards.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam import typehints

from crenel.engine import Kind, Releases
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files import readers as sources
from crenel.pipelines.files import secret_order as shuffle
from crenel.pipelines.files import writers as sinks
from crenel.pipelines.files.column_types import ROW, ROWS_PER_FILE, Typing, in_order
from crenel.pipelines.files.formats import COMPRESSIONS, FORMATS, TableError, detect
from crenel.pipelines.files.readers import STANDARD, Source
from crenel.pipelines.files.scratch import Work
from crenel.policy import Policy
from crenel.policy.checks import suggestion
from crenel.policy.secret import secret_of
from crenel.transforms._hold.holder import Departure, Holder
from crenel.transforms._pack.pack_step import as_text
from crenel.transforms._pack.payloads import Batch, conformed, unified
from crenel.transforms._pack.row_pack import Pack, Packer
from crenel.transforms._publish.counts import Counts, Spread
from crenel.transforms._publish.publisher import Publisher
from crenel.transforms.bounded import departures

__all__ = ["Outcome", "Output", "Request", "run"]

PUBLISHED, SUPPRESSED, REJECTED, RELEASES, TRACE = "published", "suppressed", "rejected", "releases", "trace"

#: Launches a pipeline: given how to build it, about how many rows it has, and its shards; returns its workers.
Launch = Callable[[Callable[[Any], None], int, int], int]


@dataclass(frozen=True)
class Output:
    """A file to be written."""

    path: str
    extension: str
    compression: str | None = None

    @classmethod
    def of(cls, path: str, named: str | None = None) -> Output:
        """The output of this name, its format by its extension or as named.

        Raises:
            CommandError: it cannot be written.
        """
        if path == STANDARD:
            return cls(path, sources.format_names()[named or "csv"])
        if named is None:
            kind = detect(path)
            extension = next(known for known, form in FORMATS.items() if form is kind.format)
            compression = kind.compression
        else:
            extension = sources.format_names()[named]
            compression = COMPRESSIONS.get(Path(path).suffix.lower()) if FORMATS[extension].text else None
        place = Path(path)
        if place.is_dir():
            msg = f"{path}: must be a file to write, not a folder."
            raise CommandError(msg)
        if not place.parent.is_dir():
            msg = f"{path}: there is no folder {place.parent} to write it to."
            raise CommandError(msg)
        if not os.access(place.parent, os.W_OK):
            msg = f"{path}: the folder {place.parent} must not be read-only."
            raise CommandError(msg)
        return cls(str(place.absolute()), extension, compression)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be done."""

    policy: Policy
    inputs: Sequence[str]
    published: Output
    #: The owner's files.
    suppressed: Output | None = None
    rejected: Output | None = None
    releases: Output | None = None
    trace: Output | None = None
    #: The format of the inputs, where their extensions are not to be believed.
    input_format: str | None = None

    def outputs(self) -> dict[str, Output]:
        """The outputs that are wanted, by what they hold."""
        named = {
            SUPPRESSED: self.suppressed,
            REJECTED: self.rejected,
            RELEASES: self.releases,
            TRACE: self.trace,
        }
        return {PUBLISHED: self.published, **{name: output for name, output in named.items() if output is not None}}


@dataclass
class Outcome:
    """What became of the rows. Counts only."""

    files: int = 0
    rows: int = 0
    #: Rows that left for everybody without a crowd: in a release of fewer than k persons, or with a person twice.
    alone: int = 0
    #: In groups, or under the generalization of one; suppressed rows that were published as `*` are not among them.
    published: int = 0
    suppressed: int = 0
    sampled_out: int = 0
    #: By field and reason.
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    releases: int = 0
    #: The average over published and suppressed rows; None if there are none.
    loss: float | None = None
    #: Rows of each release that left for everybody.
    sizes: Spread = field(default_factory=Spread)
    #: Microseconds of event time that rows waited; None if they have no event times.
    delay: Spread | None = None
    #: The most rows that a shard was seen to hold.
    held: int = 0
    seconds: float = 0.0
    workers: int = 1

    @property
    def accounted(self) -> int:
        """The rows of which it is known what became of them."""
        return self.published + self.suppressed + self.sampled_out + self.rejected.total()

    def take(self, counts: Counts, *, timed: bool) -> None:
        """Take over what was counted; `timed` is whether the rows have event times of their own."""
        rows = counts.kinds
        self.rows, self.rejected = counts.rows, Counter(counts.rejected)
        self.published = rows[Kind.CLUSTER] + rows[Kind.REUSE]
        self.suppressed = rows[Kind.SUPPRESSED]
        self.sampled_out = rows[Kind.SAMPLED_OUT]
        self.releases = counts.releases
        boxed = self.published + self.suppressed
        self.loss = counts.loss / boxed if boxed else None
        self.alone, self.sizes, self.held = counts.alone, counts.sizes, counts.held
        self.delay = counts.delay if timed else None


def run(request: Request, launch: Launch, watch: Callable[[Work], Any] | None = None) -> Outcome:
    """Do it. The outputs are there when all is done; if anything goes wrong, none is.

    Args:
        request: What.
        launch: Runs the pipeline.
        watch: A context manager's maker, which watches the work.

    Raises:
        CommandError: a file is broken, or does not fit the policy.
    """
    began = time.monotonic()
    policy = in_order(request.policy)
    outputs = request.outputs()
    _check_outputs(policy, outputs)
    beside = None if request.published.path == STANDARD else Path(request.published.path)
    work = Work.begin(beside, watched=watch is not None)
    try:
        found = sources.find(request.inputs, request.input_format, work.spool)
        _check_inputs(policy, found, outputs)
        with ExitStack() as watching:
            if watch is not None:
                watching.enter_context(watch(work))
            workers = _work(policy, found, list(outputs), work, launch)
        outcome = _outcome(policy, found, work)
        _write(policy, outputs, work)
        outcome.workers, outcome.seconds = workers, time.monotonic() - began
        return outcome
    finally:
        work.end()


def _check_outputs(policy: Policy, outputs: dict[str, Output]) -> None:
    paths = [os.path.realpath(output.path) for output in outputs.values() if output.path != STANDARD]
    paths += [output.path for output in outputs.values() if output.path == STANDARD]
    if len(set(paths)) < len(paths):
        msg = "the outputs must be different files."
        raise CommandError(msg)
    leaving = [*policy.quasi_identifiers, *policy.sensitive, *policy.publish]
    for name in (PUBLISHED, SUPPRESSED):
        if name in outputs and outputs[name].extension == ".avro":
            wrong = [column for column in leaving if not re.fullmatch(r"[A-Za-z_]\w*", column, re.ASCII)]
            if wrong:
                msg = f"{Path(outputs[name].path).name}: Avro cannot hold a column called {wrong[0]!r}."
                raise CommandError(msg)


def _check_inputs(policy: Policy, found: Sequence[Source], outputs: dict[str, Output]) -> None:
    read = {os.path.realpath(source.path) for source in found}
    for output in outputs.values():
        if output.path != STANDARD and os.path.realpath(output.path) in read:
            msg = f"{Path(output.path).name}: must not be read and written at once."
            raise CommandError(msg)
    problems = []
    for source in found:
        there = source.columns()
        if there is not None:
            problems += [f"{source.name} {said}" for said in _lacking(policy, there)]
    if problems:
        raise CommandError(*problems)


def _lacking(policy: Policy, there: Sequence[str]) -> Iterator[str]:
    needed = Typing(policy).needed
    for name in needed:
        if name not in there:
            guess = suggestion(name, [other for other in there if other not in needed]).capitalize()
            yield f"has no column {name!r}, which the policy names. {guess}".strip()


def _work(policy: Policy, found: Sequence[Source], wanted: list[str], work: Work, launch: Launch) -> int:
    secret = secret_of(policy)

    def build(pipeline: beam.Pipeline) -> None:
        files = pipeline | "Files" >> beam.Create(list(found))
        # Each file on a worker of its own.
        spread = files | "Spread" >> beam.Reshuffle()
        packs = spread | "Read" >> beam.ParDo(_Read(policy, secret, work, wanted))
        packs.element_type = typehints.Tuple[int, bytes]
        _ = packs | "Group" >> beam.GroupByKey() | "Anonymize" >> beam.ParDo(_Hold(policy, secret, work, wanted))

    try:
        return launch(build, sum(source.rows() for source in found), policy.shards)
    except Exception:
        # What a step had to say is lost on the way through Beam; so it left a note.
        for problem in work.notes("problem"):
            raise TableError(problem) from None
        raise


class _Step(beam.DoFn):
    """A step whose broken files are told."""

    def __init__(self, policy: Policy, secret: bytes, work: Work, wanted: list[str]) -> None:
        self._policy = policy
        self._secret = secret
        self._work = work
        self._wanted = wanted


class _Read(_Step):
    """Reads a file, and packs its rows by shard."""

    def setup(self) -> None:
        """Prepare what does not travel."""
        own_times, traced = self._policy.event_time != ROW, TRACE in self._wanted
        self._packer = Packer(self._policy, self._secret, own_times=own_times, carried=(ROW,) if traced else ())
        self._typing = Typing(self._policy, numbered=traced)

    def process(self, source: Source) -> Iterator[tuple[int, bytes]]:
        """Take a file."""
        rows = 0
        rejected: Counter[tuple[str, str]] = Counter()
        columns: dict[str, None] = {}
        with self._work.part(REJECTED, source.number) as part:
            for raw in self._batches(source):
                self._work.check()
                columns.update(dict.fromkeys(raw.schema.names))
                packed = self._packer.pack_arrow(self._typing.of(raw, source.number, rows), None)
                rejected.update((name, reason) for _, name, reason in packed.rejected)
                if REJECTED in self._wanted and packed.rejected:
                    part.write(_rejected(raw, packed.rejected))
                for pack in packed.packs:
                    yield pack.shard, pack.to_bytes()
                rows += raw.num_rows
                self._work.tick("read", raw.num_rows)
        counted = [[name, reason, count] for (name, reason), count in rejected.items()]
        self._work.note("read", source.number, {"rows": rows, "rejected": counted, "columns": list(columns)})

    def _batches(self, source: Source) -> Iterator[pa.RecordBatch]:
        try:
            yield from source.batches()
        except TableError as error:
            self._work.note("problem", source.number, str(error))
            raise


class _Hold(_Step):
    """Anonymizes the rows of a shard, and writes what leaves as parts of the outputs."""

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._publisher = Publisher(self._policy)
        self._shuffle = shuffle.Shuffle(self._secret)

    def process(self, element: tuple[int, Iterable[bytes]]) -> None:
        """Take a shard."""
        shard, packs = element
        publisher, place = self._publisher, self._shuffle.place
        holder = Holder(self._policy, self._secret, str(shard).encode())
        tally = Counts()
        with ExitStack() as parts:
            names = (PUBLISHED, SUPPRESSED, RELEASES, TRACE)
            opened = {name: parts.enter_context(self._work.part(name, shard)) for name in names if name in self._wanted}
            for left in departures(holder, [Pack.from_bytes(pack) for pack in packs]):
                self._work.check()
                tally.hold(holder.held)
                for departure in left:
                    number = departure.number
                    leave = publisher.published_places(departure)
                    opened[PUBLISHED].write(place(publisher.published_batch(departure), shard, number[leave]))
                    if SUPPRESSED in opened:
                        hidden = publisher.suppressed_places(departure)
                        opened[SUPPRESSED].write(place(publisher.suppressed_batch(departure), shard, number[hidden]))
                    if RELEASES in opened:
                        opened[RELEASES].write(_release_batch(self._policy, departure.releases, shard))
                    if TRACE in opened:
                        traced = _trace_batch(self._policy, departure, shard, tally.releases)
                        opened[TRACE].write(place(traced, shard, number[departure.releases.rows]))
                    tally.add(departure)
                    self._work.tick("left", int(departure.releases.sizes.sum()))
        self._work.note("held", shard, tally.as_dict())


_REJECTED_SCHEMA = pa.schema([("row", pa.string()), ("field", pa.string()), ("reason", pa.string())])
_RELEASES_SCHEMA = pa.schema(
    [
        ("shard", pa.int64()),
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("persons", pa.int64()),
        ("loss", pa.float64()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("arrivals", pa.int64()),
        ("group", pa.int64()),
    ]
)
_TRACE_SCHEMA = pa.schema(
    [
        ("shard", pa.int64()),
        ("release", pa.int64()),
        ("kind", pa.string()),
        ("row", pa.int64()),
        ("arrival", pa.int64()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("arrivals", pa.int64()),
        ("group", pa.int64()),
    ]
)


def _rejected(raw: pa.RecordBatch, rejected: Sequence[tuple[int, str, str]]) -> pa.RecordBatch:
    """The rejected rows as they came."""
    rows = raw.take(pa.array([place for place, _, _ in rejected])).to_pylist()
    records = [[as_text(row) for row in rows], [name for _, name, _ in rejected], [why for _, _, why in rejected]]
    return pa.RecordBatch.from_arrays([pa.array(values, pa.string()) for values in records], schema=_REJECTED_SCHEMA)


def _release_batch(policy: Policy, releases: Releases, shard: int) -> pa.RecordBatch:
    columns = {
        **_of_releases(policy, releases, shard),
        "rows": pa.array(releases.sizes),
        "persons": pa.array(releases.persons),
        "loss": pa.array(releases.loss),
    }
    return _record_batch(columns, _RELEASES_SCHEMA)


def _trace_batch(policy: Policy, departure: Departure, shard: int, first: int) -> pa.RecordBatch:
    """A record for each row that leaves, or does not; `first` releases were before."""
    releases, payload = departure.releases, departure.payload
    if not isinstance(payload, Batch):
        message = "trace: the rows must have come as Arrow."
        raise TypeError(message)
    known = _of_releases(policy, releases, shard) | {"release": pa.array(np.arange(first, first + len(releases)))}
    of = pa.array(releases.per_row(np.arange(len(releases))))
    columns = {name: column.take(of) for name, column in known.items()}
    places = pa.array(releases.rows)
    columns["row"] = payload.table.column(ROW).combine_chunks().cast(pa.int64()).take(places)
    columns["arrival"] = pa.array(departure.number).take(places)
    return _record_batch(columns, _TRACE_SCHEMA)


def _of_releases(policy: Policy, releases: Releases, shard: int) -> dict[str, pa.Array]:
    """What is told of a release wherever it is told."""
    names = pa.array([kind.name.lower() for kind in Kind])
    timeless = policy.event_time == ROW
    return {
        "shard": pa.array(np.full(len(releases), shard)),
        "kind": names.take(pa.array(releases.kind)),
        "moment": pa.nulls(len(releases), pa.int64()) if timeless else pa.array(releases.moment),
        "arrivals": pa.array(releases.arrivals),
        "group": pa.array(releases.group),
    }


def _record_batch(columns: dict[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _outcome(policy: Policy, found: Sequence[Source], work: Work) -> Outcome:
    outcome = Outcome(files=len(found))
    seen: set[str] = set()
    counts = Counts.of(work.notes("held"))
    for read in work.notes("read"):
        counts.rows += read["rows"]
        counts.rejected.update({(name, reason): count for name, reason, count in read["rejected"]})
        seen.update(read["columns"])
    outcome.take(counts, timed=policy.event_time != ROW)
    if outcome.rows:
        # A file where each row has its own columns can lack one only as a whole.
        problems = [f"the input {said}" for said in _lacking(policy, sorted(seen))]
        if problems:
            raise CommandError(*problems)
    if outcome.accounted != outcome.rows or len(work.notes("read")) != len(found):
        msg = f"of {outcome.rows:,} rows only {outcome.accounted:,} are accounted for; nothing was written."
        raise RuntimeError(msg)
    return outcome


def _write(policy: Policy, outputs: dict[str, Output], work: Work) -> None:
    """Write the outputs under other names, then give all of them their own."""
    written: list[tuple[str, Output]] = []
    try:
        for name, output in outputs.items():
            written.append((_unfinished(output, work), output))
            try:
                schema, tables = _contents(policy, name, work)
                sinks.write(written[-1][0], output.extension, output.compression, schema, tables)
            except OSError as error:
                msg = f"{Path(output.path).name} cannot be written: {os.strerror(error.errno or 5).lower()}."
                raise CommandError(msg) from None
        for path, output in reversed(written):  # what is published last
            _finish(path, output, private=output is not outputs[PUBLISHED])
    finally:
        for path, _ in written:
            if os.path.exists(path):
                os.unlink(path)


def _unfinished(output: Output, work: Work) -> str:
    if output.path == STANDARD:
        return os.path.join(work.folder, "output")
    place = Path(output.path)
    return str(place.parent / f".{place.name}.{secrets.token_hex(4)}.unfinished")


def _finish(path: str, output: Output, *, private: bool) -> None:
    if output.path == STANDARD:
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    if private:  # exact values: for the owner alone
        os.chmod(path, 0o600)
    os.replace(path, output.path)


def _contents(policy: Policy, name: str, work: Work) -> tuple[pa.Schema, Iterator[pa.Table]]:
    parts = work.parts(name)
    schema = {REJECTED: _REJECTED_SCHEMA, RELEASES: _RELEASES_SCHEMA, TRACE: _TRACE_SCHEMA}.get(name)
    if schema is None:
        schema = _schema(policy, parts)
    if name in (REJECTED, RELEASES):
        return schema, (table for part in parts for table in _tables(part, schema))
    ordered = schema.append(pa.field(shuffle.ORDER, pa.uint64()))
    tables = shuffle.shuffled(parts, work.folder, lambda part: _tables(part, ordered))
    return schema, _counted(tables, work) if name == TRACE else tables


def _counted(tables: Iterator[pa.Table], work: Work) -> Iterator[pa.Table]:
    """The tables of a trace with rows counted through all files, as they were named, from 0."""
    before = np.cumsum([0, *(read["rows"] for read in work.notes("read"))])
    place = _TRACE_SCHEMA.get_field_index("row")
    for table in tables:
        file, row = np.divmod(table.column(place).to_numpy(), ROWS_PER_FILE)
        yield table.set_column(place, _TRACE_SCHEMA.field(place), pa.chunked_array([before[file] + row]))


def _schema(policy: Policy, parts: Iterable[str]) -> pa.Schema:
    """The columns that leave; those that no row had a value of are text."""
    kept = [(name, pa.null()) for name in (*policy.sensitive, *policy.publish)]
    schemas = [pa.schema([*Publisher(policy).fields(), *kept])]
    for part in parts:
        with pa.OSFile(part) as file, pa.ipc.open_stream(file) as reading:
            schemas.append(reading.schema)
    fields = [(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in unified(schemas)]
    return pa.schema([field for field in fields if field[0] != shuffle.ORDER])


def _tables(part: str, schema: pa.Schema) -> Iterator[pa.Table]:
    with pa.OSFile(part) as file, pa.ipc.open_stream(file) as reading:
        for batch in reading:
            yield conformed(pa.Table.from_batches([batch]), schema)
