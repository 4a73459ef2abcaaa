"""From parts in the scratch folder to finished files: in secret order, formatted, and all of them or none."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files import readers, secret_order, writers
from crenel.pipelines.files.formats import COMPRESSIONS, FORMATS, detect
from crenel.pipelines.files.private_folder import PrivateFolder
from crenel.pipelines.files.readers import STANDARD
from crenel.pipelines.files.remote import object_files
from crenel.pipelines.files.scratch import Scratch
from crenel.pipelines.files.write_errors import cannot_write
from crenel.policy import Policy
from crenel.transforms._pack.arrow_tables import conformed, unified
from crenel.transforms._publish.emitter import PUBLISHED, REJECTED, RELEASES, SUPPRESSED, TRACE
from crenel.transforms._publish.owner_records import RELEASES_SCHEMA, TRACE_SCHEMA
from crenel.transforms._publish.publisher import Publisher
from crenel.transforms._publish.range_form import RangeForm, Ranges

__all__ = ["REJECTED_SCHEMA", "ROWS_PER_FILE", "Output", "finish"]

#: The row number of a file's first row is a multiple of this; 2**20 files of as many rows fill what float64 can count.
ROWS_PER_FILE = 1 << 33

#: Up to here, floats hold every whole number.
_LARGEST = 2**53

REJECTED_SCHEMA = pa.schema([("row", pa.string()), ("field", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True)
class Output:
    """A file to write."""

    path: str
    extension: str
    compression: str | None = None
    #: Whether text that a spreadsheet would run as a formula is made harmless, in CSV.
    escape_formulas: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether it is not a file of this machine."""
        return object_files.is_remote(self.path)

    @classmethod
    def of(cls, path: str, named: str | None = None, *, escape_formulas: bool = False) -> Output:
        """Make the output of a path, in the format that its extension or `named` tells.

        Raises:
            CommandError: it cannot be written.
        """
        if path == STANDARD:
            return cls(path, readers.format_names()[named or "csv"], None, escape_formulas)
        if named is None:
            kind = detect(path)
            extension = next(known for known, form in FORMATS.items() if form is kind.format)
            compression = kind.compression
        else:
            extension = readers.format_names()[named]
            compression = COMPRESSIONS.get(Path(path).suffix.lower()) if FORMATS[extension].text else None
        if object_files.is_remote(path):
            object_files.require(path)
            return cls(path, extension, compression, escape_formulas)
        place = Path(path)
        if place.is_dir():
            msg = f"{path}: must be a file to write, not a folder."
            raise CommandError(msg)
        if place.exists() and not place.is_file():
            msg = f"{path}: must be a file to write, not a device or a pipe; --output - writes to standard output."
            raise CommandError(msg)
        if not place.parent.is_dir():
            msg = f"{path}: there is no folder {place.parent} to write it to."
            raise CommandError(msg)
        if not os.access(place.parent, os.W_OK):
            msg = f"{path}: the folder {place.parent} must not be read-only."
            raise CommandError(msg)
        return cls(str(place.absolute()), extension, compression, escape_formulas)


def finish(
    policy: Policy,
    outputs: Mapping[str, Output],
    parts: Mapping[str, Sequence[str]],
    rows_of_files: Sequence[int],
    scratch: Scratch,
    *,
    memory: int,
    ranges: Ranges = Ranges.STRUCT,
) -> None:
    """Write all outputs under temporary names, then rename them; the published rows last.

    Those that are not for this machine are written here, and then sent.

    Args:
        policy: Declares the columns.
        outputs: The files, by what they hold.
        parts: The paths of the parts of each output, in order.
        rows_of_files: The number of rows of each input file.
        scratch: The folder for temporary files.
        memory: Bytes of rows that are put in order in memory; more are put in order on disk.
        ranges: The form of published ranges, and of suppressed ones.

    Raises:
        CommandError: a file cannot be written.
    """
    written: list[tuple[str, Output]] = []
    with ExitStack() as folders, object_files.Uploads() as uploads:
        for name, output in outputs.items():
            try:
                path = _unfinished(name, output, scratch, folders)
                schema, tables = _contents(policy, name, parts.get(name, ()), scratch, memory)
                if name in (PUBLISHED, SUPPRESSED) and ranges is not Ranges.STRUCT:
                    form = _form(policy, ranges, output, parts.get(name, ()))
                    schema, tables = form.schema(schema), map(form.batch, tables)
                if name == TRACE:
                    tables = _numbered(tables, rows_of_files)
                escape = output.escape_formulas
                writers.write(path, output.extension, output.compression, schema, tables, escape_formulas=escape)
            except OSError as error:
                raise cannot_write(output.path, error.errno) from None
            written.append((path, output))
        for path, output in written:
            if output.is_remote:
                uploads.send(path, output.path)
        for path, output in reversed(written):  # the published rows last
            if output.is_remote:
                uploads.show(output.path)
            else:
                _rename(path, output)


