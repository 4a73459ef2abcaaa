"""Measures, compared with figures worked out by hand or by a plain loop."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.audit import measures
from crenel.policy import Policy

POLICY = Policy.from_dict(
    {
        "person": "p",
        "quasi_identifiers": {
            "age": {"type": "numeric", "domain": [0, 100], "weight": 2},
            "zip": {"type": "prefix", "length": 2},
            "job": {"type": "categorical", "hierarchy": {"a": ["x", "y"], "b": ["z"]}},
        },
        "k": 2,
        "delay_rows": 5,
    }
)
ENDS = measures.widest(POLICY)
# The box [20, 30], 3*, a; and the whole domain.
LO = np.array([[20.0, 30.0, 0.0], [0.0, 0.0, 0.0]])
HI = np.array([[30.0, 39.0, 1.0], [100.0, 99.0, 2.0]])


def test_losses_by_hand() -> None:
    loss = measures.losses(POLICY, LO, HI, ENDS, np.array([0, 0, 0, 1]))
    assert loss is not None
    parts = [0.1, 9 / 99, 1 / 2]
    one = (2 * parts[0] + parts[1] + parts[2]) / 4
    assert loss.rows.tolist() == pytest.approx([one, one, one, 1.0])
    assert loss.overall == pytest.approx((3 * one + 1) / 4)
    assert loss.per_attribute == pytest.approx([(3 * part + 1) / 4 for part in parts])
    assert loss.penalty == pytest.approx((3 * sum(parts) + 3) / 4)
    # Ten of a hundred codes, and two of three leaves.
    assert loss.ncp == pytest.approx((3 * (2 * 0.1 + 10 / 100 + 2 / 3) / 4 + 1) / 4)
    assert measures.losses(POLICY, LO, HI, ENDS, np.zeros(0, np.int64)) is None


def test_a_single_category_has_no_certainty_penalty() -> None:
    point = np.array([[20.0, 35.0, 2.0]])
    loss = measures.losses(POLICY, point, point, ENDS, np.zeros(1, np.int64))
    assert loss is not None
    assert (loss.overall, loss.ncp) == (0.0, 0.0)


def test_a_missing_value_is_lost_only_if_it_is_filled_in() -> None:
    lo, hi = np.array([[20.0, np.nan, 0.0]]), np.array([[30.0, np.nan, 1.0]])
    box, everything = np.zeros(1, np.int64), np.ones((1, 3), bool)
    whole = measures.losses(POLICY, lo, hi, ENDS, box, everything)
    unknown = measures.losses(POLICY, lo, hi, ENDS, box)
    lacks = measures.losses(POLICY, lo, hi, ENDS, box, np.array([[True, False, True]]))
    filled = measures.losses(POLICY, lo, hi, ENDS, box, np.array([[True, False, False]]))
    assert whole is not None and unknown is not None and lacks is not None and filled is not None
    assert whole.overall == unknown.overall == pytest.approx((2 * 0.1 + 1 + 0.5) / 4)
    assert lacks.overall == pytest.approx((2 * 0.1 + 0.5) / 3)
    assert filled.overall == pytest.approx((2 * 0.1 + 1) / 3)
    assert lacks.per_attribute[1] == 0.0


def test_a_learned_domain_is_taken_from_the_columns() -> None:
    policy = Policy.from_dict({**POLICY.to_dict(), "quasi_identifiers": {"age": {"type": "numeric"}}})
    ends = measures.domains(policy, np.array([[10.0], [np.nan], [np.inf], [30.0]]))
    assert ends.tolist() == [[10.0, 30.0]]
    lo, hi = np.array([[10.0], [-np.inf]]), np.array([[15.0], [np.inf]])
    assert measures.parts(policy, lo, hi, ends).tolist() == [[0.25], [1.0]]
    assert measures.domains(policy, np.zeros((0, 1))).tolist() == [[0.0, 0.0]]


def test_a_step_loses_whole_cells() -> None:
    ages = {"age": {"type": "numeric", "domain": [0, 100], "step": 5}}
    policy = Policy.from_dict({**POLICY.to_dict(), "quasi_identifiers": ages})
    ends = measures.domains(policy)
    assert ends.tolist() == [[0.0, 19.0]]
    lo, hi = np.array([[4.0], [4.0], [0.0], [np.nan]]), np.array([[4.0], [7.0], [19.0], [np.nan]])
    assert measures.parts(policy, lo, hi, ends).tolist() == [[0.05], [0.2], [1.0], [1.0]]


rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=30)


@given(rows)
def test_diversity_equals_that_of_a_loop(drawn: list[tuple[int, int]]) -> None:
    box, codes = (np.array([row[i] for row in drawn], dtype=np.int64) for i in range(2))
    values, entropy = measures.diversity(box, codes * 10**12, 5)
    for group in range(5):
        counts = Counter(code for b, code in drawn if b == group)
        assert values[group] == len(counts)
        shares = [count / counts.total() for count in counts.values()]
        assert entropy[group] == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)) if shares else 0.0)
        assert entropy[group] <= values[group] + 1e-9


@given(rows, st.booleans())
def test_distances_equal_those_of_a_loop(drawn: list[tuple[int, int]], ordered: bool) -> None:
    box, codes = (np.array([row[i] for row in drawn], dtype=np.int64) for i in range(2))
    found = measures.distances(box, codes, 5, 5 if ordered else None)
    every = Counter(codes.tolist())
    for group in range(5):
        counts = Counter(code for b, code in drawn if b == group)
        if not counts:
            assert found[group] == 0
            continue
        off = [counts[v] / counts.total() - every[v] / every.total() for v in range(5)]
        running = [abs(sum(off[: v + 1])) for v in range(5)]
        assert found[group] == pytest.approx(sum(running) / 4 if ordered else sum(map(abs, off)) / 2)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=40))
def test_a_histogram_of_sizes_counts_every_group(sizes: list[int]) -> None:
    bins = measures.histogram_of_sizes(np.array(sizes), np.array(sizes))
    assert sum(part["groups"] for part in bins) == len(sizes)
    assert sum(part["rows"] for part in bins) == sum(sizes)
    for part in bins:
        assert part["groups"] == sum(part["from"] <= size < part["to"] for size in sizes)
    assert [part["from"] for part in bins[1:]] == [part["to"] for part in bins[:-1]]
    assert measures.histogram_of_sizes(np.zeros(0, np.int64), np.zeros(0, np.int64)) == []


def test_a_histogram_of_delays_reaches_the_deadline() -> None:
    bins = measures.histogram(np.array([0.0, 5.0, 60.0]), 60.0)
    assert (bins[0]["from"], bins[-1]["to"]) == (0.0, 60.0)
    assert sum(part["rows"] for part in bins) == 3
