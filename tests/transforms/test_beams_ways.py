"""Rejected rows by the names that Beam's own transforms give them, and schemas on all outputs."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that
from apache_beam.transforms.error_handling import CollectingErrorHandler, ErrorHandler
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import Timestamp

from crenel.transforms import Anonymize, AnonymizeBounded

POLICY: dict[str, Any] = {
    "person": "who",
    "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 99]}},
    "k": 3,
    "delay_rows": 20,
    "seed": 5,
}
ROWS = [{"who": n, "age": 20 + n, "n": n} for n in range(30)] + [{"who": 99, "age": 1000, "n": 30}]


def has(count: int) -> Any:
    def check(found: list[Any]) -> None:
        assert len(found) == count

    return check


def is_rejected(found: list[Any]) -> None:
    (row,) = found
    row = row if isinstance(row, dict) else row._asdict()
    assert (row["field"], row["reason"]) == ("age", "outside the domain")


def pipeline() -> beam.Pipeline:
    return beam.Pipeline("FnApiRunner")


@pytest.mark.parametrize("transform", [Anonymize, AnonymizeBounded])
def test_good_and_bad(transform: Any) -> None:
    with pipeline() as made:
        good, bad = made | beam.Create(ROWS) | transform(POLICY).with_exception_handling()
        assert_that(good, has(30), label="good")
        assert_that(bad, is_rejected, label="bad")


def test_other_names() -> None:
    with pipeline() as made:
        handled = Anonymize(POLICY).with_exception_handling(main_tag="published", dead_letter_tag="failed")
        result = made | beam.Create(ROWS) | "Hide" >> handled
        assert_that(result.published, has(30), label="published")
        assert_that(result.failed, is_rejected, label="failed")
    for tags in (("a", "a"), ("a b", "c")):
        with pytest.raises(ValueError, match=r"main_tag and dead_letter_tag must be two different names"):
            Anonymize(POLICY).with_exception_handling(*tags)


def test_an_error_handler_gets_rejected_rows() -> None:
    with pipeline() as made:
        with CollectingErrorHandler() as handler:
            result = made | beam.Create(ROWS) | Anonymize(POLICY).with_error_handler(handler)
        assert_that(handler.output(), is_rejected, label="handled")
        assert_that(result.published, has(30), label="published")


def test_an_error_handler_that_is_not_closed_fails_the_pipeline() -> None:
    def build() -> None:
        with pipeline() as made:
            handler = ErrorHandler(beam.Map(print))
            _ = made | beam.Create(ROWS) | Anonymize(POLICY).with_error_handler(handler)

    with pytest.raises(RuntimeError, match="Unclosed error handler"):
        build()


@pytest.mark.parametrize("order_column", [None, "order"])
def test_all_outputs_of_rows_with_a_schema_have_one(order_column: str | None) -> None:
    with pipeline() as made:
        given = made | beam.Create([beam.Row(**row) for row in ROWS])
        options: dict[str, Any] = {"row_number": "n", "trace": True, "order_column": order_column}
        result = given | Anonymize(POLICY, **options)
        for name in ("published", "suppressed", "rejected", "releases", "trace"):
            kind = getattr(result, name).element_type
            assert isinstance(kind, RowTypeConstraint), name

        def check(found: list[Any]) -> None:
            assert sorted(row.row for row in found) == list(range(30))
            assert {row.kind for row in found} == {"cluster"}
            assert all(row.moment is None or isinstance(row.moment, Timestamp) for row in found)
            assert all(hasattr(row, "order") == (order_column is not None) for row in found)

        # Through a coder, which writes by the schema.
        assert_that(result.trace | beam.Reshuffle(), check)
