"""Quasi-identifiers: how the values of a column become coordinates, and how a range of coordinates is published.

Six types are built in, two of them in `kinds`. To add a type, subclass `QuasiIdentifier` and register it under a name,
as `docs/quasi-identifiers.md` shows.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from os import PathLike
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crenel.errors import PolicyError, Rejected
from crenel.policy import columns
from crenel.policy.cells import Cells
from crenel.policy.checks import Problems, a_number, as_number, one_of, suggestion
from crenel.policy.columns import Reasons
from crenel.policy.durations import A_DURATION, a_duration, format_duration
from crenel.policy.geometry import EXACT, Geometry, Interval, Radix, Tree
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.kinds import line_values
from crenel.policy.kinds.gap_rules import Missing, Unknown, radix_and_missing, tree_and_more
from crenel.policy.reading.named_files import PolicyFiles

__all__ = [
    "Categorical",
    "Datetime",
    "Missing",
    "Numeric",
    "Prefix",
    "QuasiIdentifier",
    "Range",
    "Rejected",
    "Unknown",
    "lookup",
    "name_of",
    "names",
    "register",
]

#: The group of entry points through which packages offer types, each by its name in a policy.
ENTRY_POINTS = "crenel.quasi_identifiers"


class Range(NamedTuple):
    """A published range that includes both ends. An end is None if the range is unbounded there."""

    lo: Any
    hi: Any


@dataclass(frozen=True, kw_only=True)
class QuasiIdentifier(ABC):
    """A column that is published generalized. The fields of a subclass are what a policy can declare.

    A subclass implements `geometry`, `coordinate` and `publish`. `crenel.testing.check_quasi_identifier` checks that
    they fit together.
    """

    #: Whether the type has a coordinate for missing values, `missing_at`, if they are a category.
    PLACES_MISSING: ClassVar[bool] = False

    #: The weight of this column's loss among the quasi-identifiers.
    weight: float = 1.0

    #: What becomes of a missing value: `category`, `reject` or `hole`. None: `hole` if the method takes rows with
    #: holes, else `reject`.
    missing: Missing | str | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        weight = a_number(problems, "weight", self.weight, "a number above 0", 0, math.inf)
        missing = None if self.missing is None else one_of(problems, "missing", self.missing, Missing)
        if missing is Missing.CATEGORY and not self.PLACES_MISSING:
            problems.add("missing", "must be 'reject' or 'hole': the type has no coordinate for missing values.")
        problems.raise_if_any(type(self).__name__)
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "missing", missing)

    def inputs(self, name: str) -> tuple[str, ...]:
        """Name the columns of the input that the column of this name is made of: itself, for most types."""
        return (name,)

    def together(self, given: list[Any]) -> tuple[NDArray[np.float64], Reasons]:
        """As `coordinates`, for a type of several columns: those that `inputs` names, in that order."""
        return self.coordinates(given[0])

    @property
    def missing_at(self) -> float | None:
        """The coordinate of missing values; None unless they are a category."""
        return self.geometry.widest()[1] if self.missing is Missing.CATEGORY else None

    @property
    @abstractmethod
    def geometry(self) -> Geometry:
        """The shape of the coordinates: how a range widens, and what that loses."""

    @property
    def values(self) -> Geometry:
        """The geometry of values alone. A type that places missing values apart from them leaves these out."""
        return self.geometry

    @abstractmethod
    def coordinate(self, value: Any) -> float:
        """Return the coordinate of a value, always the same for the same value.

        Raises:
            Rejected: The value does not fit. The reason never holds the value.
        """

    @abstractmethod
    def publish(self, lo: float, hi: float) -> Any:
        """Return what is published for a span of `geometry.span`: something that JSON can represent."""

    def read(self, published: Any) -> tuple[float, float]:
        """Return the span that `publish` turns into this value. An audit reads published values back by it.

        By default, nodes of a tree are looked up. Other geometries have too many spans for that, so a subclass must
        override this, or what it publishes cannot be audited.

        Raises:
            ValueError: No span is published so.
            NotImplementedError: The type cannot tell.
        """
        geometry = self.geometry
        if not isinstance(geometry, Tree):
            raise NotImplementedError
        spans = zip(geometry.first.tolist(), geometry.last.tolist(), strict=True)
        found = next((span for span in spans if self.publish(*map(float, span)) == published), None)
        if found is None:
            raise ValueError
        return float(found[0]), float(found[1])

    def coordinates(self, values: Any) -> tuple[NDArray[np.float64], Reasons]:
        """Apply `coordinate` to a column: NaN if a value was rejected, with the reasons.

        The reasons are None if no value was rejected. This method calls `coordinate` once per distinct value. A
        subclass may override it with something faster.
        """
        return columns.spread(*columns.factorize(values), self.coordinate)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], files: PolicyFiles) -> QuasiIdentifier:
        """Build the type from a policy's declaration; `files.path` finds files that it names."""
        return cls(**spec)

    def to_spec(self) -> dict[str, Any]:
        """Return the declaration for a policy file: the fields that differ from their defaults.

        YAML must be able to represent their values.
        """
        said = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            name: value.value if isinstance(value, Enum) else value
            for name, value in said.items()
            if value != usual[name]
        }

    def __getstate__(self) -> dict[str, Any]:
        # Leave out cached properties, which are computed from the rest.
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }


