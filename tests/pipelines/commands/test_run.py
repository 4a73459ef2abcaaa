"""`crenel run`: formats, order, the account of all rows, and how a run ends when something fails."""

from __future__ import annotations

import errno
import gzip
import io
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from crenel.pipelines.cli import main
from crenel.pipelines.commands import run
from crenel.transforms import bounded
from crenel.transforms._hold import sorted_runs

POLICY = """\
person: who
event_time: at
quasi_identifiers:
  age: {type: numeric, domain: [0, 100]}
  zip: {type: prefix, length: 5}
  job: {type: categorical, hierarchy: {Office: [clerk, boss], Field: [farmer, miner]}}
sensitive: [ill]
publish: [note]
k: 3
delay: 10m
disorder: 1m
on_suppress: star
secret: env:CRENEL_TEST_SECRET
"""

SECRET = bytes(range(100, 132)).hex()

Row = dict[str, Any]
COLUMNS = ("who", "at", "age", "zip", "job", "ill", "note", "secret")


def make_rows(count: int = 300) -> list[Row]:
    draw = random.Random(1)
    rows = []
    for i in range(count):
        at = 1_600_000_000 + i * 7 + draw.randrange(-30, 30)
        rows.append(
            {
                "who": draw.randrange(40),
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
                "age": draw.randrange(0, 100),
                "zip": f"{draw.randrange(20):05}",
                "job": draw.choice(["clerk", "boss", "farmer", "miner"]),
                "ill": draw.choice(["flu", "cold", None]),
                "note": f"n, {i}" if i % 7 else None,
                "secret": f"SECRET{i}",
            }
        )
    return rows


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    table = pa.table({name: pa.array([r[name] for r in rows]) for name in COLUMNS})
    with pa.output_stream(str(path)) as stream:
        pyarrow.csv.write_csv(table, stream)


def write_json(path: Path, rows: Sequence[Row]) -> None:
    text = "".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=37)


