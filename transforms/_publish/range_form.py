"""The form of published ranges: a struct of two ends, two columns, or text.

A struct is what the other steps of PUBLISH make. Many sinks want plain columns: `age_lo` and `age_hi`, numbers or
moments, which are whole numbers where the input has whole numbers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.utils.timestamp import Timestamp

from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Datetime, Numeric
from crenel.transforms._pack.nested_fields import plain_name
from crenel.transforms._publish.publisher import Publisher

__all__ = ["InForm", "RangeForm", "Ranges", "published_schema"]

_MOMENT = pa.timestamp("us", "UTC")


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

    Raises:
        ValueError: a column that a range becomes has the name of another one.
    """

    def __init__(self, policy: Policy, form: Ranges, whole: Collection[str] = ()) -> None:
        self.form = form
        published = dict(Publisher(policy).fields())
        self._ranges = [name for name, kind in published.items() if _is_range(kind)]
        self._moments = {n for n in self._ranges if isinstance(policy.quasi_identifiers[n], Datetime)}
        self._whole = {n for n in self._ranges if n in whole and _has_whole_ends(policy.quasi_identifiers[n])}
        if form is Ranges.COLUMNS:
            others = {*policy.quasi_identifiers, *policy.sensitive, *policy.publish}
            for name in sorted(others & {end for range_ in self._ranges for end in self.ends(range_)}):
                msg = f"Anonymize: ranges='columns' makes a column {name!r}, which the policy publishes already."
                raise ValueError(msg)

    @staticmethod
    def ends(name: str) -> tuple[str, str]:
        """Name the two columns of a range."""
        return f"{name}_lo", f"{name}_hi"

    def row(self, row: Any) -> Any:
        """Turn a dict, or a `beam.Row`."""
        if isinstance(row, dict):
            return dict(self._fields(row, lambda text: dt.datetime.fromisoformat(text.replace("Z", "+00:00"))))
        # The fields of a row are named without dots.
        ranges = {plain_name(name): name for name in self._ranges}
        fields = {ranges.get(name, name): value for name, value in row._asdict().items()}
        return beam.Row(**{plain_name(n): v for n, v in self._fields(fields, Timestamp.from_rfc3339)})

    def _fields(self, row: dict[str, Any], moment: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
        for name, value in row.items():
            if name not in self._ranges:
                yield name, value
            elif self.form is Ranges.TEXT:
                yield name, None if value is None else _text(*_ends(value))
            else:
                read = moment if name in self._moments else int if name in self._whole else float
                for end, bound in zip(self.ends(name), _ends(value), strict=True):
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
                arrays |= {n: end.cast(self._type(name)) for n, end in zip(self.ends(name), (lo, hi), strict=True)}
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
                fields += [(end, self._type(field.name)) for end in self.ends(field.name)]
        return pa.schema(fields)

    def types(self, name: str, struct: Any) -> list[tuple[str, Any]]:
        """Tell the types of a row's fields that a column becomes, for Beam; those of other columns stay."""
        if name not in self._ranges or self.form is Ranges.STRUCT:
            return [(name, struct)]
        if self.form is Ranges.TEXT:
            return [(name, str)]
        kind = Timestamp if name in self._moments else int if name in self._whole else float
        return [(end, kind) for end in self.ends(name)]

    def _type(self, name: str) -> pa.DataType:
        if name in self._moments:
            return _MOMENT
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


def _is_range(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind)) and [field.name for field in kind] == ["lo", "hi"]


def _has_whole_ends(qi: Any) -> bool:
    """Whether ranges of whole numbers end at whole numbers."""
    ends = [*(qi.domain or ()), *([] if qi.step is None else [qi.step])] if type(qi) is Numeric else [0.5]
    return all(float(end).is_integer() for end in ends)


def _ends(value: Any) -> tuple[Any, Any]:
    if value is None:
        return None, None
    return (value["lo"], value["hi"]) if isinstance(value, dict) else (value.lo, value.hi)


def _text(lo: Any, hi: Any) -> str:
    return "*" if lo is None and hi is None else f"[{_bound(lo)}, {_bound(hi)}]"


def _bound(value: Any) -> str:
    if value is None:
        return "*"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _texts(column: Any, lo: Any, hi: Any) -> Any:
    bounds = [pc.replace_substring_regex(end.cast(pa.string()), r"\.0$", "") for end in (lo, hi)]
    joined = pc.binary_join_element_wise(*(pc.fill_null(bound, "*") for bound in bounds), ", ")
    text = pc.binary_join_element_wise("[", pc.binary_join_element_wise(joined, "]", ""), "")
    text = pc.if_else(pc.and_(pc.is_null(lo), pc.is_null(hi)), "*", text)
    return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))
