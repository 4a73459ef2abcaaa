"""The table of deadlines in `crenel check --data`: it shows what the engine does with consecutive rows."""

from __future__ import annotations

import csv
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from crenel.pipelines.checking import engine_trial
from crenel.pipelines.checking.sample import Sample
from crenel.pipelines.cli import main
from crenel.pipelines.console.limits import Limits
from crenel.policy import Policy
from crenel.policy.methods import names

SAID: dict[str, Any] = {
    "person": "who",
    "event_time": "at",
    "quasi_identifiers": {
        "age": {"type": "numeric", "domain": [0, 100]},
        "zip": {"type": "prefix", "length": 5},
    },
    "sensitive": ["ill"],
    "k": 5,
    "delay": "2m",
    "seed": 7,
}
CROWD = {"parameters": {"reuse": "off"}, "on_suppress": "drop"}

Row = dict[str, Any]
Table = dict[str, tuple[str, float]]
Check = Callable[..., tuple[int, str, Table]]


def make_rows(count: int = 600, every: int = 20, seed: int = 1) -> list[Row]:
    """Make rows about `every` seconds apart, no two at one time."""
    draw = random.Random(seed)
    times = sorted(draw.sample(range(count * every), count))
    return [
        {
            "who": f"P{draw.randrange(10**6)}",
            "at": 1_600_000_000 + at,
            "age": draw.randrange(100),
            "zip": f"{draw.randrange(10_000, 10_400)}",
            "ill": draw.choice(["flu", "cold", "gout"]),
        }
        for at in times
    ]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(rows: list[Row], **changes: Any) -> None:
    policy = {name: value for name, value in {**SAID, **changes}.items() if value is not None}
    Path("policy.yaml").write_text(yaml.safe_dump(policy, sort_keys=False))
    with open("data.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [*SAID["quasi_identifiers"], "who", "at", "ill"])
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def check(here: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Run the command. Return the exit code, the output on one line, and the share and loss for each deadline."""

    def run(rows: list[Row], *options: str, **changes: Any) -> tuple[int, str, Table]:
        write(rows, **changes)
        code = main(["check", "policy.yaml", "--data", "data.csv", *options])
        said = capsys.readouterr()
        assert said.err == ""
        line = r"^  (\S.*?) +((?:under |over )?[\d.]+%)  (\d\.\d{3})(?:  the policy's)?$"
        table = {deadline: (share, float(loss)) for deadline, share, loss in re.findall(line, said.out, re.MULTILINE)}
        return code, " ".join(said.out.split()), table

    return run


def percent(share: str) -> float:
    return float(re.sub(r"[^\d.]", "", share))


def test_a_stream_that_is_too_thin_is_a_problem(check: Check) -> None:
    code, said, table = check(make_rows(every=40), **CROWD)
    assert code == 1
    assert list(table) == ["2m", "4m", "12m", "24m", "72m"]
    shares = [percent(share) for share, _ in table.values()]
    assert shares[0] > 30 and shares == sorted(shares, reverse=True) and shares[-1] < 5
    losses = [loss for _, loss in table.values()]
    assert losses == sorted(losses, reverse=True)
    share = table["2m"][0]
    assert f"problem: The stream is too thin for k (5) within the deadline (2m): {share} of the rows find no" in said
    enough = next(deadline for deadline, (share, _) in table.items() if percent(share) <= 5)
    assert f"would be suppressed. --most-suppressed is 5%. Within {enough}, it would be {table[enough][0]}." in said
    assert "was run on 600 consecutive rows" in said


def test_a_stream_that_is_dense_enough_is_no_problem(check: Check) -> None:
    code, said, table = check(make_rows(every=2), **CROWD)
    assert code == 0
    assert percent(table["2m"][0]) < 5
    assert "too thin" not in said


def test_the_table_is_what_a_run_does(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    """This holds at the policy's deadline, and at a longer one after changing the policy to it."""
    _, _, table = check(make_rows(), **CROWD)
    for delay in ("2m", "12m"):
        write(make_rows(), **CROWD | {"delay": delay})
        argv = ["run", "policy.yaml", "--input", "data.csv", "--output", "out.csv", "--json"]
        assert main([*argv, "--most-suppressed", "100%"]) == 0
        told = json.loads(capsys.readouterr().out)
        share, loss = table[delay]
        assert percent(share) == pytest.approx(100 * told["suppressed"] / told["rows"], abs=0.05 + 1e-9)
        assert loss == pytest.approx(told["loss"], abs=0.0005 + 1e-9)


def test_reuse_and_stars_do_not_make_a_stream_denser(check: Check) -> None:
    _, _, strict = check(make_rows(), **CROWD)
    code, said, weak = check(make_rows(), parameters={"reuse": "weighted"}, on_suppress="star")
    assert weak == strict
    assert code == 1
    assert "find no group in time and would be released alone, or suppressed. --most-suppressed is 5%" in said


def test_the_largest_share_allowed_can_be_set(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(make_rows(), "--most-suppressed", "99%", **CROWD)[0] == 0
    code, said, _ = check(make_rows(), "--most-suppressed", "0", **CROWD)
    assert code == 1 and "--most-suppressed is 0%" in said
    with pytest.raises(SystemExit) as left:
        main(["check", "policy.yaml", "--data", "data.csv", "--most-suppressed", "5"])
    assert left.value.code == 2
    assert "must be a share of the rows such as 5% or 0.05" in capsys.readouterr().err


def test_rejected_rows_have_a_largest_share_too(check: Check) -> None:
    rows = make_rows(every=2)
    for row in rows[:40]:
        row["age"] = 1000
    code, said, _ = check(rows, **CROWD)
    assert code == 1
    assert "problem: 40 rows (7%) would be rejected, more than --most-rejected (5%) allows." in said
    code, said, _ = check(rows, "--most-rejected", "10%", **CROWD)
    assert code == 0
    assert "warning: 40 rows (7%) would be rejected." in said


def test_the_order_of_the_file_does_not_matter(check: Check) -> None:
    rows = make_rows()
    _, _, table = check(rows, **CROWD)
    random.Random(3).shuffle(rows)
    assert check(rows, **CROWD)[2] == table


def test_of_a_long_sample_the_middle_is_tried(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying every tenth row instead would make the stream ten times thinner."""
    monkeypatch.setattr(engine_trial, "MOST_ROWS", 500)
    rows = make_rows(5_000, every=4)
    code, said, table = check(rows, **CROWD)
    assert code == 0
    assert "was run on 500 consecutive rows, the middle of the sample." in said
    assert check(rows[2_250:2_750], **CROWD)[2] == table
    thinned, *_ = check(rows[::10], **CROWD)
    assert thinned == 1


def test_each_shard_sees_only_its_own_persons(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    one = check(make_rows(every=6), **CROWD)[2]
    many = check(make_rows(every=6), shards=4, **CROWD)[2]
    assert percent(many["2m"][0]) > 2 * percent(one["2m"][0])
    write(make_rows(every=6), shards=4, **CROWD)
    argv = ["run", "policy.yaml", "--input", "data.csv", "--output", "out.csv", "--json", "--most-suppressed", "100%"]
    assert main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    # The run has another secret, so it assigns persons to shards differently.
    assert percent(many["2m"][0]) == pytest.approx(100 * told["suppressed"] / told["rows"], abs=15)


def test_warnings_of_beam_are_not_printed(here: Path) -> None:
    write(make_rows(100), shards=2, **CROWD)
    argv = [sys.executable, "-m", "crenel.pipelines.cli", "check", "policy.yaml", "--data", "data.csv"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


def test_deadlines_in_rows(check: Check) -> None:
    code, _, table = check(make_rows(), event_time=None, delay=None, delay_rows=6, **CROWD)
    assert list(table) == ["6 rows", "12 rows", "36 rows", "72 rows", "216 rows"]
    assert percent(table["6 rows"][0]) > percent(table["216 rows"][0])
    assert code == 1
    both = check(make_rows(), delay_rows=20, **CROWD)[2]
    assert list(both)[:2] == ["2m or 20 rows", "4m or 40 rows"]


def test_without_an_event_time_rows_are_counted(check: Check) -> None:
    """The sample has no timestamps of Beam, so a delay cannot be tried."""
    assert check(make_rows(), event_time=None, **CROWD)[2] == {}
    table = check(make_rows(), event_time=None, delay_rows=6, **CROWD)[2]
    assert table == check(make_rows(), event_time=None, delay=None, delay_rows=6, **CROWD)[2]


def test_deadlines_that_hold_everything_are_not_tried_twice(check: Check) -> None:
    table = check(make_rows(100, every=1), delay="1h", **CROWD)[2]
    assert list(table) == ["1h"]


@pytest.mark.parametrize("method", names())
def test_every_method_can_be_tried(method: str, check: Check) -> None:
    more = {"mu": 10} if method.startswith("faanst") else {}
    code, _, table = check(make_rows(150), method=method, parameters=more, on_suppress="drop")
    assert next(iter(table)) == "2m"
    assert code in (0, 1)


def test_a_deadline_that_the_parameters_do_not_allow_ends_the_table(check: Check) -> None:
    table = check(make_rows(150), method="adaptive-window", parameters={"min_delay": "1m"})[2]
    assert list(table) == ["2m", "4m", "12m"]


def test_no_rows_and_few_persons_have_no_table(check: Check) -> None:
    assert check(make_rows(3), **CROWD)[2] == {}
    rows = make_rows(30)
    for row in rows:
        row["age"] = 1000
    assert check(rows, **CROWD)[2] == {}


def test_a_terminal_shows_progress(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(make_rows(2_000), **CROWD)
    monkeypatch.setattr("crenel.pipelines.console.run_summary._EVERY", 0.001)
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    main(["check", "policy.yaml", "--data", "data.csv"])
    said = capsys.readouterr()
    assert re.search(r"\r\x1b\[Ktrying a deadline of \d+m", said.err)
    assert said.err.endswith("\r\x1b[K")
    assert "\r" not in said.out


def test_taxis_of_new_york(data_dir: Path) -> None:
    """Ten minutes of rides are too few for k = 10, and six hours are enough."""
    table = pq.read_table(data_dir / "taxi_yellow_2019.parquet").slice(0, 12_000)
    table = table.append_column("rider", pa.array(range(table.num_rows)))
    zone = {"type": "categorical", "hierarchy": str(data_dir / "hierarchies" / "taxi" / "location_id.csv")}
    policy = Policy.from_dict(
        {
            "person": "rider",
            "event_time": "pickup_datetime",
            "quasi_identifiers": {
                "trip_distance": {"type": "numeric", "domain": [0, 60]},
                "fare_amount": {"type": "numeric", "domain": [0, 300]},
                "pickup_location_id": zone,
                "dropoff_location_id": zone,
            },
            "k": 10,
            "delay": "10m",
            **CROWD,
        },
        allow_outside_files=True,
    )
    sample = Sample(policy, table, Limits())
    (section,) = [section for section in sample.look() if section.title == "Deadlines"]
    shares = {line[0]: percent(line[1].split("%")[0]) for line in section.lines[2:] if isinstance(line, tuple)}
    assert list(shares) == ["10m", "20m", "1h", "2h", "6h"]
    assert shares["10m"] > 90
    assert 5 < shares["1h"] < 20
    assert 1 < shares["2h"] < 6
    assert shares["6h"] < 1.5
    assert any("too thin for k (10)" in finding.text for finding in sample.findings)
