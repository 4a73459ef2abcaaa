"""Files of rows, read as a stream of Arrow record batches: one reader for each format.

A batch has the columns as the file has them; in CSV, which has no types, every column is text. An
error is one sentence that names the file and, where it is known, the row. It never quotes the row.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import glob
import json
import os
import re
import signal
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from crenel.errors import Rejected
from crenel.pipelines.console.sections import count, listed
from crenel.pipelines.debezium import Envelopes, Ignored, Refused, withheld
from crenel.pipelines.files import unreadable_rows
from crenel.pipelines.files.cells import avro_columns, json_arrays
from crenel.pipelines.files.formats import FORMATS, USUAL, Dialect, TableError, format_names, kind_of
from crenel.pipelines.files.remote import object_files
from crenel.pipelines.files.unreadable_rows import TOO_DEEP, IgnoredRows, UnreadableRow
from crenel.policy import columns
from crenel.transforms._pack.nested_fields import is_or_has_object, marked, names_of, struct_field

__all__ = ["STANDARD", "Source", "find", "format_names", "open_file"]

#: Stands for standard input and output.
STANDARD = "-"

#: Rows of a batch, where the format leaves the choice to us.
_ROWS = 32_768

#: Records of Avro that are turned into columns at once. More do not fit into the processor's cache.
_RECORDS = 1000

#: Bytes of text that are parsed at once. A row cannot be longer.
_BLOCK = 8 << 20

#: Bytes of a column of Parquet that are read at once.
_BUFFER = 1 << 20

#: What may separate the columns of CSV, if nobody says.
_DELIMITERS = ";\t|,"

#: Bytes at the start of a file that are searched for the header.
_START = 1 << 16


_Part: TypeAlias = pa.RecordBatch | UnreadableRow | IgnoredRows


@dataclass(frozen=True)
class Source:
    """One input file."""

    path: str

    #: What messages call it.
    name: str

    #: The extension that stands for its format, and Arrow's name of its compression.
    extension: str
    compression: str | None = None

    #: Its place among the inputs, from 0.
    number: int = 0

    #: How it is written, if it is text.
    dialect: Dialect = USUAL

    #: Where it was fetched from, if it is not a file of this machine.
    address: str = ""

    def __post_init__(self) -> None:
        """Refuse envelopes in other formats than JSON lines."""
        if self.dialect.envelopes is not None and FORMATS[self.extension].name != "JSON lines":
            msg = f"{self.name} must have JSON lines for --envelope, not {FORMATS[self.extension].name}."
            raise TableError(msg)

    def columns(self) -> list[str] | None:
        """Read the names of the columns; None for JSON lines, where each row has its own.

        Raises:
            TableError: the file cannot be read.
        """
        read = _HEADERS[FORMATS[self.extension].name]
        return None if read is None else self._guarded(lambda: read(self))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, in the file's order, without those that cannot be read.

        Raises:
            TableError: the file cannot be read, or is broken somewhere.
        """
        return (part for part in self.parts() if isinstance(part, pa.RecordBatch))

    def parts(self) -> Iterator[_Part]:
        """Read the rows, in the file's order: batches, between them each row that cannot be read, and what is none.

        Raises:
            TableError: the file cannot be read, or is broken somewhere.
        """
        reading = _READERS[FORMATS[self.extension].name](self)
        while True:
            part = self._guarded(lambda: next(reading, None))
            if part is None:
                return
            if isinstance(part, (UnreadableRow, IgnoredRows)) or part.num_rows:
                yield part

    def _guarded(self, read: Callable[[], Any]) -> Any:
        """Run a read, and turn whatever goes wrong into one sentence that holds no value."""
        why = ""
        try:
            return read()
        except _Broken as error:
            why = str(error)
        except FileNotFoundError:
            why = "is not there any more"
        except (pa.ArrowException, OSError) as error:
            why = self._why(error)
        # Raised here, so that the error carries no trace of the parser's, which quotes the row.
        msg = f"{self.name} {why}."
        raise TableError(msg)

    def _why(self, error: Exception) -> str:
        kind = FORMATS[self.extension]
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowException) and error.errno is not None:
            return f"cannot be read: {os.strerror(error.errno).lower()}"
        message = str(error)
        if self.compression and any(word in message for word in ("compress", "bz2", "zlib", "ZSTD")):
            return f"is not compressed by {self.compression}, or is cut off"
        if "UTF8" in message or "UTF-8" in message:
            return "is not UTF-8 text"
        if "straddl" in message:
            return _TOO_LONG
        if kind.untyped:
            return _csv_problem(message)
        return f"is not {kind.name}, or is cut off"


