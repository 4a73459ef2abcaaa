"""Files of rows: formats by extension, types in CSV, and errors that never quote a row."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import parquet

from crenel import Policy
from crenel.pipelines.files import formats as tables
from crenel.pipelines.files.formats import TableError, detect, read

ROWS = [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 41}]
CSV = b"name,age\nAda,36\nBob,41\n"
JSON = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)  # type: ignore[no-any-return]


def avro_bytes(path: Path) -> None:
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "long"}],
    }
    with path.open("wb") as file:
        fastavro.writer(file, schema, ROWS)


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rows.csv", CSV),
        ("ROWS.CSV", CSV),
        ("of.may.csv", CSV),
        ("rows.csv.gz", gzip.compress(CSV, mtime=0)),
        ("rows.csv.zst", zstd(CSV)),
        ("bom.csv", b"\xef\xbb\xbf" + CSV),
        ("windows.csv", CSV.replace(b"\n", b"\r\n")),
        ("rows.tsv", CSV.replace(b",", b"\t")),
        ("rows.jsonl", JSON),
        ("rows.ndjson", JSON),
        ("rows.json", JSON),
        ("rows.jsonl.gz", gzip.compress(JSON, mtime=0)),
        ("rows.jsonl.zst", zstd(JSON)),
    ],
)
def test_text_is_read(tmp_path: Path, name: str, data: bytes) -> None:
    assert read(write(tmp_path, name, data)).to_pylist() == ROWS


def test_parquet_and_avro_are_read(tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    avro_bytes(tmp_path / "rows.avro")
    assert read(tmp_path / "rows.parquet").to_pylist() == ROWS
    assert read(tmp_path / "rows.avro").to_pylist() == ROWS


def test_every_format_is_detected_without_the_file() -> None:
    for extension, known in tables.FORMATS.items():
        assert detect(f"nowhere{extension}") == (known, None)
    assert detect("a.b.csv.gz").compression == "gzip"


def types(table: Any) -> dict[str, str]:
    return {name: str(table[name].type) for name in table.column_names}


def test_types_in_csv_are_the_narrowest_that_fit(tmp_path: Path) -> None:
    data = b"""zip,n,x,day,word,gaps,mixed
