"""The form of published ranges: a struct of two ends, two columns, or text.

A struct is what the other steps of PUBLISH make. Many sinks want plain columns: `age_lo` and `age_hi`, numbers or
moments, which are whole numbers where the input has whole numbers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from functools import lru_cache
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.utils.timestamp import Timestamp

from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Datetime
from crenel.transforms._pack.nested_fields import plain_name
from crenel.transforms._publish.publisher import Publisher
from crenel.transforms._publish.range_ends import has_whole_ends, has_whole_step, is_of_days, range_ends

__all__ = ["InForm", "RangeForm", "Ranges", "published_schema", "taken_names"]

_MOMENT = pa.timestamp("us", "UTC")
#: The characters of a date in ISO-8601.
_DATE = 10
#: Up to here, floats hold every whole number.
_LARGEST = 2**53


class Ranges(Enum):
    """What a published range of numbers or moments becomes."""

    #: A struct (a dict, a row) of `lo` and `hi`; moments are text.
    STRUCT = "struct"
    #: Two columns, `<name>_lo` and `<name>_hi`.
    COLUMNS = "columns"
    #: Text, such as `[30, 39]`.
    TEXT = "text"

    @classmethod
    def of(cls, given: Ranges | str) -> Ranges:
        """Return the form of this name.

        Raises:
            ValueError: there is no such form.
        """
        try:
            return cls(given)
        except ValueError:
            msg = f"Anonymize: ranges must be 'columns', 'text' or 'struct', not {given!r}."
            raise ValueError(msg) from None


class RangeForm:
    """Turns published structs into another form.

    Args:
        policy: Which columns are ranges.
        form: What they become.
        whole: The columns of the input that hold whole numbers, as far as that is known.
        untyped: Whether the format has no types for them: moments stay text, and in a row, a whole number is written
            as one.

    Raises:
        ValueError: a column that a range becomes has the name of another one.
    """

    def __init__(self, policy: Policy, form: Ranges, whole: Collection[str] = (), *, untyped: bool = False) -> None:
        self.form = form
        self._untyped = untyped
        published = dict(Publisher(policy).fields())
        self._ranges = [name for name, kind in published.items() if _is_range(kind)]
        self._moments = {n for n in self._ranges if isinstance(policy.quasi_identifiers[n], Datetime)}
        self._days = {n for n in self._moments if is_of_days(policy.quasi_identifiers[n])}
        self._whole = {
            n
            for n in self._ranges
            if has_whole_step(policy.quasi_identifiers[n])
            or (n in whole and has_whole_ends(policy.quasi_identifiers[n]))
        }
        for name in taken_names(policy) if form is Ranges.COLUMNS else ():
            msg = f"Anonymize: ranges='columns' makes a column {name!r}, which the policy publishes already."
            raise ValueError(msg)

    @property
    def ranges(self) -> tuple[str, ...]:
        """The columns that are published as ranges."""
        return tuple(self._ranges)

    def row(self, row: Any) -> Any:
        """Turn a dict, or a `beam.Row`."""
        if isinstance(row, dict):
            return dict(self._fields(row, self._moment_of))
        # The fields of a row are named without dots.
        ranges = {plain_name(name): name for name in self._ranges}
        fields = {ranges.get(name, name): value for name, value in row._asdict().items()}
        # Beam's rows have no type for a date.
        made = self._fields(fields, lambda name: Timestamp.from_rfc3339)
        return beam.Row(**{plain_name(name): value for name, value in made})

    def _moment_of(self, name: str) -> Callable[[str], Any]:
        if name in self._days:
            return _date_text if self._untyped else _date
        return str if self._untyped else _moment

    def _number_of(self, name: str) -> Callable[[float], float]:
        return int if name in self._whole else _shortest if self._untyped else float

    def _fields(
        self, row: dict[str, Any], moment_of: Callable[[str], Callable[[str], Any]]
    ) -> Iterator[tuple[str, Any]]:
        for name, value in row.items():
            if name not in self._ranges:
                yield name, value
            elif self.form is Ranges.TEXT:
                yield name, None if value is None else _text(*_ends(value))
            else:
                read = moment_of(name) if name in self._moments else self._number_of(name)
                for end, bound in zip(range_ends(name), _ends(value), strict=True):
                    yield end, None if bound is None else read(bound)

    def batch(self, batch: Any) -> Any:
        """Turn an Arrow RecordBatch, or a Table."""
        arrays: dict[str, Any] = {}
        for name in batch.schema.names:
            column = batch.column(name)
            if name not in self._ranges:
                arrays[name] = column
                continue
            lo, hi = (pc.struct_field(column, end) for end in ("lo", "hi"))
            if self.form is Ranges.TEXT:
                arrays[name] = _texts(column, lo, hi)
            else:
                arrays |= {n: self._cast(name, end) for n, end in zip(range_ends(name), (lo, hi), strict=True)}
        return type(batch).from_arrays(list(arrays.values()), names=list(arrays))

    def schema(self, published: pa.Schema) -> pa.Schema:
        """Tell the schema of what a published struct becomes."""
        fields: list[tuple[str, pa.DataType]] = []
        for field in published:
            if field.name not in self._ranges:
                fields.append((field.name, field.type))
            elif self.form is Ranges.TEXT:
                fields.append((field.name, pa.string()))
            else:
                fields += [(end, self._type(field.name)) for end in range_ends(field.name)]
        return pa.schema(fields)

    def types(self, name: str, struct: Any) -> list[tuple[str, Any]]:
        """Tell the types of a row's fields that a column becomes, for Beam; those of other columns stay."""
        if name not in self._ranges or self.form is Ranges.STRUCT:
            return [(name, struct)]
        if self.form is Ranges.TEXT:
            return [(name, str)]
        kind = Timestamp if name in self._moments else int if name in self._whole else float
        return [(end, kind) for end in range_ends(name)]

    def _cast(self, name: str, ends: Any) -> Any:
        if name in self._days:
            ends = pc.utf8_slice_codeunits(ends, 0, _DATE)
        return ends.cast(self._type(name))

    def _type(self, name: str) -> pa.DataType:
        if name in self._moments and self._untyped:
            return pa.string()
        if name in self._moments:
            return pa.date32() if name in self._days else _MOMENT
        return pa.int64() if name in self._whole else pa.float64()


