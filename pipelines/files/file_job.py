"""The job of `crenel run` for files: rows in, anonymized rows out, all or nothing.

    Files -> Read -> Anonymize (AnonymizeBounded) -> Write (one step per output) -> Manifest

A step that writes makes part files in the private folder of the run. A part counts only if the manifest names it, which
one GroupByKey gathers from the bundles that succeeded. Then, outside of Beam, the parts become the outputs: the rows of
all shards in an order drawn from the secret (`secret_order`). So the outputs depend on the rows, the policy and the
secret alone, and the order of published rows tells neither times nor shards.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam import typehints
from apache_beam.transforms.window import GlobalWindows

from crenel.encoding.tree_learning import learned_from, with_tree
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files import readers
from crenel.pipelines.files.cells import range_names
from crenel.pipelines.files.finished_outputs import REJECTED_SCHEMA, ROWS_PER_FILE, Output, finish
from crenel.pipelines.files.formats import USUAL, Dialect, TableError
from crenel.pipelines.files.readers import STANDARD, Source
from crenel.pipelines.files.scratch import PartWriter, Scratch
from crenel.pipelines.files.secret_order import ORDER
from crenel.pipelines.files.tree_sample import sample_of
from crenel.pipelines.files.unreadable_rows import IgnoredRows, UnreadableRow
from crenel.pipelines.files.writable_values import WritableValues
from crenel.pipelines.metrics.live_figures import Tap
from crenel.policy import Policy, ShardBy
from crenel.transforms import AnonymizeBounded, Anonymized, Counts
from crenel.transforms._pack.element_coders import RECORD, use_for_batches
from crenel.transforms._pack.nested_fields import colliding, names_of
from crenel.transforms._pack.pack_step import as_text, batch_rows
from crenel.transforms._pack.text_columns import lacking
from crenel.transforms._publish.counts import Spread
from crenel.transforms._publish.emitter import PUBLISHED, REJECTED, RELEASES, SUPPRESSED, TRACE
from crenel.transforms._publish.range_form import Ranges
from crenel.transforms.anonymize import with_outputs
from crenel.transforms.bounded import SORT_MEMORY

__all__ = ["SORT_MEMORY", "Outcome", "Output", "Request", "run"]

#: The column of row numbers. No output has it.
ROW = "crenel: row"

#: Rejected rows that are written at once.
_REJECTED_ROWS = 4096

#: The manifest is the records of one key.
_RECORD = typehints.Tuple[int, RECORD]

#: Launches a pipeline: given how to build it, and its shards; returns its workers.
Launch = Callable[[Callable[[Any], None], int], int]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a run is asked to do."""

    policy: Policy
    inputs: Sequence[str]
    published: Output
    #: The owner's files.
    suppressed: Output | None = None
    rejected: Output | None = None
    releases: Output | None = None
    trace: Output | None = None
    #: The format of the inputs, where their extensions are wrong.
    input_format: str | None = None
    #: How text files are written.
    dialect: Dialect = USUAL
    #: Bytes of rows that are sorted in memory; more are sorted on disk.
    memory_limit: int = SORT_MEMORY
    #: The form of published and suppressed ranges.
    ranges: Ranges = Ranges.STRUCT

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
    #: Messages without a row, such as the deletes of a change stream.
    ignored: int = 0
    #: Rows published without a crowd: in a release of fewer than k persons, or with a person twice.
    alone: int = 0
    #: Rows published in groups, or under the generalization of one; not suppressed rows that were published as `*`.
    published: int = 0
    suppressed: int = 0
    sampled_out: int = 0
    #: Rows that `once_per` left out.
    left_out: int = 0
    #: By field and reason.
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    releases: int = 0
    #: The average over published and suppressed rows; None if there are none.
    loss: float | None = None
    #: Rows of each published release.
    sizes: Spread = field(default_factory=Spread)
    #: Microseconds of event time that rows waited; None if they have no event times.
    delay: Spread | None = None
    #: The most rows that a shard held.
    held: int = 0
    #: Released rows that do not fit the schema of their topic, and went to `rejected` instead.
    misfits: int = 0
    #: Records that a topic did not take, and the file that has them.
    dead_letters: int = 0
    dead_letters_file: str = ""
    seconds: float = 0.0
    workers: int = 1

    @property
    def accounted(self) -> int:
        """The number of rows that are known to be published, suppressed, sampled out, left out or rejected."""
        return self.published + self.suppressed + self.sampled_out + self.left_out + self.rejected.total()

    def take(self, counts: Counts, *, timed: bool) -> None:
        """Take over what was counted; `timed` is whether the rows have event times of their own."""
        self.rows, self.rejected = counts.rows, Counter(counts.rejected)
        self.ignored = counts.ignored
        self.published, self.suppressed = counts.published, counts.suppressed
        self.sampled_out, self.left_out, self.releases = counts.sampled_out, counts.left_out, counts.releases
        self.loss = counts.mean_loss
        self.alone, self.sizes, self.held = counts.alone, counts.sizes, counts.held
        self.delay = counts.delay if timed else None


