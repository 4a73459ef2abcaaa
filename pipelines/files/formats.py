"""Files of rows: which format a file has, and the whole of a small one as an Arrow table.

A file's extension says its format (`FORMATS`), and for text also its compression
(`COMPRESSIONS`). Errors are one sentence that names the file and, where it is known, the line;
what the line holds is somebody's, and is never quoted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from crenel.errors import Rejected
from crenel.pipelines.command_errors import CommandError
from crenel.policy import Policy
from crenel.policy.checks import suggestion
from crenel.policy.quasi_identifiers import Categorical, Numeric, Prefix

__all__ = [
    "COMPRESSIONS",
    "FORMATS",
    "FileKind",
    "Format",
    "TableError",
    "detect",
    "read",
    "read_for",
]

#: Arrow counts the bytes of one block of text in 32 bits.
_MOST_BYTES = 2**31 - 2

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_FLOAT = re.compile(r"[+-]?([1-9][0-9]*|0)?(\.[0-9]*)?([eE][+-]?[0-9]+)?", re.ASCII)

#: How a missing number is written in CSV, besides by nothing. As text they may be a country.
_MISSING_NUMBERS = frozenset(["NA", "N/A", "NaN", "nan", "NULL", "null"])


class TableError(CommandError):
    """A file that cannot be read as a table."""


@dataclass(frozen=True)
class Format:
    """How the rows of a file are written."""

    #: Its name, for the user.
    name: str

    #: Reads a table from the file's bytes.
    parse: Callable[[bytes], Any]

    #: Whether it is text, which may be compressed as a whole.
    text: bool = False

    #: Whether its values have no types of their own.
    untyped: bool = False


class FileKind(NamedTuple):
    """What a file's extensions say of it."""

    format: Format

    #: Arrow's name of the compression of the whole file, or None.
    compression: str | None


class _Broken(Exception):
    """Goes on from the file's name: what is wrong with it."""