def write_avro(path: Path, rows: Sequence[Row]) -> None:
    kinds = {"who": "long", "age": "int"}
    fields = [{"name": name, "type": ["null", kinds.get(name, "string")]} for name in COLUMNS]
    with open(path, "wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows)


WRITERS: dict[str, Callable[[Path, Sequence[Row]], None]] = {
    ".csv": write_csv,
    ".csv.gz": write_csv,
    ".csv.zst": write_csv,
    ".jsonl": write_json,
    ".jsonl.gz": write_json,
    ".parquet": write_parquet,
    ".avro": write_avro,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRENEL_TEST_SECRET", SECRET)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def crenel(*argv: object) -> int:
    try:
        return main(["run", "policy.yaml", *map(str, argv)])
    except SystemExit as left:
        return int(left.code or 0)


def read(path: Path) -> list[Row]:
    """Read a file of any format, and return its rows as JSON would have them."""
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".avro":
        with open(path, "rb") as file:
            return list(fastavro.reader(file))
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    return [json.loads(line) for line in lines]


def nothing_but(folder: Path, *names: str) -> bool:
    return {path.name for path in folder.iterdir()} == {"policy.yaml", *names}


# -- formats ---------------------------------------------------------------------------------------


def test_every_format_gives_the_same_output(here: Path) -> None:
    rows = make_rows()
    outputs = set()
    for suffix, write in WRITERS.items():
        write(here / f"in{suffix}", rows)
        assert crenel("--input", f"in{suffix}", "--output", "out.csv") == 0
        outputs.add((here / "out.csv").read_bytes())
    assert len(outputs) == 1
    header, first, *_ = outputs.pop().decode().splitlines()
    assert header == "age,zip,job,ill,note"
    assert first.startswith('"[')


def test_every_output_format_holds_the_same_rows(here: Path) -> None:
    write_parquet(here / "in.parquet", make_rows())
    found = []
    for suffix in (".jsonl", ".ndjson", ".jsonl.gz", ".parquet", ".avro"):
        assert crenel("--input", "in.parquet", "--output", f"out{suffix}") == 0
        found.append(read(here / f"out{suffix}"))
    assert len(found[0]) == 300
    assert all(rows == found[0] for rows in found)
    assert set(found[0][0]["age"]) == {"lo", "hi"}
    assert crenel("--input", "in.parquet", "--output", "out.csv") == 0
    table = pyarrow.csv.read_csv(here / "out.csv")
    assert table["zip"].to_pylist() == [row["zip"] for row in found[0]]
    for text, row in zip(table["age"].to_pylist(), found[0], strict=True):
        lo, hi = row["age"]["lo"], row["age"]["hi"]
        assert text == f"[{lo:g}, {hi:g}]"


def test_the_same_rows_are_the_same_bytes(here: Path) -> None:
    write_csv(here / "in.csv", make_rows())
    for suffix in (".csv", ".csv.gz", ".csv.zst", ".jsonl", ".parquet", ".avro"):
        for name in ("one", "two"):
            assert crenel("--input", "in.csv", "--output", f"{name}{suffix}") == 0
        assert (here / f"one{suffix}").read_bytes() == (here / f"two{suffix}").read_bytes()


def test_suppressed_rows_show_no_ends_of_an_undeclared_domain(here: Path) -> None:
    (here / "policy.yaml").write_text(
        "person: who\nevent_time: at\nquasi_identifiers: {age: {type: numeric}, at: {type: datetime}}\n"
        "k: 50\ndelay: 1m\non_suppress: star\n"
    )
    write_csv(here / "in.csv", make_rows(20))
    assert crenel("--input", "in.csv", "--output", "out.csv") == 1
    assert (here / "out.csv").read_text() == "age,at\n" + "*,*\n" * 20
    assert crenel("--input", "in.csv", "--output", "out.jsonl", "--suppressed", "exact.jsonl") == 1
    nowhere = {"lo": None, "hi": None}
    assert read(here / "out.jsonl") == [{"age": nowhere, "at": nowhere}] * 20
    assert all(row["age"]["lo"] == row["age"]["hi"] for row in read(here / "exact.jsonl"))


def test_output_to_a_closed_reader_exits_with_141(here: Path) -> None:
    write_csv(here / "in.csv", make_rows())
    reading, writing = os.pipe()
    os.close(reading)
    argv = ["-m", "crenel.pipelines.cli", "run", "policy.yaml", "--input", "in.csv", "--output", "-"]
    done = subprocess.run([sys.executable, *argv], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_format_can_be_named(here: Path) -> None:
    write_csv(here / "rows.txt", make_rows())
    assert crenel("--input", "rows.txt", "--output", "out.txt") == 2
    argv = ["--input", "rows.txt", "--input-format", "csv", "--output", "out.txt", "--output-format", "jsonl"]
    assert crenel(*argv) == 0
    assert len(read(here / "out.txt")) == 300


@pytest.mark.parametrize(("suffix", "form"), [(".csv", None), (".jsonl", "jsonl"), (".parquet", "parquet")])
def test_standard_input_and_output(
    here: Path, suffix: str, form: str | None, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    WRITERS[suffix](here / f"in{suffix}", make_rows())
    assert crenel("--input", f"in{suffix}", "--output", f"out{suffix}") == 0
    capfdbinary.readouterr()
    data = (here / f"in{suffix}").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    stdout = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stdout))
    formats = ["--input-format", form, "--output-format", form] if form else []
    assert crenel("--input", "-", "--output", "-", "--json", *formats) == 0
    assert stdout.getvalue() == (here / f"out{suffix}").read_bytes()
    assert json.loads(capfdbinary.readouterr().err)["rows"] == 300
    assert nothing_but(here, f"in{suffix}", f"out{suffix}")


# -- order -----------------------------------------------------------------------------------------


def test_how_files_are_split_does_not_matter(here: Path) -> None:
    rows = make_rows()
    write_csv(here / "all.csv", rows)
    assert crenel("--input", "all.csv", "--output", "whole.csv", "--releases", "whole.jsonl") == 0
    random.Random(2).shuffle(rows)
    (here / "parts").mkdir()
    write_csv(here / "parts" / "b.csv", rows[:50])
    write_json(here / "parts" / "a.jsonl.gz", rows[50:120])
    write_parquet(here / "parts" / "c.parquet", rows[120:])
    assert crenel("--input", "parts/*", "--output", "split.csv", "--releases", "split.jsonl") == 0
    assert (here / "split.csv").read_bytes() == (here / "whole.csv").read_bytes()
    assert (here / "split.jsonl").read_bytes() == (here / "whole.jsonl").read_bytes()


def test_rows_of_one_time_and_person_are_ordered_by_what_they_hold(here: Path) -> None:
    rows = [{**row, "at": "2020-01-01T00:00:00Z", "who": i % 4, "age": 5} for i, row in enumerate(make_rows(60))]
    rows = [{**row, "zip": "00001", "job": "boss", "ill": "flu"} for row in rows]
    write_csv(here / "a.csv", rows)
    write_json(here / "b.jsonl", rows[::-1])
    assert crenel("--input", "a.csv", "--output", "a-out.csv") == 0
    assert crenel("--input", "b.jsonl", "--output", "b-out.csv") == 0
    assert (here / "a-out.csv").read_bytes() == (here / "b-out.csv").read_bytes()


def test_without_an_event_time_the_order_is_that_of_the_files(here: Path) -> None:
    policy = POLICY.replace("event_time: at\n", "").replace("delay: 10m\ndisorder: 1m", "delay_rows: 20")
    (here / "policy.yaml").write_text(policy)
    rows = make_rows()
    write_csv(here / "all.csv", rows)
    write_csv(here / "part-1.csv", rows[:100])
    write_parquet(here / "part-2.parquet", rows[100:])
    assert crenel("--input", "all.csv", "--output", "whole.csv") == 0
    assert crenel("--input", "part-*", "--output", "split.csv") == 0
    assert crenel("--input", "part-2.parquet", "part-1.csv", "--output", "turned.csv") == 0
    assert (here / "split.csv").read_bytes() == (here / "whole.csv").read_bytes()
    assert (here / "turned.csv").read_bytes() != (here / "whole.csv").read_bytes()


def test_a_delay_without_an_event_time_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "policy.yaml").write_text(POLICY.replace("event_time: at\n", ""))
    write_csv(here / "in.csv", make_rows())
    assert crenel("--input", "in.csv", "--output", "out.csv") == 2
    assert capsys.readouterr().err.startswith("crenel: policy.event_time must name a column")
    assert nothing_but(here, "in.csv")


def test_a_file_named_twice_is_read_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "in.csv", make_rows())
    assert crenel("--input", "in.csv", "*.csv", "./in.csv", "--output", "out.jsonl", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 300


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--workers", 2], "--workers needs --runner flink, not local."),
        (["--direct_num_workers=2"], "--direct_num_workers must be 1: the local runner is one process."),
    ],
)
def test_several_processes_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str], argv: list[Any], said: str
) -> None:
    write_csv(here / "in.csv", make_rows())
    assert crenel("--input", "in.csv", "--output", "out.csv", *argv) == 2
    assert said in capsys.readouterr().err
    assert nothing_but(here, "in.csv")


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["1MB", "1.5 MB", "512mb", "2GB", "1TB"])
def test_a_memory_limit(here: Path, size: str) -> None:
    write_csv(here / "in.csv", make_rows(40))
    assert crenel("--input", "in.csv", "--output", "out.csv", "--memory-limit", size) == 0