@dataclass(frozen=True, kw_only=True)
class Numeric(QuasiIdentifier):
    """A number, published as a range. Text is not a number, and neither is a boolean."""

    PLACES_MISSING: ClassVar[bool] = True

    #: The least and the largest value; values outside are rejected. None: learned from the stream.
    domain: tuple[float, float] | None = None

    #: Ranges end at multiples of this, or where the domain ends. None: they end at values of rows.
    step: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = Problems()
        domain = step = None
        if self.domain is not None:
            domain = line_values.bounds(problems, self.domain, "a list of two numbers", line_values.bound)
        if self.step is not None:
            least, most = columns.SMALLEST, columns.LARGEST
            step = as_number(self.step)
            if step is None or not least <= step <= most:
                problems.must("step", f"a number from {least:g} to {most:g}", self.step)
            elif domain is not None and step > domain[1] - domain[0]:
                problems.must("step", "no wider than the domain", self.step)
        problems.raise_if_any(type(self).__name__)
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "step", step)
        if self.cells is not None and self.cells.too_fine:
            problems.must("step", "greater, because steps so far from 0 cannot be told apart", self.step)
            problems.raise_if_any(type(self).__name__)
        line_values.check_missing(self)

    @cached_property
    def cells(self) -> Cells | None:
        """The cells of the step; None without a step."""
        if self.step is None:
            return None
        step = Fraction(repr(self.step))  # as written: 0.1 is a tenth
        limit = int(columns.LARGEST)
        return Cells(numerator=step.numerator, denominator=step.denominator, domain=self.domain, limit=limit)

    @cached_property
    def geometry(self) -> Interval:
        """The interval of the numbers, or of cell numbers."""
        return line_values.with_missing(self, self._line)

    @property
    def values(self) -> Interval:
        """The same, without missing values."""
        return self.geometry if self.missing_at is None else self._line

    @property
    def _line(self) -> Interval:
        return self._domain if self.cells is None else self.cells.geometry

    @cached_property
    def _domain(self) -> Interval:
        return Interval(*self.domain) if self.domain else Interval()

    @property
    def _taken(self) -> Interval:
        """The accepted values. A subclass may have another geometry."""
        return self.geometry if self.cells is None and self.missing_at is None else self._domain

    def coordinate(self, value: Any) -> float:
        """Return the number itself; with a step, the number of its cell."""
        return line_values.celled(self.cells, line_values.inside(self._taken, columns.number(value)), columns.TOO_LARGE)

    def coordinates(self, values: Any) -> tuple[NDArray[np.float64], Reasons]:
        """Return the numbers themselves; with a step, the numbers of their cells."""
        found = line_values.all_inside(self._taken, *columns.numbers(values))
        return line_values.all_celled(self.cells, *found, columns.TOO_LARGE)

    def publish(self, lo: float, hi: float) -> Range | None:
        """Return the two ends as floats; None for missing values."""
        return None if lo == self.missing_at else Range(*map(_end, line_values.ends(self, lo, hi)))

    def ends(self, lo: NDArray[np.float64], hi: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ends that `publish` gives for each span; infinite where it gives None."""
        begin, end = (lo, hi) if self.cells is None else self.cells.ends(lo, hi)
        return begin, end if self.missing_at is None else np.where(hi == self.missing_at, np.inf, end)

    def to_spec(self) -> dict[str, Any]:
        """Return the declaration, with the domain as a list."""
        spec = super().to_spec()
        if self.domain:
            spec["domain"] = [_tidy(bound) for bound in self.domain]
        if self.step is not None:
            spec["step"] = _tidy(self.step)
        return spec


@dataclass(frozen=True, kw_only=True)
class Datetime(QuasiIdentifier):
    """A moment, published as a range of ISO-8601 text in UTC.

    A value is a datetime (naive means UTC), a date (its midnight), ISO-8601 text, or a number of seconds since the
    epoch. It must lie between the years 1684 and 2255, where float64 resolves microseconds.
    """

    PLACES_MISSING: ClassVar[bool] = True

    #: The first and the last moment; values outside are rejected. None: learned from the stream.
    domain: tuple[dt.date | str, dt.date | str] | None = None

    #: A duration such as `1h`. Ranges end at its multiples since the epoch (in UTC), or where the domain ends. None:
    #: they end at values of rows.
    step: dt.timedelta | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = Problems()
        domain = ends = step = None
        if self.domain is not None:
            ends = line_values.bounds(problems, self.domain, "a list of two dates", line_values.moment_bound)
            domain = tuple(_moment(end) for end in ends) if ends else None
        if self.step is not None:
            step = self._checked_step(problems, ends)
        problems.raise_if_any(type(self).__name__)
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "step", step)
        line_values.check_missing(self)

    def _checked_step(self, problems: Problems, ends: tuple[float, float] | None) -> str | None:
        if not isinstance(self.step, (str, dt.timedelta)):  # a bare number has no unit
            problems.must("step", A_DURATION, self.step)
            return None
        micros = a_duration(problems, "step", self.step, 1)
        if micros > EXACT:
            problems.must("step", "at most 100000d", self.step)
        elif ends and micros > ends[1] - ends[0]:
            problems.must("step", "no longer than the domain", self.step)
        return format_duration(micros)

    @cached_property
    def cells(self) -> Cells | None:
        """The cells of the step; None without a step."""
        if self.step is None:
            return None
        micros = a_duration(Problems(), "step", self.step, 1)
        domain = None if self._domain.learned else self._domain.widest()
        return Cells(numerator=micros, domain=domain, limit=EXACT)

    @cached_property
    def geometry(self) -> Interval:
        """The interval of microseconds, or of cell numbers."""
        return line_values.with_missing(self, self._line)

    @property
    def values(self) -> Interval:
        """The same, without missing values."""
        return self.geometry if self.missing_at is None else self._line

    @property
    def _line(self) -> Interval:
        return self._domain if self.cells is None else self.cells.geometry

    @cached_property
    def _domain(self) -> Interval:
        if self.domain is None:
            return Interval()
        first, last = self.domain
        return Interval(columns.moment(first), columns.moment(last))

    @property
    def _taken(self) -> Interval:
        """The accepted moments. A subclass may have another geometry."""
        return self.geometry if self.cells is None and self.missing_at is None else self._domain

    def coordinate(self, value: Any) -> float:
        """Return microseconds since the epoch; with a step, the number of the cell."""
        return line_values.celled(self.cells, line_values.inside(self._taken, columns.moment(value)), columns.TOO_FAR)

    def coordinates(self, values: Any) -> tuple[NDArray[np.float64], Reasons]:
        """Return microseconds since the epoch; with a step, the numbers of the cells."""
        found = line_values.all_inside(self._taken, *columns.moments(values))
        return line_values.all_celled(self.cells, *found, columns.TOO_FAR)

    def publish(self, lo: float, hi: float) -> Range | None:
        """Return the two moments, as `2020-01-31T12:00:00Z`; None for missing values."""
        return None if lo == self.missing_at else Range(*map(_iso, line_values.ends(self, lo, hi)))

    def to_spec(self) -> dict[str, Any]:
        """Return the declaration, with the domain as text."""
        spec = super().to_spec()
        if self.domain:
            spec["domain"] = [_iso(columns.moment(bound)) for bound in self.domain]
        return spec


@dataclass(frozen=True, kw_only=True)
class Categorical(QuasiIdentifier):
    """A category, published as the lowest node of a hierarchy above all of its values."""

    PLACES_MISSING: ClassVar[bool] = True

    #: The tree of categories. A policy gives a CSV file, or nested mappings and lists.
    hierarchy: Hierarchy

    #: What becomes of a category that the hierarchy does not have: `root` or `reject`.
    unknown: Unknown | str = Unknown.REJECT

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = Problems()
        object.__setattr__(self, "unknown", one_of(problems, "unknown", self.unknown, Unknown))
        problems.raise_if_any(type(self).__name__)
        if isinstance(self.hierarchy, Hierarchy):
            return
        try:
            object.__setattr__(self, "hierarchy", _hierarchy(self.hierarchy, PolicyFiles(allow_outside=True)))
        except PolicyError as error:
            raise PolicyError(error.details, type(self).__name__) from None

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], files: PolicyFiles) -> Categorical:
        """Read the hierarchy from its file, if the policy names one."""
        if "hierarchy" not in spec:
            rule = "must be a CSV file's name, a mapping or a list; it is missing."
            raise PolicyError([("hierarchy", rule)], cls.__name__)
        return cls(**{**spec, "hierarchy": _hierarchy(spec["hierarchy"], files)})

    @cached_property
    def geometry(self) -> Tree:
        """The hierarchy's tree; with a leaf for unknown categories and one for missing values, if these are taken."""
        return tree_and_more(self.hierarchy.tree, (self.unknown is Unknown.ROOT) + (self.missing is Missing.CATEGORY))

    @property
    def unknown_at(self) -> float | None:
        """The coordinate of unknown categories; None if they are rejected."""
        return float(len(self.hierarchy)) if self.unknown is Unknown.ROOT else None

    def coordinate(self, value: Any) -> float:
        """Return the number of the leaf. A number is looked up by its text: 3 and 3.0 as `3`."""
        text = columns.text_of(value)
        place = self.hierarchy.numbers.get(text)
        if place is not None:
            return float(place)
        if not text:
            raise Rejected(columns.MISSING)
        if self.unknown_at is None:
            raise Rejected(columns.UNKNOWN)
        return self.unknown_at

    def publish(self, lo: float, hi: float) -> str | None:
        """Return the label of the lowest common ancestor; None for missing values."""
        if lo == self.missing_at:
            return None
        if lo == self.unknown_at:
            return self.hierarchy.root_label
        return self.hierarchy.label(self.geometry.ancestor(lo, hi))

    def to_spec(self) -> dict[str, Any]:
        """Return the declaration with the content of the hierarchy, wherever it came from."""
        return {**super().to_spec(), "hierarchy": self.hierarchy.to_mapping()}


@dataclass(frozen=True, kw_only=True)
class Prefix(QuasiIdentifier):
    """A code of a fixed length, published as a prefix: 53706, 5370*, 537**, ..."""

    PLACES_MISSING: ClassVar[bool] = True

    ALPHABETS: ClassVar[dict[str, str]] = {
        "digits": "0123456789",
        "hex": "0123456789abcdef",
        "alphanumeric": "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    }

    #: The number of characters.
    length: int

    #: `digits`, `hex`, `alphanumeric` (the last two ignore case), or the characters themselves, in order.
    alphabet: str = "digits"

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = Problems()
        alphabet = self._checked_alphabet(problems)
        length = self.length
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            problems.must("length", "an integer of at least 1", length)
        elif alphabet:
            self._check_length(problems, len(alphabet))
        problems.raise_if_any(type(self).__name__)

    def _check_length(self, problems: Problems, characters: int) -> None:
        base = characters + (self.missing is Missing.CATEGORY)
        if self.length > 53 or base**self.length > EXACT:
            most = int(53 * math.log(2) / math.log(base))
            more = " and missing values" if base > characters else ""
            rule = f"at most {most} for an alphabet of {characters} characters{more} (2**53 codes)"
            problems.must("length", rule, self.length)

    def _checked_alphabet(self, problems: Problems) -> str:
        given = self.alphabet
        if isinstance(given, str):
            characters = self.ALPHABETS.get(given, given)
            if len(set(characters)) == len(characters) >= 2 and "*" not in characters:
                return characters
        rule = "'digits', 'hex', 'alphanumeric', or at least two distinct characters, none of them '*'"
        problems.must("alphabet", rule, given)
        return ""

    @cached_property
    def characters(self) -> str:
        """The alphabet's characters, in order."""
        return self.ALPHABETS.get(self.alphabet, self.alphabet)

    @cached_property
    def digits(self) -> dict[str, int]:
        """The position of each character in the alphabet. Built-in alphabets include both cases."""
        places = {character: place for place, character in enumerate(self.characters)}
        if self.alphabet in self.ALPHABETS:
            places.update({c.swapcase(): place for c, place in list(places.items())})
        return places

    @cached_property
    def geometry(self) -> Radix:
        """Numbers with one digit per character of the code."""
        codes = Radix(len(self.characters), self.length)
        return radix_and_missing(codes) if self.missing is Missing.CATEGORY else codes

    def coordinate(self, value: Any) -> float:
        """Return the code read as a number. An integer stands for its digits, without leading zeros."""
        if isinstance(value, (bool, np.bool_)):
            raise Rejected(columns.WRONG_TYPE)
        text = columns.text_of(value)
        if not text:
            raise Rejected(columns.MISSING)
        if len(text) != self.length:
            raise Rejected(columns.WRONG_LENGTH)
        digits, base, place = self.digits, self.geometry.base, 0
        for character in text:
            digit = digits.get(character)
            if digit is None:
                raise Rejected(columns.UNKNOWN_CHARACTER)
            place = place * base + digit
        return float(place)

    def coordinates(self, values: Any) -> tuple[NDArray[np.float64], Reasons]:
        """Read codes that are text all at once, if each is one."""
        codes, distinct = columns.factorize(values)
        found = self._of_texts(distinct)
        return columns.spread(codes, distinct, self.coordinate) if found is None else (found[codes], None)

    def _of_texts(self, texts: list[Any]) -> NDArray[np.float64] | None:
        """Return the coordinates of texts of ASCII characters; None if one of them is no such code."""
        if set(map(type, texts)) != {str} or set(map(len, texts)) != {self.length}:
            return None
        characters = np.array(texts, dtype=f"U{self.length}").view(np.uint32).reshape(len(texts), self.length)
        if characters.max() >= len(self._ascii):
            return None
        digits = self._ascii[characters]
        # Exact, as no code is beyond the integers that float64 represents.
        places = np.power(float(self.geometry.base), np.arange(self.length)[::-1])
        return None if digits.min() < 0 else digits @ places

    @cached_property
    def _ascii(self) -> NDArray[np.float64]:
        """The digit of each ASCII character; -1 if it has none."""
        return np.array([self.digits.get(chr(code), -1) for code in range(128)], dtype=np.float64)

    def publish(self, lo: float, hi: float) -> str | None:
        """Return the common prefix, followed by stars; None for missing values."""
        if lo == self.missing_at:
            return None
        shared = self.geometry.shared(lo, hi)
        rest = int(lo) // self.geometry.base ** (self.length - shared)
        text = ""
        for _ in range(shared):
            rest, digit = divmod(rest, self.geometry.base)
            text = self.characters[digit] + text
        return text.ljust(self.length, "*")


_registered: dict[str, type[QuasiIdentifier]] = {
    "numeric": Numeric,
    "prefix": Prefix,
    "categorical": Categorical,
    "datetime": Datetime,
}

#: Built-in types that are imported when a policy first names them.
_BUILT_IN = {
    "ip": "crenel.policy.kinds.ip_address:IpAddress",
    "coordinates": "crenel.policy.kinds.coordinates:Coordinates",
}


def register(name: str, cls: type[QuasiIdentifier]) -> None:
    """Let policies use a type by this name.

    Workers need no registration: a policy carries its quasi-identifiers, and workers import their classes.

    Raises:
        TypeError: `cls` is not a subclass of `QuasiIdentifier`.
        ValueError: `name` is not text, or names another type.
    """
    if not isinstance(name, str) or not name:
        msg = f"register: name must be text, not {name!r}."
        raise ValueError(msg)
    if not (isinstance(cls, type) and issubclass(cls, QuasiIdentifier)):
        msg = f"register: cls must be a subclass of QuasiIdentifier, not {cls!r}."
        raise TypeError(msg)
    known = _registered.get(name)
    # A class with the same module and name is the same class defined again, as in a notebook.
    if known is not None and _place(known) != _place(cls):
        msg = f"register: name must be free, not {name!r}, which is {known.__qualname__}."
        raise ValueError(msg)
    _registered[name] = cls


def lookup(name: str) -> type[QuasiIdentifier]:
    """Return the type of this name: registered, or offered by an installed package.

    Raises:
        KeyError: There is no such type. The message lists the known types.
    """
    if name in _BUILT_IN and name not in _registered:
        module, _, cls = _BUILT_IN[name].partition(":")
        register(name, getattr(import_module(module), cls))
    if name not in _registered:
        for entry in _entry_points():
            if entry.name == name:
                register(name, entry.load())
    if name not in _registered:
        listed = ", ".join(names())
        msg = f"one of the known types; {suggestion(name, names())}they are: {listed}"
        raise KeyError(msg)
    return _registered[name]


def names() -> list[str]:
    """List the names that a policy can use."""
    offered = [entry.name for entry in _entry_points()]
    built_in = dict.fromkeys([*_registered, *_BUILT_IN])
    return [*built_in, *sorted(set(offered) - set(built_in))]


def name_of(cls: type[QuasiIdentifier]) -> str:
    """Return the name by which a policy calls this type."""
    for name in _BUILT_IN:
        lookup(name)
    for name, known in _registered.items():
        if known is cls:
            return name
    for entry in _entry_points():
        if entry.name not in _registered and lookup(entry.name) is cls:
            return str(entry.name)
    msg = f"{cls.__qualname__} must be registered (crenel.policy.quasi_identifiers.register) to be written."
    raise PolicyError(msg)


def _entry_points() -> list[Any]:
    from importlib.metadata import entry_points

    return list(entry_points(group=ENTRY_POINTS))


def _place(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _hierarchy(given: Any, files: PolicyFiles) -> Hierarchy:
    if isinstance(given, Hierarchy):
        return given
    if isinstance(given, (str, PathLike)):
        try:
            path = files.path(given)
        except PolicyError as error:
            raise PolicyError([("hierarchy", sentence) for _, sentence in error.details], "") from None
        return Hierarchy.from_csv(path)
    if isinstance(given, (Mapping, list, tuple)):
        return Hierarchy.from_mapping(given)
    problems = Problems()
    problems.must("hierarchy", "a CSV file's name, a mapping or a list", given)
    raise PolicyError(problems.found, "")


def _end(value: float) -> float | None:
    # JSON has no infinity.
    return None if math.isinf(value) else float(value)


def _tidy(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < EXACT else value


def _moment(micros: float) -> dt.datetime:
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return epoch + dt.timedelta(microseconds=int(micros))


def _iso(micros: float) -> str | None:
    if math.isinf(micros):
        return None
    return _moment(micros).isoformat().replace("+00:00", "Z")
