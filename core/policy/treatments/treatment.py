"""The treatments that a policy may name under `treat`: pseudonyms, constants, and coarser values.

A treatment looks at one value at a time. So it promises nothing about a crowd, and `reveals` says what it still tells.
"""

from __future__ import annotations

import bisect
import hmac
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from crenel.errors import Rejected
from crenel.policy import columns
from crenel.policy.checks import REFERENCE, Problems, as_number, short, suggestion
from crenel.policy.durations import UNITS, format_duration, parse_duration

__all__ = ["Bin", "Pseudonymize", "Redact", "Round", "Treatment", "Truncate", "read_treatment"]

_PSEUDONYM = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SECOND = UNITS["s"]


@dataclass(frozen=True, kw_only=True)
class Treatment(ABC):
    """What is done to the values of a column. All treatments but `Round` publish text."""

    @abstractmethod
    def treat(self, value: Any, key: bytes, period: int) -> Any:
        """Return what is published for a value that is not missing.

        Args:
            value: The value.
            key: The key of pseudonyms; empty for other treatments.
            period: The number of the period in which the row's event time lies, for pseudonyms that change.

        Raises:
            Rejected: The value does not fit. The reason never holds the value.
        """

    @abstractmethod
    def could_publish(self, value: Any) -> bool:
        """Whether the treatment can have made this value, which is not missing."""

    @abstractmethod
    def reveals(self) -> str:
        """Say what is published and what that still reveals, as the end of a sentence about the column."""

    @abstractmethod
    def to_spec(self) -> dict[str, Any]:
        """Return the declaration as a policy file has it."""

    @property
    def of_missing(self) -> str | None:
        """What is published for a missing value."""
        return None


@dataclass(frozen=True, kw_only=True)
class Pseudonymize(Treatment):
    """A keyed hash (HMAC-SHA-256, 128 bits in hex): equal values get equal pseudonyms, wherever the key is the same."""

    #: Where the key is: `env:NAME`, `file:/PATH` or `gcp:VERSION`, as for `secret`.
    key: str

    #: Microseconds of event time after which all pseudonyms change; None: never.
    rotate: int | None = None

    def treat(self, value: Any, key: bytes, period: int) -> str:
        """Return the pseudonym of a value in a period."""
        text = columns.text_of(value).encode("utf-8", "surrogatepass")
        scope = b"" if self.rotate is None else b"%d" % period
        return hmac.digest(key, b"crenel.pseudonym\0" + scope + b"\0" + text, "sha256")[:16].hex()

    def could_publish(self, value: Any) -> bool:
        """Whether it looks like a pseudonym."""
        return isinstance(value, str) and _PSEUDONYM.fullmatch(value) is not None

    def reveals(self) -> str:
        """Say that pseudonyms link rows."""
        until = "for ever" if self.rotate is None else f"for {format_duration(self.rotate)} of event time"
        return (
            f"as a pseudonym, which links all rows with the same value {until}. The promises cover single rows, and "
            "not what several rows tell together: whoever recognizes one of them knows the others"
        )

    def to_spec(self) -> dict[str, Any]:
        """Return the reference to the key, never the key."""
        more = {} if self.rotate is None else {"rotate": format_duration(self.rotate)}
        return {"pseudonymize": self.key, **more}


@dataclass(frozen=True, kw_only=True)
class Redact(Treatment):
    """A constant, also for a missing value."""

    #: The constant.
    text: str

    def treat(self, value: Any, key: bytes, period: int) -> str:
        """Return the constant."""
        return self.text

    @property
    def of_missing(self) -> str:
        """The constant: that a value is missing may tell something too."""
        return self.text

    def could_publish(self, value: Any) -> bool:
        """Whether it is the constant."""
        return bool(value == self.text)

    def reveals(self) -> str:
        """Say that nothing is revealed."""
        return f"as {self.text!r} in all rows, which reveals nothing"

    def to_spec(self) -> dict[str, Any]:
        """Return the constant."""
        return {"redact": self.text}


@dataclass(frozen=True, kw_only=True)
class Truncate(Treatment):
    """The first characters of a text; or a moment, cut to a multiple of a duration (in UTC)."""

    #: The number of characters; None for moments.
    characters: int | None = None

    #: Microseconds; None for text.
    to: int | None = None

    def treat(self, value: Any, key: bytes, period: int) -> str:
        """Return the beginning of a text, or of a duration."""
        if self.to is None:
            return columns.text_of(value)[: self.characters]
        seconds = int(columns.moment(value)) // self.to * self.to // _SECOND
        return f"{np.datetime64(seconds, 's')}Z"

    def could_publish(self, value: Any) -> bool:
        """Whether it is short enough, or the beginning of a duration."""
        if self.to is None:
            return isinstance(value, str) and len(value) <= (self.characters or 0)
        try:
            return isinstance(value, str) and self.treat(value, b"", 0) == value
        except Rejected:
            return False

    def reveals(self) -> str:
        """Say that the beginning is published as it is."""
        if self.to is not None:
            return f"cut to {format_duration(self.to)}, without regard to how many rows fall into it"
        return f"cut to {self.characters} characters, as they are; a text that is no longer is published whole"

    def to_spec(self) -> dict[str, Any]:
        """Return the number of characters, or the duration."""
        return {"truncate": self.characters if self.to is None else format_duration(self.to)}


