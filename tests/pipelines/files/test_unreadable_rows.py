"""Lines of JSON that no run can take: they are found, whatever is around them, and told without their values."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.files import readers
from crenel.pipelines.files.formats import TableError
from crenel.pipelines.files.unreadable_rows import MOST_DEEP, UnreadableRow, nests_deep

DEEP = '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"
DEEP_OBJECTS = '{"a": ' + '{"x": ' * 20_000 + "1" + "}" * 20_000 + "}"
#: Closing brackets in between do not hide how deep it is.
DEEP_WITH_PAIRS = '{"a": ' + "[[]," * 20_000 + "1" + "]" * 20_000 + "}"

UNREADABLE = {
    "deep lists": (DEEP, "", "nested too deep"),
    "deep objects": (DEEP_OBJECTS, "", "nested too deep"),
    "deep, with pairs": (DEEP_WITH_PAIRS, "", "nested too deep"),
    "a large number": ('{"a": 1e400}', "a", "number too large"),
    "a large negative number": ('{"b": 1, "a": -1e400}', "a", "number too large"),
    "a long number": ('{"a": ' + "9" * 400 + "}", "a", "number too large"),
    "a very long number": ('{"a": ' + "9" * 5_000 + "}", "a", "number too large"),
    "a large number inside": ('{"c": [{"d": 1e999}]}', "c", "number too large"),
    "infinity": ('{"a": Infinity}', "a", "number too large"),
    "half of a pair": ('{"t": "\\ud800"}', "t", "half of a surrogate pair"),
    "half of a pair in a name": ('{"\\ud800": 1}', "\\ud800", "half of a surrogate pair"),
    "twice": ('{"a": 1, "a": 2}', "a", "field given twice"),
    "twice inside": ('{"c": {"d": 1, "d": 2}}', "d", "field given twice"),
}


def parts(path: Path, *lines: str) -> list[pa.RecordBatch | UnreadableRow]:
    path.write_text("".join(line + "\n" for line in lines))
    return list(readers.open_file(path).parts())


@pytest.mark.parametrize(("line", "field", "reason"), UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("others", [['{"a": 1}', '{"a": 2}'], ['{"a": 1}', '{"a": "x"}'], []])
def test_one_row_is_rejected_and_the_others_are_read(
    tmp_path: Path, line: str, field: str, reason: str, others: list[str]
) -> None:
    found = parts(tmp_path / "in.jsonl", *others, line, *others)
    (row,) = [part for part in found if isinstance(part, UnreadableRow)]
    assert (row.text, row.field, row.reason) == (line, field, reason)
    rows = [row["a"] for part in found if isinstance(part, pa.RecordBatch) for row in part.to_pylist()]
    assert list(map(str, rows)) == [str(json.loads(other)["a"]) for other in others * 2]
    assert found.index(row) == len(others) // 2  # between the others, so that rows are numbered as they are
    assert repr(row) == f"UnreadableRow({field!r}, {reason!r})"


def test_the_rows_of_a_block_are_of_one_type_whatever_is_between_them(tmp_path: Path) -> None:
    found = parts(tmp_path / "in.jsonl", '{"a": 1}', '{"a": 1e400}', '{"a": 1.5}', '{"a": 1e400}', '{"a": 2}')
    kinds = {part.schema.field("a").type for part in found if isinstance(part, pa.RecordBatch)}
    assert kinds == {pa.float64()}


@pytest.mark.parametrize("suffix", ["\n", "\r\n", "\n\n", " \n"])
def test_what_is_not_too_deep_is_read(tmp_path: Path, suffix: str) -> None:
    wide = {"a": [[1], [2]] * 100, "text": "[" * 1000 + '\\" {' * 100}
    deep: object = 1
    for _ in range(MOST_DEEP - 1):
        deep = [deep]
    text = suffix.join([json.dumps(wide), json.dumps({"a": deep}), json.dumps({"a": None})]) + suffix
    assert not nests_deep(text.encode())


@pytest.mark.parametrize("opening", ['{"a":\n' * 20_000, '{"a":[\n' * 20_000, '{"a":1,\n"b":' + "[\n" * 20_000])
def test_brackets_do_not_nest_across_lines(tmp_path: Path, opening: str) -> None:
    with pytest.raises(TableError, match="each line must be one JSON object"):
        parts(tmp_path / "in.jsonl", '{"a": 1}', *opening.splitlines())


def test_a_line_that_is_no_json_breaks_the_file(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"is broken at row 3: each line must be one JSON object\.$"):
        parts(tmp_path / "in.jsonl", '{"a": 1}', DEEP, '{"a": 1')


@given(st.recursive(st.none() | st.text('[]{}"\\x', max_size=8), lambda inner: st.lists(inner, max_size=5)))
def test_how_deep_a_line_is(value: object) -> None:
    def depth(inner: object) -> int:
        return 1 + max(map(depth, inner), default=0) if isinstance(inner, list) else 0

    for more in (MOST_DEEP - 30, MOST_DEEP - 2, MOST_DEEP + 1):
        nested: object = value
        for _ in range(more):
            nested = [nested]
        line = json.dumps({"a": nested}).encode()
        others = b'{"a": [1, {"b": "]"}]}\n' * 100
        assert nests_deep(others + line + b"\n" + others) is (depth(nested) + 1 > MOST_DEEP)