class _Broken(Exception):
    """What is wrong with a file: the rest of a sentence that begins with the file's name."""


_TOO_LONG = f"has a row of more than {_BLOCK >> 20} MB"


def open_file(path: str | os.PathLike[str], dialect: Dialect = USUAL) -> Source:
    """Open one file by its name, which is not a pattern.

    Raises:
        TableError: there is no such file, or no format has its extension.
    """
    if object_files.is_remote(path):
        found = object_files.matching(str(path))
        if len(found) > 1:
            msg = f"{path}: must be one file, not {len(found):,} that match a pattern."
            raise TableError(msg)
        return _remote(found[0], None, 0, dialect)
    place = Path(path)
    if place.is_dir():
        msg = f"{place}: must be a file, not a folder."
        raise TableError(msg)
    extension, compression = kind_of(place, None)
    if not place.exists():
        msg = f"{place}: there is no such file."
        raise TableError(msg)
    if not place.is_file():
        msg = f"{place}: must be a regular file, not a pipe: it is read more than once."
        raise TableError(msg)
    return Source(str(place.absolute()), place.name, extension, compression, dialect=dialect)


def find(
    patterns: Iterable[str],
    named: str | None,
    spool: Callable[[IO[bytes]], Path],
    dialect: Dialect = USUAL,
) -> list[Source]:
    """Find the input files: by name, by a pattern of names (`*`, `?`, `[`, `**`), or `-` for standard input.

    The files come in the order in which they were given; those of one pattern by name. A file that is named twice is
    read once.

    Args:
        patterns: The names and patterns.
        named: The name of the format, if the user gave one: it overrules the extensions.
        spool: Copies a stream that can be read only once to a file.
        dialect: How text files are written.

    Raises:
        TableError: there is no such file, or no format has its extension.
    """
    found: dict[str, Source] = {}
    for pattern in patterns:
        if pattern == STANDARD:
            name = "standard input"
            kept = Source(str(spool(sys.stdin.buffer)), name, format_names()[named or "csv"], None, len(found), dialect)
            found.setdefault(name, kept)
            continue
        if object_files.is_remote(pattern):
            for address in (one for one in object_files.matching(pattern) if one not in found):
                found[address] = _remote(address, named, len(found), dialect)
            continue
        for path in _matching(pattern):
            extension, compression = kind_of(path, named)
            known = str(path.resolve())
            if known not in found:
                place = str(path.absolute() if path.is_file() else _spooled(path, spool))
                found[known] = Source(place, path.name, extension, compression, len(found), dialect)
    return list(found.values())


def _remote(address: str, named: str | None, number: int, dialect: Dialect) -> Source:
    """A file elsewhere, which is fetched first."""
    extension, compression = kind_of(Path(address), named)
    place = str(object_files.fetched(address))
    name = object_files.name_of(address)
    return Source(place, name, extension, compression, number, dialect, address)


def _spooled(path: Path, spool: Callable[[IO[bytes]], Path]) -> Path:
    with open(path, "rb") as stream:
        return spool(stream)


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        msg = f"{pattern}: must be a file, not a folder; its files are {os.path.join(pattern, '*')}."
        raise TableError(msg)
    if path.exists():  # the name may have a star in it, and it may be a pipe
        return [path]
    names = sorted(name for name in glob.glob(pattern, recursive=True) if not Path(name).is_dir())
    if not names:
        said = "no file matches" if glob.has_magic(pattern) else "there is no such file"
        msg = f"{pattern}: {said}."
        raise TableError(msg)
    return [Path(name) for name in names]


