"""The streams of the experiments have the properties that they claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import datasets
from benchmarks.datasets import ADULT, SFU, UCI

DOMAINS = {
    "age": (17, 90),
    "fnlwgt": (13_769, 1_484_705),
    "education_num": (1, 16),
    "capital_gain": (0, 99_999),
    "capital_loss": (0, 4_356),
    "hours_per_week": (1, 99),
}


def test_adult_has_the_domains_of_its_data(data_dir: Path) -> None:
    stream = datasets.adult(folder=data_dir)
    assert len(stream.rows) == UCI == len(np.unique(stream.rows.person))
    assert list(stream.quasi_identifiers) == list(ADULT)
    for i, (name, (lo, hi)) in enumerate(DOMAINS.items()):
        column = stream.rows.qi[:, i]
        assert stream.quasi_identifiers[name].geometry.widest() == (lo, hi)
        assert (column.min(), column.max()) == (lo, hi)


def test_the_small_adult_is_the_beginning_of_the_large(data_dir: Path) -> None:
    small = datasets.adult(("age", "education"), rows=UCI, folder=data_dir)
    large = datasets.adult(("age", "education"), rows=SFU, folder=data_dir)
    assert len(large.rows) == SFU
    assert np.array_equal(large.rows.qi[:UCI], small.rows.qi)


def test_a_column_may_be_kept_beside(data_dir: Path) -> None:
    stream = datasets.adult(("occupation",), extra=("occupation",), folder=data_dir)
    assert np.array_equal(stream.extra["occupation"], stream.rows.qi[:, 0])
    assert np.array_equal(stream.first(5).extra["occupation"], stream.rows.qi[:5, 0])


def test_data_is_looked_for_where_the_tests_do(data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert datasets.data_folder() == data_dir
    monkeypatch.setenv("CRENEL_DATA", str(tmp_path))
    assert datasets.data_folder() == tmp_path
    monkeypatch.setenv("CRENEL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(datasets.NoDataError, match="no data sets"):
        datasets.data_folder()


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_power_law_values_have_their_chances(alpha: float) -> None:
    n, values = 40_000, 20
    stream = datasets.power_law(alpha=alpha, rows=n, dimensions=2, values=values, seed=3)
    weights = np.arange(1.0, values + 1) ** -alpha
    expected = n * weights / weights.sum()
    for column in stream.rows.qi.T:
        counts = np.bincount(column.astype(int), minlength=values + 1)[1:]
        # The seed is fixed. Five standard deviations would pass with almost any other generator, too.
        assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))
    assert [qi.geometry.widest() for qi in stream.quasi_identifiers.values()] == [(1, values)] * 2
    assert len(np.unique(stream.rows.person)) == n


def test_power_law_is_repeatable() -> None:
    one, same, other = (datasets.power_law(alpha=1.0, rows=50, seed=seed).rows.qi for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_repeated_rows_of_a_person_arrive_together() -> None:
    stream = datasets.power_law(alpha=1.0, rows=30)
    tripled = datasets.repeated(stream, 3)
    assert len(tripled.rows) == 90
    for i in range(3):
        assert np.array_equal(tripled.rows.person[i::3], stream.rows.person)
        assert np.array_equal(tripled.rows.qi[i::3], stream.rows.qi)


def test_drawn_rows_are_persons_of_their_own() -> None:
    stream = datasets.power_law(alpha=1.0, rows=30)
    more = stream.drawn(100)
    assert len(np.unique(more.rows.person)) == 100
    known = {tuple(row) for row in stream.rows.qi.tolist()}
    assert {tuple(row) for row in more.rows.qi.tolist()} <= known
