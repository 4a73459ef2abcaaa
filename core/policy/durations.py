"""Durations: as users write them, and as microseconds."""

from __future__ import annotations

import datetime as dt
import math
import re
from fractions import Fraction
from typing import Any

from crenel.policy.checks import Problems

__all__ = [
    "A_DURATION",
    "FOREVER",
    "LONGEST",
    "TRUE_OR_A_DURATION",
    "UNITS",
    "a_duration",
    "format_duration",
    "parse_duration",
    "span_of_seconds",
    "tick_of",
]

#: Microseconds per unit.
UNITS = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
#: Symbols of the units of a measured span, and their lengths in seconds.
_SPANS = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)]
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(us|ms|s|m|h|d)", re.ASCII)
A_DURATION = "a duration such as '500ms', '30s', '10m', '2h' or '1d'"

TRUE_OR_A_DURATION = f"true, or {A_DURATION}"

#: Durations and deadlines are added in 64 bits, so they must leave room.
LONGEST = 2**62

#: A span that does not end. No duration is as long.
FOREVER = 2**63 - 1

#: The number of moments in a delay at which rows may leave because of their deadline.
_TICKS = 16


def tick_of(delay: int | None) -> int:
    """Return the microseconds that deadlines and published moments are multiples of: a sixteenth of the delay.

    It is a second if there is no delay. With exact deadlines, an attacker who sees a row leave alone at its deadline
    would know its event time.
    """
    return max(delay // _TICKS, 1) if delay is not None else UNITS["s"]


def a_duration(problems: Problems, path: str, value: Any, at_least: int, rule: str = A_DURATION) -> int:
    """Return the microseconds of a text such as `10m`, a timedelta or an integer; on a problem, `at_least`."""
    micros = _micros(value)
    if micros is None or not at_least <= micros <= LONGEST:
        least = f", at least {at_least} microsecond" if at_least and micros is not None else ""
        problems.must(path, rule + least, value)
        return at_least
    return micros


def parse_duration(text: str) -> int | None:
    """Return the microseconds of a text such as `10m`; None if it is not a duration."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    micros = Fraction(match[1]) * UNITS[match[2]]
    return int(micros) if micros.denominator == 1 else None


def format_duration(micros: int) -> str:
    """Write a duration in the largest unit that divides it."""
    if micros == 0:
        return "0s"
    unit = next(name for name, size in UNITS.items() if micros % size == 0)
    return f"{micros // UNITS[unit]}{unit}"


def span_of_seconds(seconds: float) -> str:
    """Write a measured span of time in its two largest units.

    >>> span_of_seconds(3599.5), span_of_seconds(3600), span_of_seconds(0.0421), span_of_seconds(1_209_600)
    ('59 min 59.5 s', '1 h', '0.0421 s', '14 d')
    """
    unit = next((place for place, (_, size) in enumerate(_SPANS) if abs(seconds) >= size), len(_SPANS) - 1)
    if unit == len(_SPANS) - 1:
        return f"{seconds:.4g} s"
    (name, size), (finer, finer_size) = _SPANS[unit], _SPANS[unit + 1]
    whole, rest = divmod(abs(seconds), size)
    sign = "-" if seconds < 0 else ""
    # Rounded down, so that a minute never shows 60 seconds.
    part = math.floor(rest / finer_size * 10) / 10 if finer_size == 1 else rest // finer_size
    return f"{sign}{int(whole):,} {name}" + (f" {part:g} {finer}" if part else "")


def _micros(value: Any) -> int | None:
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None