def run(
    request: Request, launch: Launch, watch: Callable[[Scratch], Any] | None = None, tap: Tap | None = None
) -> Outcome:
    """Run the job. When it is done all outputs are there; if anything goes wrong, none is.

    Args:
        request: What to do.
        launch: Runs the pipeline.
        watch: Makes a context manager that shows the progress.
        tap: Where steps report what they have counted.

    Raises:
        CommandError: a file is broken, or does not fit the policy.
        PolicyError: the policy cannot be used for these rows, or its secret is not there.
    """
    began = time.monotonic()
    policy, outputs = request.policy, request.outputs()
    _check_outputs(policy, outputs)
    range_names.check(policy, request.ranges)
    is_here = request.published.path != STANDARD and not request.published.is_remote
    beside = Path(request.published.path) if is_here else None
    with Scratch.begin(beside, watched=watch is not None) as scratch:
        anonymize = _anonymize(request, scratch)
        sources = readers.find(request.inputs, request.input_format, scratch.spool, request.dialect)
        _check_inputs(policy, sources, outputs)
        if policy.shard_by is ShardBy.LOCALITY and policy.shards != 1:
            # AnonymizeBounded could learn it, too, but would have to keep all rows in memory between two passes.
            policy = with_tree(policy, learned_from(policy, sample_of(policy, sources)))
            anonymize = _anonymize(replace(request, policy=policy), scratch)
        with ExitStack() as watching:
            if watch is not None:
                watching.enter_context(watch(scratch))
            workers = _launched(anonymize, sources, outputs, scratch, launch, policy, tap)
        manifest = _Manifest.read(scratch)
        outcome = manifest.outcome(policy, sources)
        scratch.clear_sorted()
        finish(
            policy,
            outputs,
            manifest.parts(scratch),
            manifest.rows_of_files(),
            scratch,
            memory=request.memory_limit,
            ranges=request.ranges,
        )
        outcome.workers, outcome.seconds = workers, time.monotonic() - began
        return outcome


def _anonymize(request: Request, scratch: Scratch) -> AnonymizeBounded:
    return AnonymizeBounded(
        request.policy,
        parse_text=request.dialect.values,
        row_number=ROW,
        trace=request.trace is not None,
        order_column=ORDER,
        sort_folder=scratch.sorted_folder(),
        sort_memory=request.memory_limit,
    )


def _check_outputs(policy: Policy, outputs: dict[str, Output]) -> None:
    paths = [os.path.realpath(output.path) for output in outputs.values() if output.path != STANDARD]
    paths += [output.path for output in outputs.values() if output.path == STANDARD]
    if len(set(paths)) < len(paths):
        msg = "the outputs must be different files."
        raise CommandError(msg)
    published = [*policy.quasi_identifiers, *policy.sensitive, *policy.publish]
    for name in (PUBLISHED, SUPPRESSED):
        if name in outputs and outputs[name].extension == ".avro":
            file = Path(outputs[name].path).name
            wrong = [column for column in published if not re.fullmatch(r"[A-Za-z_][\w.]*", column, re.ASCII)]
            if wrong:
                msg = f"{file}: Avro cannot hold a column called {wrong[0]!r}."
                raise CommandError(msg)
            twice = colliding(published)
            if twice is not None:
                msg = f"{file}: names in Avro cannot have dots, and {twice}."
                raise CommandError(msg)


def _check_inputs(policy: Policy, sources: Sequence[Source], outputs: dict[str, Output]) -> None:
    read = {source.address or os.path.realpath(source.path) for source in sources}
    for output in outputs.values():
        if output.path != STANDARD and {output.path, os.path.realpath(output.path)} & read:
            msg = f"{Path(output.path).name}: must not be read and written at once."
            raise CommandError(msg)
    problems = []
    for source in sources:
        columns = source.columns()
        if columns is not None:
            problems += [f"{source.name} {said}" for said in lacking(policy, columns)]
    if problems:
        raise CommandError(*problems)


