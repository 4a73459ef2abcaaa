"""A sample of rows depends on the rows alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from crenel.encoding import row_sample
from crenel.encoding.row_sample import RowSample
from crenel.encoding.rows import Rows


def rows_of(count: int) -> Rows:
    random = np.random.default_rng(0)
    person = random.integers(0, count // 2, count)
    return Rows(random.normal(size=(count, 3)), person, np.zeros((count, 0), np.int64), np.arange(count) * 10)


def sampled(parts: list[Rows]) -> RowSample:
    sample = RowSample()
    for part in parts:
        sample.add(part)
    return sample


def test_neither_order_nor_parts_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sample, "MOST_ROWS", 100)
    rows = rows_of(2_000)
    whole = sampled([rows])
    mixed = rows.take(np.random.default_rng(1).permutation(2_000))
    merged = RowSample()
    for start in range(0, 2_000, 370):
        merged.merge(pickle.loads(pickle.dumps(sampled([mixed.slice(start, start + 370)]))))
    assert len(whole.rows) == 100
    for one, other in zip(vars(whole.rows).values(), vars(merged.rows).values(), strict=True):
        assert np.array_equal(one, other)
    assert (whole.count, whole.span) == (merged.count, merged.span) == (2_000, 19_990)


def test_it_is_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sample, "MOST_ROWS", 1_000)
    times = sampled([rows_of(10_000)]).rows.time
    assert np.histogram(times, 4)[0] == pytest.approx(np.full(4, 250), abs=60)


def test_it_shows_no_values_and_may_be_empty() -> None:
    assert repr(sampled([rows_of(10)])) == "RowSample(10 of 10 rows)"
    assert len(RowSample().rows) == RowSample().span == 0
