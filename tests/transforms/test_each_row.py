"""`person: {each: row}`: each row is about another person."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam import Pipeline
from apache_beam.testing.util import assert_that

from crenel import Anonymize, AnonymizeBounded, Policy, PolicyError, anonymize

POLICY: dict[str, Any] = {
    "person": {"each": "row"},
    "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 99]}},
    "k": 3,
    "delay_rows": 20,
    "seed": 7,
}
TABLE = pa.table({"age": [n * 7 % 90 for n in range(60)]})


def test_it_is_as_if_a_column_numbered_the_rows() -> None:
    numbered = TABLE.append_column("n", pa.array(range(60)))
    found = anonymize(TABLE, POLICY, trace=True)
    assert found.published.equals(anonymize(numbered, {**POLICY, "person": "n"}).published)
    assert found.published.num_rows == 60
    assert min(found.releases.column("persons").to_pylist()) >= 3


def test_equal_rows_are_of_different_persons() -> None:
    same = pa.table({"age": [30] * 9})
    assert anonymize(same, POLICY).published.num_rows == 9


def test_a_policy_keeps_it() -> None:
    policy = Policy.from_dict(POLICY)
    assert policy.each_row
    assert policy.to_dict()["person"] == {"each": "row"}
    assert Policy.from_dict(policy.to_dict()) == policy
    assert not Policy.from_dict({**POLICY, "person": "row"}).each_row


@pytest.mark.parametrize("person", [{"each": "line"}, {"every": "row"}, {}, None, 3, ""])
def test_nothing_else_is_taken_for_it(person: Any) -> None:
    with pytest.raises(PolicyError, match=r"policy.person must be the column .*or \{each: row\} if each row is about"):
        Policy.from_dict({**POLICY, "person": person})


def test_a_pipeline_needs_numbers_of_rows() -> None:
    for transform in (Anonymize, AnonymizeBounded):
        with pytest.raises(PolicyError, match=r"policy.person must name a column in a pipeline.*row_number"):
            transform(POLICY)


def test_a_pipeline_counts_rows_by_their_numbers() -> None:
    rows = [{"age": 30 + n, "n": n} for n in range(9)]

    def check(found: list[Any]) -> None:
        assert len(found) == 9
        assert all(set(row) == {"age"} for row in found)

    with Pipeline("DirectRunner") as pipeline:
        created = pipeline | beam.Create(rows)
        assert_that((created | AnonymizeBounded(POLICY, row_number="n")).published, check)
