"""Writes Arrow tables as files of rows: one writer for each format.

A range is the text `[lo, hi]` in CSV, and a record of `lo` and `hi` in JSON lines, Parquet and Avro. A range without
ends, which only a column without a declared domain has, is `*` in CSV and two nulls elsewhere. A range that includes
missing values is `[lo, *]` in CSV, and has a null as `hi` elsewhere. A value that is not published, or is missing, is
an empty cell in CSV, and null elsewhere.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from crenel.pipelines.files.cells import avro_cells, csv_formulas
from crenel.pipelines.files.cells.distinct_ranges import each_once, is_range
from crenel.pipelines.files.formats import FORMATS
from crenel.transforms._pack.nested_fields import plain_name

__all__ = ["write"]

#: Rows that are written at once, and rows of a row group in Parquet. Only the last may have fewer, whatever they are.
ROWS = 1 << 16
#: Rows of a block in Avro. Only the last block of `ROWS` rows may have fewer.
_BLOCK = 1 << 12


def write(
    path: str,
    extension: str,
    compression: str | None,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    *,
    escape_formulas: bool = False,
) -> None:
    """Write tables of one schema as one file.

    Args:
        path: The file.
        extension: The extension that stands for its format. The path may have another.
        compression: Arrow's name of the compression of a text file, or None.
        schema: The columns.
        tables: The rows.
        escape_formulas: Whether to make text harmless in CSV that a spreadsheet would run as a formula.
    """
    writer = _WRITERS[FORMATS[extension].name](path, compression, schema)
    writer.escapes_formulas = escape_formulas
    try:
        for table in _cut(tables):
            writer.write(table)
    finally:
        writer.close()


def _cut(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Cut the rows into tables of `ROWS` rows; only the last may have fewer. So the cuts reveal nothing about rows."""
    waiting: list[pa.Table] = []
    room = ROWS
    for table in tables:
        start = 0
        while start < table.num_rows:
            part = table.slice(start, room)
            waiting.append(part)
            start, room = start + part.num_rows, room - part.num_rows
            if not room:
                yield pa.concat_tables(waiting)
                waiting, room = [], ROWS
    if waiting:
        yield pa.concat_tables(waiting)


class _Writer(ABC):
    #: Whether text that a spreadsheet would run as a formula is made harmless, in CSV.
    escapes_formulas = False

    def __init__(self, path: str, compression: str | None, schema: pa.Schema) -> None:
        self.schema = schema

    @abstractmethod
    def write(self, table: pa.Table) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class _Text(_Writer):
    """Writes one line for each row. The lines are built column by column, not row by row."""

    def __init__(self, path: str, compression: str | None, schema: pa.Schema) -> None:
        super().__init__(path, compression, schema)
        self._stream = pa.output_stream(path, compression=compression)

    def _lines(self, pieces: list[Any]) -> None:
        """Join the pieces of each line, and write the lines."""
        self._stream.write(_data(pc.binary_join_element_wise(*pieces, "\n", "")))

    def close(self) -> None:
        self._stream.close()


class _Csv(_Text):
    delimiter = ","

    def __init__(self, path: str, compression: str | None, schema: pa.Schema) -> None:
        super().__init__(path, compression, schema)
        names = self._quoted(pa.array(schema.names, pa.string())).to_pylist()
        self._stream.write((self.delimiter.join(names) + "\n").encode())

    def write(self, table: pa.Table) -> None:
        pieces: list[Any] = []
        for name in self.schema.names:
            cells = each_once(_whole(table.column(name)), lambda values: self._quoted(self._cells(values)))
            pieces += [self.delimiter, cells]
        self._lines(pieces[1:])

    def _cells(self, column: pa.Array) -> pa.Array:
        cells = _flat(column)
        return csv_formulas.escaped(cells) if self.escapes_formulas and _is_text(column.type) else cells

    def _quoted(self, texts: pa.Array) -> pa.Array:
        """Quote cells that need it. A missing value is an empty cell; an empty text is not missing, so it is quoted."""
        needed = pc.or_(pc.match_substring_regex(texts, f'["\r\n{self.delimiter}]'), pc.equal(texts, ""))
        if pc.any(needed).as_py():
            doubled = pc.replace_substring(texts, '"', '""')
            texts = pc.if_else(needed, pc.binary_join_element_wise('"', doubled, '"', ""), texts)
        return pc.fill_null(texts, "")


class _Tsv(_Csv):
    delimiter = "\t"


class _JsonLines(_Text):
    def write(self, table: pa.Table) -> None:
        self._lines(_json_object(table.schema.names, [_whole(column) for column in table.columns]))


