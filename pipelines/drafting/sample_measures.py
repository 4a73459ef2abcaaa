"""Measures of a sample of rows: counts and shares, from arrays alone."""

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
    "held",
    "lateness",
    "middle",
    "only_one",
    "outward",
    "places",
    "round_duration",
    "round_step",
    "rows_until",
    "unique_persons",
]

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
    """Each value's place among the distinct ones."""
    found: Ints = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return found


def persons_of(groups: Ints, persons: Ints) -> tuple[Ints, Ints]:
    """For each pair of a group and a person in it, both; groups and persons count from 0."""
    size = int(persons.max(initial=0)) + 1
    pairs = np.unique(groups * size + persons)
    return pairs // size, pairs % size


def only_one(groups: Ints, persons: Ints) -> NDArray[np.bool_]:
    """For each group whether only one person is in it."""
    of, _ = persons_of(groups, persons)
    alone: NDArray[np.bool_] = np.bincount(of, minlength=int(groups.max(initial=-1)) + 1) == 1
    return alone


def combinations(columns: NDArray[np.generic]) -> Ints:
    """Each row's place among the distinct ones; what is missing is as good as a value."""
    boxes = np.zeros(len(columns), dtype=np.int64)
    for column in columns.T:
        codes = places(column)
        boxes = places(boxes * (int(codes.max(initial=0)) + 1) + codes)
    return boxes


def unique_persons(qi: Floats, persons: Ints) -> int:
    """How many persons have a combination of quasi-identifiers that nobody else has."""
    boxes = combinations(qi)
    of, who = persons_of(boxes, persons)
    return len(np.unique(who[only_one(boxes, persons)[of]]))


def middle(values: Floats, width: float) -> float:
    """Which part of a width the middle 98% of the values lie in."""
    low, high = np.quantile(values, [0.01, 0.99])
    return float(high - low) / width if width > 0 else 1.0


def rows_until(persons: Ints, k: int) -> Ints:
    """For each row how many rows later k persons, its own included, have come; -1 if never."""
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


def lateness(time: Ints) -> Ints:
    """By how much each row's event time is behind the latest before it."""
    return np.maximum.accumulate(time) - time


def held(time: Ints, window: int) -> Ints:
    """For each row, in the order of time, how many are within the window before it."""
    ordered = np.sort(time)
    return np.arange(1, len(ordered) + 1) - np.searchsorted(ordered, ordered - window, "right")


def round_duration(micros: float) -> int:
    """The next greater duration that one would say: 1s, 2s, 5s, ... 30 days, 60 days, ..."""
    for known in _DURATIONS:
        if micros <= known:
            return known
    return math.ceil(micros / _DURATIONS[-1]) * _DURATIONS[-1]


def round_step(values: Floats, width: float, *, moments: bool = False) -> str | None:
    """A step to round the ends of ranges by, as a policy has it; None if none is needed, or would help.

    It is a number, or a duration of moments, that one would say, and about a hundredth of the width: more if its cells
    would otherwise have fewer than two different values on average.
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
    """1, 2 and 5 times the powers of ten, from this on."""
    power = math.floor(math.log10(least))
    while True:
        for digit in (1, 2, 5):
            number = Decimal(digit).scaleb(power)
            if float(number) >= least * (1 - 1e-9):
                yield float(number), f"{number:f}"
        power += 1


def friendly_above(number: float, known: Sequence[int]) -> int:
    """The first of the known numbers, which grow, that is not less; the last if all are."""
    return next((one for one in known if one >= number), known[-1])


def outward(lo: float, hi: float) -> tuple[float, float]:
    """The range rounded outward to a multiple of 1, 2 or 5 times a power of ten, wider than 0.

    The step is at least a fifth of the width, so that the ends tell little of the extreme values.
    """
    fifth = (hi - lo or abs(lo) or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(fifth))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= fifth * (1 - 1e-9))
    first, last = math.floor(lo / step), math.ceil(hi / step)
    last += first == last
    # Multiplying by 0.1 leaves a tail of digits.
    return float(f"{first * step:.12g}"), float(f"{last * step:.12g}")