def _unfinished(name: str, output: Output, scratch: Scratch, folders: ExitStack) -> str:
    """Make an empty file for an output, in a private folder from which it can be renamed into place.

    The owner's outputs have exact values: nobody else may read them, then and now.
    """
    place = Path(output.path)
    is_beside = output.path == STANDARD or output.is_remote or place.parent == Path(scratch.folder).parent
    folder = scratch.folder if is_beside else folders.enter_context(PrivateFolder.begin(place)).path
    path = os.path.join(folder, f"{name}.unfinished")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if name == PUBLISHED else 0o600))
    return path


def _rename(path: str, output: Output) -> None:
    try:
        if output.path != STANDARD:
            os.replace(path, output.path)
            return
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader wants no more
        raise
    except OSError as error:
        raise cannot_write(output.path, error.errno) from None


def _contents(
    policy: Policy, name: str, parts: Sequence[str], scratch: Scratch, memory: int
) -> tuple[pa.Schema, Iterator[pa.Table]]:
    schema = {REJECTED: REJECTED_SCHEMA, RELEASES: RELEASES_SCHEMA, TRACE: TRACE_SCHEMA}.get(name)
    if schema is None:
        schema = _schema(policy, parts)
    if name in (REJECTED, RELEASES):
        return schema, (table for part in parts for table in _tables(part, schema))
    ordered = schema.append(pa.field(secret_order.ORDER, pa.uint64()))
    return schema, secret_order.shuffled(parts, scratch.folder, lambda part: _tables(part, ordered), memory)


def _form(policy: Policy, ranges: Ranges, output: Output, parts: Sequence[str]) -> RangeForm:
    """The form of a file's ranges. Its types depend on its own rows alone: others might be suppressed."""
    names = RangeForm(policy, ranges).ranges
    whole = _whole_columns(parts, names) if ranges is Ranges.COLUMNS else set()
    return RangeForm(policy, ranges, whole, untyped=FORMATS[output.extension].text)


def _whole_columns(parts: Iterable[str], names: Iterable[str]) -> set[str]:
    """Find the ranges of which all ends are whole numbers, and of which there are any."""
    found: dict[str, bool] = {}
    for part in parts:
        with pa.OSFile(part) as file, pa.ipc.open_stream(file) as reading:
            for batch in reading:
                for name in names:
                    column = batch.column(name)
                    if found.get(name, True) and pa.types.is_floating(column.type.field("lo").type):
                        for ends in (pc.struct_field(column, end).drop_null() for end in ("lo", "hi")):
                            if len(ends):
                                found[name] = found.get(name, True) and _are_whole(ends)
    return {name for name, is_whole in found.items() if is_whole}


def _are_whole(ends: pa.Array) -> bool:
    values = ends.to_numpy(zero_copy_only=False)
    return bool(np.all((np.abs(values) <= _LARGEST) & (np.floor(values) == values)))


def _numbered(tables: Iterable[pa.Table], rows_of_files: Sequence[int]) -> Iterator[pa.Table]:
    """Number the rows of a trace through all files, in the order in which these were given, from 0."""
    before = np.cumsum([0, *rows_of_files])
    place = TRACE_SCHEMA.get_field_index("row")
    for table in tables:
        file, row = np.divmod(table.column(place).to_numpy(), ROWS_PER_FILE)
        yield table.set_column(place, TRACE_SCHEMA.field(place), pa.chunked_array([before[file] + row]))


def _schema(policy: Policy, parts: Iterable[str]) -> pa.Schema:
    """Unify the schemas of published parts; a column in which no row has a value is text."""
    kept = [(name, pa.null()) for name in (*policy.sensitive, *policy.publish)]
    schemas = [pa.schema([*Publisher(policy).fields(), *kept])]
    for part in parts:
        with pa.OSFile(part) as file, pa.ipc.open_stream(file) as reading:
            schemas.append(reading.schema)
    fields = [(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in unified(schemas)]
    return pa.schema([field for field in fields if field[0] != secret_order.ORDER])


def _tables(part: str, schema: pa.Schema) -> Iterator[pa.Table]:
    with pa.OSFile(part) as file, pa.ipc.open_stream(file) as reading:
        for batch in reading:
            yield conformed(pa.Table.from_batches([batch]), schema)
