"""What the columns of a trial lose, in their domains and among the rows, compared with counts made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from crenel.encoding.encoder import Encoder
from crenel.pipelines.checking.engine_trial import Trial, shards_of, tried
from crenel.pipelines.checking.trial_measures import by_column, query_error
from crenel.policy import Policy

POLICY = Policy(
    person="who",
    quasi_identifiers={"zip": {"type": "prefix", "length": 5}, "age": {"type": "numeric", "domain": [0, 100]}},
    k=4,
    delay_rows=40,
)


def trial(rows: int = 200) -> Trial:
    draw = np.random.default_rng(3)
    batch = {
        "who": np.arange(rows),
        "zip": [f"48{number:03}" for number in draw.integers(0, 1000, rows)],
        "age": draw.integers(0, 100, rows),
    }
    encoded = Encoder(POLICY).encode(batch)
    return tried(POLICY, shards_of(POLICY, encoded, None), lambda line: None)


def test_a_prefix_that_all_rows_share_covers_them_all_whatever_its_loss() -> None:
    found = trial()
    zipcode, age = by_column(found)
    assert (zipcode.name, age.name) == ("zip", "age")
    # All codes begin with 48: a thousand of a hundred thousand.
    assert zipcode.loss <= 0.01
    assert zipcode.covered > 0.3
    assert zipcode.exact < 0.02
    assert 0 < age.loss < 1


def test_the_covered_share_is_that_of_the_rows_inside() -> None:
    found = trial()
    places, lo, hi = found.published
    ages = found.points.qi[:, 1]
    by_hand = [np.mean((ages >= lo[row, 1]) & (ages <= hi[row, 1])) for row in range(len(places))]
    assert by_column(found)[1].covered == pytest.approx(np.mean(by_hand))
    assert np.all((lo[:, 1] <= ages[places]) & (ages[places] <= hi[:, 1]))


def test_exact_rows_answer_queries_exactly() -> None:
    found = trial()
    exact = np.array(sorted(range(found.rows)))
    # Pretend that each row was published with its own values.
    found.__dict__["published"] = (exact, found.points.qi.copy(), found.points.qi.copy())
    assert query_error(found) == 0
    assert (query_error(trial()) or 0) > 0


def test_suppressed_rows_count_as_an_error() -> None:
    found = trial()
    half = np.arange(found.rows // 2)
    found.__dict__["published"] = (half, found.points.qi[half], found.points.qi[half])
    assert query_error(found) == pytest.approx(0.5, abs=0.2)


def test_where_nothing_is_published_nothing_is_measured() -> None:
    found = trial(3)
    assert found.suppressed == 3
    assert by_column(found) == []
    assert query_error(found) is None
