"""A file as one Arrow table, or a sample of a large one: what `crenel init`, `check` and `explore` look at.

The rows are those that `crenel run` reads, and `read_for` types the columns as a run does. `read` is for `init`, which
has no policy yet: in a format without types, it gives each column the narrowest type that fits all of its values.

A sample is of whole stretches of consecutive rows, because a stream that is thinned out row by row looks thinner than
it is. Which stretches are taken is drawn by a hash of their numbers: always the same ones of a file, but neither its
beginning alone, nor every n-th.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from os import PathLike

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crenel.encoding.text_format import TextFormat
from crenel.pipelines.files.formats import FORMATS, USUAL, Dialect, TableError
from crenel.pipelines.files.readers import Source, open_file
from crenel.pipelines.files.text_sniffing import Sniffed, sniff
from crenel.policy import Policy, columns
from crenel.transforms._pack.arrow_tables import concat
from crenel.transforms._pack.nested_fields import flattened
from crenel.transforms._pack.text_columns import TextColumns, moments, numbers

__all__ = ["FileRows", "read", "read_for"]

#: The most bytes of rows that are held in memory.
_MOST_BYTES = 2 * 10**9

#: Stretches of a sample. With an odd number, the middle of the sample lies within one of them.
_STRETCHES = 9

_WHOLE_NUMBER = r"^[+-]?[0-9]+$"


@dataclass(frozen=True, eq=False)
class FileRows:
    """Rows of a file: all of them, or a sample."""

    table: pa.Table
    #: The rows of the whole file, but for those that cannot be read.
    total: int
    #: How numbers and dates are written, as far as `read` could find out.
    sniffed: Sniffed = field(default_factory=lambda: Sniffed(TextFormat()))

    @property
    def is_sample(self) -> bool:
        """Whether some rows were left out."""
        return bool(self.table.num_rows < self.total)


def read(path: str | PathLike[str], dialect: Dialect = USUAL, most: int | None = None) -> FileRows:
    """Read a file of at least one row; of a file with more than `most` rows, about so many.

    In a format without types (CSV, TSV), a column becomes integers, floats or moments if all of its values are such; a
    column whose numbers have leading zeros stays text. Decimal commas, and dates with the day first, are found out.

    Raises:
        TableError: the file cannot be read; the message says why, and where.
    """
    source = open_file(path, dialect)
    rows = _rows(source, most)
    if not FORMATS[source.extension].untyped:
        return rows
    texts = {name: rows.table[name] for name in rows.table.column_names}
    found = sniff(texts, dialect.values)
    narrow = {name: _narrowest(text.combine_chunks(), found.written) for name, text in texts.items()}
    return replace(rows, table=pa.table(narrow), sniffed=found)


def read_for(policy: Policy, path: str | PathLike[str], dialect: Dialect = USUAL, most: int | None = None) -> FileRows:
    """Read the same; the columns have the types that `crenel run` gives them.

    Raises:
        TableError: the file cannot be read; the message says why, and where.
    """
    rows, text = _rows(open_file(path, dialect), most), TextColumns(policy, dialect.values)
    typed = {name: text.array(name, rows.table[name]) for name in rows.table.column_names}
    return replace(rows, table=pa.table(typed))


def _rows(source: Source, most: int | None) -> FileRows:
    if not os.path.getsize(source.path):
        msg = f"{source.name} is empty."
        raise TableError(msg)
    source.columns()  # refuses a column that is there twice
    stretches, total = _stretches(source, most)
    if not stretches or not stretches[0].num_columns:
        msg = f"{source.name} has no rows."
        raise TableError(msg)
    return FileRows(concat(stretches), total)


def _stretches(source: Source, most: int | None) -> tuple[list[pa.Table], int]:
    """Read all rows, or of more than `most` the stretches with the least hashes. Also count the rows of the file."""
    size = None if most is None else max(most // _STRETCHES, 1)
    kept: dict[int, pa.Table] = {}
    total = 0
    for number, stretch in enumerate(_cut(source, size)):
        kept[number] = stretch
        total += stretch.num_rows
        # Rows are counted, not stretches: a file that just fits is read whole.
        while most is not None and total > most and len(kept) > _STRETCHES:
            del kept[max(kept, key=_lot)]
        if sum(part.nbytes for part in kept.values()) > _MOST_BYTES:
            msg = f"{source.name} has rows of more than 2 GB in all: look at fewer, as with --sample 10000."
            raise TableError(msg)
    return [kept[number] for number in sorted(kept)], total


def _cut(source: Source, size: int | None) -> Iterator[pa.Table]:
    """Cut a file into stretches of `size` rows; as it was read, if there is no size."""
    waiting: list[pa.Table] = []
    rows = 0
    for batch in source.batches():
        left = flattened(pa.Table.from_batches([batch]))
        while size is not None and rows + left.num_rows >= size:
            taken = size - rows
            yield concat([*waiting, left.slice(0, taken)])
            waiting, rows, left = [], 0, left.slice(taken)
        if size is None:
            yield left
        elif left.num_rows:
            waiting.append(left)
            rows += left.num_rows
    if waiting:
        yield concat(waiting)


def _lot(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little"), digest_size=8, person=b"crenel.sample").digest()


def _loses_digits(column: pa.Array) -> bool:
    """Whether all text is whole numbers, and floats do not hold each digit: ids would become one that are not."""
    whole = pc.all(pc.match_substring_regex(column, _WHOLE_NUMBER)).as_py()
    return bool(whole) and any(int(float(text)) != int(text) for text in column.unique().drop_null().to_pylist())


def _narrowest(column: pa.Array, written: TextFormat) -> pa.Array:
    """Turn a column of text into integers, floats or moments, if all of it is and keeps its digits."""
    found = numbers(column, written)
    if found.null_count == len(found):
        return column
    if pa.types.is_integer(found.type) or pc.all(pc.is_finite(found)).as_py():
        # Where a number is missing, the text may be NA. Without it, whole numbers are read as integers.
        present = pc.if_else(found.is_valid(), column, pa.scalar(None, pa.string()))
        narrow = numbers(present, written)
        return column if pa.types.is_floating(narrow.type) and _loses_digits(present) else narrow
    dates = moments(column.drop_null(), written)
    micros, reasons = columns.moments(dates)
    if reasons is not None:
        return column
    places = np.cumsum(column.is_valid().to_numpy(zero_copy_only=False)) - 1
    there = pa.array(places, mask=column.is_null().to_numpy(zero_copy_only=False))
    return pa.array(micros.astype(np.int64)).cast(pa.timestamp("us")).take(there)
