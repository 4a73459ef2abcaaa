"""Text cells that a spreadsheet would run as formulas, made harmless by a quote in front of them.

OWASP calls it CSV injection: a cell that begins with `=`, `+`, `-`, `@`, a tab or a line break is a formula to a
spreadsheet, and whoever chooses a text in the input chooses what it does. A number (`-5`) is none. To be undone without
doubt, a cell in which a quote stands before such a character gets another one.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["escaped", "unescaped"]

#: What formulas begin with; spreadsheets take the wide letters of Asian fonts for the same.
_FORMULA = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def escaped(cells: pa.Array) -> pa.Array:
    """Put a quote before the texts that a spreadsheet would run."""
    runs = pc.and_not(pc.match_substring_regex(cells, f"^'*{_FORMULA}"), pc.match_substring_regex(cells, _NUMBER))
    if not pc.any(runs).as_py():
        return cells
    return pc.if_else(runs, pc.binary_join_element_wise("'", cells, ""), cells)


def unescaped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Undo `escaped` in all columns of text."""
    columns = [_unescaped(column) if pa.types.is_string(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _unescaped(cells: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(cells, f"^'('*{_FORMULA})", r"\1")