02139,1,1.5,2020-01-31,NA,1,1
53706,-20,2,2020-01-31T12:00:00Z,b,NA,one
"""
    table = read(write(tmp_path, "a.csv", data))
    assert types(table) == {
        "zip": "string",
        "n": "int64",
        "x": "double",
        "day": "timestamp[us]",
        "word": "string",
        "gaps": "int64",
        "mixed": "string",
    }
    assert table["zip"].to_pylist() == ["02139", "53706"]
    assert table["word"].to_pylist() == ["NA", "b"]
    assert table["gaps"].to_pylist() == [1, None]


def test_the_type_is_that_of_the_whole_file_not_of_its_beginning(tmp_path: Path) -> None:
    data = b"a\n" + b"12345678\n" * 200_000 + b"x\n"
    assert types(read(write(tmp_path, "long.csv", data))) == {"a": "string"}


def test_an_empty_cell_is_missing(tmp_path: Path) -> None:
    table = read(write(tmp_path, "a.csv", b"n,word\n1,\n,b\n"))
    assert table.to_pydict() == {"n": [1, None], "word": [None, "b"]}


def test_a_policy_says_what_is_text_and_what_is_a_number(tmp_path: Path) -> None:
    policy = Policy.from_dict(
        {
            "person": "who",
            "quasi_identifiers": {
                "age": {"type": "numeric"},
                "size": {"type": "categorical", "hierarchy": ["1.50", "2.00"]},
            },
            "sensitive": {"cost": {"domain": [0, 10]}},
            "publish": ["code"],
            "k": 2,
            "delay_rows": 5,
        }
    )
    data = b"who,age,size,cost,code\n1,30,1.50,5,007\n2,old,2.00,,008\n"
    table = tables.read_for(policy, write(tmp_path, "a.csv", data))
    assert types(table) == {
        "who": "string",
        "age": "double",
        "size": "string",
        "cost": "int64",
        "code": "string",
    }
    assert str(table["age"].to_pylist()) == "[30.0, inf]"
    assert table["size"].to_pylist() == ["1.50", "2.00"]


BROKEN = {
    "an unknown extension": ("a.xlsx", b"1", "the extension must be one of .csv"),
    "no extension": ("rows", b"1", "not ''"),
    "Parquet in gzip": ("a.parquet.gz", b"1", "only text may be compressed"),
    "empty": ("a.csv", b"", "a.csv is empty."),
    "empty JSON": ("a.jsonl", b"", "a.jsonl is empty."),
    "empty Parquet": ("a.parquet", b"", "a.parquet is empty."),
    "only a header": ("a.csv", b"a,b\n", "a.csv has no rows."),
    "a short row": ("a.csv", b"a,b\n1,2\nSECRET\n", "row 3 (the header is row 1): 1 values, not 2"),
    "a long row": ("a.csv", b"a,b\n1,SECRET,3\n", "row 2 (the header is row 1): 3 values, not 2"),
    "semicolons": ("a.csv", b"a;b\n1;2\n", "separated by ',', not ';'"),
    "a column twice": ("a.csv", b"a,a\n1,2\n", "must have each column once, not 'a' again"),
    "binary as CSV": ("a.csv", b"a,b\n\xff\xfe\x00,1\n", "is not UTF-8 text: see line 2"),
    "a NUL": ("a.csv", b"a,b\n1,2\n\0,1\n", "is not UTF-8 text: see line 3"),
    "JSON of two types": (
        "a.jsonl",
        b'{"a": 1}\n{"a": "SECRET"}\n',
        "row 2: the column 'a' is a string there, and a number before",
    ),
    "broken JSON": ("a.jsonl", b'{"a": 1}\n{"a": SECRET\n', "row 2: each line must be one JSON"),
    "a JSON array": ("a.json", b'[{"a": 1}]', "each line must be one JSON object"),
    "binary as JSON": ("a.jsonl", b"\x80\x81", "is not UTF-8 text: see line 1"),
    "not gzip": ("a.csv.gz", b"a,b\n1,2\n", "is not compressed by gzip, or is cut off"),
    "gzip cut off": ("a.csv.gz", gzip.compress(CSV * 99, mtime=0)[:-30], "or is cut off"),
    "not zstd": ("a.csv.zst", b"a,b\n1,2\n", "is not compressed by zstd"),
    "garbage as Parquet": ("a.parquet", b"PAR1SECRET", "is not Parquet, or is cut off"),
    "garbage as Avro": ("a.avro", b"Obj\x01SECRET", "is not Avro, or is broken"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_sentence_without_values(tmp_path: Path, case: str) -> None:
    name, data, expected = BROKEN[case]
    with pytest.raises(TableError) as caught:
        read(write(tmp_path, name, data))
    (problem,) = caught.value.problems
    assert expected in problem
    assert problem.endswith(".") and "\n" not in problem
    assert "SECRET" not in problem
    assert caught.value.__cause__ is None


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"none\.csv: there is no such file"):
        read(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(TableError, match="must be a file, not a folder"):
        read(tmp_path / "folder.csv")


def test_avro_cut_off_says_after_how_many_records(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "row", "fields": [{"name": "name", "type": "string"}]}
    whole = tmp_path / "rows.avro"
    with whole.open("wb") as file:
        # A block for each record, so that those before the cut can be read.
        fastavro.writer(file, schema, [{"name": "SECRET" * 9}] * 5, sync_interval=1)
    with pytest.raises(TableError, match=r"^cut\.avro is not Avro, or is broken after record 4\.$"):
        read(write(tmp_path, "cut.avro", whole.read_bytes()[:-40]))
