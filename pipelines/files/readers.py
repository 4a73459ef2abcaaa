"""Files of rows, read as a stream of Arrow record batches.

The formats are those of `tables`. A batch holds the columns as the file has them; CSV, which has
no types, is all text. Errors are one sentence that names the file and, where it is known, the
row; what the row holds is somebody's, and is never quoted.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from crenel.errors import Rejected
from crenel.pipelines.files import formats as tables
from crenel.pipelines.files.formats import COMPRESSIONS, FORMATS, TableError
from crenel.policy import columns

__all__ = ["STANDARD", "Source", "find", "format_names"]

#: Stands for standard input and output.
STANDARD = "-"

#: Rows of a batch, where it is for us to say.
_ROWS = 32_768

#: Bytes of text that are parsed at once; a row is no longer.
_BLOCK = 8 << 20

#: Bytes of a row, and how much a text is compressed: guesses, for how much work there is.
_TEXT_ROW, _BINARY_ROW, _COMPRESSED = 100, 40, 5

#: Bytes that a header is looked for in.
_START = 1 << 16


@dataclass(frozen=True)
class Source:
    """One input file."""

    path: str

    #: How it is called when something is said about it.
    name: str

    #: The extension that stands for its format, and Arrow's name of its compression.
    extension: str
    compression: str | None = None

    #: Its place among the inputs, from 0.
    number: int = 0

    def rows(self) -> int:
        """About how many rows it has."""
        if self.extension == ".parquet":
            return int(self._guarded(lambda: pa.parquet.read_metadata(self.path).num_rows))
        size = os.path.getsize(self.path) * (_COMPRESSED if self.compression else 1)
        return size // (_TEXT_ROW if FORMATS[self.extension].text else _BINARY_ROW)

    def columns(self) -> list[str] | None:
        """The names of its columns; None where each row has its own.

        Raises:
            TableError: the file cannot be read.
        """
        read = _HEADERS[FORMATS[self.extension].name]
        return None if read is None else self._guarded(lambda: read(self))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the file's order.

        Raises:
            TableError: the file cannot be read, or is broken somewhere.
        """
        reading = _READERS[FORMATS[self.extension].name](self)
        while True:
            batch = self._guarded(lambda: next(reading, None))
            if batch is None:
                return
            if batch.num_rows:
                yield batch

    def _guarded(self, read: Callable[[], Any]) -> Any:
        """Whatever goes wrong, as one sentence."""
        why = ""
        try:
            return read()
        except _Broken as error:
            why = str(error)
        except FileNotFoundError:
            why = "is not there any more"
        except (pa.ArrowException, OSError) as error:
            why = self._why(error)
        msg = f"{self.name} {why}."
        raise TableError(msg)

    def _why(self, error: Exception) -> str:
        kind = FORMATS[self.extension]
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowException) and error.errno is not None:
            return f"cannot be read: {os.strerror(error.errno).lower()}"
        message = str(error)
        if self.compression and ("compress" in message or "zlib" in message or "ZSTD" in message):
            return f"is not compressed by {self.compression}, or is cut off"
        if "UTF8" in message or "UTF-8" in message:
            return "is not UTF-8 text"
        if "straddl" in message:
            return f"has a row of more than {_BLOCK >> 20} MB"
        if kind.untyped:
            return tables._csv_problem(message)
        return f"is not {kind.name}, or is cut off"


class _Broken(Exception):
    """Goes on from the file's name: what is wrong with it."""


def format_names() -> dict[str, str]:
    """The names of formats, for a command line, and the extensions they stand for."""
    return {extension[1:]: extension for extension in FORMATS}


def find(patterns: Iterable[str], named: str | None, spool: Callable[[IO[bytes]], Path]) -> list[Source]:
    """The input files: names, or patterns of names (`*`, `?`, `[`, `**`), or `-`.

    They are in the order in which they were given, those of one pattern by their names; a file
    that is named twice is read once.

    Args:
        patterns: What was given.
        named: The format, where the extension is not to be believed.
        spool: Keeps in a file what can be read only once.

    Raises:
        TableError: there is no such file, or no format has its extension.
    """
    found: dict[str, Source] = {}
    for pattern in patterns:
        if pattern == STANDARD:
            name = "standard input"
            kept = Source(str(spool(sys.stdin.buffer)), name, format_names()[named or "csv"], None, len(found))
            found.setdefault(name, kept)
            continue
        for path in _matching(pattern):
            extension, compression = _kind(path, named)
            known = str(path.resolve())
            if known not in found:
                place = str(path.absolute() if path.is_file() else _spooled(path, spool))
                found[known] = Source(place, path.name, extension, compression, len(found))
    return list(found.values())