def _check_once(names: Sequence[str], but: str | None = None) -> None:
    """Refuse a name, but for this one, that is there twice. Its places tell it: without a header, it is a value."""
    twice = next((name for name, number in Counter(names).items() if number > 1 and name != but), None)
    if twice is not None:
        places = [str(place) for place, name in enumerate(names, 1) if name == twice]
        msg = f"must have each column once: columns {listed(places)} have the same name"
        raise _Broken(msg)


# -- text ------------------------------------------------------------------------------------------


def _open(source: Source) -> pa.NativeFile:
    """Open a text file as UTF-8. Reading from it fails with `_Broken` where the bytes are not text of its encoding."""
    stream = pa.input_stream(source.path, compression=source.compression)
    return pa.TransformInputStream(stream, _TextCheck(source.dialect.encoding))


class _TextCheck:
    """Passes blocks of text on as UTF-8, and refuses bytes that are not text, among them NUL.

    Args:
        encoding: The encoding of the text.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = codecs.lookup(encoding).name
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._lines = 1
        _checks_in_use.add(self)

    def __call__(self, block: pa.Buffer) -> pa.Buffer:
        data, broken, text = bytes(block), -1, ""
        try:
            text = self._decoder.decode(data)
        except UnicodeDecodeError as error:
            data, broken = error.object, error.start
        is_utf8 = self._encoding == "utf-8"
        checked = data if is_utf8 or broken >= 0 else text.encode()
        # UTF-16 is full of NUL, if it is read as UTF-8.
        wrong = [place for place in (broken, checked.find(b"\0")) if place >= 0]
        if wrong:
            line = self._lines + checked.count(b"\n", 0, min(wrong))
            advice = "; if it is in another encoding, name it, as in --encoding latin-1" if is_utf8 else ""
            msg = f"is not {self._encoding.upper()} text: see line {line}{advice}"
            raise _Broken(msg)
        self._lines += checked.count(b"\n")
        return block if is_utf8 else _arrow_buffer(checked)


#: The checks that Arrow's threads, which read ahead, may still call or let go of.
_checks_in_use: weakref.WeakSet[_TextCheck] = weakref.WeakSet()

#: Seconds that the end of the process waits for these threads. A reader that was left unfinished keeps its check.
_PATIENCE = 1.0


@atexit.register
def _wait_for_reads() -> None:
    """Wait for reads ahead: a thread of Arrow's that needs the interpreter after its end aborts the process.

    From here on Ctrl-C is ignored: the process ends in any case, and must not end before these threads.
    """
    with contextlib.suppress(ValueError):  # this is not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = time.monotonic() + _PATIENCE
    while _checks_in_use and time.monotonic() < end:
        time.sleep(0.001)


def _arrow_buffer(data: bytes) -> pa.Buffer:
    """Copy bytes into memory of Arrow's, which its threads can free without the interpreter."""
    copy = pa.BufferOutputStream()
    copy.write(data)
    return copy.getvalue()


def _delimiter(source: Source, start: bytes) -> str:
    """Tell what separates the columns: what the user says, what the extension says, or what the first line shows."""
    header = start.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n").partition(b"\n")[0].decode(errors="replace")
    usual = source.dialect.delimiter or ("\t" if source.extension == ".tsv" else ",")
    other = next((other for other in _DELIMITERS if other in header), None)
    if usual in header or other is None:
        return usual
    if source.dialect.delimiter is not None:
        msg = f"must have its columns separated by {usual!r}, not {other!r}"
        raise _Broken(msg)
    return other


def _csv_header(source: Source) -> list[str]:
    start = _start(source)
    if not start.strip():
        msg = "is empty: it must have at least a header"
        raise _Broken(msg)
    options = _csv_options(source, start)
    if _is_one_line(start):  # Arrow does not see a header that no line break follows
        parsed = pa.csv.read_csv(pa.BufferReader(_arrow_buffer(start + b"\n")), parse_options=options)
        names = parsed.schema.names
    else:
        with _open(source) as stream:
            names = pa.csv.open_csv(stream, _csv_blocks(), options).schema.names
    _check_once(names, but="")
    return list(dict.fromkeys(names))


