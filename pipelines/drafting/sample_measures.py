"""Measures of a sample of rows: counts and shares, computed from arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from crenel.policy.columns import Floats, Ints
from crenel.policy.durations import format_duration

__all__ = [
    "combinations",
    "friendly_above",
    "grid",
    "held",
    "is_stretched",
    "lateness",
    "middle",
    "only_one",
    "outward",
    "places",
    "round_duration",
    "round_step",
    "rows_until",
    "unique_persons",
    "usual_disorder",
    "waits",
]

#: Outliers stretch a domain if the middle 98% of the rows use less than this share of it.
_STRETCHED = 0.2

#: With at most this many different values, their distribution says nothing.
FEW_VALUES = 20

_SECOND = 1_000_000
_DURATIONS = [
    unit * number * _SECOND
    for unit, numbers in (
        (1, (1, 2, 5, 10, 30)),
        (60, (1, 2, 5, 10, 30)),
        (3600, (1, 2, 6, 12)),
        (86_400, (1, 2, 7, 14, 30)),
    )
    for number in numbers
]


def places(values: NDArray[np.generic]) -> Ints:
    """Number the distinct values in their order, and return the number of each value."""
    found: Ints = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return found


def persons_of(groups: Ints, persons: Ints) -> tuple[Ints, Ints]:
    """List each pair of a group and a person in it once. Groups and persons are numbered from 0."""
    size = int(persons.max(initial=0)) + 1
    pairs = np.unique(groups * size + persons)
    return pairs // size, pairs % size


def only_one(groups: Ints, persons: Ints) -> NDArray[np.bool_]:
    """Tell for each group whether only one person is in it."""
    of, _ = persons_of(groups, persons)
    alone: NDArray[np.bool_] = np.bincount(of, minlength=int(groups.max(initial=-1)) + 1) == 1
    return alone


def combinations(columns: NDArray[np.generic]) -> Ints:
    """Number the distinct rows, and return the number of each row. A missing value counts as a value."""
    boxes = np.zeros(len(columns), dtype=np.int64)
    for column in columns.T:
        codes = places(column)
        boxes = places(boxes * (int(codes.max(initial=0)) + 1) + codes)
    return boxes


def unique_persons(qi: Floats, persons: Ints) -> int:
    """Count the persons who have a combination of quasi-identifiers that nobody else has."""
    boxes = combinations(qi)
    of, who = persons_of(boxes, persons)
    return len(np.unique(who[only_one(boxes, persons)[of]]))


def middle(values: Floats, width: float) -> float:
    """Measure how large a part of a width the middle 98% of the values take up."""
    low, high = np.quantile(values, [0.01, 0.99])
    return float(high - low) / width if width > 0 else 1.0


def grid(degrees: Floats, most: float, cells: int) -> tuple[float, float]:
    """Lay a grid of `cells` cells of a round size over angles; return where it begins and ends.

    Args:
        degrees: The angles, from -`most` to `most`.
        most: The end of the world.
        cells: How many cells there are.
    """
    lo, hi = float(degrees.min()), float(degrees.max())
    least = max((hi - lo) / (cells - 1), 1e-5)
    power = 10.0 ** math.floor(math.log10(least))
    # A shift to a round begin costs up to one cell.
    size = next(one * power for one in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if one * power >= least)
    if size * cells >= 2 * most:
        return -most, most
    start = min(max(round(math.floor(lo / size) * size, 9), -most), most - size * cells)
    return round(start, 9), round(start + size * cells, 9)


def is_stretched(share: float, distinct: int) -> bool:
    """Whether a few outliers stretch a domain.

    Args:
        share: The part of the domain that the middle 98% of the rows take up.
        distinct: How many different values there are.
    """
    return share < _STRETCHED and distinct > FEW_VALUES


def rows_until(persons: Ints, k: int) -> Ints:
    """Count for each row how many rows later k persons, its own included, have come; -1 if they never do."""
    found = np.full(len(persons), -1, dtype=np.int64)
    codes = places(persons).tolist()
    inside = [0] * len(codes)
    distinct = end = 0
    for start, leaving in enumerate(codes):
        while distinct < k and end < len(codes):
            distinct += inside[codes[end]] == 0
            inside[codes[end]] += 1
            end += 1
        if distinct < k:
            break
        found[start] = end - 1 - start
        inside[leaving] -= 1
        distinct -= inside[leaving] == 0
    return found


def waits(persons: Ints, time: Ints, k: int) -> tuple[Ints, Ints]:
    """Measure how long each row waits until k persons, its own included, have come.

    Args:
        persons: The persons of the rows, in the order of event time.
        time: The event times, in order.
        k: How many persons.

    Returns:
        The rows and the time that each row waits. Rows for which k persons never come are left out.
    """
    until = rows_until(persons, k)
    start = np.flatnonzero(until >= 0)
    rows = until[start]
    return rows, time[start + rows] - time[start]


def lateness(time: Ints) -> Ints:
    """Measure how far each row's event time is behind the latest one before it."""
    return np.maximum.accumulate(time) - time