def _spooled(path: Path, spool: Callable[[IO[bytes]], Path]) -> Path:
    with open(path, "rb") as stream:
        return spool(stream)


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        msg = f"{pattern}: must be a file, not a folder; its files are {os.path.join(pattern, '*')}."
        raise TableError(msg)
    if path.exists():  # a name with a star in it, or a pipe
        return [path]
    names = sorted(name for name in glob.glob(pattern, recursive=True) if not Path(name).is_dir())
    if not names:
        said = "no file matches" if glob.has_magic(pattern) else "there is no such file"
        msg = f"{pattern}: {said}."
        raise TableError(msg)
    return [Path(name) for name in names]


def _kind(path: Path, named: str | None) -> tuple[str, str | None]:
    if named is None:
        kind = tables.detect(path)
        extension = next(known for known, form in FORMATS.items() if form is kind.format)
        return extension, kind.compression
    extension = format_names()[named]
    compression = COMPRESSIONS.get(path.suffix.lower())
    return extension, compression if FORMATS[extension].text else None


# -- text ------------------------------------------------------------------------------------------


def _open(source: Source) -> pa.NativeFile:
    return pa.input_stream(source.path, compression=source.compression)


def _delimiter(source: Source) -> str:
    return "\t" if source.extension == ".tsv" else ","


def _csv_header(source: Source) -> list[str]:
    start = _start(source)
    if not start.strip():
        msg = "is empty: it has not even a header"
        raise _Broken(msg)
    if b"\0" in start:
        msg = "is not UTF-8 text"
        raise _Broken(msg)
    delimiter = _delimiter(source)
    line = start.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n").partition(b"\n")[0]
    if delimiter.encode() not in line and any(other in line for other in (b";", b"\t", b"|", b",")):
        other = next(other for other in ";\t|," if other.encode() in line)
        msg = f"must have its columns separated by {delimiter!r}, not {other!r}"
        raise _Broken(msg)
    if _one_line(start):  # Arrow knows no header without an end
        parsed = pa.csv.read_csv(pa.BufferReader(start + b"\n"), parse_options=_csv_options(source))
        names = parsed.schema.names
    else:
        with _open(source) as stream:
            names = pa.csv.open_csv(stream, _csv_blocks(), _csv_options(source)).schema.names
    _check_once(names)
    return list(names)


def _csv_blocks() -> pa.csv.ReadOptions:
    # One thread: errors then know their row, and the processes are enough.
    return pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK)


def _csv_options(source: Source) -> pa.csv.ParseOptions:
    return pa.csv.ParseOptions(delimiter=_delimiter(source), newlines_in_values=True)


def _read_csv(source: Source) -> Iterator[pa.RecordBatch]:
    names = _csv_header(source)
    convert = pa.csv.ConvertOptions(
        column_types={name: pa.string() for name in names}, null_values=[""], strings_can_be_null=True
    )
    if _one_line(_start(source)):
        return
    with _open(source) as stream:
        yield from pa.csv.open_csv(stream, _csv_blocks(), _csv_options(source), convert)


def _start(source: Source) -> bytes:
    with _open(source) as stream:
        return bytes(stream.read(_START))


def _one_line(start: bytes) -> bool:
    return len(start) < _START and b"\n" not in start.rstrip() and b"\r" not in start.rstrip()


def _read_json(source: Source) -> Iterator[pa.RecordBatch]:
    reading = _JsonLines()
    with _open(source) as stream:
        rest = b""
        while block := stream.read(_BLOCK):
            end = block.rfind(b"\n") + 1
            if end:
                yield from reading.batches(rest + block[:end])
                rest = block[end:]
            elif len(rest) + len(block) > _BLOCK:
                msg = f"has a row of more than {_BLOCK >> 20} MB"
                raise _Broken(msg)
            else:
                rest += block
        yield from reading.batches(rest)


