"""Text files as other programs write them: separators, encodings and compressions."""

from __future__ import annotations

import bz2
import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from crenel.pipelines.cli import main
from crenel.pipelines.files import readers
from crenel.pipelines.files.formats import USUAL, Dialect, TableError

POLICY = """\
version: 1
person: who
quasi_identifiers:
  age: {type: numeric, domain: [0, 120]}
  city: {type: categorical, hierarchy: {all: [Köln, Málaga, Łódź]}}
sensitive: [ill]
k: 3
delay_rows: 20
"""
ROWS = [("who", "age", "city", "ill")] + [
    (f"Zoë {i}", str(20 + i * 7 % 50), ("Köln", "Málaga")[i % 2], ("grippe", "toux, sèche")[i % 2]) for i in range(40)
]


def text(delimiter: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="\n").writerows(ROWS)
    return out.getvalue()


def read(path: Path, dialect: Dialect = USUAL) -> list[tuple[str, ...]]:
    source = readers.open_file(path, dialect)
    rows = [tuple(row.values()) for batch in source.batches() for row in batch.to_pylist()]
    return [tuple(source.columns() or ()), *rows]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("extension", ["csv", "tsv"])
def test_the_first_line_shows_the_delimiter(delimiter: str, extension: str, tmp_path: Path) -> None:
    path = tmp_path / f"visits.{extension}"
    path.write_text(text(delimiter), "utf-8")
    assert read(path) == ROWS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-le"])
def test_an_encoding_is_read_as_it_is_named(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text(text(), encoding)
    assert read(path, Dialect(encoding=encoding)) == ROWS


def test_a_character_may_lie_on_the_border_of_two_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_BLOCK", 65)
    path = tmp_path / "visits.jsonl"
    path.write_text('{"city": "Köln"}\n' * 500, "utf-16")
    source = readers.open_file(path, Dialect(encoding="utf-16"))
    assert [row["city"] for batch in source.batches() for row in batch.to_pylist()] == ["Köln"] * 500


def test_another_encoding_is_refused_with_advice_and_without_a_value(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text(text(), "latin-1")
    with pytest.raises(TableError, match=r"is not UTF-8 text: see line 2; .* --encoding latin-1") as caught:
        read(path)
    assert "Zo" not in str(caught.value)
    with pytest.raises(TableError, match=r"is not ASCII text: see line 2\.$"):
        read(path, Dialect(encoding="ascii"))


def test_a_delimiter_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text(text(";"), "utf-8")
    with pytest.raises(TableError, match=r"must have its columns separated by '\|', not ';'"):
        read(path, Dialect(delimiter="|"))


def test_a_file_compressed_by_bzip2_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv.bz2"
    path.write_bytes(bz2.compress(text().encode()))
    assert read(path) == ROWS
    (tmp_path / "policy.yaml").write_text(POLICY, "utf-8")
    assert (
        main(["run", str(tmp_path / "policy.yaml"), "--input", str(path), "--output", str(tmp_path / "o.csv.bz2")]) == 0
    )
    assert len(bz2.decompress((tmp_path / "o.csv.bz2").read_bytes()).splitlines()) == len(ROWS)


def test_every_command_takes_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    visits, policy = tmp_path / "visits.csv", tmp_path / "policy.yaml"
    visits.write_text(text(";"), "latin-1")
    policy.write_text(POLICY, "utf-8")
    outputs = {name: str(tmp_path / f"{name}.csv") for name in ("published", "trace")}
    how = ["--delimiter", ";", "--encoding", "latin1"]
    assert main(["init", str(visits), *how]) == 0
    assert main(["check", str(policy), "--data", str(visits), *how]) == 0
    run = ["run", str(policy), "--input", str(visits), "--output", outputs["published"], "--trace", outputs["trace"]]
    assert main([*run, *how]) == 0
    assert "Köln" in Path(outputs["published"]).read_text("utf-8")
    audit = ["audit", str(policy), "--input", str(visits), "--published", outputs["published"]]
    assert main([*audit, "--trace", outputs["trace"], "--queries", "0", *how]) == 0
    assert "KEPT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--delimiter", "::"], "must be one character, such as ';', or tab, not '::'"),
        (["--encoding", "klingon"], "must be an encoding that Python knows, such as latin-1"),
        (["--encoding", "base64"], "must be an encoding that Python knows, such as latin-1"),
    ],
)
def test_wrong_options_are_refused(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["init", "visits.csv", *flags])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("wanted", ["source.columns()", "next(source.batches())", "list(source.batches())"])
def test_a_process_that_ends_while_arrow_reads_ahead_is_not_aborted(wanted: str, tmp_path: Path) -> None:
    """A thread that needs the interpreter after its end ends the process by SIGABRT."""
    path = tmp_path / "rows.csv"
    path.write_text(text())
    slowly = (
        "import sys, time\n"
        "from crenel.pipelines.files import readers\n"
        "readers._BLOCK, check = 200, readers._TextCheck.__call__\n"
        "readers._TextCheck.__call__ = lambda self, block: (time.sleep(0.1), check(self, block))[1]\n"
        "source = readers.open_file(sys.argv[1])\n"
        f"{wanted}\n"
    )
    done = subprocess.run([sys.executable, "-c", slowly, str(path)], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_does_not_cut_the_wait_for_arrow_short() -> None:
    """A second Ctrl-C comes while the process ends because of the first."""
    interrupted = (
        "import signal, time, types\n"
        "from crenel.pipelines.files import readers\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "check = readers._TextCheck('utf-8')\n"
        "sleep = lambda seconds: (signal.raise_signal(signal.SIGINT), time.sleep(seconds))\n"
        "readers.time = types.SimpleNamespace(monotonic=time.monotonic, sleep=sleep)\n"
    )
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
