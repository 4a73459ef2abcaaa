"""How numbers and dates are written in text, where they are not written as crenel expects them."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

__all__ = ["TextFormat"]

#: A number with a decimal comma: 12,5 or 1.234,5 or 1.234.
_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d*)?", re.ASCII)

#: A date with the year first can only be read one way, whatever separates its parts.
_YEAR_FIRST = re.compile(r"(\d{4})/(\d\d)/(\d\d)(?=$|[ T])", re.ASCII)
_ISO = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)

#: A time of day after a date, as ISO 8601 writes it, but that hours may have one digit.
_TIME = re.compile(r"[ T](\d{1,2})(:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?)$", re.ASCII)

_NO_NUMBER = "no number"


@dataclass(frozen=True)
class TextFormat:
    """How numbers and dates are written. Each value is judged by itself, whatever rows are beside it.

    Raises:
        ValueError: the decimal sign is neither a point nor a comma, or the format has no day, month and year.
    """

    #: What separates the whole part of a number from its fraction: a point, or a comma, and then a point may separate
    #: thousands.
    decimal: str = "."

    #: How dates are written, as for `strptime`: `%d/%m/%Y`. A time may follow, such as 17:30. Dates with the year first
    #: are read in any case.
    date_format: str | None = None

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            msg = f"decimal must be '.' or ',', not {self.decimal!r}."
            raise ValueError(msg)
        if self.date_format is not None and not _is_date_format(self.date_format):
            msg = (
                "date_format must name a day, a month and a year as strptime does, such as '%d/%m/%Y' or "
                f"'%m/%d/%Y %H:%M', not {self.date_format!r}."
            )
            raise ValueError(msg)

    @property
    def is_usual(self) -> bool:
        """Whether numbers have a decimal point, and nothing is known of dates."""
        return self.decimal == "." and self.date_format is None

    def number(self, text: str) -> str:
        """Write a number with a decimal point; text that is none stays, or becomes text that is none.

        >>> TextFormat(",").number("1.234,5"), TextFormat(",").number("7"), TextFormat(",").number("12.5")
        ('1234.5', '7', 'no number')
        """
        if self.decimal == "." or not re.search(r"[.,]", text):
            return text
        if not _COMMA.fullmatch(text):  # with a decimal comma, 12.5 is neither 12.5 nor 125
            return _NO_NUMBER
        return text.replace(".", "").replace(",", ".")

    def moment(self, text: str) -> str:
        """Write a date as ISO 8601 does; text that is none stays.

        >>> TextFormat(date_format="%d/%m/%Y").moment("31/12/2024"), TextFormat().moment("2016/01/01 00:47:36")
        ('2024-12-31T00:00:00', '2016-01-01 00:47:36')
        >>> TextFormat(date_format="%d.%m.%Y").moment("31.12.2024 9:30")
        '2024-12-31T09:30'
        """
        if self.date_format is None or _ISO.match(text):
            return _YEAR_FIRST.sub(r"\1-\2-\3", text)
        time = _TIME.search(text)
        return (
            self._parsed(text, "")
            or (time and self._parsed(text[: time.start()], f"T{time[1]:>02}{time[2]}"))
            or _YEAR_FIRST.sub(r"\1-\2-\3", text)
        )

    def _parsed(self, text: str, time: str) -> str | None:
        """Write a date, and the time of day that follows it."""
        try:
            found = dt.datetime.strptime(text, self.date_format or "")  # noqa: DTZ007 - as the file has it
        except ValueError:
            return None
        return found.date().isoformat() + time if time else found.isoformat()


def _is_date_format(text: str) -> bool:
    known = set(re.findall(r"%([A-Za-z])", text))
    named = bool(known & set("dj")) and bool(known & set("mbBj")) and bool(known & set("Yy"))
    moment = dt.datetime(2024, 12, 31, 23, 59, 58)  # noqa: DTZ001 - only written and read again
    try:
        return named and dt.datetime.strptime(moment.strftime(text), text).date() == moment.date()  # noqa: DTZ007
    except ValueError:
        return False