def _launched(
    anonymize: AnonymizeBounded,
    sources: Sequence[Source],
    outputs: Iterable[str],
    scratch: Scratch,
    launch: Launch,
    policy: Policy,
    tap: Tap | None = None,
) -> int:
    def build(pipeline: beam.Pipeline) -> None:
        use_for_batches()
        reading = _ReadFile(scratch, sources, WritableValues(policy), tap)
        # If there are several, `Create` reshuffles them, so that workers share them.
        files = pipeline | "Files" >> beam.Create(list(range(len(sources))))
        read = files | "Read" >> with_outputs(reading, _ReadFile.FILES, REJECTED, main="rows")
        rows, records = read["rows"], [read[_ReadFile.FILES]]
        rows.element_type = pa.RecordBatch
        result: Anonymized = rows | "Anonymize" >> anonymize
        read[REJECTED].element_type = result.rejected.element_type = RECORD
        rejected = (read[REJECTED], result.rejected) | "All rejected" >> beam.Flatten()
        rejected.element_type = RECORD
        for name in outputs:
            written = rejected if name == REJECTED else getattr(result, name)
            records.append(written | f"Write {name}" >> beam.ParDo(_WriteParts(name, scratch)))
        records.append(result.counts | "Counts" >> beam.Map(lambda counts: _told(counts, tap)))
        if scratch.watched:
            _ = result.releases | "Progress" >> beam.Map(lambda batch: scratch.tick("left", _sum(batch, "rows")))
        for collection in records:
            collection.element_type = _RECORD
        everything = records | "Records" >> beam.Flatten()
        everything.element_type = _RECORD
        _ = everything | "Group records" >> beam.GroupByKey() | "Manifest" >> beam.ParDo(_WriteManifest(scratch))

    try:
        return launch(build, policy.most_shards)
    except Exception as error:
        # Errors lose their sentence on the way through Beam; so the step left a note.
        for problem in scratch.notes(_PROBLEM):
            raise TableError(problem) from None
        if f"[Errno {errno.ENOSPC}]" in str(error):
            msg = f"{Path(scratch.folder).parent}: has no space left for rows that are sorted, and for the output."
            raise CommandError(msg) from None
        raise


def _told(counts: dict[str, Any], tap: Tap | None) -> tuple[int, dict[str, Any]]:
    """Make a record of counts, and report them."""
    if tap is not None:
        tap.add(Counts.of([counts]))
    return 0, {"counts": counts}


def _sum(batch: pa.RecordBatch, name: str) -> int:
    return int(np.asarray(batch.column(name)).sum())


_PROBLEM, _MANIFEST = "problem", "manifest"


class _ReadFile(beam.DoFn):
    """Reads a file as raw batches, with a column that numbers its rows, and emits a record of the file.

    A row that cannot be read, or not be written, goes to the output `rejected`.
    """

    FILES = "files"

    def __init__(
        self, scratch: Scratch, sources: Sequence[Source], writable: WritableValues, tap: Tap | None = None
    ) -> None:
        self._tap = tap
        self._scratch = scratch
        self._sources = list(sources)
        self._writable = writable

    def process(self, number: int) -> Iterator[Any]:
        """Read a file."""
        source, rows = self._sources[number], 0
        columns: dict[str, None] = {}
        refused = Counts()
        for part in self._parts(source):
            self._scratch.check()
            if isinstance(part, IgnoredRows):
                refused.ignore(part.count)
                continue
            start = source.number * ROWS_PER_FILE + rows
            if isinstance(part, UnreadableRow):
                rows += 1
                yield self._refused(refused, start, part.text, part.field, part.reason)
                continue
            columns.update(dict.fromkeys(names_of(part.schema)))
            numbers = np.arange(start, start + part.num_rows, dtype=np.int64)
            rows += part.num_rows
            self._scratch.tick("read", part.num_rows)
            batch = part.append_column(ROW, pa.array(numbers))
            misfits = self._writable.misfits(part)
            for place, why in sorted(misfits.items()):
                yield self._refused(refused, start + place, as_text(batch_rows(part, [place])[0]), *why)
            yield batch.take(pa.array(np.delete(np.arange(len(batch)), list(misfits)))) if misfits else batch
        if self._tap is not None:
            self._tap.add(refused)
        record = {"file": source.number, "rows": rows, "columns": list(columns)}
        yield beam.pvalue.TaggedOutput(self.FILES, (0, {**record, "counts": refused.as_dict()}))

    def _refused(self, counts: Counts, number: int, text: str, field: str, reason: str) -> Any:
        """Count a row that goes no further, and make the owner's record of it."""
        counts.arrive(1, [(field, reason)])
        return beam.pvalue.TaggedOutput(REJECTED, {"row": text, "field": field, "reason": reason, ORDER: number})

    def _parts(self, source: Source) -> Iterator[pa.RecordBatch | UnreadableRow | IgnoredRows]:
        try:
            yield from source.parts()
        except TableError as error:
            self._scratch.note(_PROBLEM, source.number, str(error))
            raise


