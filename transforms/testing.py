"""For tests of your own pipeline: matchers for Beam's `assert_that` on published rows.

    from apache_beam.testing.util import assert_that
    from crenel.transforms.testing import is_anonymous, is_k_anonymous, star_of

    assert_that(published, is_anonymous(policy))
    assert_that(published, is_k_anonymous(5, ["age", "zipcode"], star=star_of(policy)), label="k alone")

They look at published rows alone, so they also notice what a step *after* `Anonymize` undid by filtering, sampling or
joining rows. Published rows do not say whose they are. So a group of k rows is necessary, but not enough: it may hold
the same person twice. If a test knows the persons, let its policy publish a column that tells them apart, and name that
column as `person`.

Rows are dicts, `beam.Row`, NamedTuples or Arrow RecordBatches. A failed assertion shows numbers, never a value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from apache_beam.testing.util import BeamAssertException

from crenel.policy import OnSuppress, Policy
from crenel.transforms._publish.publisher import Publisher

__all__ = ["is_anonymous", "is_k_anonymous", "is_l_diverse", "names_only", "star_of"]


def is_k_anonymous(
    k: int, quasi_identifiers: Iterable[str], *, person: str | None = None, star: Mapping[str, Any] | None = None
) -> _Groups:
    """Check that every published row is one of at least k that look the same.

    Args:
        k: The least number of rows in a group; of persons, if `person` is given.
        quasi_identifiers: The columns that make rows look the same or not.
        person: A column that tells persons apart, where a test publishes one.
        star: The row that suppressed rows are published as (see `star_of`). It matches everybody, and is not counted.
    """
    return _Groups("k", k, tuple(quasi_identifiers), person, star)


def is_l_diverse(
    l: int, quasi_identifiers: Iterable[str], sensitive: str, *, star: Mapping[str, Any] | None = None
) -> _Groups:
    """Check that rows which look the same have at least l different values of a sensitive column."""
    return _Groups("l", l, tuple(quasi_identifiers), sensitive, star)


def names_only(columns: Iterable[str]) -> _Columns:
    """Check that published rows have these columns, and no other."""
    return _Columns(tuple(columns))


def is_anonymous(policy: Policy, *, person: str | None = None) -> _All:
    """Check all that published rows can show: k, l, and that they have only columns which the policy names.

    Args:
        policy: The policy under which they were published; it tells suppressed rows from others.
        person: A column that tells persons apart, where the policy of a test publishes one.
    """
    names = tuple(policy.quasi_identifiers)
    star = star_of(policy)
    checks: list[_Columns | _Groups] = [names_only((*names, *policy.sensitive, *policy.publish))]
    checks.append(is_k_anonymous(policy.k, names, person=person, star=star))
    if policy.l is not None:
        checks += [is_l_diverse(policy.l, names, column, star=star) for column in policy.sensitive]
    return _All(tuple(checks))


def star_of(policy: Policy) -> dict[str, Any] | None:
    """Return the row that suppressed rows are published as; None if they are not published."""
    return Publisher(policy).star() if policy.on_suppress is OnSuppress.STAR else None


class _Groups:
    """Counts, in each group of rows that look the same, the rows or the different values of a column."""

    def __init__(
        self, name: str, least: int, columns: tuple[str, ...], counted: str | None, star: Mapping[str, Any] | None
    ) -> None:
        self._name = name
        self._least = least
        self._columns = columns
        self._counted = counted
        self._star = None if star is None else tuple(_frozen(star[column]) for column in columns)

    def __call__(self, actual: Iterable[Any]) -> None:
        groups: dict[Any, set[Any]] = defaultdict(set)
        for number, row in enumerate(_rows(actual)):
            box = tuple(_frozen(_value(row, column)) for column in self._columns)
            if box != self._star:
                groups[box].add(number if self._counted is None else _frozen(_value(row, self._counted)))
        small = [len(members) for members in groups.values() if len(members) < self._least]
        if small:
            what = "rows" if self._counted is None else f"different values of {self._counted!r}"
            message = (
                f"{self._name}: every group must have at least {self._least} {what}; {len(small)} of {len(groups)} "
                f"groups have fewer, the smallest {min(small)}."
            )
            raise BeamAssertException(message)


class _Columns:
    """Compares the columns of rows with those that may be published."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns

    def __call__(self, actual: Iterable[Any]) -> None:
        expected = set(self._columns)
        for row in _rows(actual):
            found = set(row)
            if found != expected:
                more, less = sorted(map(str, found - expected)), sorted(expected - found)
                message = f"published rows must have the columns {', '.join(self._columns)}"
                message += f"; not {', '.join(more)}" if more else ""
                message += f"; they lack {', '.join(less)}" if less else ""
                raise BeamAssertException(message + ".")


class _All:
    """Applies one matcher after another."""

    def __init__(self, matchers: Sequence[_Columns | _Groups]) -> None:
        self._matchers = matchers

    def __call__(self, actual: Iterable[Any]) -> None:
        rows = list(_rows(actual))
        for matcher in self._matchers:
            matcher(rows)


def _rows(actual: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    for element in actual:
        if isinstance(element, (pa.RecordBatch, pa.Table)):
            yield from element.to_pylist()
        elif isinstance(element, Mapping):
            yield element
        elif hasattr(element, "_asdict"):
            yield element._asdict()
        else:
            message = f"published rows must be dicts, Rows, NamedTuples or RecordBatches, not {type(element).__name__}."
            raise BeamAssertException(message)


def _value(row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        message = f"published rows must have the column {column!r}."
        raise BeamAssertException(message)
    return row[column]


def _frozen(value: Any) -> Any:
    """Make a published value hashable, so that it can be compared and counted: a range becomes a pair."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return tuple(sorted((str(name), _frozen(inner)) for name, inner in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return value
