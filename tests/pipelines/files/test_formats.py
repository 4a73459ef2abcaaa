"""The extension of a file decides its format, whether the file exists or not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crenel.pipelines.cli import main
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


@pytest.mark.parametrize(
    "argv",
    [
        ["init", "s3://bucket/visits.csv"],
        ["run", "policy.yaml", "--input", "gs://bucket/visits-*.parquet", "--output", "out.csv"],
        ["run", "policy.yaml", "--input", "in.csv", "--output", "s3://bucket/out.csv"],
    ],
)
def test_a_file_on_another_machine_is_refused_with_what_to_do(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text("{person: a, quasi_identifiers: {b: {type: numeric}}, k: 2, delay_rows: 5}")
    Path("in.csv").write_text("a,b\n1,2\n")
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert re.search(r"not (s3|gs)://\. Copy the file here, or use Anonymize in a pipeline of your own", said)
