"""Finds out how a text file writes numbers and dates: with decimal commas, with the day first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from crenel.encoding.text_format import TextFormat

__all__ = ["Sniffed", "sniff"]

#: Different values of a column that are looked at.
_MOST = 2_000

_NUMBER = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?", re.ASCII)
#: A comma that no separator of thousands can be.
_FRACTION = re.compile(r",(\d{1,2}|\d{4,})$|^[+-]?(0|\d{4,}),", re.ASCII)

_YEAR_FIRST = re.compile(r"\d{4}", re.ASCII)

_DATES = [f"%{first}{sign}%{second}{sign}%Y" for sign in "/.-" for first, second in ("dm", "md")]
_DATES += ["%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y"]


@dataclass(frozen=True)
class Sniffed:
    """What the values of a file show."""

    written: TextFormat
    #: Columns of dates in which the day and the month cannot be told apart.
    ambiguous: tuple[str, ...] = ()


def sniff(columns: Mapping[str, pa.ChunkedArray], known: TextFormat) -> Sniffed:
    """Look at columns of text; what the user has said stays."""
    values = {name: _distinct(column) for name, column in columns.items()}
    written = known
    if known.decimal == "." and any(map(_has_decimal_commas, values.values())):
        written = replace(written, decimal=",")
    if known.date_format is not None:
        return Sniffed(written)
    fits = {name: [one for one in _DATES if _all_dates(found, one)] for name, found in values.items()}
    certain = [formats[0] for formats in fits.values() if len(formats) == 1]
    if certain:
        written = replace(written, date_format=max(certain, key=certain.count))
    unclear = [name for name, formats in fits.items() if formats and written.date_format not in formats]
    return Sniffed(written, tuple(unclear))


def _distinct(column: pa.ChunkedArray) -> list[str]:
    found = column.unique().drop_null()
    return [text for text in found.slice(0, _MOST).to_pylist() if text]


def _has_decimal_commas(values: list[str]) -> bool:
    numbers = [text for text in values if text not in ("NA", "N/A", "NaN", "nan", "NULL", "null")]
    return bool(numbers) and all(map(_NUMBER.fullmatch, numbers)) and any(map(_FRACTION.search, numbers))


def _all_dates(values: list[str], date_format: str) -> bool:
    written = TextFormat(date_format=date_format)
    return bool(values) and all(_is_date(text, written) for text in values)


def _is_date(text: str, written: TextFormat) -> bool:
    """Whether the format, and no other way to write dates, explains the text."""
    found = written.moment(text)
    return found != text and re.match(r"[1-9]\d{3}-", found) is not None and not _YEAR_FIRST.match(text)
