"""Condensation (dynamicGroup), which CASTLE is compared with: groups of k to 2k - 1 rows that are kept as rows arrive.

Aggarwal, Yu: *A condensation approach to privacy preserving data mining*, EDBT 2004, as far as CASTLE's section 5.3
gives it. Condensation itself keeps only the sums of a group, and publishes rows drawn anew from them. To be compared by
loss, as CASTLE's paper does, a group here keeps its rows, is cut at the median along its principal axis where
condensation estimates that cut, and publishes the box of its rows. It releases nothing before the end of the stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Condensed(NamedTuple):
    """What is published for each row, and the mean loss."""

    lo: Floats
    hi: Floats
    loss: float
    #: The number of each row's group.
    group: NDArray[np.int64]


def condensation(qi: Floats, scales: Floats, k: int, history: int, seed: int) -> Condensed:
    """Group all rows: the first `history` of them at once, and every other one as it arrives.

    Args:
        qi: The rows.
        scales: One over the width of each domain.
        k: The least rows of a group.
        history: The rows that are there at the start.
        seed: The seed of the rows that the first groups are built around.
    """
    places = qi * scales
    members = _first_groups(places[:history], k, seed)
    means = np.array([places[group].mean(axis=0) for group in members])
    for row in range(min(history, len(qi)), len(qi)):
        nearest = int(np.argmin(((means - places[row]) ** 2).sum(axis=1)))
        members[nearest].append(row)
        if len(members[nearest]) >= 2 * k:
            halves = _halves(places, members[nearest])
            members[nearest] = halves[0]
            members.append(halves[1])
            means = np.vstack([means, places[halves[1]].mean(axis=0)])
        means[nearest] = places[members[nearest]].mean(axis=0)
    return _published(qi, scales, members)


def _first_groups(places: Floats, k: int, seed: int) -> list[list[int]]:
    """Take a row at random and its k - 1 nearest, until fewer than k are left; these join the nearest groups."""
    random = np.random.default_rng(seed)
    left = np.arange(len(places))
    members: list[list[int]] = []
    while len(left) >= k or not members:
        around = places[random.choice(left)]
        order = np.argsort(((places[left] - around) ** 2).sum(axis=1), kind="stable")
        members.append(left[order[:k]].tolist())
        left = np.sort(left[order[k:]])
    means = np.array([places[group].mean(axis=0) for group in members])
    for row in left.tolist():
        members[int(np.argmin(((means - places[row]) ** 2).sum(axis=1)))].append(row)
    return members


def _halves(places: Floats, group: list[int]) -> tuple[list[int], list[int]]:
    """Cut a group in two along the axis on which its rows differ most."""
    inside = places[group]
    _, axes = np.linalg.eigh(np.cov(inside, rowvar=False).reshape(inside.shape[1], -1))
    order = np.argsort(inside @ axes[:, -1], kind="stable")
    half = len(group) // 2
    return [group[i] for i in order[:half]], [group[i] for i in order[half:]]


def _published(qi: Floats, scales: Floats, members: list[list[int]]) -> Condensed:
    lo, hi, of = np.empty_like(qi), np.empty_like(qi), np.empty(len(qi), dtype=np.int64)
    for number, group in enumerate(members):
        lo[group], hi[group], of[group] = qi[group].min(axis=0), qi[group].max(axis=0), number
    return Condensed(lo, hi, float(((hi - lo) * scales).mean()), of)