class _Parquet(_Writer):
    def __init__(self, path: str, compression: str | None, schema: pa.Schema) -> None:
        super().__init__(path, compression, schema)
        self._writer = pa.parquet.ParquetWriter(path, schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> None:
        self._writer.close()


class _Avro(_Writer):
    def __init__(self, path: str, compression: str | None, schema: pa.Schema) -> None:
        from fastavro.write import Writer

        super().__init__(path, compression, schema)
        fields = [{"name": plain_name(f.name), "type": ["null", _avro_type(f.name, f.type)]} for f in schema]
        declared: Any = {"type": "record", "name": "Row", "namespace": "crenel", "fields": fields}
        self._stream = open(path, "wb")  # noqa: SIM115 - closed by close
        # The same rows must give the same bytes. So the marker between blocks, random by default, is fixed.
        marker = b"crenel, rows fol"
        # The fastest level: the default takes five times as long, as much as everything else for a row.
        self._writer = Writer(self._stream, declared, codec="deflate", sync_marker=marker, compression_level=1)

    def write(self, table: pa.Table) -> None:
        rows = avro_cells.joined([avro_cells.cells(_avro_column(_whole(column))) for column in table.columns])
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            self._writer.write_block(SimpleNamespace(num_records=len(block), bytes_=BytesIO(_data(block))))

    def close(self) -> None:
        self._writer.flush()
        self._stream.close()


_WRITERS: dict[str, type[_Writer]] = {
    "CSV": _Csv,
    "TSV": _Tsv,
    "JSON lines": _JsonLines,
    "Parquet": _Parquet,
    "Avro": _Avro,
}


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _is_text(kind: pa.DataType) -> bool:
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _data(texts: pa.Array) -> pa.Buffer:
    """All texts, one after the other, without a copy."""
    ends = texts.buffers()[1]
    first, last = np.frombuffer(ends, np.int32)[[texts.offset, texts.offset + len(texts)]].tolist()
    return texts.buffers()[2][first:last]


def _flat(column: pa.Array) -> pa.Array:
    """Write a column's values as CSV cells, not yet quoted."""
    if is_range(column.type):
        lo, hi = (_text(column.field(i)) for i in range(2))
        missing = column.is_null()
        ends = pc.binary_join_element_wise(pc.fill_null(lo, "*"), pc.fill_null(hi, "*"), ", ")
        text = pc.binary_join_element_wise("[", ends, "]", "")
        text = pc.if_else(pc.and_(pc.is_null(lo), pc.is_null(hi)), "*", text)
        return pc.if_else(missing, None, text)
    if pa.types.is_nested(column.type):
        return pc.if_else(column.is_null(), None, _json_text(column))
    try:
        return _text(column)
    except pa.ArrowException:
        return pa.array([None if value is None else _as_text(value) for value in column.to_pylist()], pa.string())


def _text(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _json_text(column: pa.Array) -> pa.Array:
    """Write a column's values as JSON. Each distinct value becomes a Python object at most once."""
    return each_once(column, _json_values)


def _json_values(column: pa.Array) -> pa.Array:
    if pa.types.is_struct(column.type):
        names = [field.name for field in column.type]
        pieces = _json_object(names, [column.field(i) for i in range(len(names))])
        text = pc.binary_join_element_wise(*pieces, "")
        return pc.if_else(column.is_null(), "null", text) if column.null_count else text
    if pa.types.is_integer(column.type):
        return pc.fill_null(_text(column), "null")
    try:
        distinct = column.dictionary_encode()
    except pa.ArrowNotImplementedError:
        return pa.array([_dumped(value) for value in column.to_pylist()], pa.string())
    texts = pa.array([_dumped(value) for value in distinct.dictionary.to_pylist()], pa.string())
    return pc.fill_null(texts.take(distinct.indices), "null")


def _json_object(names: Sequence[str], columns: Sequence[pa.Array]) -> list[Any]:
    """The pieces of JSON objects that have these columns as fields."""
    pieces: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        pieces += [f"{', ' if pieces else '{'}{json.dumps(name)}: ", _json_text(column)]
    return [*pieces, "}"]


def _dumped(value: Any) -> str:
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else "null"  # JSON has neither NaN nor infinity
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Write a value of a type that JSON lacks as text."""
    if isinstance(value, bytes):
        return value.hex()
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if isoformat is not None else str(value)


_AVRO_TYPES: list[tuple[Any, Any]] = [
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_uint64, "string"),  # Avro's integers end at 2**63
    (pa.types.is_integer, "long"),
    (pa.types.is_floating, "double"),
    (pa.types.is_binary, "bytes"),
]


def _avro_type(name: str, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        fields = [{"name": f.name, "type": ["null", _avro_type(f"{name}_{f.name}", f.type)]} for f in kind]
        return {"type": "record", "name": _avro_name(name), "fields": fields}
    if pa.types.is_timestamp(kind):
        logical = "timestamp-micros" if kind.tz else "local-timestamp-micros"
        return {"type": "long", "logicalType": logical}
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    return next((said for is_kind, said in _AVRO_TYPES if is_kind(kind)), "string")


def _avro_name(name: str) -> str:
    return "Range_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name)


def _avro_column(column: pa.Array) -> pa.Array:
    """The column in a type that Avro has: others become text."""
    kind = column.type
    if pa.types.is_struct(kind):
        inner = [_avro_column(column.field(i)) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(inner, [field.name for field in kind], mask=column.is_null())
    if _avro_type("", kind) != "string" or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column
    return pa.array([None if value is None else _as_text(value) for value in column.to_pylist()], pa.string())


def _as_text(value: Any) -> str:
    return _dumped(value) if isinstance(value, (list, dict)) else str(_plain(value))