class _WriteParts(beam.DoFn):
    """Writes what a bundle has of an output into part files, and emits a record of each.

    Releases and rejected rows keep their order: those of each shard, or file, are a part of their own, and parts are
    put in the order of these. All other rows get theirs from the secret.
    """

    def __init__(self, output: str, scratch: Scratch) -> None:
        self._output = output
        self._scratch = scratch

    def start_bundle(self) -> None:
        """Begin without parts: those of a bundle that failed are in no manifest."""
        self._parts: dict[int, PartWriter] = {}
        self._waiting: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)

    def process(self, element: Any) -> None:
        """Write a batch, or a rejected row."""
        if self._output == REJECTED:
            self._keep(element)
            return
        self._scratch.check()
        shard = element.column("shard")[0].as_py() if self._output == RELEASES else 0
        self._write(shard, element)

    def finish_bundle(self) -> Iterator[Any]:
        """Finish the parts."""
        for file in list(self._waiting):
            self._write_rejected(file)
        for place, part in self._parts.items():
            part.close()
            record = {"part": part.name, "output": self._output, "place": place}
            yield GlobalWindows.windowed_value((0, record))
        self.start_bundle()

    def _keep(self, record: dict[str, Any]) -> None:
        file = record[ORDER] // ROWS_PER_FILE
        self._waiting[file].append(record)
        if len(self._waiting[file]) >= _REJECTED_ROWS:
            self._write_rejected(file)

    def _write_rejected(self, file: int) -> None:
        self._scratch.check()
        records = sorted(self._waiting.pop(file), key=lambda record: int(record[ORDER]))
        columns = [pa.array([record[name] for record in records], pa.string()) for name in REJECTED_SCHEMA.names]
        self._write(file, pa.RecordBatch.from_arrays(columns, schema=REJECTED_SCHEMA))

    def _write(self, place: int, batch: pa.RecordBatch) -> None:
        if place not in self._parts:
            self._parts[place] = self._scratch.part(self._output)
        self._parts[place].write(batch)


class _WriteManifest(beam.DoFn):
    """Writes the manifest."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def process(self, element: tuple[int, Iterable[dict[str, Any]]]) -> None:
        """Write all records."""
        self._scratch.note(_MANIFEST, 0, list(element[1]))


@dataclass(frozen=True)
class _Manifest:
    """What the bundles that succeeded did."""

    records: Sequence[dict[str, Any]]

    @classmethod
    def read(cls, scratch: Scratch) -> _Manifest:
        """Read the manifest of a run that has ended."""
        return cls([record for records in scratch.notes(_MANIFEST) for record in records])

    def parts(self, scratch: Scratch) -> dict[str, list[str]]:
        """The paths of the parts of each output, in order."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        parts = [record for record in self.records if "part" in record]
        for record in sorted(parts, key=lambda record: (record["place"], record["part"])):
            found[record["output"]].append(scratch.path(record["part"]))
        return found

    def rows_of_files(self) -> list[int]:
        """The number of rows of each input file."""
        return [record["rows"] for record in self._files()]

    def outcome(self, policy: Policy, sources: Sequence[Source]) -> Outcome:
        """Sum up what became of the rows.

        Raises:
            CommandError: no file has a column that the policy names.
            RuntimeError: not all rows are accounted for.
        """
        outcome = Outcome(files=len(sources))
        outcome.take(
            Counts.of(record["counts"] for record in self.records if "counts" in record),
            timed=policy.event_time is not None,
        )
        files = self._files()
        if outcome.rows:
            # Where each row has its own columns, a column can only be lacking in all files.
            columns = sorted({name for record in files for name in record["columns"]})
            problems = [f"the input {said}" for said in lacking(policy, columns)]
            if problems:
                raise CommandError(*problems)
        read = sum(self.rows_of_files())
        numbers = [record["file"] for record in files]
        if not read == outcome.rows == outcome.accounted or numbers != list(range(len(sources))):
            msg = f"of {read:,} rows only {outcome.accounted:,} are accounted for; nothing was written."
            raise RuntimeError(msg)
        return outcome

    def _files(self) -> list[dict[str, Any]]:
        return sorted((record for record in self.records if "file" in record), key=lambda record: int(record["file"]))