def test_a_full_disk_is_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bounded, "_COPIES", 10**6)
    monkeypatch.setattr(sorted_runs.SortSpace, "file", full)
    write_csv(here / "in.csv", make_rows())
    assert crenel("--input", "in.csv", "--output", "out.csv") == 2
    said = f"{here}: has no space left for rows that are sorted, and for the output."
    assert sentence(capsys) == said
    assert nothing_but(here, "in.csv")


@pytest.mark.parametrize("size", ["", "512", "1KB", "-1GB", "nanMB", "2GiB", "many"])
def test_what_is_no_memory_limit(here: Path, capsys: pytest.CaptureFixture[str], size: str) -> None:
    write_csv(here / "in.csv", make_rows(40))
    assert crenel("--input", "in.csv", "--output", "out.csv", f"--memory-limit={size}") == 2
    assert "must be a size of at least 1MB, such as 512MB or 2GB, not" in capsys.readouterr().err


# -- accounts --------------------------------------------------------------------------------------


def broken_rows() -> list[Row]:
    rows = make_rows(100)
    rows[3]["age"] = 1000
    rows[5]["job"] = "astronaut"
    rows[8]["who"] = None
    rows[9]["age"] = None
    rows[10]["zip"] = "123"
    return rows


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_every_row_is_accounted_for(here: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    WRITERS[suffix](here / f"in{suffix}", broken_rows())
    argv = ["--output", "out.jsonl", "--suppressed", "suppressed.jsonl", "--rejected", "rejected.jsonl"]
    assert crenel("--input", f"in{suffix}", *argv, "--releases", "releases.jsonl", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 100 == told["published"] + told["suppressed"] + told["rejected"]
    published, suppressed = read(here / "out.jsonl"), read(here / "suppressed.jsonl")
    rejected, releases = read(here / "rejected.jsonl"), read(here / "releases.jsonl")
    assert len(published) == 95
    assert len(suppressed) == told["suppressed"]
    assert sum(release["rows"] for release in releases) == 95
    assert len(releases) == told["releases"]
    assert [(row["field"], row["reason"]) for row in rejected] == [
        ("age", "outside the domain"),
        ("job", "unknown value"),
        ("who", "missing"),
        ("age", "missing (missing: category takes it)"),
        ("zip", "wrong length"),
    ]
    assert json.loads(rejected[1]["row"])["job"] == "astronaut"
    assert {"field": "zip", "reason": "wrong length", "rows": 1} in told["rejected_by"]
    assert set(published[0]) == {"age", "zip", "job", "ill", "note"}


def test_an_unreadable_cell_is_rejected_unchanged(here: Path) -> None:
    rows = make_rows(60)
    write_csv(here / "in.csv", rows)
    text = (here / "in.csv").read_text().replace('"2020-09-13T', '"soon', 1)
    lines = text.splitlines()
    cells = lines[9].split(",")
    cells[2] = "about 40"
    lines[9] = ",".join(cells)
    (here / "in.csv").write_text("\n".join(lines) + "\n")
    assert crenel("--input", "in.csv", "--output", "out.csv", "--rejected", "rejected.jsonl") == 0
    first, second = read(here / "rejected.jsonl")
    assert (first["field"], first["reason"]) == ("at", "not a date")
    assert (second["field"], second["reason"]) == ("age", "not a number")
    assert json.loads(second["row"])["age"] == "about 40"


def holed_rows() -> list[Row]:
    rows = make_rows()
    for i, row in enumerate(rows):
        if i % 3 == 0:
            row["age"] = None
        if i % 5 == 0:
            row["zip"] = None
    return rows


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".avro"])
def test_missing_values_in_every_format(here: Path, suffix: str) -> None:
    """Every format reads and writes a missing value as a missing value."""
    (here / "policy.yaml").write_text(POLICY + "method: partition\n")
    WRITERS[suffix](here / f"in{suffix}", holed_rows())
    write_json(here / "same.jsonl", holed_rows())
    assert crenel("--input", f"in{suffix}", "--output", f"out{suffix}", "--rejected", "rejected.jsonl") == 0
    assert crenel("--input", "same.jsonl", "--output", "same.parquet") == 0
    assert read(here / "rejected.jsonl") == []
    expected = pq.read_table(here / "same.parquet")
    assert expected["age"].null_count > 50
    if suffix != ".csv":
        assert read(here / f"out{suffix}") == expected.to_pylist()
        return
    found = pyarrow.csv.read_csv(here / "out.csv", convert_options=TEXT)
    for name in ("age", "zip"):
        assert found[name].is_null().to_pylist() == expected[name].is_null().to_pylist()
    assert "[]" not in (here / "out.csv").read_text()


