"""JSON values: whatever comes is read and written as Python's own `json` does it."""

from __future__ import annotations

import json
import math
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crenel.pipelines.files import writers
from crenel.pipelines.kafka.messages.values import JsonValues, Unreadable
from crenel.transforms._publish.grouped_rows import GroupedRows

VALUES = JsonValues()


def _refused(constant: str) -> Any:
    raise ValueError(constant)


def reference(value: bytes) -> Any:
    """Read a value by Python's `json` alone: a row, or the reason why it is none."""
    try:
        text = value.decode(json.detect_encoding(value), "surrogatepass")
        row = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return "not JSON"
    return row if type(row) is dict else "not a JSON object"


def shown(value: Any) -> str:
    """Tell 1 from 1.0 and from True, and 0.0 from -0.0."""
    return str(value) if isinstance(value, Unreadable) else repr(value)


def read(value: bytes) -> Any:
    try:
        return VALUES.read(value)
    except Unreadable as why:
        return why


def check(value: bytes) -> None:
    expected = reference(value)
    said = expected if isinstance(expected, str) else repr(expected)
    assert shown(read(value)) == said
    # Among others, of which one is no row.
    other, found, nothing = VALUES.read_many([b'{"a": 1}', value, b"{"])
    assert (shown(other), shown(found), shown(nothing)) == ("{'a': 1}", said, "not JSON")


ODD = [
    b"",
    b"{}",
    b' {"a" : 1}\r\n\t',
    b"[1]",
    b'"text"',
    b"1",
    b"null",
    b'{"a": 1} x',
    b'{"a": 1}\0',
    b'{"a": 1}{"a": 2}',
    b'{"a": 1,}',
    b"{'a': 1}",
    b'{"a": 01}',
    b'{"a": 1.}',
    b'{"a": .5}',
    b'{"a": +1}',
    b'{"a": -0}',
    b'{"a": -0.0}',
    b'{"a": 1.0}',
    b'{"a": 1E+2, "b": 1e-2}',
    # Numbers that are large, or nearly nothing.
    b'{"a": 9223372036854775807, "b": 9223372036854775808, "c": 18446744073709551615, "d": 18446744073709551616}',
    b'{"a": -9223372036854775808, "b": -9223372036854775809}',
    b'{"a": 123456789012345678901234567890}',
    b'{"a": ' + b"9" * 400 + b"}",
    b'{"a": ' + b"9" * 4300 + b"}",
    b'{"a": ' + b"9" * 4301 + b"}",
    b'{"a": 1e400}',
    b'{"a": -1e400}',
    b'{"a": 1e-400}',
    b'{"a": 1.7976931348623157e308, "b": 1.7976931348623159e308, "c": 5e-324, "d": 2.2250738585072011e-308}',
    b'{"a": 0.1, "b": 123456789.123456789123456789, "c": 9007199254740993.0}',
    b'{"a": 0.' + b"3" * 800 + b"}",
    b'{"a": NaN}',
    b'{"a": [Infinity]}',
    b'{"a": -Infinity}',
    # Keys.
    b'{"a": 1, "a": 2}',
    b'{"a": 1, "\\u0061": 2}',
    b'{"a": {"b": 1, "b": 2}}',
    b'{"": 1}',
    # Text.
    b'{"a": "\xff"}',
    b'{"\xff": 1}',
    b'{"a": "\xc0\x80"}',
    b'{"a": "\xf4\x90\x80\x80"}',
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\xed\xa0\xbd\xed\xb8\x80"}',
    b'{"a": "\xe2\x82"}',
    b'{"a": \xc2\xa01}',
    b'{"a": "\\ud800"}',
    b'{"a": "\\udc00\\ud800"}',
    b'{"\\ud800": 1}',
    b'{"a": "\\ud83d\\ude00"}',
    b'{"a": "\\ud83d"}',
    b'{"a": "\\u0000"}',
    b'{"a": "\x00"}',
    b'{"a": "\x01"}',
    b'{"a": "a\nb"}',
    b'{"a": "\x7f"}',
    b'{"a": "\\q"}',
    b'{"a": "\\u12g4"}',
    b'\xef\xbb\xbf{"a": 1}',
    '{"a": "\u20ac"}'.encode("utf-16"),
    '{"a": 1}'.encode("utf-16-be"),
    '{"a": 1}'.encode("utf-32-le"),
    '{"a": 1}'.encode("utf-32"),
    # Depth.
    b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"a":' * 200 + b"1" + b"}" * 200,
    b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_what_is_odd_is_read_as_json_reads_it(value: bytes) -> None:
    check(value)


_TEXTS = st.text(st.characters(codec=None, categories=None)) | st.text('ab"\\{}[]:,\ud800\udc00\0\n\u20ac')
_NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=20,
)
_ROWS = st.dictionaries(_TEXTS, _VALUES, max_size=5)


