"""A JSON file that is one array is read as the lines of its elements would be."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.files import file_rows
from crenel.pipelines.files.cells import json_arrays
from crenel.pipelines.files.formats import TableError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(['"', "\\", "[{", "}]", ",", "\n"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=4), st.integers(1, 40), st.booleans()
)
def test_lines_are_the_elements_wherever_blocks_end(rows: list[Any], block: int, pretty: bool) -> None:
    data = json.dumps(rows, indent=2 if pretty else None, ensure_ascii=False).encode()
    stream = io.BytesIO(data)
    pieces = io.BytesIO(data)
    pieces.read(block)
    small = _Small(pieces, block)
    found = json_arrays.lines_of(stream.read(block), small, 1 << 20)  # type: ignore[arg-type]
    assert [json.loads(line) for lines in found for line in lines.split(b"\n") if line] == rows


class _Small:
    """Gives few bytes at a time, however many are asked for."""

    def __init__(self, stream: io.BytesIO, most: int) -> None:
        self._stream, self._most = stream, most

    def read(self, _: int) -> bytes:
        return self._stream.read(self._most)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"a": 1}, {"a": 2}', "the array has no end"),
        ('[{"a": 1}, {"a": "secr', "the array has no end"),
        ('[{"a": 1}] {"a": 2}', "must hold one array, and nothing after it"),
        ('[{"a": 1}, 12345]', "each element of the array must be one JSON object"),
        ('[{"a": 1}, "secret"]', "each element of the array must be one JSON object"),
        ('[[{"a": 1}]]', "each element of the array must be one JSON object"),
    ],
)
def test_a_broken_array_is_named_without_its_values(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(TableError) as error:
        file_rows.read(path)
    assert said in str(error.value)
    assert "secr" not in str(error.value)
    assert "12345" not in str(error.value)


def test_an_array_is_read_as_its_lines_are(tmp_path: Path) -> None:
    rows = [{"who": str(n), "at": {"city": "Graz" if n % 2 else None}, "note": "a ]},{[ \n b"} for n in range(50)]
    (tmp_path / "array.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [file_rows.read(tmp_path / name).table for name in ("array.json", "lines.jsonl")]
    assert found[0].equals(found[1])
    assert found[0].num_rows == 50