def _csv_blocks() -> pa.csv.ReadOptions:
    # One thread: only then do Arrow's errors name the row.
    return pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK)


def _csv_options(source: Source, start: bytes) -> pa.csv.ParseOptions:
    return pa.csv.ParseOptions(delimiter=_delimiter(source, start), newlines_in_values=True)


def _read_csv(source: Source) -> Iterator[pa.RecordBatch]:
    names = _csv_header(source)
    convert = pa.csv.ConvertOptions(
        column_types={name: pa.string() for name in names}, null_values=[""], strings_can_be_null=True
    )
    start = _start(source)
    if _is_one_line(start):
        return
    with _open(source) as stream:
        batches = pa.csv.open_csv(stream, _csv_blocks(), _csv_options(source, start), convert)
        # Of several columns without a name, only the first is read: rows have one place for them.
        places = [batches.schema.names.index(name) for name in names]
        yield from (batch.select(places) for batch in batches)


def _csv_problem(message: str) -> str:
    """Say what is wrong, from Arrow's message, which ends with the row itself."""
    found = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message)
    if found is None:
        return "is not CSV with a header"
    row, expected, got = found.groups()
    return f"is broken at row {row} (the header is row 1): it has {count(int(got), 'value')}, not {expected}"


def _start(source: Source) -> bytes:
    with _open(source) as stream:
        return bytes(stream.read(_START))


def _is_one_line(start: bytes) -> bool:
    return len(start) < _START and b"\n" not in start.rstrip() and b"\r" not in start.rstrip()


def _read_json(source: Source) -> Iterator[_Part]:
    with _open(source) as stream:
        start = stream.read(_BLOCK)
        if json_arrays.is_array(start):
            yield from _read_json_array(source, start, stream)
            return
        reading, block, rest = _reader_of_lines(source, "line"), start, b""
        while block:
            end = block.rfind(b"\n") + 1
            if end:
                yield from reading.batches(rest + block[:end])
                rest = block[end:]
            elif len(rest) + len(block) > _BLOCK:
                raise _Broken(_TOO_LONG)
            else:
                rest += block
            block = stream.read(_BLOCK)
        yield from reading.batches(rest)


def _read_json_array(source: Source, start: bytes, stream: IO[bytes]) -> Iterator[_Part]:
    reading = _reader_of_lines(source, "element of the array")
    try:
        for lines in json_arrays.lines_of(start, stream, _BLOCK):
            yield from reading.batches(lines)
    except json_arrays.ArrayError as error:
        raise _Broken(str(error)) from None


def _reader_of_lines(source: Source, row: str) -> _JsonLines:
    envelopes = source.dialect.envelopes
    return _JsonLines(row) if envelopes is None else _Envelopes(row, envelopes)