@given(_ROWS, st.booleans())
def test_every_row_is_read_as_json_reads_it(row: dict[str, Any], ascii_only: bool) -> None:
    check(json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))


@given(_ROWS, st.data())
def test_every_damaged_row_is_read_as_json_reads_it(row: dict[str, Any], data: st.DataObject) -> None:
    value = bytearray(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    at = data.draw(st.integers(0, len(value) - 1))
    if data.draw(st.booleans()):
        value[at] = data.draw(st.integers(0, 255))
    else:
        del value[at:]
    check(bytes(value))


def written(row: dict[str, Any]) -> Any:
    """Write a row by Python's `json` alone, and read it again."""
    text = json.dumps(_finite(row), default=writers._plain, ensure_ascii=False, allow_nan=False)
    return json.loads(text.encode("utf-8", "backslashreplace"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_AVRO = (
    st.binary(max_size=4)
    | st.datetimes(timezones=st.sampled_from([None, timezone.utc, timezone(timedelta(hours=2))]))
    | st.dates()
    | st.times()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.tuples(st.integers(), st.text(max_size=2))
)
_WRITTEN = st.recursive(
    _VALUES | st.floats() | _AVRO,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(_TEXTS, _WRITTEN, max_size=4), max_size=3))
@example([{"at": datetime(2026, 3, 1, 12, tzinfo=timezone.utc), "day": date(2026, 3, 1), "time": time(1, 2, 3)}])
@example([{"lo": math.nan, "hi": math.inf, "big": 2**80, "half": "\ud800", "raw": b"\xff", "much": Decimal("1.50")}])
def test_every_row_is_written_as_json_writes_it(rows: list[dict[str, Any]]) -> None:
    made = VALUES.write_many(rows)
    assert made == [VALUES.write(row) for row in rows]
    for row, value in zip(rows, made, strict=True):
        assert isinstance(value, bytes)
        assert b"\n" not in value
        assert repr(json.loads(value)) == repr(written(row))


@given(
    boxes=st.lists(st.fixed_dictionaries({"age": _WRITTEN, "zip \u20ac": _WRITTEN}), max_size=3),
    sizes=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    columns=st.dictionaries(_TEXTS, st.lists(_WRITTEN, min_size=9, max_size=9), max_size=3),
)
@example([{"age": 1, "zip \u20ac": None}], [2, 1, 1], {"note": [2**80, "\ud800", math.nan, *"abcdef"], 'a"b': [0] * 9})
def test_rows_of_releases_are_written_as_rows(
    boxes: list[dict[str, Any]], sizes: list[int], columns: dict[str, list[Any]]
) -> None:
    """What the rows of a release share is written once, and nobody can tell."""
    sizes = sizes[: len(boxes)]
    columns = {name: column[: sum(sizes)] for name, column in columns.items() if name not in ("age", "zip \u20ac")}
    rows = GroupedRows(boxes, sizes, columns)
    made = VALUES.write_many(rows)
    assert len(made) == len(rows)
    for row, value in zip(rows, made, strict=True):
        assert isinstance(value, bytes)
        assert b"\n" not in value
        assert repr(json.loads(value)) == repr(written(row))


def test_the_depth_of_a_call_does_not_change_what_is_read() -> None:
    """What lies deep in calls of its own may refuse a value earlier, and never reads another."""

    def deep(left: int) -> Any:
        return read(ODD[-4]) if left == 0 else deep(left - 1)

    assert shown(deep(sys.getrecursionlimit() // 2)) == repr(reference(ODD[-4]))
