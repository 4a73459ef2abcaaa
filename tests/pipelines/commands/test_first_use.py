"""Files as people have them, from init to audit, with no edit but accepting what init proposes."""

from __future__ import annotations

import csv
import datetime as dt
import json
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from crenel import Policy
from crenel.pipelines.cli import main

START = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
ROWS = 900


def write_csv(head: str, rows: Iterable[list[Any]], first: str = "") -> str:
    with Path("data.csv").open("w", newline="") as file:
        file.write(first)
        writer = csv.writer(file)
        writer.writerow(head.split())
        writer.writerows(rows)
    return "data.csv"


def taxi(draw: random.Random) -> str:
    """Three time zones, and coordinates."""
    zones = [dt.timezone(dt.timedelta(hours=hours)) for hours in (0, 1, -5)]
    return write_csv(
        "rider_id pickup_time pickup_lat pickup_lon trip_distance payment",
        (
            [
                f"rider{draw.randrange(600)}",
                (START + dt.timedelta(seconds=20 * row)).astimezone(draw.choice(zones)).isoformat(),
                round(draw.gauss(40.75, 0.05), 5),
                round(draw.gauss(-73.98, 0.05), 5),
                round(abs(draw.gauss(3, 2)), 2),
                draw.choice(["cash", "card"]),
            ]
            for row in range(ROWS)
        ),
    )


def hospital(draw: random.Random) -> str:
    """Patients who come again, under a number that no word explains, and values that are missing."""
    people = [(n, draw.choice("MF"), draw.randrange(1935, 2015), f"48{draw.randrange(300):03}") for n in range(300)]
    codes = [f"{letter}{number}" for letter in "ABEIJ" for number in range(10, 20)]
    return write_csv(
        "nr admitted_at sex birth_year zip diagnosis unit",
        (
            [who, (START + dt.timedelta(minutes=row)).isoformat()[:19], sex, born, code, draw.choice(codes), "ward"]
            for row in range(ROWS)
            for who, sex, born, code in [draw.choice(people)]
        ),
    )


def survey(draw: random.Random) -> str:
    """No times, a column that numbers the rows, states, booleans, and a column with gaps."""
    states = [f"{letter}{ending}" for letter in "ABCDEFGHIJKLM" for ending in ("land", "ville", "shire")]
    return write_csv(
        "rownames respondent age gender state income smoker",
        (
            [
                row + 1,
                f"R{row:05}",
                draw.choice(["", *map(str, range(18, 90))]),
                draw.choice(["male", "female"]),
                draw.choice(states),
                draw.randrange(15_000, 150_000),
                draw.choice(["true", "false"]),
            ]
            for row in range(ROWS)
        ),
    )


def bikes(draw: random.Random) -> str:
    """Dates with slashes, and stations that are numbers."""
    start = dt.datetime(2016, 1, 1)  # noqa: DTZ001 - as a file without zones has it
    return write_csv(
        "user_id start_time start_station_id birth_year gender trip_seconds",
        (
            [
                f"u{draw.randrange(500)}",
                (start + dt.timedelta(seconds=45 * row)).strftime("%Y/%m/%d %H:%M:%S"),
                draw.randrange(1, 40),
                draw.randrange(1945, 2000),
                draw.choice([0, 1, 2]),
                round(draw.expovariate(1 / 700)),
            ]
            for row in range(ROWS)
        ),
    )


def shop(draw: random.Random) -> str:
    """JSON lines, in which ages are missing."""
    with Path("data.jsonl").open("w") as file:
        for row in range(ROWS):
            sale = {
                "customer": f"c{draw.randrange(400)}",
                "at": (START + dt.timedelta(seconds=30 * row)).isoformat().replace("+00:00", "Z"),
                "age": draw.choice([None, *range(18, 80)]),
                "country": draw.choice(["DE", "FR", "NL", "BE", "US", "CH", "AT", "PL"]),
                "amount": round(draw.expovariate(1 / 40), 2),
                "returned": draw.random() < 0.1,
            }
            file.write(json.dumps(sale) + "\n")
    return "data.jsonl"


def rides(draw: random.Random) -> str:
    """Parquet: moments of a zone, and where rides begin and end, sometimes unknown."""
    zone = "America/Montreal"

    def degrees(middle: float) -> list[float | None]:
        return [None if draw.random() < 0.03 else round(draw.gauss(middle, 0.04), 6) for _ in range(ROWS)]

    table = {
        "member_id": [draw.randrange(10**6, 10**6 + 350) for _ in range(ROWS)],
        "started_at": pa.array([START + dt.timedelta(seconds=40 * n) for n in range(ROWS)], pa.timestamp("ms", zone)),
        "start_lat": degrees(45.52),
        "start_lng": degrees(-73.57),
        "end_lat": degrees(45.52),
        "end_lng": degrees(-73.57),
    }
    parquet.write_table(pa.table(table), "data.parquet")
    return "data.parquet"


