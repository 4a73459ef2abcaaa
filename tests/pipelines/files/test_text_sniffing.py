"""Files that write numbers and dates in their own way: init says how, and the other commands are told."""

from __future__ import annotations

import csv
import random
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pytest

from crenel import Policy
from crenel.encoding.text_format import TextFormat
from crenel.pipelines.cli import main
from crenel.pipelines.files.text_sniffing import sniff


def sniffed(**columns: list[str]) -> tuple[str, str | None, tuple[str, ...]]:
    found = sniff({name: pa.chunked_array([values]) for name, values in columns.items()}, TextFormat())
    return found.written.decimal, found.written.date_format, found.ambiguous


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["31/12/2024", "01/02/2024"], "%d/%m/%Y"),
        (["12/31/2024", "01/02/2024"], "%m/%d/%Y"),
        (["31.12.2024 23:59", "1.2.2024"], "%d.%m.%Y"),
        (["2016/01/31 00:47:36"], None),
        (["02-Jan-2020", "31-DEC-2020"], "%d-%b-%Y"),
        (["2024-12-31"], None),
        (["31/12/2024", "12/31/2024"], None),
        (["hello"], None),
    ],
)
def test_dates(values: list[str], expected: str | None) -> None:
    assert sniffed(when=values) == (".", expected, ())


def test_a_day_and_a_month_that_cannot_be_told_apart() -> None:
    assert sniffed(when=["01/02/2024", "03/04/2024"]) == (".", None, ("when",))
    # Another column of the file tells.
    assert sniffed(when=["01/02/2024"], born=["31/12/1980"]) == (".", "%d/%m/%Y", ())


@pytest.mark.parametrize(
    ("values", "decimal"),
    [(["1,5", "2"], ","), (["1.234,5"], ","), (["1,234", "5,678"], "."), (["1.5"], "."), (["a,b"], ".")],
)
def test_decimal_commas(values: list[str], decimal: str) -> None:
    assert sniffed(size=values)[0] == decimal


@pytest.mark.parametrize("text", ["30/02/2024", "2024-02-30", "x", "1/2/24/5"])
def test_what_is_no_date_stays_none(text: str) -> None:
    assert TextFormat(date_format="%d/%m/%Y").moment(text) == text


@pytest.mark.parametrize("wrong", ["%d/%m", "", "%H:%M", "%Q"])
def test_a_format_without_a_date_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "policy.yaml", "--date-format", wrong])
    assert "must name a day, a month and a year" in capsys.readouterr().err


def test_from_init_to_audit_without_an_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of a German clinic: semicolons, Latin-1, days first, decimal commas, patients who come again."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(8)
    people = [(f"P{n:04}", f"{draw.randrange(1, 29)}.{n % 12 + 1}.{draw.randrange(1940, 2005)}") for n in range(300)]
    with Path("besuche.csv").open("w", newline="", encoding="latin-1") as file:
        rows = csv.writer(file, delimiter=";")
        rows.writerow(["patient_id", "created", "birth_date", "weight", "city", "diagnosis"])
        for minute in range(1500):
            person, born = draw.choice(people)
            when = f"{1 + minute // 1440 + 14:02}.03.2026 {minute // 60 % 24:02}:{minute % 60:02}"
            weight = f"{draw.uniform(45, 110):.1f}".replace(".", ",")
            rows.writerow([person, when, born, weight, draw.choice(["Köln", "Bonn", "Ulm"]), draw.choice("abcd")])
    assert main(["init", "besuche.csv", "--output", "policy.yaml", "--encoding", "latin-1"]) == 0
    said = capsys.readouterr().out
    known = shlex.split(re.search(r"--data besuche.csv (.*)$", said, re.MULTILINE)[1])  # type: ignore[index]
    assert known == ["--encoding", "iso8859-1", "--decimal", ",", "--date-format", "%d.%m.%Y"]
    assert "Give check, explore, run and audit how this file is written" in Path("policy.yaml").read_text()
    policy = Policy.from_yaml("policy.yaml")
    assert set(policy.quasi_identifiers) == {"birth_date", "weight", "city"}
    assert main(["check", "policy.yaml", "--data", "besuche.csv", *known]) == 0
    assert main(["explore", "policy.yaml", "--data", "besuche.csv", "--k", "5", *known]) == 0
    run = ["run", "policy.yaml", "--input", "besuche.csv", "--output", "out.csv", "--trace", "trace.csv", *known]
    assert main(run) == 0
    given = ["--published", "out.csv", "--input", "besuche.csv", "--trace", "trace.csv"]
    assert main(["audit", "policy.yaml", *given, *known]) == 0
    assert "KEPT" in capsys.readouterr().out


def test_dates_and_numbers_are_read_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(
        "{version: 1, person: id, event_time: at, k: 2, delay: 14d, quasi_identifiers: "
        "{weight: {type: numeric, domain: [0, 200]}, born: {type: datetime, domain: [1900-01-01, 2030-01-01]}}}"
    )
    lines = [f"{n};{1 + n % 28:02}/03/2026;{60 + n},5;{1 + n % 28:02}/12/1980" for n in range(40)]
    Path("in.csv").write_text("id;at;weight;born\n" + "\n".join(lines) + "\n")
    options = ["--decimal", ",", "--date-format", "%d/%m/%Y"]
    run = ["run", "policy.yaml", "--trace", "trace.csv", "--suppressed", "rest.csv"]
    assert main([*run, "--input", "in.csv", "--output", "out.csv", *options]) == 0
    audit = ["audit", "policy.yaml", "--published", "out.csv", "--input", "in.csv", "--trace", "trace.csv"]
    assert main([*audit, "--suppressed", "rest.csv", *options]) == 0
    assert re.search(r"^\"\[\d\d\.5, \d\d\.5\]\",\"?\[1980-12-\d\d", Path("out.csv").read_text(), re.MULTILINE)
    capsys.readouterr()
    assert main(["check", "policy.yaml", "--data", "in.csv", *options]) == 0
    assert "Rows that would be rejected\n  None." in capsys.readouterr().out
    # Without the options, every row is rejected, and the advice is to give them.
    assert main(["check", "policy.yaml", "--data", "in.csv"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "say it, as in --date-format '%d/%m/%Y'" in said
    assert "Widen" not in said
