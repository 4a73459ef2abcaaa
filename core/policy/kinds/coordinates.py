"""Latitude and longitude, published as a cell of the map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from crenel.errors import Rejected
from crenel.policy.checks import Problems, an_integer
from crenel.policy.geometry import Radix
from crenel.policy.kinds.radix_values import RadixValues

__all__ = ["NOT_A_PLACE", "Coordinates"]

NOT_A_PLACE = "not a place"
_MOST_LEVELS = 24


@dataclass(frozen=True, kw_only=True)
class Coordinates(RadixValues):
    """A place on the earth, published as the bounds of a cell: `south,west,north,east` in degrees.

    The world is divided into four, each quarter again, and so on. A cell's number in base 4 is a Z-order: cells whose
    numbers begin alike are parts of one larger cell.
    """

    #: How often the world is divided into four, from 1 to 24; 16: cells of 300 by 600 metres at the equator.
    levels: int = 16

    def __post_init__(self) -> None:
        problems = Problems()
        levels = an_integer(problems, "levels", self.levels, 1)
        if levels > _MOST_LEVELS:
            problems.must("levels", f"at most {_MOST_LEVELS}", self.levels)
        problems.raise_if_any(type(self).__name__)
        super().__post_init__()

    @property
    def codes(self) -> Radix:
        """Numbers with one digit per division."""
        return Radix(4, self.levels)

    def code(self, value: Any) -> int:
        """Return the number of the cell of a latitude and a longitude: text such as `43.07,-89.40`, or a pair."""
        north, east = _degrees(value)
        row, column = _cell(north, -90.0, 180.0, 2**self.levels), _cell(east, -180.0, 360.0, 2**self.levels)
        number = 0
        for bit in range(self.levels - 1, -1, -1):
            number = number * 4 + (row >> bit & 1) * 2 + (column >> bit & 1)
        return number

    def shown(self, first: int, digits: int) -> str:
        """Return the bounds of the smallest cell that has all places in it."""
        south, west, height, width = -90.0, -180.0, 180.0, 360.0
        for place in range(digits):
            digit = first // 4 ** (self.levels - 1 - place) % 4
            height, width = height / 2, width / 2  # exact: only halves are taken
            south, west = south + height * (digit // 2), west + width * (digit % 2)
        return ",".join(repr(bound) for bound in (south, west, south + height, west + width))

    def found(self, published: str) -> tuple[int, int]:
        """Return a cell inside the bounds, and how often the world was divided for them."""
        south, west, north, east = (float(bound) for bound in published.split(","))
        digits = round(math.log2(180.0 / (north - south)))
        if not 0 <= digits <= self.levels:
            raise ValueError
        return self.code(((south + north) / 2, (west + east) / 2)), digits


def _cell(degrees: float, start: float, width: float, count: int) -> int:
    """Return the number of the cell of an angle, of `count` between `start` and `start + width`."""
    size = width / count  # exact, as all borders of cells are
    number = min(int((degrees - start) / size), count - 1)
    # The difference is rounded, perhaps across a border.
    return number - 1 if start + number * size > degrees else number


def _degrees(value: Any) -> tuple[float, float]:
    parts = value.split(",") if isinstance(value, str) else value
    try:
        north, east = (float(part) for part in parts)
    except (TypeError, ValueError):
        raise Rejected(NOT_A_PLACE) from None
    if not (-90 <= north <= 90 and -180 <= east <= 180):  # NaN too
        raise Rejected(NOT_A_PLACE)
    return north, east
