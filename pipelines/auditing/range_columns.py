"""Reads published ranges that are two columns (`age_lo`, `age_hi`) as if they were one of structs.

A number in text must be written as numbers of its column are written, all of them as whole numbers or all of them as
floats: a second way to write it could tell apart rows that must look the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crenel.pipelines.auditing.published_values import NotReadableError
from crenel.policy import Policy, columns
from crenel.policy.quasi_identifiers import Datetime, Numeric
from crenel.transforms._publish.range_ends import is_ambiguous, is_of_days, range_ends

__all__ = ["RangeColumns"]

_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
#: Up to here, floats hold every whole number.
_LARGEST = 2**53
_INTEGERS, _FLOATS = "integers", "floats"


class RangeColumns:
    """Finds and joins the two columns of each range of a policy. A file that has none is left as it is."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        published = {*policy.quasi_identifiers, *policy.sensitive, *policy.publish}
        #: Exactly these types: a subclass may publish something else.
        self._ends = {
            name: range_ends(name)
            for name, qi in policy.quasi_identifiers.items()
            if type(qi) in (Numeric, Datetime) and not published & set(range_ends(name))
        }
        #: How the numbers of a column may be written, given those that were read.
        self._ways: dict[str, set[str]] = {name: {_INTEGERS, _FLOATS} for name in self._ends}

    def named(self, there: Iterable[str]) -> list[str]:
        """Name the columns of a file as the policy does: two columns of a range are one."""
        there = list(there)
        joined = self._joined(there)
        dropped = {end for name in joined for end in self._ends[name]}
        return [*joined, *(name for name in there if name not in dropped)]

    def _joined(self, there: Iterable[str]) -> list[str]:
        known = set(there)
        return [name for name, ends in self._ends.items() if name not in known and known.issuperset(ends)]

    def find(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        """Make the column of a range; None if the batch does not have it as two columns.

        Raises:
            NotReadableError: the policy cannot have published one of the values.
            TypeError: the values cannot be told apart.
        """
        if name not in self._joined(batch.schema.names):
            return None
        lo, hi = (self._read(name, batch.column(end)) for end in self._ends[name])
        empty = pc.and_(lo.is_null(), hi.is_null())
        if is_ambiguous(self._policy, name) and pc.any(empty).as_py():
            message = "a missing value cannot be told from a range without ends: the policy must declare the domain."
            raise TypeError(message)
        # A range without ends is possible only without a domain. All other empty ends are those of a missing value.
        qi: Any = self._policy.quasi_identifiers[name]
        mask = None if qi.domain is None else empty
        return pa.StructArray.from_arrays([lo, hi], ["lo", "hi"], mask=mask)

    def _read(self, name: str, ends: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(ends.type):
            ends = ends.cast(ends.type.value_type)
        if not (pa.types.is_string(ends.type) or pa.types.is_large_string(ends.type)):
            return ends
        qi = self._policy.quasi_identifiers[name]
        if type(qi) is Numeric:
            return self._numbers(name, ends)
        return pc.binary_join_element_wise(ends, "T00:00:00Z", "") if is_of_days(qi) else ends

    def _numbers(self, name: str, ends: pa.Array) -> pa.Array:
        codes, distinct = columns.factorize(ends)
        values = [None if text is None else self._number(name, text) for text in distinct]
        return pa.array(values, pa.float64()).take(pa.array(np.asarray(codes, dtype=np.int64)))

    def _number(self, name: str, text: Any) -> float:
        try:
            number = float(text)
        except ValueError:
            raise NotReadableError from None
        is_integer = _WHOLE.fullmatch(text) is not None and abs(number) <= _LARGEST
        is_float = np.isfinite(number) and pa.scalar(number).cast(pa.string()).as_py() == text
        self._ways[name] &= {way for way, fits in ((_INTEGERS, is_integer), (_FLOATS, is_float)) if fits}
        if not self._ways[name]:
            raise NotReadableError
        return number