TEXT = pyarrow.csv.ConvertOptions(strings_can_be_null=True, column_types={"age": pa.string(), "zip": pa.string()})


def test_an_unreadable_value_is_not_a_missing_value(here: Path) -> None:
    (here / "policy.yaml").write_text(POLICY + "method: partition\n")
    rows = make_rows(60)
    rows[7]["age"], rows[8]["age"], rows[9]["age"] = "about 40", "", "1e400"
    write_json(here / "in.jsonl", rows)
    assert crenel("--input", "in.jsonl", "--output", "out.csv", "--rejected", "rejected.jsonl") == 0
    reasons = [(row["field"], row["reason"]) for row in read(here / "rejected.jsonl")]
    assert reasons == [("age", "not a number")] * 2


def test_a_json_column_of_several_types_is_judged_value_by_value(here: Path) -> None:
    rows = make_rows(60)
    rows[7]["age"] = "unknown"
    rows[8]["who"] = "8"
    write_json(here / "in.jsonl", rows)
    assert crenel("--input", "in.jsonl", "--output", "out.csv", "--rejected", "rejected.jsonl") == 0
    (row,) = read(here / "rejected.jsonl")
    assert (row["field"], row["reason"]) == ("age", "not a number")


def test_seconds_and_dates_are_the_same_time(here: Path) -> None:
    rows = make_rows()
    write_csv(here / "dates.csv", rows)
    for row in rows:
        row["at"] = int(time.mktime(time.strptime(row["at"], "%Y-%m-%dT%H:%M:%SZ"))) - time.timezone
    write_csv(here / "seconds.csv", rows)
    write_json(here / "seconds.jsonl", rows)
    for name in ("dates.csv", "seconds.csv", "seconds.jsonl"):
        assert crenel("--input", name, "--output", f"{name}.out.csv") == 0
    assert len({path.read_bytes() for path in here.glob("*.out.csv")}) == 1


def test_only_the_owner_can_read_the_owners_files(here: Path) -> None:
    write_csv(here / "in.csv", broken_rows())
    argv = ["--suppressed", "suppressed.csv", "--rejected", "rejected.csv"]
    assert crenel("--input", "in.csv", "--output", "out.csv", *argv) == 0
    assert (here / "rejected.csv").stat().st_mode & 0o077 == 0
    assert (here / "suppressed.csv").stat().st_mode & 0o077 == 0


def test_columns_of_different_types_get_a_common_type(here: Path) -> None:
    rows = make_rows(80)
    write_parquet(here / "a.parquet", [{**row, "note": i} for i, row in enumerate(rows[:40])])
    write_parquet(here / "b.parquet", [{**row, "note": i / 2} for i, row in enumerate(rows[40:])])
    assert crenel("--input", "*.parquet", "--output", "out.jsonl") == 0
    assert {type(row["note"]) for row in read(here / "out.jsonl")} == {float}
    write_csv(here / "c.csv", make_rows(10))
    assert crenel("--input", "a.parquet", "c.csv", "--output", "out.parquet") == 0
    assert pq.read_schema(here / "out.parquet").field("note").type == pa.string()


