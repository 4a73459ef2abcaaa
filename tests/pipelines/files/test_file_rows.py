"""Reading a file, or a sample of it: every format, types in CSV, and errors that never quote a row."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from crenel import Policy
from crenel.encoding.encoder import Encoder
from crenel.pipelines.files import file_rows, readers
from crenel.pipelines.files.file_rows import FileRows
from crenel.pipelines.files.formats import TableError
from crenel.transforms._pack.text_columns import TextColumns, named_columns

ROWS = [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 41}]
CSV = b"name,age\nAda,36\nBob,41\n"
JSON = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def read(path: Path) -> pa.Table:
    return file_rows.read(path).table


def read_for(policy: Policy, path: Path) -> pa.Table:
    return file_rows.read_for(policy, path).table


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


def test_whole_numbers_keep_each_digit(tmp_path: Path) -> None:
    large, long = 99999999999999999, 10**22
    lines = [f"{large + i},{long + i},{long},NA,{long + i}" for i in range(2)] + [f"1,2,3,{large},4.5"]
    table = read(write(tmp_path, "a.csv", "\n".join(["a,b,c,d,e", *lines]).encode()))
    assert types(table) == {"a": "int64", "b": "string", "c": "double", "d": "int64", "e": "double"}
    assert table["a"].to_pylist() == [large, large + 1, 1]
    assert table["b"].to_pylist() == [str(long), str(long + 1), "2"]


@pytest.mark.parametrize("header", ["who,,age,,", ",,who,age,", '"",who,"",age,""'])
def test_columns_without_a_name_may_be_several(tmp_path: Path, header: str) -> None:
    """Excel writes them at the end of each line. Rows have one place for them all, as for a single one."""
    values = {"who": "7", "age": "30"}
    row = ",".join(values.get(name.strip('"'), f"x{place}") for place, name in enumerate(header.split(",")))
    path = write(tmp_path, "a.csv", f"{header}\n{row}\n{row}\n".encode())
    first = next(cell for cell in row.split(",") if cell.startswith("x"))
    (source,) = readers.find([str(path)], None, Path)
    assert sorted(source.columns() or ()) == ["", "age", "who"]
    assert [batch.to_pylist() for batch in source.batches()] == [[{**values, "": first}] * 2]
    assert read(path).to_pylist() == [{"who": 7, "age": 30, "": first}] * 2


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
    table = read_for(policy, write(tmp_path, "a.csv", data))
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
    "empty": ("a.csv", b"", "a.csv is empty."),
    "empty JSON": ("a.jsonl", b"", "a.jsonl is empty."),
    "empty Parquet": ("a.parquet", b"", "a.parquet is empty."),
    "only a header": ("a.csv", b"a,b\n", "a.csv has no rows."),
    "a short row": ("a.csv", b"a,b\n1,2\nSECRET\n", "row 3 (the header is row 1): it has 1 value, not 2"),
    "a long row": ("a.csv", b"a,b\n1,SECRET,3\n", "row 2 (the header is row 1): it has 3 values, not 2"),
    "a column twice": ("a.csv", b"a,b,a\n1,2,3\n", "must have each column once: columns 1 and 3 have the same name"),
    "no header": ("a.csv", b"1,SECRET,SECRET,SECRET\n1,2,3,4\n", "columns 2, 3 and 4 have the same name"),
    "binary as CSV": ("a.csv", b"a,b\n\xff\xfe\x00,1\n", "is not UTF-8 text: see line 2"),
    "a NUL": ("a.csv", b"a,b\n1,2\n\0,1\n", "is not UTF-8 text: see line 3"),
    "broken JSON": ("a.jsonl", b'{"a": 1}\n{"a": SECRET\n', "row 2: each line must be one JSON"),
    "a broken JSON array": ("a.json", b'[{"a": 1}, {"a": "SECRET"]', "each element of the array must be one JSON"),
    "a list as JSON": ("a.jsonl", b'{"a": 1}\n["SECRET"]\n', "each line must be one JSON object"),
    "binary as JSON": ("a.jsonl", b"\x80\x81", "is not UTF-8 text: see line 1"),
    "Latin-1 in JSON": ("a.jsonl", b'{"a": "b"}\n{"a": "\xe9"}\n', "is not UTF-8 text: see line 2"),
    "Latin-1 in a header": ("a.csv", b"a,\xe9\n1,2\n", "is not UTF-8 text: see line 1"),
    "UTF-16": ("a.csv", "a,b\n1,2\n".encode("utf-16"), "is not UTF-8 text: see line 1"),
    "text cut within a character": ("a.csv", b"a\nb\n\xc3", "is not UTF-8 text"),
    "not gzip": ("a.csv.gz", b"a,b\n1,2\n", "is not compressed by gzip, or is cut off"),
    "gzip cut off": ("a.csv.gz", gzip.compress(CSV * 99, mtime=0)[:-30], "or is cut off"),
    "not zstd": ("a.csv.zst", b"a,b\n1,2\n", "is not compressed by zstd"),
    "garbage as Parquet": ("a.parquet", b"PAR1SECRET", "is not Parquet, or is cut off"),
    "garbage as Avro": ("a.avro", b"Obj\x01SECRET", "is not Avro, or is cut off"),
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
    assert caught.value.__context__ is None


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"none\.csv: there is no such file"):
        read(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(TableError, match="must be a file, not a folder"):
        read(tmp_path / "folder.csv")


def test_rows_that_are_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rows, "_MOST_BYTES", 1000)
    assert read(write(tmp_path, "a.csv", CSV)).num_rows == 2
    for name, data in (("b.csv", CSV * 99), ("b.csv.gz", gzip.compress(CSV * 99, mtime=0))):
        with pytest.raises(TableError, match=rf"^{name} has rows of more than 2 GB in all: look at fewer"):
            read(write(tmp_path, name, data))


def numbered(tmp_path: Path, rows: int, **options: Any) -> FileRows:
    data = "n\n" + "".join(f"{number}\n" for number in range(rows))
    return file_rows.read(write(tmp_path, "long.csv", data.encode()), **options)


def test_of_a_long_file_stretches_from_all_of_it_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_BLOCK", 500)  # stretches do not end where blocks do
    found = numbered(tmp_path, 20_000, most=900)
    assert found.is_sample
    assert found.total == 20_000
    places = found.table["n"].to_numpy()
    starts = places[np.flatnonzero(np.diff(places, prepend=-2) != 1)]
    assert len(places) == 900
    assert set(starts % 100) == {0}
    # Neither the beginning alone, nor every n-th stretch.
    assert starts.max() > 10_000
    assert len(set(np.diff(starts))) > 2
    assert numbered(tmp_path, 20_000, most=900).table.equals(found.table)


@pytest.mark.parametrize("rows", [1, 899, 900])
def test_a_file_that_just_fits_is_read_whole(tmp_path: Path, rows: int) -> None:
    found = numbered(tmp_path, rows, most=900)
    assert not found.is_sample
    assert found.table["n"].to_pylist() == list(range(rows))


def test_a_sample_is_of_consecutive_rows_in_the_middle(tmp_path: Path) -> None:
    """The engine is tried on the middle of a sample, and must not see a gap there."""
    places = numbered(tmp_path, 50_000, most=9_000).table["n"].to_numpy()
    middle = places[4_000:5_000]
    assert np.all(np.diff(middle) == 1)


def test_a_json_column_of_two_types_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'{"a": 1, "b": 1}\n{"a": "x", "b": 2.5}\n{"c": true}\n'
    expected = {"a": ["1", "x", None], "b": [1.0, 2.5, None], "c": [None, None, True]}
    assert read(write(tmp_path, "a.jsonl", data)).to_pydict() == expected
    # The result is the same if the types differ between blocks that are parsed separately.
    monkeypatch.setattr(readers, "_BLOCK", 20)
    assert read(write(tmp_path, "a.jsonl", data)).to_pydict() == expected


def test_avro_cut_off_says_after_how_many_records(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "row", "fields": [{"name": "name", "type": "string"}]}
    whole = tmp_path / "rows.avro"
    with whole.open("wb") as file:
        # Each record has its own block, so that the records before the cut can be read.
        fastavro.writer(file, schema, [{"name": "SECRET" * 9}] * 5, sync_interval=1)
    with pytest.raises(TableError, match=r"^cut\.avro is broken after record 4\.$"):
        read(write(tmp_path, "cut.avro", whole.read_bytes()[:-40]))


#: Text that one reader might read as a number or a moment, and another might not.
ODD = (
    *("0", "-0", "+1", "01", "1.", ".5", ".", "e5", "1e5", "1E+5", "1e999", "-1e-999", "0x10", "1_000", "1,5", "٣"),
    *("12345678901234567890", "9007199254740993", "inf", "-Infinity", "nan", "NaN", "NA", "N/A", "null", "NULL"),
    *("None", " 1", "1 ", "2020-01-31", "2020-02-30", "2020-01-31T12:00", "2020-01-31 12:00:00.123456789"),
    *("1600000000", "2020-01-31T12:00:00Z", "2020-01-31T12:00:00+01:00", "20200131", "31.01.2020", "24:00"),
    *("yesterday", "true"),
)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    lines = [f'"{text}","{text}","{text}","{text}",{place}' for place, text in enumerate(ODD)]
    path = write(tmp_path, "odd.csv", "\n".join(["age,day,at,cost,who", *lines, ",,,,"]).encode())
    assert read(path).num_rows == len(ODD) + 1
    return path


ODD_POLICY = Policy.from_dict(
    {
        "person": "who",
        "event_time": "at",
        "quasi_identifiers": {"age": {"type": "numeric"}, "day": {"type": "datetime"}},
        "sensitive": {"cost": {"domain": [0, 10]}},
        "k": 2,
        "delay": "1h",
    }
)


@pytest.mark.parametrize("block", [8 << 20, 256])
def test_a_sample_is_what_a_run_reads_however_odd_the_values_are(
    odd: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_BLOCK", block)
    encoder = Encoder(ODD_POLICY)
    checked = encoder.encode(as_columns(read_for(ODD_POLICY, odd)), None)
    text, (source,) = TextColumns(ODD_POLICY), readers.find([str(odd)], None, Path)
    before = 0
    parts, rejected = [], []
    for raw in source.batches():
        part = encoder.encode(text.arrays(raw, named_columns(ODD_POLICY)), None)
        parts.append(part.rows)
        rejected += [(before + one.index, one.field, one.reason) for one in part.rejected]
        before += raw.num_rows
    assert [(one.index, one.field, one.reason) for one in checked.rejected] == rejected
    for name in ("qi", "person", "time"):
        np.testing.assert_array_equal(getattr(checked.rows, name), np.concatenate([getattr(p, name) for p in parts]))


def as_columns(table: Any) -> dict[str, Any]:
    return {name: table.column(name) for name in table.schema.names}


@pytest.mark.parametrize("text", ODD)
def test_init_takes_for_a_number_what_a_run_takes_for_one(tmp_path: Path, text: str) -> None:
    """The run must not reject a column that `init` drafts as numeric, and `init` must not miss a number."""
    path = write(tmp_path, "a.csv", f'age\n1\n"{text}"\n2.5\n'.encode())
    drafted = pa.types.is_floating(read(path)["age"].type)
    (raw,) = readers.open_file(path).batches()
    numbers = TextColumns(ODD_POLICY).array("age", raw.column("age")).to_pylist()
    assert drafted == all(number is None or math.isfinite(number) for number in numbers)
