"""The extension of a file decides its format, whether the file exists or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from crenel.pipelines.files.formats import FORMATS, TableError, detect, format_names, kind_of


def test_every_format_is_detected_without_the_file() -> None:
    for extension, known in FORMATS.items():
        assert detect(f"nowhere{extension}") == (known, None)
    assert detect("a.b.csv.gz").compression == "gzip"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.xlsx", "a.xlsx: the extension must be one of .csv"),
        ("rows", "not ''"),
        ("a.parquet.gz", "a.parquet.gz: only text may be compressed as a whole, and Parquet is not text."),
    ],
)
def test_a_file_of_no_format_is_refused(name: str, expected: str) -> None:
    with pytest.raises(TableError) as caught:
        detect(name)
    assert expected in str(caught.value)


def test_a_named_format_overrules_the_extension() -> None:
    assert kind_of(Path("a.ndjson"), None) == (".jsonl", None)
    assert kind_of(Path("a.txt.gz"), "csv") == (".csv", "gzip")
    assert kind_of(Path("a.csv.gz"), "parquet") == (".parquet", None)
    assert format_names()["ndjson"] == ".ndjson"