class _JsonLines:
    """Parses blocks of whole lines, one after the other."""

    def __init__(self, row: str) -> None:
        #: What the file calls a row.
        self._row = row
        self._rows = 0
        #: Paths of text that Arrow would read as moments. A published column must keep its text.
        self._texts: set[tuple[str, ...]] = set()

    def batches(self, data: bytes) -> Iterator[_Part]:
        if not data.strip():
            return
        table = None if unreadable_rows.nests_deep(data) else self._table(data)
        if table is None:
            yield from self._one_by_one(data)
            return
        self._rows += table.num_rows
        yield from table.to_batches(max_chunksize=_ROWS)

    def _one_by_one(self, data: bytes) -> Iterator[_Part]:
        """Parse a block after each line was looked at: those that cannot be read are left out, and told."""
        lines = [line for line in data.splitlines() if line.strip()]
        try:
            found = unreadable_rows.unreadable(lines)
        except unreadable_rows.NoObject as error:
            raise _Broken(self._problem(f"in row {error}")) from None
        good = [line for place, line in enumerate(lines) if place not in found]
        table = self._table(b"\n".join(good), may_mix=True) if good else pa.table({})
        if table is None or table.num_rows != len(good):
            raise _Broken(self._problem(""))
        self._rows += len(lines)
        start = 0
        for before, place in enumerate(sorted(found)):
            yield from table.slice(start, place - before - start).to_batches(max_chunksize=_ROWS)
            start = place - before
            yield found[place]
        yield from table.slice(start).to_batches(max_chunksize=_ROWS)

    def _table(self, data: bytes, *, may_mix: bool = False) -> pa.Table | None:
        """Parse a block; None if it must be parsed after each line was looked at."""
        try:
            table = self._parsed(data)
            moments = list(_moments(table.schema))
            if moments:
                self._texts.update(moments)
                table = self._parsed(data)
        except pa.ArrowException as error:
            said = str(error)
            if "changed from" in said and "Column()" not in said:
                return self._mixed(data) if may_mix else None
            if unreadable_rows.is_of_one_row(said):
                return None
            raise _Broken(self._problem(said)) from None
        return None if unreadable_rows.has_infinity(table) else table

    def _parsed(self, data: bytes) -> pa.Table:
        texts = pa.schema(_text_fields(self._texts))
        return pa.json.read_json(
            pa.BufferReader(_arrow_buffer(data)),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pa.json.ParseOptions(explicit_schema=texts),
        )

    def _mixed(self, data: bytes) -> pa.Table:
        """Parse lines in which a column changes its type, row by row: such a column becomes text."""
        rows = [json.loads(line) for line in data.splitlines()]
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: _column([row.get(name) for row in rows]) for name in names})

    def _problem(self, message: str) -> str:
        """Say what is wrong, from Arrow's message, which may name the row of the block, from 0."""
        row = re.search(r"in row (\d+)$", message)
        at = f" at row {self._rows + int(row[1]) + 1}" if row else ""
        return f"is broken{at}: each {self._row} must be one JSON object"


class _Envelopes(_JsonLines):
    """Parses blocks of lines of which each has an envelope around its row."""

    def __init__(self, row: str, envelopes: Envelopes) -> None:
        super().__init__(row)
        self._envelopes = envelopes

    def batches(self, data: bytes) -> Iterator[_Part]:
        waiting: list[bytes] = []
        ignored = 0
        for line in data.splitlines():
            found = self._opened(line) if line.strip() else None
            if isinstance(found, UnreadableRow):
                yield from super().batches(b"\n".join(waiting))
                self._rows += 1
                waiting = []
                yield found
            elif found is not None:
                waiting.append(found)
            elif line.strip():
                ignored += 1
        yield from super().batches(b"\n".join(waiting))
        if ignored:
            yield IgnoredRows(ignored)

    def _opened(self, line: bytes) -> bytes | UnreadableRow | None:
        """The row of a line, as JSON again; None if it has none."""
        if unreadable_rows.is_deep(line):
            return UnreadableRow(withheld(line), "", TOO_DEEP)
        try:
            message = _message(line)
        except ValueError:
            msg = "is broken: each line must be one JSON object, or null for a tombstone"
            raise _Broken(msg) from None
        found = self._envelopes.opened(message)
        if isinstance(found, Ignored):
            return None
        if isinstance(found, Refused):
            return UnreadableRow(withheld(line) if found.text is None else found.text, "", found.reason)
        return json.dumps(found, default=_as_json).encode()


def _message(line: bytes) -> Any:
    """Read a line.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(line)
    except ValueError:  # also for an integer of thousands of digits, which is too large as a float as well
        return json.loads(line, parse_int=float)


def _as_json(value: Any) -> Any:
    """What JSON lines have instead of a decimal, a date or a moment."""
    return float(value) if isinstance(value, Decimal) else value.isoformat()


def _moments(fields: Iterable[pa.Field], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Find the columns of moments, also within objects."""
    for field in fields:
        if pa.types.is_timestamp(field.type):
            yield (*path, field.name)
        elif pa.types.is_struct(field.type):
            yield from _moments(field.type, (*path, field.name))


