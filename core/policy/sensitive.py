"""Sensitive columns, and how their values become codes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.errors import Rejected
from crenel.policy import columns
from crenel.policy.checks import Problems, a_boolean, an_integer, one_of, short
from crenel.policy.columns import Reasons
from crenel.policy.kinds.gap_rules import Missing

__all__ = ["Sensitive"]

_BINS = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class Sensitive:
    """A column that is published unchanged, and whose values must be diverse in every group.

    By default its values are unknown beforehand and have no order, and a missing value (None, NaN) is a value like any
    other. If `values` or `domain` is declared, all other values are rejected; so are missing ones, unless `missing`
    says otherwise.
    """

    #: All values, in their order if `ordered`. None among them stands for a missing value.
    values: tuple[Any, ...] | None = None

    #: The least and the largest number of a numeric column, which is divided into bins.
    domain: tuple[float, float] | None = None

    #: The number of bins of equal width in the domain; 10 by default.
    bins: int | None = None

    #: Whether t-closeness uses the order: near values are then less distant than far ones.
    ordered: bool = False

    #: Whether a missing value is one more value (`category`) or its row is rejected (`reject`). None: `category`,
    #: unless `values` or `domain` is declared.
    missing: Missing | str | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        clean: dict[str, Any] = {
            "values": self._checked_values(problems),
            "domain": self._checked_domain(problems),
            "bins": self._checked_bins(problems),
            "ordered": a_boolean(problems, "ordered", self.ordered),
            "missing": None if self.missing is None else one_of(problems, "missing", self.missing, Missing),
        }
        if clean["missing"] is Missing.HOLE:
            problems.add("missing", "must be 'category' or 'reject': only a quasi-identifier can have a hole.")
        if clean["missing"] is Missing.CATEGORY and clean["ordered"]:
            problems.add("missing", "must be 'reject' with ordered: a missing value has no place in the order.")
        if self.values is not None and self.domain is not None:
            problems.add("domain", "must not be given together with values.")
        if clean["ordered"] and self.values is None and self.domain is None:
            problems.add("ordered", "needs values, in their order, or a numeric domain.")
        problems.raise_if_any("Sensitive")
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        said = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        inside = ", ".join(f"{name}={short(value)}" for name, value in said.items() if value)
        return f"Sensitive({inside})"

    @property
    def size(self) -> int | None:
        """The number of codes, which count from 0; None if it is unknown beforehand."""
        if self.values is not None:
            return len(self._places)
        return None if self.bins is None else self.bins + (self.missing is Missing.CATEGORY)

    @property
    def _takes_missing(self) -> bool:
        """Whether a missing value is one of the values."""
        if self.missing is not None:
            return self.missing is Missing.CATEGORY
        return self.domain is None and (self.values is None or None in map(_text, self.values))

    def code(self, value: Any) -> int:
        """Return the code of a value.

        It is the position in `values`, or the number of the bin, or a stable 63-bit hash of the value's text. The text
        makes 1 and "1" the same value, which counts fewer distinct values rather than more.

        Raises:
            Rejected: The value is not among those declared.
        """
        if self._takes_missing and self.domain is not None and columns.is_missing(value):
            return self.bins or _BINS
        if self.domain is not None:
            return int(self._bin(np.array([columns.number(value)]), None)[0])
        text = _text(value)
        if text is None and not self._takes_missing:
            raise Rejected(columns.MISSING)
        if self.values is None:
            return _hash(text)
        if text not in self._places:
            raise Rejected(columns.MISSING if text is None else columns.UNKNOWN)
        return self._places[text]

    def codes(self, values: Any) -> tuple[NDArray[np.int64], Reasons]:
        """Apply `code` to a column: 0 if a value was rejected, with the reasons (None if none was)."""
        if self.domain is None:
            found, reasons = columns.spread(*columns.factorize(values), self.code, np.int64)
            return found, reasons
        numbers, reasons = columns.numbers(values)
        lo, hi = self.domain
        reasons = columns.mark(reasons, (numbers < lo) | (numbers > hi), columns.OUTSIDE)
        found = self._bin(numbers, reasons)
        if reasons is None or not self._takes_missing:
            return found, reasons
        holes = columns.holes(values, np.flatnonzero(reasons != None))  # noqa: E711 - elementwise
        found[holes] = self.bins or _BINS
        reasons[holes] = None
        return found, reasons if any(reasons) else None

    def to_spec(self) -> dict[str, Any]:
        """Return the declaration as a policy file has it."""
        spec: dict[str, Any] = {}
        if self.values is not None:
            spec["values"] = list(self.values)
        if self.domain is not None:
            spec["domain"] = list(self.domain)
            spec["bins"] = self.bins
        if self.ordered:
            spec["ordered"] = True
        if isinstance(self.missing, Missing):
            spec["missing"] = self.missing.value
        return spec

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @cached_property
    def _places(self) -> dict[str | None, int]:
        places = {_text(value): place for place, value in enumerate(self.values or ())}
        if self.missing is Missing.CATEGORY:
            places.setdefault(None, len(places))
        return places

    def _bin(self, numbers: NDArray[np.float64], reasons: Reasons) -> NDArray[np.int64]:
        lo, hi = self.domain or (0.0, 1.0)
        bins = self.bins or _BINS
        if reasons is None and ((numbers < lo) | (numbers > hi)).any():
            raise Rejected(columns.OUTSIDE)
        if reasons is not None:
            numbers = np.where(reasons == None, numbers, lo)  # noqa: E711 - elementwise
        return np.minimum((numbers - lo) / (hi - lo) * bins, bins - 1).astype(np.int64)

    def _checked_values(self, problems: Problems) -> tuple[Any, ...] | None:
        if self.values is None:
            return None
        if not isinstance(self.values, (list, tuple)) or len(self.values) < 2:
            problems.must("values", "a list of at least two values", self.values)
            return None
        seen: set[str | None] = set()
        for value in self.values:
            try:
                text = _text(value)
            except Rejected:
                problems.must("values", "a list of single values", value)
                continue
            if text in seen:
                problems.add("values", f"must hold each value once, not {short(value)} again.")
            seen.add(text)
        return tuple(self.values)

    def _checked_domain(self, problems: Problems) -> tuple[float, float] | None:
        if self.domain is None:
            return None
        if isinstance(self.domain, (list, tuple)) and len(self.domain) == 2:
            try:
                lo, hi = columns.number(self.domain[0]), columns.number(self.domain[1])
            except Rejected:
                pass
            else:
                if lo < hi:
                    return (lo, hi)
        rule = "a list of two numbers, the first less than the second"
        problems.must("domain", rule, self.domain)
        return None

    def _checked_bins(self, problems: Problems) -> int | None:
        if self.domain is None:
            if self.bins is not None:
                problems.add("bins", "needs a numeric domain.")
            return None
        return _BINS if self.bins is None else an_integer(problems, "bins", self.bins, 2)


def _text(value: Any) -> str | None:
    """Return the canonical text; None for a missing value."""
    try:
        return columns.text_of(value)
    except Rejected as error:
        if error.reason == columns.MISSING:
            return None
        raise


def _hash(text: str | None) -> int:
    tagged = b"missing" if text is None else b"=" + text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(tagged, digest_size=8).digest(), "little") >> 1
