"""The order within a release reveals nothing about the order of arrival."""

from __future__ import annotations

import numpy as np
import pytest

from crenel.audit.attacks import Observation, Order, order
from tests.core.audit.streams import observation, observed, policy, stream

#: Results less likely than this do not happen: with another seed, a test here fails once in ten million runs.
NEVER = 1e-8


@pytest.mark.parametrize(
    "method", ["castle", "bastion", "mondrian", "partition", "rtree", "min-delay", "faanst-passive", "castleguard"]
)
def test_the_order_in_a_release_reveals_nothing(method: str):
    rows = stream(4000)
    outcome = order(observed(policy(method, k=10, delay_rows=200), rows))
    assert outcome.targets > 500
    assert outcome.by_chance > NEVER
    assert abs(outcome.success - 0.5) < 0.15


def as_they_came(what: Observation, backwards: bool = False) -> Observation:
    """A weak publisher: rows leave in the order of arrival."""
    first = np.flatnonzero(np.append(True, what.release[1:] != what.release[:-1]))
    places = [np.sort(rows) for rows in np.split(what.rows, first[1:])]
    rows = np.concatenate([rows[::-1] if backwards else rows for rows in places])
    return Observation(
        lo=what.lo,
        hi=what.hi,
        sensitive=what.sensitive,
        star=what.star,
        left=what.left,
        rows=rows,
        release=what.release,
    )


@pytest.mark.parametrize("backwards", [False, True])
def test_rows_in_the_order_of_arrival_are_recognised(backwards: bool):
    weak = order(as_they_came(observed(policy("bastion"), stream()), backwards))
    assert weak.success == float(not backwards)
    assert weak.by_chance < NEVER


def test_a_slight_tendency_is_recognised():
    """Half of the releases are shuffled, and the others are not."""
    of, rows = policy("bastion", k=10, delay_rows=200), stream(4000)
    what = observed(of, rows)
    sorted_rows = as_they_came(what).rows
    mixed = np.where(what.release % 2 == 0, sorted_rows, what.rows)
    weak = order(
        Observation(
            lo=what.lo,
            hi=what.hi,
            sensitive=what.sensitive,
            star=what.star,
            left=what.left,
            rows=mixed,
            release=what.release,
        )
    )
    assert 0.6 < weak.success < 0.9
    assert weak.by_chance < NEVER


def test_order_by_hand():
    five = observation([[0.0]] * 5, [[1.0]] * 5, [0] * 5)
    # 0 and 1 arrived before 2 and 3; the last row has no partner.
    assert order(five) == Order(attack="order", targets=2, claims=2, right=2)
    assert Order(attack="order", targets=0, claims=0, right=0).by_chance == 1.0
    assert Order(attack="order", targets=2, claims=2, right=2).by_chance == pytest.approx(2 * np.exp(-1))
    nothing = observation(np.zeros((0, 1)), np.zeros((0, 1)), [])
    assert order(nothing).targets == 0