def test_the_table_says_what_happened_to_the_rows(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "in.csv", broken_rows())
    assert crenel("--input", "in.csv", "--output", "out.csv") == 0
    said = capsys.readouterr()
    assert said.out == ""
    words = [line.split() for line in said.err.splitlines()]
    assert words[0][:2] == ["without", "crowd"]
    labels = [line.split("  ")[0] for line in said.err.splitlines() if not line.startswith(" ")]
    assert labels[:5] == ["without crowd", "rows", "published", "suppressed", "rejected"]
    assert ["rows", "100", "in", "1", "file"] in words
    assert ["job", "1", "unknown", "value"] in words
    assert "\r" not in said.err


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".avro"])
@pytest.mark.parametrize("out", [".csv", ".jsonl", ".parquet", ".avro"])
def test_no_rows_are_no_problem(here: Path, suffix: str, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(make_rows(1)).slice(0, 0), here / "in.parquet")
    else:
        WRITERS[suffix](here / f"in{suffix}", [])
    assert crenel("--input", f"in{suffix}", "--output", f"out{out}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 0
    if out == ".csv":
        assert (here / "out.csv").read_text() == "age,zip,job,ill,note\n"
    else:
        assert read(here / f"out{out}") == []


def test_a_header_without_an_end_is_a_header(here: Path) -> None:
    (here / "in.csv").write_text(",".join(COLUMNS))
    with gzip.open(here / "in.csv.gz", "wt") as file:
        file.write(",".join(COLUMNS))
    assert crenel("--input", "in.csv", "in.csv.gz", "--output", "out.csv") == 0


def test_rows_of_which_none_can_be_published_exit_with_1(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "in.csv", make_rows(2))
    assert crenel("--input", "in.csv", "--output", "out.csv", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["published"], told["suppressed"]) == (0, 2)
    assert (here / "out.csv").exists()


# -- rows that left without a crowd ----------------------------------------------------------------


#: A `max_ahead` that no row is ahead of: a row that is alone in time is suppressed, not rejected.
ANY = "300000d"


def policy_of(**changes: str) -> str:
    kept = [line for line in POLICY.splitlines(keepends=True) if line.partition(":")[0] not in changes]
    return "".join([*kept, *(f"{name}: {value}\n" for name, value in changes.items())])


CHOICES = {
    "reuse and stars": {"parameters": "{reuse: weighted}", "on_suppress": "star"},
    "reuse": {"parameters": "{reuse: weighted}", "on_suppress": "drop"},
    "stars": {"parameters": "{reuse: off}", "on_suppress": "star"},
    "castle": {"method": "castle", "parameters": "{reuse: uniform}", "on_suppress": "drop"},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_that_left_alone_are_reported_first(here: Path, choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The trace and the input show which persons' rows left together."""
    said = CHOICES[choice]
    rows = [*make_rows(150), {**make_rows(1)[0], "at": "2020-09-20T00:00:00Z"}]
    (here / "policy.yaml").write_text(policy_of(**said, max_ahead=ANY))
    write_json(here / "in.jsonl", rows)
    argv = ["--input", "in.jsonl", "--output", "out.jsonl", "--trace", "trace.jsonl", "--json"]
    assert crenel(*argv, "--most-suppressed", "100%") == 0
    told = json.loads(capsys.readouterr().out)
    published = ("cluster", "reuse") if said["on_suppress"] == "drop" else ("cluster", "reuse", "suppressed")
    releases: dict[int, list[int]] = {}
    for record in read(here / "trace.jsonl"):
        if record["kind"] in published:
            releases.setdefault(record["release"], []).append(rows[record["row"]]["who"])
    alone = [who for who in releases.values() if len(set(who)) < 3 or len(set(who)) < len(who)]
    assert told["alone"] == sum(map(len, alone)) > 0
    sizes = [len(who) for who in releases.values()]
    assert (told["release_rows"]["least"], told["release_rows"]["most"]) == (min(sizes), max(sizes))
    assert told["release_rows"]["mean"] == pytest.approx(sum(sizes) / len(sizes), abs=1e-3)


def test_a_policy_that_asks_for_the_crowd_leaves_no_row_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "policy.yaml").write_text(policy_of(parameters="{reuse: off}", on_suppress="drop"))
    # Each row belongs to another person. Other tests cover persons with several rows at the end of a stream.
    write_csv(here / "in.csv", [{**row, "who": i} for i, row in enumerate(make_rows())])
    assert crenel("--input", "in.csv", "--output", "out.csv") == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.split()[:3] == ["without", "crowd", "0"]


# -- rows that did not leave -----------------------------------------------------------------------


def lonely_rows(lonely: int, of: int = 100) -> list[Row]:
    """Make rows of one moment, and `lonely` rows at least a day from any other: mondrian suppresses only these."""
    rows = [{**row, "who": i, "at": "2020-09-13T00:00:00Z"} for i, row in enumerate(make_rows(of))]
    for i in range(lonely):
        rows[-1 - i]["at"] = f"2021-01-{i + 1:02}T00:00:00Z"
    return rows


def test_more_suppressed_rows_than_allowed_exit_with_3(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "policy.yaml").write_text(policy_of(method="mondrian", on_suppress="drop", max_ahead=ANY))
    write_csv(here / "in.csv", lonely_rows(20))
    assert crenel("--input", "in.csv", "--output", "out.jsonl") == 3
    # The last line, after the table, says which limit was exceeded, by how much, and what to do.
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("crenel: 20 rows (20%) were suppressed, 15 more than --most-suppressed 5% allows: ")
    assert "the output is written and keeps the policy's promises" in last
    assert "a longer delay or lower k" in last and "crenel check --data" in last
    assert len(read(here / "out.jsonl")) == 80
    for limit, code in (("20%", 0), ("0.2", 0), ("19.9%", 3), ("0", 3), ("1", 0), ("100%", 0)):
        assert crenel("--input", "in.csv", "--output", "out.jsonl", "--most-suppressed", limit) == code
    capsys.readouterr()


def test_more_rejected_rows_than_allowed_exit_with_3(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_rows(100)
    for row in rows[:7]:
        row["age"] = 1000
    write_csv(here / "in.csv", rows)
    assert crenel("--input", "in.csv", "--output", "out.csv", "--most-suppressed", "100%") == 3
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("crenel: 7 rows (7%) were rejected, 2 more than --most-rejected 5% allows: ")
    assert (here / "out.csv").exists()
    argv = ["--input", "in.csv", "--output", "out.csv", "--most-suppressed", "100%", "--most-rejected", "7%"]
    assert crenel(*argv) == 0
    capsys.readouterr()


def test_exceeded_limits_are_in_the_json_object(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "policy.yaml").write_text(policy_of(method="mondrian", on_suppress="drop", max_ahead=ANY))
    write_csv(here / "in.csv", lonely_rows(20))
    assert crenel("--input", "in.csv", "--output", "out.csv", "--json") == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["too_many"] == [
        {"what": "suppressed", "rows": 20, "share": 0.2, "limit": 0.05, "excess": 15}
    ]
    assert said.err.startswith("crenel: 20 rows (20%) were suppressed")
    # If the JSON object goes to standard error, nothing else is written there.
    assert crenel("--input", "in.csv", "--output", "-", "--json") == 3
    assert len(json.loads(capsys.readouterr().err)["too_many"]) == 1
    assert crenel("--input", "in.csv", "--output", "out.csv", "--json", "--most-suppressed", "50%") == 0
    assert json.loads(capsys.readouterr().out)["too_many"] == []


@pytest.mark.parametrize("share", ["5", "-1", "x", "", "101%", "1.1", "5%%", "nan", "inf", "1/2"])
def test_a_wrong_share_exits_with_2(here: Path, share: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "in.csv", make_rows())
    for limit in ("--most-suppressed", "--most-rejected"):
        assert crenel("--input", "in.csv", "--output", "out.csv", f"{limit}={share}") == 2
        assert f"argument {limit}: must be a share of the rows such as 5% or 0.05" in capsys.readouterr().err
    assert nothing_but(here, "in.csv")


# -- failures --------------------------------------------------------------------------------------


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("crenel: ")
    assert "SECRET" not in line
    return line.removeprefix("crenel: ")


def break_csv(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[200] = "SECRET"
    path.write_text("\n".join(lines))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def break_json(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[200] = '{"who": SECRET'
    path.write_text("\n".join(lines))


BREAKS: list[tuple[str, Callable[[Path], None], str]] = [
    (".csv", break_csv, "in.csv is broken at row 201 (the header is row 1): it has 1 value, not 8."),
    (".csv", lambda path: path.write_bytes(b"") and None, "in.csv is empty: it must have at least a header."),
    (
        ".csv",
        lambda path: path.write_bytes(bytes(range(256))) and None,
        "in.csv is not UTF-8 text: see line 1; if it is in another encoding, name it, as in --encoding latin-1.",
    ),
    (".csv.gz", cut, "in.csv.gz is not compressed by gzip, or is cut off."),
    (".csv.zst", cut, "in.csv.zst is not compressed by zstd, or is cut off."),
    (".csv.gz", lambda path: path.write_text("a,b\n") and None, "in.csv.gz is not compressed by gzip, or is cut off."),
    (".jsonl", break_json, "in.jsonl is broken at row 201: each line must be one JSON object."),
    (".parquet", cut, "in.parquet is not Parquet, or is cut off."),
    (".avro", cut, "in.avro is broken after record 0."),
    (".avro", lambda path: path.write_bytes(b"Obj") and None, "in.avro is not Avro, or is cut off."),
]


@pytest.mark.parametrize(("suffix", "damage", "said"), BREAKS)
def test_a_broken_file_is_a_sentence_and_leaves_nothing(
    here: Path, suffix: str, damage: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    WRITERS[suffix](here / f"in{suffix}", make_rows())
    damage(here / f"in{suffix}")
    write_csv(here / "good.csv", make_rows())
    argv = ["--input", "good.csv", f"in{suffix}", "--output", "out.parquet", "--rejected", "rejected.csv"]
    assert crenel(*argv) == 2
    assert sentence(capsys) == said
    assert nothing_but(here, "good.csv", f"in{suffix}")


def test_an_existing_output_stays_if_the_run_fails(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "in.csv", make_rows())
    (here / "out.csv").write_text("of yesterday")
    break_csv(here / "in.csv")
    assert crenel("--input", "in.csv", "--output", "out.csv") == 2
    assert (here / "out.csv").read_text() == "of yesterday"
    write_csv(here / "in.csv", make_rows())
    assert crenel("--input", "in.csv", "--output", "out.csv") == 0
    assert (here / "out.csv").read_text().startswith("age,")


MISTAKES: list[tuple[list[str], str]] = [
    (["--input", "none.csv", "--output", "out.csv"], "none.csv: there is no such file."),
    (["--input", "none-*.csv", "--output", "out.csv"], "none-*.csv: no file matches."),
    (["--input", ".", "--output", "out.csv"], ".: must be a file, not a folder"),
    (["--input", "in.csv", "--output", "out.xlsx"], "out.xlsx: the extension must be one of"),
    (["--input", "in.csv", "--output", "none/out.csv"], "none/out.csv: there is no folder none"),
    (["--input", "in.csv", "--output", "in.csv"], "in.csv: must not be read and written at once."),
    (["--input", "in.csv", "--output", "o.csv", "--releases", "./o.csv"], "the outputs must be different files."),
    (["--input", "in.csv", "--output", "o.csv", "--rejected", "-"], "--suppressed, --rejected, --releases and --trace"),
    (
        ["--input", "in.csv", "--output", "o.csv", "--runner", "flonk"],
        "--runner must be one of local, prism,",
    ),
    (["--input", "in.csv", "--output", "o.csv", "--outptu", "x"], "--outptu is neither an option of crenel run"),
]


@pytest.mark.parametrize(("argv", "said"), MISTAKES)
def test_a_mistake_is_a_sentence(here: Path, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "in.csv", make_rows())
    assert crenel(*argv) == 2
    assert sentence(capsys).startswith(said)
    assert nothing_but(here, "in.csv")


def test_columns_that_are_not_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "in.csv").write_text("who,at,age,zip,jobs,ill\n")
    assert crenel("--input", "in.csv", "--output", "out.csv") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("crenel: in.csv has no column 'job', which the policy names.")
    assert "jobs" in lines[0]
    assert lines[1].startswith("crenel: in.csv has no column 'note'")
    write_json(here / "in.jsonl", [{k: v for k, v in row.items() if k != "note"} for row in make_rows(50)])
    assert crenel("--input", "in.jsonl", "--output", "out.csv") == 2
    assert sentence(capsys).startswith("the input has no column 'note'")
    assert nothing_but(here, "in.csv", "in.jsonl")


def test_a_wrong_policy_exits_with_2(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "policy.yaml").write_text("k: 1\n")
    assert crenel("--input", "in.csv", "--output", "out.csv") == 2
    assert capsys.readouterr().err.startswith("crenel: policy.")


def test_avro_does_not_allow_every_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "policy.yaml").write_text(POLICY.replace("[note]", "['a note']"))
    assert crenel("--input", "in.csv", "--output", "out.avro") == 2
    assert sentence(capsys) == "out.avro: Avro cannot hold a column called 'a note'."


def test_beam_flags_are_passed_on(here: Path) -> None:
    write_csv(here / "in.csv", make_rows())
    assert crenel("--input", "in.csv", "--output", "out.csv", "--direct_runner_bundle_repeat=1") == 0
    assert crenel("--input", "in.csv", "--output", "again.csv") == 0
    assert (here / "out.csv").read_bytes() == (here / "again.csv").read_bytes()


def test_an_error_of_ours_shows_no_row(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write_csv(here / "in.csv", make_rows())

    def failing(*_: Any, **__: Any) -> Any:
        def launch(*_: Any) -> int:
            raise RuntimeError("SECRET5")

        return launch

    monkeypatch.setattr(run, "launcher", failing)
    assert crenel("--input", "in.csv", "--output", "out.csv") == 70
    assert "(RuntimeError)" in sentence(capsys)
    assert nothing_but(here, "in.csv")


@pytest.mark.slow
@pytest.mark.parametrize("pauses", [(), (0.02,), (0.2, 0.02)], ids=["once", "twice", "thrice"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_run_leaves_nothing(here: Path, number: int, code: int, pauses: Sequence[float]) -> None:
    """Also when it is interrupted again while it clears up, as by a closed terminal, whose shell sends SIGHUP too."""
    write_csv(here / "once.csv", make_rows(2000))
    header, _, lines = (here / "once.csv").read_text().partition("\n")
    (here / "once.csv").unlink()
    (here / "in.csv").write_text(f"{header}\n{lines * 200}")
    argv = ["-m", "crenel.pipelines.cli", "run", "policy.yaml", "--input", "in.csv", "--output", "o.csv"]
    # Tests that run in the background, or under nohup, may ignore the signal, and so would their child processes.
    heard = partial(signal.signal, number, signal.SIG_DFL)
    done = subprocess.Popen(
        [sys.executable, *argv],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heard,  # noqa: PLW1509 - no threads here
    )
    try:
        until = time.monotonic() + 120
        while not list(here.glob(".o.csv.crenel-*/*")) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)  # rows are read
        os.killpg(done.pid, number)
        for pause in pauses:
            time.sleep(pause)
            os.killpg(done.pid, number)
        _, err = done.communicate(timeout=60)
    finally:
        done.kill()
    # One that comes when the interpreter is all but gone ends the process itself; a shell gives that the same code.
    assert done.returncode in ((code, -number) if pauses else (code,))
    assert err == ""
    assert nothing_but(here, "in.csv")


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restores the handlers of signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_was_interrupted_clears_up_undisturbed(number: signal.Signals, handlers: None) -> None:
    heard: list[int] = []
    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for one in every:
        signal.signal(one, lambda number, _: heard.append(number))
    with pytest.raises(SystemExit) as ended, run._terminable():
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    for one in every:
        signal.raise_signal(one)
    assert heard == []


def test_signals_are_heard_again_after_a_while(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls the command within a process of their own can still end that."""
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    monkeypatch.setattr(run, "_GRACE", 0.0)
    with pytest.raises(KeyboardInterrupt), run._terminable():
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT] * 2


def test_a_run_under_nohup_goes_on_without_its_terminal(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with run._terminable():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_the_log_stays_silent_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps may go on for a moment, and fail with messages that contain rows."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    with run.quiet():
        pass
    assert logging.root.manager.disable == logging.NOTSET
    with pytest.raises(KeyboardInterrupt), run.quiet():
        raise KeyboardInterrupt
    assert logging.root.manager.disable == logging.CRITICAL


def test_progress_is_a_line_that_is_written_over(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write_csv(here / "in.csv", make_rows())
    monkeypatch.setattr("crenel.pipelines.console.run_summary._EVERY", 0.01)
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    assert crenel("--input", "in.csv", "--output", "out.csv") == 0
    err = capsys.readouterr().err
    assert "row" in err.split("\r")[1]
    assert err.rpartition("\r\x1b[K")[2].startswith("without crowd ")


# --- Seeds and secrets ---


def test_the_same_secret_publishes_the_same_rows_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(here / "in.csv", make_rows())
    (here / "key").write_text(SECRET)
    (here / "key").chmod(0o600)
    texts = {
        "variable": POLICY,
        "file": POLICY.replace("env:CRENEL_TEST_SECRET", f"file:{here / 'key'}"),
        "drawn": POLICY.replace("secret: env:CRENEL_TEST_SECRET", ""),
    }
    for name, text in texts.items():
        (here / "policy.yaml").write_text(text)
        assert crenel("--input", "in.csv", "--output", f"{name}.csv") == 0
    monkeypatch.setenv("CRENEL_TEST_SECRET", bytes(range(50, 82)).hex())
    (here / "policy.yaml").write_text(POLICY)
    assert crenel("--input", "in.csv", "--output", "other.csv") == 0
    found = {name: (here / f"{name}.csv").read_bytes() for name in (*texts, "other")}
    assert found["variable"] == found["file"]
    assert len(set(found.values())) == 3


def test_a_missing_secret_exits_with_2(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(here / "in.csv", make_rows())
    monkeypatch.delenv("CRENEL_TEST_SECRET")
    assert crenel("--input", "in.csv", "--output", "out.csv") == 2
    assert capsys.readouterr().err == (
        "crenel: policy.secret names the environment variable CRENEL_TEST_SECRET, which is not set where the pipeline "
        "is built.\n"
    )
    monkeypatch.setenv("CRENEL_TEST_SECRET", "0badcafe0badcafe")
    assert crenel("--input", "in.csv", "--output", "out.csv") == 2
    said = capsys.readouterr().err
    assert "env:CRENEL_TEST_SECRET holds 8 bytes" in said
    assert "cafe" not in said
    assert not (here / "out.csv").exists()


def test_the_audit_needs_no_secret(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(here / "in.csv", make_rows())
    assert crenel("--input", "in.csv", "--output", "out.csv", "--trace", "trace.csv") == 0
    monkeypatch.delenv("CRENEL_TEST_SECRET")
    argv = ["policy.yaml", "--input", "in.csv", "--published", "out.csv", "--trace", "trace.csv", "--queries", "0"]
    assert main(["audit", *argv]) == 0


GUESSED = (
    "seed: an attacker who guesses the seed can undo the order of the rows and every random draw. "
    "Leave it out, or name a secret: env:NAME."
)


def test_the_warning_about_a_seed_comes_before_anything_is_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "policy.yaml").write_text(POLICY.replace("secret: env:CRENEL_TEST_SECRET", "seed: 31337"))
    assert crenel("--input", "absent.csv", "--output", "out.csv") == 2
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == f"crenel: warning: {GUESSED}"
    write_csv(here / "in.csv", make_rows())
    assert crenel("--input", "in.csv", "--output", "out.csv", "--json") == 0
    said = capsys.readouterr()
    assert said.err == f"crenel: warning: {GUESSED}\n"
    assert json.loads(said.out)["warnings"] == [GUESSED]
    # If the JSON object goes to standard error, nothing else is written there.
    assert crenel("--input", "in.csv", "--output", "-", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.err)["warnings"] == [GUESSED]
    assert "31337" not in said.err


def test_without_a_seed_there_is_no_warning(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "in.csv", make_rows())
    assert crenel("--input", "in.csv", "--output", "out.csv", "--json") == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out)["warnings"] == []