class _JsonLines:
    """Parses blocks of whole lines."""

    def __init__(self) -> None:
        self._rows = 0
        #: Columns that Arrow would take for moments; what leaves as it is must not be rewritten.
        self._texts: set[str] = set()

    def batches(self, data: bytes) -> Iterator[pa.RecordBatch]:
        if not data.strip():
            return
        table = self._parsed(data)
        moments = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        if moments:
            self._texts.update(moments)
            table = self._parsed(data)
        self._rows += table.num_rows
        yield from table.to_batches(max_chunksize=_ROWS)

    def _parsed(self, data: bytes) -> pa.Table:
        texts = pa.schema([(name, pa.string()) for name in sorted(self._texts)])
        try:
            return pa.json.read_json(
                pa.BufferReader(data),
                read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pa.json.ParseOptions(explicit_schema=texts),
            )
        except pa.ArrowException as error:
            if "changed from" in str(error) and "Column()" not in str(error):
                return self._mixed(data)
            raise _Broken(self._problem(str(error))) from None

    def _mixed(self, data: bytes) -> pa.Table:
        """Lines where a column is sometimes of one type, sometimes of another: row by row, and those as text."""
        rows: list[Any] = []
        for line in data.splitlines():
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    raise _Broken(self._problem(f"in row {len(rows)}")) from None
                if not isinstance(rows[-1], dict):
                    raise _Broken(self._problem(f"in row {len(rows) - 1}"))
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: _column([row.get(name) for row in rows]) for name in names})

    def _problem(self, message: str) -> str:
        moved = re.sub(r"in row (\d+)$", lambda place: f"in row {int(place[1]) + self._rows}", message)
        return tables._json_problem(moved)


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except pa.ArrowException:
        return pa.array(list(map(_as_text, values)), pa.string())


def _as_text(value: Any) -> str | None:
    try:
        return None if value is None else columns.text_of(value)
    except Rejected:
        return json.dumps(value, ensure_ascii=False)


# -- binary ----------------------------------------------------------------------------------------


def _parquet_header(source: Source) -> list[str]:
    names = list(pa.parquet.read_schema(source.path).names)
    _check_once(names)
    return names


def _read_parquet(source: Source) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(source.path) as file:
        yield from file.iter_batches(batch_size=_ROWS, use_threads=False)


def _avro_header(source: Source) -> list[str]:
    with open(source.path, "rb") as stream:
        return [str(field["name"]) for field in _avro_reader(stream).writer_schema["fields"]]


def _avro_reader(stream: Any) -> Any:
    import fastavro

    try:
        reading = fastavro.reader(stream)
        is_record = isinstance(reading.writer_schema, dict) and reading.writer_schema.get("type") == "record"
    except Exception:  # fastavro lets through whatever broken bytes lead to
        msg = "is not Avro, or is cut off"
        raise _Broken(msg) from None
    if not is_record:
        msg = "must hold records"
        raise _Broken(msg)
    return reading


def _read_avro(source: Source) -> Iterator[pa.RecordBatch]:
    with open(source.path, "rb") as stream:
        reading = _avro_reader(stream)
        schema = pa.schema([(f["name"], _avro_type(f["type"])) for f in reading.writer_schema["fields"]])
        count = 0
        while True:
            records: list[dict[str, Any]] = []
            try:
                while len(records) < _ROWS and (record := next(reading, None)) is not None:
                    records.append(record)
            except Exception:  # as above
                msg = f"is broken after record {count + len(records)}"
                raise _Broken(msg) from None
            if not records:
                return
            count += len(records)
            yield _avro_batch(records, schema)


def _avro_batch(records: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        values = [record[field.name] for record in records]
        if pa.types.is_string(field.type):
            values = [v if v is None or isinstance(v, str) else json.dumps(v, default=str) for v in values]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_AVRO_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_AVRO_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def _avro_type(kind: Any) -> pa.DataType:
    """Arrow's type for one of Avro; text (JSON) for what is nested, or of several types."""
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        found = [_avro_type(one) for one in kinds]
        if all(map(pa.types.is_integer, found)) and found:
            return pa.int64()
        if all(pa.types.is_integer(one) or pa.types.is_floating(one) for one in found) and found:
            return pa.float64()
        return found[0] if len(found) == 1 else pa.string()
    if isinstance(kind, dict):
        if kind.get("logicalType") in _AVRO_LOGICAL:
            return _AVRO_LOGICAL[kind["logicalType"]]
        if kind.get("logicalType") == "decimal":
            return pa.decimal128(min(int(kind["precision"]), 38), int(kind.get("scale", 0)))
        if kind.get("logicalType") is not None:
            return pa.string()
        return _avro_type(kind["type"]) if isinstance(kind["type"], (str, list, dict)) else pa.string()
    return _AVRO_TYPES.get(kind, pa.string())


def _check_once(names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        msg = f"must have each column once, not {twice[0]!r} again"
        raise _Broken(msg)


_HEADERS: dict[str, Callable[[Source], list[str]] | None] = {
    "CSV": _csv_header,
    "TSV": _csv_header,
    "JSON lines": None,
    "Parquet": _parquet_header,
    "Avro": _avro_header,
}
_READERS: dict[str, Callable[[Source], Iterator[pa.RecordBatch]]] = {
    "CSV": _read_csv,
    "TSV": _read_csv,
    "JSON lines": _read_json,
    "Parquet": _read_parquet,
    "Avro": _read_avro,
}