class InForm(beam.DoFn):
    """Turns published elements of any kind."""

    def __init__(self, form: RangeForm) -> None:
        self._form = form

    def process(self, element: Any) -> Iterator[Any]:
        """Turn a row, or a batch of rows."""
        is_arrow = isinstance(element, (pa.RecordBatch, pa.Table))
        yield self._form.batch(element) if is_arrow else self._form.row(element)


def published_schema(policy: Policy, given: pa.Schema, ranges: Ranges | str = Ranges.STRUCT) -> pa.Schema:
    """Tell the schema of published rows, for rows of the given schema: a sink needs it beforehand.

    Args:
        policy: The policy.
        given: The schema of the input.
        ranges: As for `Anonymize`. Whole numbers stay whole in a table; of batches in a pipeline, nobody knows
            beforehand that they are, so that `Anonymize` makes floats of them.
    """
    form = Ranges.of(ranges)
    published = Publisher(policy).schema(given)
    return published if form is Ranges.STRUCT else RangeForm(policy, form).schema(published)


def taken_names(policy: Policy) -> list[str]:
    """List the published columns whose names the two columns of a range would take."""
    ranges = [name for name, kind in Publisher(policy).fields() if _is_range(kind)]
    others = {*policy.quasi_identifiers, *policy.sensitive, *policy.publish}
    return sorted(others & {end for name in ranges for end in range_ends(name)})


def _is_range(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind)) and [field.name for field in kind] == ["lo", "hi"]


def _ends(value: Any) -> tuple[Any, Any]:
    if value is None:
        return None, None
    return (value["lo"], value["hi"]) if isinstance(value, dict) else (value.lo, value.hi)


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


def _date_text(text: str) -> str:
    return text[:_DATE]


def _date(text: str) -> dt.date:
    return dt.date.fromisoformat(text[:_DATE])


def _shortest(number: float) -> float:
    return int(number) if number.is_integer() and abs(number) <= _LARGEST else number


def _text(lo: Any, hi: Any) -> str:
    return "*" if lo is None and hi is None else f"[{_bound(lo)}, {_bound(hi)}]"


@lru_cache(maxsize=4096)
def _bound(value: Any) -> str:
    """Write an end as batches do, and as an audit expects it."""
    if value is None:
        return "*"
    return str(pa.scalar(value).cast(pa.string()).as_py()) if isinstance(value, float) else str(value)


def _texts(column: Any, lo: Any, hi: Any) -> Any:
    bounds = [pc.replace_substring_regex(end.cast(pa.string()), r"\.0$", "") for end in (lo, hi)]
    joined = pc.binary_join_element_wise(*(pc.fill_null(bound, "*") for bound in bounds), ", ")
    text = pc.binary_join_element_wise("[", pc.binary_join_element_wise(joined, "]", ""), "")
    text = pc.if_else(pc.and_(pc.is_null(lo), pc.is_null(hi)), "*", text)
    return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))
