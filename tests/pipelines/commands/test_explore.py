"""`crenel explore`: a grid of guarantees, the cheapest setting that meets a target, and a page with curves."""

from __future__ import annotations

import csv
import datetime as dt
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from crenel.pipelines import cli
from crenel.pipelines.exploring import settings

POLICY: dict[str, Any] = {
    "version": 1,
    "person": "patient",
    "event_time": "seen",
    "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 120]}, "zip": {"type": "prefix", "length": 5}},
    "sensitive": ["diagnosis"],
    "k": 4,
    "delay": "10m",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy and 600 visits, one a minute."""
    draw, start = random.Random(5), dt.datetime(2026, 3, 2, tzinfo=dt.timezone.utc)
    monkeypatch.chdir(tmp_path)
    with Path("visits.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["patient", "seen", "age", "zip", "diagnosis"])
        for minute in range(600):
            when = (start + dt.timedelta(minutes=minute)).isoformat()
            rows.writerow([f"p{minute}", when, draw.randrange(90), f"48{draw.randrange(1000):03}", draw.choice("abc")])
    Path("policy.yaml").write_text(yaml.safe_dump(POLICY))
    return tmp_path


def explore(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = cli.main(["explore", "policy.yaml", "--data", "visits.csv", *options])
    return code, capsys.readouterr().out


def test_longer_deadlines_cost_less_and_larger_k_more(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = explore(capsys, "--k", "2,8", "--delay", "5m,1h", "--json")
    found = json.loads(out)
    assert code == 0
    assert [(one["k"], one["delay"]) for one in found["settings"]] == [(2, 300), (2, 3600), (8, 300), (8, 3600)]
    small_soon, small_late, large_soon, large_late = found["settings"]
    assert small_late["loss"] < small_soon["loss"] < large_soon["loss"]
    assert large_soon["suppressed"] == 1  # in five minutes there are not eight persons
    assert large_soon["wait"] is None
    assert large_soon["error"] is None
    assert large_late["suppressed"] < 0.05
    assert small_soon["wait"] <= small_soon["wait_p99"] <= 300
    assert found["rows"] == 600


def test_the_cheapest_setting_that_meets_the_target_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ("--k", "2,4,8", "--delay", "5m,30m,2h")
    code, out = explore(capsys, *grid, "--target", "suppressed<5%")
    assert code == 0
    assert "The cheapest setting that meets suppressed<5%: k = 4, deadline 30m." in out
    assert "k = 8: deadline 30m; k = 2: deadline 5m." in re.sub(r"\s+", " ", out)
    code, out = explore(capsys, *grid, "--target", "suppressed<5%", "--target", "loss<0.0001")
    assert code == 1
    assert "No setting that was tried meets suppressed<5% and loss<0.0001." in out


def test_without_a_grid_the_policys_own_guarantees_are_varied(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = explore(capsys, "--json")
    found = json.loads(out)["settings"]
    assert {one["k"] for one in found} == {2, 4, 8, 16}
    assert {one["delay"] for one in found} == {150, 600, 2400, 9600}
    assert [(one["k"], one["delay"]) for one in found if one["own"]] == [(4, 600)]


def test_a_deadline_that_the_sample_is_too_short_for_is_marked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out = explore(capsys, "--k", "4", "--delay", "1h,1d", "--json")
    assert [one["cut"] for one in json.loads(out)["settings"]] == [False, True]
    assert "The sample is shorter than this deadline" in explore(capsys, "--k", "4", "--delay", "1d")[1]


def test_rows_and_l_can_be_varied(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = explore(capsys, "--k", "4", "--l", "2,3", "--delay-rows", "40", "--rows", "200")
    assert "was run on 200 consecutive rows" in out
    assert re.search(r"^4, l = 2 +10m or 40 rows", out, re.MULTILINE)


def test_stopping_shows_what_is_done(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, calls = settings.tried, []

    def interrupted(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return known(*given)

    monkeypatch.setattr(settings, "tried", interrupted)
    code, out = explore(capsys, "--k", "2,4", "--delay", "30m,1h", "--html", "curves.html")
    assert code == 130
    assert "Stopped: 2 of 4 settings were tried." in out
    assert len(re.findall(r"^2 +\d", out, re.MULTILINE)) == 2
    assert "It was stopped before the other 2 settings." in Path("curves.html").read_text()


def test_the_page_shows_what_the_text_says_and_no_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--k", "2,4", "--delay", "30m,2h", "--target", "suppressed<5%")
    explore(capsys, *options, "--html", "curves.html")
    page = Path("curves.html").read_text()
    assert page.count("<svg") == 4
    assert "<script" not in page
    assert "k = 4, deadline 30m</h2>" in page
    assert "p17" not in page
    assert "48" + "0" not in re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", page, flags=re.DOTALL)


@pytest.mark.browser
def test_the_page_fits_a_phone_and_loads_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.pipelines.auditing.browser import chromium

    explore(capsys, "--k", "2,4", "--delay", "30m,2h", "--html", "curves.html")
    with chromium() as driver:
        driver.set_window_size(500, 900)
        driver.get((folder / "curves.html").as_uri())
        assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
        assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
        heights = driver.execute_script("return [...document.querySelectorAll('svg')].map(s => s.clientHeight)")
        assert len(heights) == 4
        assert min(heights) > 100
        assert driver.get_log("browser") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--target", "supressed<1%"), "did you mean 'suppressed'?"),
        (("--target", "suppressed=1%"), "must be a bound such as 'suppressed<1%'"),
        (("--delay", "10"), "must be durations"),
        (("--k", "1"), "must be whole numbers of at least 2, not '1'"),
    ],
)
def test_mistakes_are_explained(
    folder: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit):
        explore(capsys, *options)
    assert said in capsys.readouterr().err


def test_a_policy_without_event_times_is_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.yaml").write_text(yaml.safe_dump({**POLICY, "event_time": None}))
    assert cli.main(["explore", "policy.yaml", "--data", "visits.csv", "--delay", "1h"]) == 2
    assert "the policy names no event_time" in capsys.readouterr().err


def test_a_column_that_is_not_there_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.yaml").write_text(yaml.safe_dump({**POLICY, "publish": ["Visit"]}))
    assert cli.main(["explore", "policy.yaml", "--data", "visits.csv"]) == 2
    assert "visits.csv has no column 'Visit'" in capsys.readouterr().err