@dataclass(frozen=True, kw_only=True)
class Round(Treatment):
    """A number, rounded to the nearest multiple of a step."""

    #: The step, above 0.
    step: float

    def treat(self, value: Any, key: bytes, period: int) -> float:
        """Return the nearest multiple; of two that are equally near, the even one."""
        step = Fraction(repr(self.step))  # as written: 0.1 is a tenth
        return float(round(Fraction(_number(value)) / step) * step)

    def could_publish(self, value: Any) -> bool:
        """Whether it is a multiple of the step."""
        try:
            return self.treat(value, b"", 0) == _number(value)
        except Rejected:
            return False

    def reveals(self) -> str:
        """Say that the multiple is published."""
        return f"rounded to multiples of {_tidy(self.step)}, without regard to how many rows share one"

    def to_spec(self) -> dict[str, Any]:
        """Return the step."""
        return {"round": _plain(self.step)}


@dataclass(frozen=True, kw_only=True)
class Bin(Treatment):
    """A number, published as the name of its bin: `[10, 100)`, `below 0`, `100 and above`."""

    #: The edges of the bins, rising.
    edges: tuple[float, ...]

    @property
    def labels(self) -> list[str]:
        """The names of all bins, in order."""
        ends = [_tidy(edge) for edge in self.edges]
        between = [f"[{lo}, {hi})" for lo, hi in pairwise(ends)]
        return [f"below {ends[0]}", *between, f"{ends[-1]} and above"]

    def treat(self, value: Any, key: bytes, period: int) -> str:
        """Return the name of the bin."""
        return self.labels[bisect.bisect_right(self.edges, _number(value))]

    def could_publish(self, value: Any) -> bool:
        """Whether it is the name of a bin."""
        return value in self.labels

    def reveals(self) -> str:
        """Say that the bin is published."""
        return f"as one of {len(self.edges) + 1} bins, without regard to how many rows share one"

    def to_spec(self) -> dict[str, Any]:
        """Return the edges."""
        return {"bin": [_plain(edge) for edge in self.edges]}


def read_treatment(problems: Problems, path: str, given: Any) -> Treatment | None:
    """Read a declaration such as `{round: 10}`; None, and a problem, if it is wrong."""
    if isinstance(given, Treatment):  # made in Python, where nothing has checked it
        given = given.to_spec()
    known = [name for name in given if name in _READERS] if isinstance(given, Mapping) else []
    if not isinstance(given, Mapping) or len(known) != 1:
        guess = suggestion(next(iter(given), ""), _READERS).strip() if isinstance(given, Mapping) else ""
        near = f" ({guess})" if guess else ""
        problems.must(path, f"one of {', '.join(_READERS)}, such as {{round: 10}}{near}", given)
        return None
    (name,) = known
    more = [key for key in given if key != name and not (name == "pseudonymize" and key == "rotate")]
    for key in more:
        problems.unknown(path, key, [name, "rotate"] if name == "pseudonymize" else [name])
    return None if more else _READERS[name](problems, f"{path}.{name}", given[name], given)


def _pseudonymize(problems: Problems, path: str, value: Any, given: Mapping[str, Any]) -> Treatment | None:
    if not isinstance(value, str) or not REFERENCE.fullmatch(value):
        # The value may be the key itself, so it is not repeated.
        problems.add(path, "must be env:NAME, file:/PATH or gcp:VERSION: it says where the key is, and never holds it.")
        return None
    rotate = None
    if given.get("rotate") is not None:
        rotate = _duration(problems, path.replace(".pseudonymize", ".rotate"), given["rotate"])
    return Pseudonymize(key=value, rotate=rotate)


def _redact(problems: Problems, path: str, value: Any, given: Mapping[str, Any]) -> Treatment | None:
    if not isinstance(value, str) or not value:
        problems.must(path, "text, which takes the place of every value", value)
        return None
    return Redact(text=value)


def _truncate(problems: Problems, path: str, value: Any, given: Mapping[str, Any]) -> Treatment | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return Truncate(characters=value)
    if not isinstance(value, str):
        problems.must(path, "a number of characters of at least 1, or a duration such as 1h or 1d", value)
        return None
    to = _duration(problems, path, value)
    return None if to is None else Truncate(to=to)


def _round(problems: Problems, path: str, value: Any, given: Mapping[str, Any]) -> Treatment | None:
    step = as_number(value)
    if step is None or not columns.SMALLEST <= step <= columns.LARGEST:
        problems.must(path, "a number above 0", value)
        return None
    return Round(step=step)


def _bin(problems: Problems, path: str, value: Any, given: Mapping[str, Any]) -> Treatment | None:
    edges = [as_number(edge) for edge in value] if isinstance(value, (list, tuple)) else []
    known = [edge for edge in edges if edge is not None]
    if not edges or len(known) < len(edges) or sorted(set(known)) != known:
        problems.must(path, "a list of rising numbers, the edges of the bins", value)
        return None
    return Bin(edges=tuple(known))


def _duration(problems: Problems, path: str, value: Any) -> int | None:
    micros = parse_duration(value) if isinstance(value, str) else None
    if not micros or micros % _SECOND:
        problems.must(path, "a duration of whole seconds, such as 1h or 1d", value)
        return None
    return micros


_READERS = {"pseudonymize": _pseudonymize, "redact": _redact, "truncate": _truncate, "round": _round, "bin": _bin}


def _number(value: Any) -> float:
    if not isinstance(value, str):
        return columns.number(value)
    try:
        return columns.number(float(value))
    except ValueError:
        raise Rejected(columns.NOT_A_NUMBER) from None


def _plain(number: float) -> float | int:
    return int(number) if float(number).is_integer() and abs(number) < 2**53 else number


def _tidy(number: float) -> str:
    return short(_plain(number))
