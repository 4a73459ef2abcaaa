"""Latitude and longitude, in one column or in two, published as a cell of the map."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from crenel.errors import Rejected
from crenel.policy import columns
from crenel.policy.checks import Problems, an_integer, as_number
from crenel.policy.columns import Floats, Reasons
from crenel.policy.geometry import Radix
from crenel.policy.kinds.radix_values import RadixValues, rewritten

__all__ = ["NOT_A_PLACE", "Coordinates"]

NOT_A_PLACE = "not a place"
_MOST_LEVELS = 24
#: The whole world: south, west, north, east.
_WORLD = (-90.0, -180.0, 90.0, 180.0)
#: Within bounds that a policy declares, borders of cells are rounded to so many digits: a tenth of a millimetre.
_DIGITS = 9
#: The narrowest cell, in degrees: ten centimetres.
_NARROWEST = 1e-6


@dataclass(frozen=True, kw_only=True)
class Coordinates(RadixValues):
    """A place on the earth, published as the bounds of a cell: `south,west,north,east` in degrees.

    The world, or the part of it that is declared, is divided into four, each quarter again, and so on. A cell's number
    in base 4 is a Z-order: cells whose numbers begin alike are parts of one larger cell.
    """

    #: How often the world is divided into four, from 1 to 24; 16: cells of 300 by 600 metres at the equator.
    levels: int = 16

    #: The columns of the latitude and of the longitude, if they are two. The cell is published under a name of its own.
    columns: tuple[str, str] | None = None

    #: The part of the world where all places are: south, west, north, east. A place elsewhere is rejected.
    bounds: tuple[float, float, float, float] | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        self._check_lists(problems)
        levels = an_integer(problems, "levels", self.levels, 1)
        if levels > _MOST_LEVELS:
            problems.must("levels", f"at most {_MOST_LEVELS}", self.levels)
        elif not problems.found and self.bounds is not None:
            south, west, north, east = self.bounds
            if min(north - south, east - west) / 2**levels < _NARROWEST:
                problems.must("levels", "fewer: cells must be at least 0.000001 degrees wide", self.levels)
        problems.raise_if_any(type(self).__name__)
        super().__post_init__()

    def _check_lists(self, problems: Problems) -> None:
        given = self.columns
        if given is not None:
            names = tuple(given) if isinstance(given, (list, tuple)) else ()
            if len(set(names)) != 2 or len(names) != 2 or not all(isinstance(name, str) and name for name in names):
                problems.must("columns", "two names, of the column of the latitude and of the longitude", given)
            object.__setattr__(self, "columns", names)
        if self.bounds is not None:
            found = _bounds(self.bounds)
            if found is None:
                rule = "[south, west, north, east] in degrees, as in [45.4, -73.8, 45.7, -73.4]"
                problems.must("bounds", rule, self.bounds)
            object.__setattr__(self, "bounds", found)

    def to_spec(self) -> dict[str, Any]:
        """Return the declaration, with lists for YAML."""
        spec = super().to_spec()
        return spec | {name: list(spec[name]) for name in ("columns", "bounds") if name in spec}

    def inputs(self, name: str) -> tuple[str, ...]:
        """The columns of the input that it is made of."""
        return (name,) if self.columns is None else self.columns

    @property
    def codes(self) -> Radix:
        """Numbers with one digit per division."""
        return Radix(4, self.levels)

    def code(self, value: Any) -> int:
        """Return the number of the cell of a latitude and a longitude: text such as `43.07,-89.40`, or a pair."""
        north, east = _degrees(value)
        if not self._is_inside(north, east):
            raise Rejected(columns.OUTSIDE)
        return int(self._codes(np.array([north]), np.array([east]))[0])

    def together(self, given: list[Any]) -> tuple[Floats, Reasons]:
        """Return the coordinates of places, whether they are one column or two, and why some have none."""
        if self.columns is None:
            return self.coordinates(given[0])
        (north, no_north), (east, no_east) = map(columns.numbers, given)
        reasons = no_north
        if no_east is not None:
            reasons = no_east if reasons is None else np.where(reasons == None, no_east, reasons)  # noqa: E711
        there = ~np.isnan(north) & ~np.isnan(east)
        on_earth = (np.abs(north) <= 90) & (np.abs(east) <= 180)
        reasons = columns.mark(reasons, there & ~on_earth, NOT_A_PLACE)
        inside = self._is_inside(north, east)
        reasons = columns.mark(reasons, there & on_earth & ~inside, columns.OUTSIDE)
        found = np.full(len(north), np.nan)
        found[inside] = self._codes(north[inside], east[inside])
        if self.codes.base != self.geometry.base:
            found[inside] = rewritten(found[inside].astype(np.int64), self.codes, self.geometry.base)
        return found, reasons

    def _is_inside(self, north: Any, east: Any) -> Any:
        south, west, north_end, east_end = self.bounds or _WORLD
        return (north >= south) & (north <= north_end) & (east >= west) & (east <= east_end)

    def _codes(self, north: Floats, east: Floats) -> Any:
        """Return the numbers of the cells of places inside the bounds."""
        row, column = self._cells(north, 0), self._cells(east, 1)
        number = np.zeros(len(north), dtype=np.int64)
        for bit in range(self.levels - 1, -1, -1):
            number = number * 4 + (row >> bit & 1) * 2 + (column >> bit & 1)
        return number

    def _cells(self, degrees: Floats, axis: int) -> Any:
        """Number the cells of angles along an axis: 0 for latitudes, 1 for longitudes."""
        start, end = (self.bounds or _WORLD)[axis], (self.bounds or _WORLD)[axis + 2]
        last = 2**self.levels - 1
        number = np.clip(((degrees - start) * ((last + 1) / (end - start))).astype(np.int64), 0, last)
        # The quotient is rounded, perhaps across a border.
        number = np.where(self._borders(number, axis) > degrees, number - 1, number)
        return np.where((number < last) & (self._borders(number + 1, axis) <= degrees), number + 1, number)

    def _borders(self, number: Any, axis: int) -> Any:
        """Return where cells begin. It grows with the number, however it is rounded."""
        start, end = (self.bounds or _WORLD)[axis], (self.bounds or _WORLD)[axis + 2]
        # A part of the width that is a power of two is exact; so in the whole world, all borders are.
        border = start + np.asarray(number) / 2**self.levels * (end - start)
        if self.bounds is not None:
            border = np.clip(np.round(border, _DIGITS), start, end)
        border = np.where(np.asarray(number) <= 0, start, border)
        return np.where(np.asarray(number) >= 2**self.levels, end, border)

    def shown(self, first: int, digits: int) -> str:
        """Return the bounds of the smallest cell that has all places in it."""
        row = column = 0
        for place in range(self.levels):
            digit = first // 4 ** (self.levels - 1 - place) % 4 if place < digits else 0
            row, column = row * 2 + digit // 2, column * 2 + digit % 2
        size = 2 ** (self.levels - digits)
        ends = [(row, 0), (column, 1), (row + size, 0), (column + size, 1)]
        return ",".join(repr(float(self._borders(number, axis))) for number, axis in ends)

    def found(self, published: str) -> tuple[int, int]:
        """Return a cell inside the bounds, and how often the world was divided for them."""
        south, west, north, east = (float(bound) for bound in published.split(","))
        first, _, last, _ = self.bounds or _WORLD
        digits = round(math.log2((last - first) / (north - south)))
        if not 0 <= digits <= self.levels:
            raise ValueError
        return self.code(((south + north) / 2, (west + east) / 2)), digits


def _bounds(given: Any) -> tuple[float, float, float, float] | None:
    """Return bounds of a part of the world; None if they are none."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        return None
    numbers = [as_number(one) for one in given]
    found = [number for number in numbers if number is not None]
    if len(found) != 4 or len(numbers) != 4:
        return None
    south, west, north, east = found
    is_part = -90 <= south < north <= 90 and -180 <= west < east <= 180
    return (south, west, north, east) if is_part else None


def _degrees(value: Any) -> tuple[float, float]:
    parts = value.split(",") if isinstance(value, str) else value
    try:
        north, east = (float(part) for part in parts)
    except (TypeError, ValueError):
        raise Rejected(NOT_A_PLACE) from None
    if not (-90 <= north <= 90 and -180 <= east <= 180):  # NaN too
        raise Rejected(NOT_A_PLACE)
    return north, east