def orders(draw: random.Random) -> str:
    """One JSON array, with customers and addresses within orders."""
    sales = [
        {
            "order": f"{n:06}",
            "placed": (START + dt.timedelta(seconds=50 * n)).isoformat(),
            "customer": {"id": draw.randrange(300), "address": {"zip": f"{draw.randrange(10, 60)}100", "city": "Ulm"}},
            "income": draw.choice([None, *range(20_000, 90_000, 500)]),
            "tags": ["new"] if n % 3 else [],
        }
        for n in range(ROWS)
    ]
    Path("data.json").write_text(json.dumps(sales, indent=1))
    return "data.json"


def clinic(draw: random.Random) -> str:
    """What a spreadsheet of Vienna exports: Latin-1, semicolons, decimal commas, the day first."""
    lines = ["Patientnr;aufgenommen_date;birthdate;city;weight_kg"]
    for n in range(ROWS):
        born = dt.date(1930, 1, 1) + dt.timedelta(days=draw.randrange(30_000))
        taken = START + dt.timedelta(minutes=10 * n)
        city = draw.choice(["Wien", "Graz", "St. Pölten", "Mödling", "Köflach"])
        weight = f"{draw.gauss(75, 12):.1f}".replace(".", ",")
        lines.append(f"P{draw.randrange(400)};{taken:%d.%m.%Y %H:%M};{born:%d.%m.%Y};{city};{weight}")
    Path("data.csv").write_text("\r\n".join(lines), encoding="latin-1")
    return "data.csv --encoding latin-1"


def panel(draw: random.Random) -> str:
    """What R writes of a survey: row numbers without a name, NA, flags of 0 and 1, and no column for the person."""
    return (
        write_csv(
            "age female educ married region hours",
            (
                [
                    row + 1,
                    draw.choice(["NA", *range(20, 70)]),
                    draw.randrange(2),
                    draw.choice([8, 10, 12, 16]),
                    draw.choice(["yes", "no"]),
                    draw.choice(["north", "south", "west"]),
                    draw.randrange(60),
                ]
                for row in range(ROWS)
            ),
            first=",",
        )
        + " --each-row"
    )


def purchases(draw: random.Random) -> str:
    """Nothing but who and when, as models of customers take it."""
    return write_csv(
        "date id",
        ([(START + dt.timedelta(hours=row)).isoformat(sep=" ")[:19], draw.randrange(250)] for row in range(ROWS)),
    )


@pytest.mark.parametrize(
    ("make", "person"),
    [
        (taxi, "rider_id"),
        (hospital, "nr"),
        (survey, "respondent"),
        (bikes, "user_id"),
        (shop, "customer"),
        (rides, "member_id"),
        (orders, "customer.id"),
        (clinic, "Patientnr"),
        (panel, "(each row)"),
        (purchases, "id"),
    ],
)
def test_what_init_drafts_is_useful_as_it_is(
    make: Callable[[random.Random], str],
    person: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    data, *given = make(random.Random(5)).split()
    assert main(["init", data, *given, "--output", "policy.yaml"]) == 0
    options = capsys.readouterr().out.partition(f"--data {data}")[2].split()
    policy = Policy.from_yaml("policy.yaml")
    assert policy.person == person
    assert "rownames" not in policy.quasi_identifiers
    assert main(["check", "policy.yaml", "--data", data, *options]) == 0
    target = ["--k", str(policy.k), "--target", "suppressed<5%"]
    assert main(["explore", "policy.yaml", "--data", data, *target, *options]) == 0
    capsys.readouterr()
    outputs = ["--output", "out.csv", "--trace", "trace.csv"]
    assert main(["run", "policy.yaml", "--input", data, *outputs, "--json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["alone"] == 0
    assert told["rejected"] in ({}, [], 0)
    assert told["loss"] < 0.5
    assert told["suppressed"] < 0.05 * ROWS
    given = ["--published", "out.csv", "--input", data, "--trace", "trace.csv"]
    assert main(["audit", "policy.yaml", *given, "--queries", "50", *options]) == 0
    assert re.match("KEPT:", capsys.readouterr().out)