def detect(path: str | PathLike[str]) -> FileKind:
    """The format of a file by its extensions, in any case; the file need not be there.

    Raises:
        TableError: no format has this extension.
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    compression = COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    if compression is not None:
        suffixes.pop()
    found = FORMATS.get(suffixes[-1]) if suffixes else None
    if found is None:
        given = suffixes[-1] if suffixes else ""
        msg = (
            f"{Path(path).name}: the extension must be one of {', '.join(FORMATS)}, "
            f"not {given!r}; {suggestion(given, FORMATS)}text may also be compressed "
            f"({', '.join(COMPRESSIONS)})."
        )
        raise TableError(msg)
    if compression is not None and not found.text:
        msg = f"{Path(path).name}: only text may be compressed as a whole; {found.name} is not."
        raise TableError(msg)
    return FileKind(found, compression)


def read(path: str | PathLike[str], *, text: Collection[str] = (), numbers: Collection[str] = ()) -> Any:
    """Read a whole file, as a `pyarrow.Table` of at least one row.

    Args:
        path: The file.
        text: Columns that are text in a format without types (CSV), whatever they look like. For
            the others there, the type is the narrowest that fits all values: a column with
            zeros in front of its numbers stays text.
        numbers: Columns that are numbers there, infinite where they are not.

    Raises:
        TableError: the file cannot be read; the message says why, and where.
    """
    kind = detect(path)
    name = Path(path).name
    try:
        data = _contents(Path(path), kind)
        table = kind.format.parse(data)
        _check_columns(table)
    except _Broken as error:
        msg = f"{name} {error}."
        raise TableError(msg) from None
    return _typed(table, text, numbers) if kind.format.untyped else table


def read_for(policy: Policy, path: str | PathLike[str]) -> Any:
    """Read a whole file; where the format has no types, the policy says what is text."""
    numbers = [name for name, qi in policy.quasi_identifiers.items() if isinstance(qi, Numeric)]
    numbers += [name for name, column in policy.sensitive.items() if column.domain is not None]
    labels = (Categorical, Prefix)
    text = [policy.person, *policy.publish]
    text += [name for name, qi in policy.quasi_identifiers.items() if isinstance(qi, labels)]
    text += [name for name, column in policy.sensitive.items() if column.domain is None]
    return read(path, text=text, numbers=numbers)


def _contents(path: Path, kind: FileKind) -> bytes:
    import pyarrow as pa

    try:
        with pa.input_stream(str(path), compression=kind.compression) as stream:
            data: bytes = stream.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        msg = f"{path}: there is no such file."
        raise TableError(msg) from None
    except OSError as error:
        raise _Broken(_why_unreadable(path, kind, error)) from None
    if not data:
        msg = "is empty"
        raise _Broken(msg)
    if len(data) > _MOST_BYTES:
        msg = "is larger than 2 GB; take a part of it as the sample"
        raise _Broken(msg)
    return data


def _why_unreadable(path: Path, kind: FileKind, error: OSError) -> str:
    if path.is_dir():
        return "must be a file, not a folder"
    if error.errno is not None or kind.compression is None:
        import os

        return f"cannot be read: {os.strerror(error.errno or 5).lower()}"
    return f"is not compressed by {kind.compression}, or is cut off"


def _check_columns(table: Any) -> None:
    twice = [name for name, count in Counter(table.column_names).items() if count > 1]
    if twice:
        msg = f"must have each column once, not {twice[0]!r} again"
        raise _Broken(msg)
    if table.num_rows == 0 or table.num_columns == 0:
        msg = "has no rows"
        raise _Broken(msg)


def _parse_csv(data: bytes, delimiter: str = ",") -> Any:
    import pyarrow as pa
    from pyarrow import csv

    _check_text(data)
    header = data.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n").partition(b"\n")[0].decode()
    if delimiter not in header and any(other in header for other in ";\t|,"):
        other = next(other for other in ";\t|," if other in header)
        msg = f"must have its columns separated by {delimiter!r}, not {other!r}"
        raise _Broken(msg)
    try:
        # One block and one thread: errors then know their line.
        read_options = csv.ReadOptions(use_threads=False, block_size=len(data) + 1)
        parse_options = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        names = csv.open_csv(pa.BufferReader(data), read_options, parse_options).schema.names
        return csv.read_csv(
            pa.BufferReader(data),
            read_options,
            parse_options,
            csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        raise _Broken(_csv_problem(str(error))) from None


def _csv_problem(message: str) -> str:
    # The message ends in the line itself.
    found = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message)
    if found is None:
        return "is not CSV with a header"
    line, expected, got = found.groups()
    return f"is broken at row {line} (the header is row 1): {got} values, not {expected}"


def _parse_tsv(data: bytes) -> Any:
    return _parse_csv(data, "\t")


def _parse_json(data: bytes) -> Any:
    import pyarrow as pa
    from pyarrow import json

    _check_text(data)
    try:
        options = json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        return json.read_json(pa.BufferReader(data), read_options=options)
    except pa.ArrowException as error:
        raise _Broken(_json_problem(str(error))) from None


def _json_problem(message: str) -> str:
    place = re.search(r"in row (\d+)$", message)
    at = f" at row {int(place[1]) + 1}" if place else ""
    change = re.search(r"Column\(/(.+)\) changed from (\w+) to (\w+)", message)
    if change:
        column, before, now = change.groups()
        return f"is broken{at}: the column {column!r} is a {now} there, and a {before} before"
    return f"is broken{at}: each line must be one JSON object"


def _parse_parquet(data: bytes) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError):
        msg = "is not Parquet, or is cut off"
        raise _Broken(msg) from None


def _parse_avro(data: bytes) -> Any:
    import io

    import fastavro
    import pyarrow as pa

    records: list[Any] = []
    try:
        records.extend(fastavro.reader(io.BytesIO(data)))
    except Exception:  # fastavro lets through whatever broken bytes lead to
        at = f" after record {len(records)}" if records else ""
        msg = f"is not Avro, or is broken{at}"
        raise _Broken(msg) from None
    try:
        return pa.Table.from_pylist(records)
    except (pa.ArrowException, TypeError, AttributeError):
        msg = "must hold records whose fields are each of one type"
        raise _Broken(msg) from None


def _check_text(data: bytes) -> None:
    try:
        data.decode("utf-8")
        wrong = data.find(b"\0")
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong >= 0:
        line = data.count(b"\n", 0, wrong) + 1
        msg = f"is not UTF-8 text: see line {line}"
        raise _Broken(msg)


def _typed(table: Any, text: Collection[str], numbers: Collection[str]) -> Any:
    import pyarrow as pa

    typed = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if name in text:
            typed[name] = column
        else:
            typed[name] = _narrowest(column.dictionary_encode(), number=name in numbers)
    return pa.table(typed)


def _narrowest(column: Any, *, number: bool) -> Any:
    """The column of text as integers, floats or moments, if all of it is."""
    import pyarrow as pa

    distinct = column.dictionary.to_pylist()
    said = [None if value in _MISSING_NUMBERS else value for value in distinct]
    present = [value for value in said if value is not None]
    if not present:
        made = pa.array(distinct, pa.string())
    elif all(map(_INTEGER.fullmatch, present)):
        made = pa.array([None if v is None else int(v) for v in said], pa.int64())
    elif number or all(map(_is_float, present)):
        made = pa.array([None if v is None else _float(v) for v in said], pa.float64())
    else:
        made = _moments(distinct)
    return made.take(column.indices)


def _is_float(text: str) -> bool:
    return bool(_FLOAT.fullmatch(text)) and any(map(str.isdigit, text))


def _float(text: str) -> float:
    # Infinity is no number to a policy; NaN would be taken for one that is missing.
    return float(text) if _is_float(text) else math.inf


def _moments(distinct: list[str]) -> Any:
    """Text that is dates throughout as moments; otherwise as it is."""
    import pyarrow as pa

    from crenel.policy import columns

    try:
        micros = [int(columns.moment(value)) for value in distinct]
    except Rejected:
        return pa.array(distinct, pa.string())
    return pa.array(micros, pa.timestamp("us"))


_JSON_LINES = Format("JSON lines", _parse_json, text=True)

#: The formats by the extension of a file's name.
FORMATS: dict[str, Format] = {
    ".csv": Format("CSV", _parse_csv, text=True, untyped=True),
    ".tsv": Format("TSV", _parse_tsv, text=True, untyped=True),
    ".jsonl": _JSON_LINES,
    ".ndjson": _JSON_LINES,
    ".json": _JSON_LINES,
    ".parquet": Format("Parquet", _parse_parquet),
    ".avro": Format("Avro", _parse_avro),
}

#: Arrow's names of the compressions by the last extension.
COMPRESSIONS: dict[str, str] = {".gz": "gzip", ".zst": "zstd"}