def _text_fields(paths: Iterable[tuple[str, ...]]) -> list[pa.Field]:
    """Declare the columns at these paths as text."""
    inner: dict[str, list[tuple[str, ...]]] = {}
    for first, *others in sorted(paths):
        inner.setdefault(first, []).append(tuple(others))
    return [
        pa.field(name, pa.string() if () in below else pa.struct(_text_fields(below))) for name, below in inner.items()
    ]


def _column(values: list[Any]) -> pa.Array:
    """Make a column of values of several types: text; or structs, if some are objects, which text would give away."""
    if any(type(value) is dict for value in values):
        return _structs(list(map(marked, values)))
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        if any(map(is_or_has_object, values)):
            return _structs(list(map(marked, values)))
        return pa.array(list(map(_as_text, values)), pa.string())


def _structs(values: list[dict[str, Any] | None]) -> pa.Array:
    names = list(dict.fromkeys(name for value in values for name in value or ()))
    if not names:
        return pa.array(values, pa.struct([]))
    inner = [_column([None if value is None else value.get(name) for value in values]) for name in names]
    fields = [struct_field(name, column.type) for name, column in zip(names, inner, strict=True)]
    return pa.StructArray.from_arrays(inner, fields=fields, mask=pa.array([value is None for value in values]))


def _as_text(value: Any) -> str | None:
    try:
        return None if value is None else columns.text_of(value)
    except Rejected:
        return json.dumps(value, ensure_ascii=False)


# -- binary ----------------------------------------------------------------------------------------


def _parquet_header(source: Source) -> list[str]:
    schema = pa.parquet.read_schema(source.path)
    _check_once(list(schema.names))
    return names_of(schema)


def _read_parquet(source: Source) -> Iterator[pa.RecordBatch]:
    # Through small buffers: a row group may have all rows of a file.
    with pa.parquet.ParquetFile(source.path, buffer_size=_BUFFER, pre_buffer=False) as file:
        yield from file.iter_batches(batch_size=_ROWS, use_threads=False)


def _avro_header(source: Source) -> list[str]:
    with open(source.path, "rb") as stream:
        return names_of(avro_columns.schema_of(_avro_reader(stream).writer_schema))


def _avro_reader(stream: Any) -> Any:
    import fastavro

    try:
        reading = fastavro.reader(stream)
        is_record = isinstance(reading.writer_schema, dict) and reading.writer_schema.get("type") == "record"
    except Exception:  # fastavro raises whatever the broken bytes lead to
        msg = "is not Avro, or is cut off"
        raise _Broken(msg) from None
    if not is_record:
        msg = "must hold records"
        raise _Broken(msg)
    return reading


def _read_avro(source: Source) -> Iterator[pa.RecordBatch]:
    with open(source.path, "rb") as stream:
        reading = _avro_reader(stream)
        schema = avro_columns.schema_of(reading.writer_schema)
        before = 0
        waiting: list[pa.RecordBatch] = []
        while records := _avro_records(reading, before):
            before += len(records)
            waiting.append(avro_columns.batch_of(records, schema))
            if len(waiting) * _RECORDS >= _ROWS:
                yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
                waiting = []
        yield from pa.Table.from_batches(waiting, schema).combine_chunks().to_batches()


def _avro_records(reading: Any, before: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    try:
        records.extend(islice(reading, _RECORDS))
    except Exception:  # fastavro, as above
        msg = f"is broken after record {before + len(records)}"
        raise _Broken(msg) from None
    return records


_HEADERS: dict[str, Callable[[Source], list[str]] | None] = {
    "CSV": _csv_header,
    "TSV": _csv_header,
    "JSON lines": None,
    "Parquet": _parquet_header,
    "Avro": _avro_header,
}
_READERS: dict[str, Callable[[Source], Iterator[_Part]]] = {
    "CSV": _read_csv,
    "TSV": _read_csv,
    "JSON lines": _read_json,
    "Parquet": _read_parquet,
    "Avro": _read_avro,
}
