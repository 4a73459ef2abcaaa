"""t-closeness: how far the sensitive values of a group are from those of the stream.

Functions take `numbers`, an array of one element that has the field `t`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from crenel.engine.kernels.arrays import Array, copy_into
from crenel.engine.kernels.compiler import bare


class Closeness(NamedTuple):
    """What is counted for t-closeness. Without t there are no columns, and the histograms are empty."""

    values: Any  # number of values of each sensitive column
    ordered: Any  # whether they have an order
    stream: Any  # histogram of the stream, [column, value]; of a stream that is sampled, of the rows that were kept
    scratch: Any  # histogram of one group, for a moment


@bare
def count_values(histogram: Array, sensitive: Array) -> None:
    """Count the sensitive values of a row."""
    for j in range(histogram.shape[0]):
        histogram[j, sensitive[j]] += 1


@bare
def within_t(numbers: Array, closeness: Closeness, histogram: Array, total: int) -> bool:
    """Return whether a group of `total` rows is within t of the stream in every sensitive column.

    The distance is half the sum of the differences; where values have an order, the earth mover's distance.
    """
    n = numbers[0]
    for j in range(closeness.values.size):
        values = closeness.values[j]
        counted = 0
        for v in range(values):
            counted += closeness.stream[j, v]
        distance = 0.0
        cumulative = 0.0
        for v in range(values):
            difference = histogram[j, v] / total - closeness.stream[j, v] / counted
            if closeness.ordered[j]:
                cumulative += difference
                distance += abs(cumulative)
            else:
                distance += abs(difference)
        if closeness.ordered[j]:
            distance = distance / (values - 1) if values > 1 else 0.0
        else:
            distance /= 2.0
        if distance > n.t:
            return False
    return True


@bare
def clear_scratch(closeness: Closeness) -> None:
    """Empty the scratch histogram."""
    histogram = closeness.scratch
    for j in range(histogram.shape[0]):
        for v in range(histogram.shape[1]):
            histogram[j, v] = 0


@bare
def stays_within_t(numbers: Array, closeness: Closeness, histogram: Array, sensitive: Array) -> bool:
    """Return whether a group with this histogram is still within t if it takes one more row."""
    grown = closeness.scratch
    for j in range(grown.shape[0]):
        copy_into(histogram[j], grown[j])
    count_values(grown, sensitive)
    total = 0
    for v in range(grown.shape[1]):
        total += grown[0, v]
    return within_t(numbers, closeness, grown, total)