def usual_disorder(time: Ints) -> tuple[int, bool]:
    """Find the disorder that covers nearly all rows, rounded up.

    Returns:
        The disorder in microseconds; and whether the rows are in the order of a stream at all. They are not if their
        disorder is of the size of the whole sample.
    """
    most = round_duration(float(np.quantile(lateness(time), 0.999)))
    return most, 2 * most <= int(np.ptp(time))


def held(time: Ints, window: int) -> Ints:
    """Count for each row, in the order of time, the rows within the window before it."""
    ordered = np.sort(time)
    return np.arange(1, len(ordered) + 1) - np.searchsorted(ordered, ordered - window, "right")


def round_duration(micros: float) -> int:
    """Round up to a duration that people use: 1s, 2s, 5s, ... 30 days, 60 days, ..."""
    for known in _DURATIONS:
        if micros <= known:
            return known
    return math.ceil(micros / _DURATIONS[-1]) * _DURATIONS[-1]


def round_step(values: Floats, width: float, *, moments: bool = False) -> str | None:
    """Suggest a step for the ends of ranges, as a policy writes it; None if no step helps.

    It is a round number, or a round duration for moments: about a hundredth of the width, or more if the cells would
    otherwise have fewer than two different values on average.
    """
    distinct = np.unique(values)
    for step, text in _durations(width / 100) if moments else _numbers(width / 100):
        if step > width:
            return None
        if 2 * len(np.unique(np.floor(distinct / step))) <= len(distinct):
            return text
    return None


def _durations(least: float) -> Iterator[tuple[float, str]]:
    micros = round_duration(least)
    while True:
        yield micros, format_duration(micros)
        micros = round_duration(micros + 1)


def _numbers(least: float) -> Iterator[tuple[float, str]]:
    """Yield 1, 2 and 5 times the powers of ten, from `least` on."""
    power = math.floor(math.log10(least))
    while True:
        for digit in (1, 2, 5):
            number = Decimal(digit).scaleb(power)
            if float(number) >= least * (1 - 1e-9):
                yield float(number), f"{number:f}"
        power += 1


def friendly_above(number: float, known: Sequence[int]) -> int:
    """Choose the first of some growing numbers that is not less than `number`; the last if all are less."""
    return next((one for one in known if one >= number), known[-1])


def outward(lo: float, hi: float) -> tuple[float, float]:
    """Round a range outward to multiples of 1, 2 or 5 times a power of ten, and make it wider than 0.

    That step is at least a fifth of the width, so that the ends reveal little about the extreme values; and not so
    small that floats of the size of the ends cannot differ by it.
    """
    fifth = max((hi - lo or abs(lo) or 1.0) / 5, 8 * float(np.spacing(max(abs(lo), abs(hi)))))
    exponent = math.floor(math.log10(fifth))
    power = 10.0**exponent
    digit = next(m for m in (1, 2, 5, 10) if m * power >= fifth * (1 - 1e-9))
    first, last = math.floor(lo / (digit * power)), math.ceil(hi / (digit * power))
    last += first == last
    # Multiplying by a power such as 0.1 would leave a tail of digits.
    return float(Decimal(first * digit).scaleb(exponent)), float(Decimal(last * digit).scaleb(exponent))
