"""Writes figures for a reader."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from crenel.policy.durations import span_of_seconds

__all__ = ["FORMATS", "Format", "amount", "clean", "number", "percent", "title"]

#: Writes a figure.
Format = Callable[[Any], str]

#: Above this, a float does not hold all digits.
_LARGE = 1e15

_TITLES = {
    "crowd": "A crowd at one moment",
    "k": "k persons in each group",
    "once per": "One row of a person",
    "l": "Diversity",
    "t": "Closeness",
    "deadline": "On time",
    "nothing lost": "Nothing lost",
    "contained": "True values",
    "columns": "No other column",
    "boxes": "Legal generalizations",
    "reported figures": "Reported figures",
    "epsilon": "Differential privacy",
}


def clean(text: str, longest: int | None = None) -> str:
    """Replace what cannot be printed, and cut the text to `longest` characters.

    >>> clean(chr(0) + "name"), clean("a rather long name", 10)
    ('�name', 'a rather …')
    """
    printable = "".join(letter if letter.isprintable() else "�" for letter in text)
    return printable if longest is None or len(printable) <= longest else printable[: longest - 1] + "…"


def number(value: float) -> str:
    """Write a number to four digits, and a whole number to all of its digits.

    >>> number(1234567), number(1234.5678), number(0.123456), number(2.5), number(1e-9)
    ('1,234,567', '1,235', '0.1235', '2.5', '1e-09')
    """
    if isinstance(value, int) or (value.is_integer() and abs(value) < _LARGE):
        return f"{int(value):,}"
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 15:
        return f"{value:.3g}"
    digits = max(3 - size, 0)
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def percent(share: float) -> str:
    """Write a share in percent. Only nothing is 0 %, and only all is 100 %.

    >>> percent(0.2131), percent(0.0042), percent(0.00001), percent(0.99999), percent(1)
    ('21.3 %', '0.42 %', 'under 0.01 %', 'over 99.9 %', '100 %')
    """
    if 0 < share < 0.000_1:
        return "under 0.01 %"
    if 0.999 < share < 1:
        return "over 99.9 %"
    if abs(share) >= 10:
        return f"{number(share * 100)} %"
    return f"{share * 100:.{2 if abs(share) < 0.01 else 1}f}".rstrip("0").rstrip(".") + " %"


def amount(unit: str | None) -> Format:
    """Choose how figures of a unit are written."""
    return span_of_seconds if unit == "seconds" else number


def title(promise: str) -> str:
    """Write a promise's name for the reader.

    >>> title("l:diagnosis"), title("deadline"), title("another")
    ('Diversity of diagnosis (l)', 'On time', 'another')
    """
    kind, colon, column = promise.partition(":")
    if colon and kind in {"l", "t"}:
        return f"{_TITLES[kind]} of {clean(column)} ({kind})"
    return _TITLES.get(promise, clean(promise))


#: The ways to write a figure, by the names that the template uses.
FORMATS: dict[str, Format] = {"number": number, "percent": percent, "duration": span_of_seconds}
