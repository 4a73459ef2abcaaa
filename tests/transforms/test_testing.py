"""The matchers that crenel ships for users' own tests."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.test_pipeline import TestPipeline as Pipeline
from apache_beam.testing.util import BeamAssertException, assert_that

from crenel.transforms import Anonymize
from crenel.transforms.testing import is_anonymous, is_k_anonymous, is_l_diverse, names_only, star_of
from tests.transforms.streams import policy, rows

NAMES = ["age", "zipcode"]


def group(count: int, **values: Any) -> list[dict[str, Any]]:
    same = {"age": {"lo": 3.0, "hi": 4.0}, "zipcode": "53***", **values}
    return [{**same, "who": i, "disease": i % 2} for i in range(count)]


def as_rows(given: list[dict[str, Any]]) -> list[Any]:
    return [beam.Row(**{**row, "age": beam.Row(**row["age"])}) for row in given]


def as_batch(given: list[dict[str, Any]]) -> list[Any]:
    return [pa.RecordBatch.from_pylist(given)] if given else []


@pytest.mark.parametrize("kind", [list, as_rows, as_batch])
def test_k(kind: Any) -> None:
    is_k_anonymous(3, NAMES)(kind([*group(3), *group(5, zipcode="5****")]))
    is_k_anonymous(3, NAMES)(kind([]))
    with pytest.raises(BeamAssertException) as caught:
        is_k_anonymous(4, NAMES)(kind([*group(3), *group(5, zipcode="5****"), *group(2, age={"lo": 1.0, "hi": 2.0})]))
    assert str(caught.value) == ("k: every group must have at least 4 rows; 2 of 3 groups have fewer, the smallest 2.")


def test_k_counts_persons_where_it_is_told_of_them() -> None:
    twice = [*group(2), *group(2)]
    is_k_anonymous(4, NAMES)(twice)
    with pytest.raises(BeamAssertException, match="at least 4 different values of 'who'; 1 of 1 groups"):
        is_k_anonymous(4, NAMES, person="who")(twice)


def test_stars_are_not_counted() -> None:
    star = {"age": {"lo": 0.0, "hi": 100.0}, "zipcode": "*****"}
    published = [*group(4), *group(1, **star)]
    with pytest.raises(BeamAssertException):
        is_k_anonymous(4, NAMES)(published)
    is_k_anonymous(4, NAMES, star=star)(published)
    assert star_of(policy()) == {**star, "education": "any"}
    assert star_of(policy(on_suppress="drop")) is None


def test_l() -> None:
    is_l_diverse(2, NAMES, "disease")(group(4))
    with pytest.raises(BeamAssertException, match="l: every group must have at least 3 different values of 'disease'"):
        is_l_diverse(3, NAMES, "disease")(group(4))


def test_columns() -> None:
    names_only(["age", "zipcode", "who", "disease"])(group(2))
    with pytest.raises(
        BeamAssertException, match="must have the columns age, zipcode, ward; not disease, who; they lack"
    ):
        names_only(["age", "zipcode", "ward"])(group(2))
    with pytest.raises(BeamAssertException, match="must have the column 'ward'"):
        is_k_anonymous(2, ["ward"])(group(2))
    with pytest.raises(BeamAssertException, match="not str"):
        is_k_anonymous(2, ["ward"])(["text"])


def built(given: list[Any], of: Any, matcher: Any, *, then: Any = None) -> Any:
    pipeline = Pipeline(runner="FnApiRunner")
    out = pipeline | beam.Create(given) | Anonymize(of)
    assert_that(out.published if then is None else out | then, matcher)
    return pipeline.run()


@pytest.mark.parametrize("kind", [list, as_batch])
def test_in_a_pipeline(kind: Any) -> None:
    of = policy(l=2, publish=["patient_copy"])
    given = [{**row, "patient_copy": row["patient"]} for row in rows(300, persons=100)]
    built(kind(given), of, is_anonymous(of, person="patient_copy"))


def test_a_step_that_undoes_it_is_found() -> None:
    of = policy()
    few = beam.Filter(lambda row: row["number"] % 3 == 0)
    with pytest.raises(Exception, match="every group must have at least 4 rows"):
        built(rows(300), of, is_anonymous(of), then=few)
