"""`crenel plan`: its rule of thumb gives the results computed by hand, and its assumptions are printed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.checking.scale import MEASURED, Calibration, make_plan
from crenel.pipelines.cli import main
from crenel.policy import Policy

#: Round figures, so that results can be worked out by hand.
ROUND = Calibration(
    row_us=10, pack_us=1_000, spread_us=10, held_bytes=100, held_bytes_qi=50, log_bytes=20, log_bytes_qi=10
)


def policy(**changes: Any) -> Policy:
    said = {"person": "who", "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}}, "k": 10}
    said |= {"delay": "10s"} | changes
    return Policy.from_dict({"version": 1, **{name: value for name, value in said.items() if value is not None}})


def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str, **changes: Any) -> tuple[int, str]:
    path = tmp_path / "policy.yaml"
    path.write_text(json.dumps(policy(**changes).to_dict()))
    code = main(["plan", str(path), *options])
    said = capsys.readouterr()
    return code, " ".join((said.out or said.err).split())


def test_worked_by_hand() -> None:
    plan = make_plan(policy(shards=4), 1_000, known=ROUND)
    assert (plan.deadline, plan.rows, plan.persons) == (10, 10_000, 10_000)
    # A row costs 10 us, plus 1 ms for each bundle of 250 rows: 14 us for each of 250 rows per second.
    assert plan.asked.busy == pytest.approx(250 * 14e-6)
    assert (plan.asked.persons, plan.asked.crowd) == (2_500, 250)
    assert plan.asked.loss == pytest.approx(4**0.29)
    assert plan.advised is not None and plan.advised.shards == 1
    assert plan.most == 10_000 // (25 * 10)
    assert plan.shortest == 250 / 1_000
    assert plan.cores == pytest.approx(1_000 * 24e-6 / 0.5)
    assert plan.held_bytes == 10_000 * 150
    assert plan.stored_bytes == 10_000 * 150 + 4 * 2**20
    assert plan.written_bytes == 1_000 * 30 * 1.5


def test_the_fewest_shards_that_keep_up() -> None:
    # With one shard a row costs 11 us, which is 1.1 s of work per second. With four it costs 14 us, which is 0.35 s.
    plan = make_plan(policy(), 100_000, known=ROUND)
    assert plan.asked.busy == pytest.approx(1.1)
    assert plan.advised is not None and plan.advised.shards == 4


def test_no_number_of_shards_keeps_up_with_too_high_a_rate() -> None:
    plan = make_plan(policy(), 10**9, known=ROUND)
    assert plan.advised is None


def test_persons_return() -> None:
    plan = make_plan(policy(), 1_000, persons=5_000, known=ROUND)
    assert plan.persons == pytest.approx(5_000 * (1 - math.exp(-2)))
    # The time until 250 of 5,000 persons have arrived.
    assert plan.shortest == pytest.approx(-5_000 * math.log(1 - 250 / 5_000) / 1_000)
    assert math.isinf(make_plan(policy(), 1_000, persons=250, known=ROUND).shortest)


def test_delay_rows_count_the_rows_of_one_shard() -> None:
    plan = make_plan(policy(delay=None, delay_rows=1_000, shards=4), 1_000, known=ROUND)
    assert (plan.deadline, plan.rows, plan.asked.persons) == (4, 4_000, 1_000)
    both = make_plan(policy(delay="1s", delay_rows=1_000, shards=4), 1_000, known=ROUND)
    assert (both.deadline, both.asked.persons) == (1, 250)


def test_locality_costs_no_loss_but_fills_shards_unevenly() -> None:
    plan = make_plan(policy(shards=8, shard_by="locality"), 10_000, known=ROUND)
    assert plan.asked.loss == 1.0
    assert plan.asked.busy == pytest.approx(10_000 * 0.6 * 18e-6)


@given(
    rate=st.floats(0.01, 1e7),
    shards=st.integers(1, 64),
    persons=st.one_of(st.none(), st.integers(1, 10**9)),
    by=st.sampled_from(["person", "locality"]),
)
def test_plans_make_sense(rate: float, shards: int, persons: int | None, by: str) -> None:
    plan = make_plan(policy(shards=shards, shard_by=by), rate, persons)
    assert 0 < plan.persons <= min(plan.rows, persons or math.inf) * (1 + 1e-9)
    assert plan.advised is None or plan.advised.busy <= MEASURED.busy
    assert plan.stored_bytes >= plan.held_bytes
    faster = make_plan(policy(shards=shards, shard_by=by), 2 * rate, persons)
    assert faster.most >= plan.most
    assert faster.asked.crowd >= plan.asked.crowd
    if plan.most:
        one = make_plan(policy(), rate, persons).asked
        assert one.crowd >= MEASURED.crowd


def test_it_says_what_it_assumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(tmp_path, capsys, "--rate", "50000/s")
    assert code == 0
    assert "50,000 rows per second" in said
    assert "10 seconds, in which 500,000 rows of 500,000 persons come" in said
    assert f"{MEASURED.row_us:g} us for a row in its shard" in said
    assert "every row within the deadline is of another person; set --persons if not" in said
    assert "No problems, no warnings." in said
    _, said = told(tmp_path, capsys, "--rate", "50000/s", "--persons", "2M", shard_by="locality", shards=8)
    assert "2,000,000, all equally active" in said
    assert "60% of the rows are in the fullest shard" in said


@pytest.mark.parametrize(
    ("rate", "a_second"), [("50000/s", 50_000), ("50k/s", 50_000), ("3M/h", 833.33), ("6e3/m", 100), ("1.5/s", 1.5)]
)
def test_rates(rate: str, a_second: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = told(tmp_path, capsys, "--rate", rate, "--json")
    assert json.loads(said)["rate"] == pytest.approx(a_second, rel=1e-4)


@pytest.mark.parametrize("rate", ["", "fast", "50000", "0/s", "-3/s", "5/w", "1e99/s", "nan/s", "1/s/s"])
def test_a_wrong_rate_is_refused(rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(tmp_path, capsys, f"--rate={rate}")
    assert code == 2
    assert said.startswith(
        "crenel: --rate must be a number of rows per time above 0, such as 50000/s, 50k/s, 200/m or 3M/h"
    )
    assert said.endswith(f"not {rate!r}.")


@pytest.mark.parametrize("persons", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_of_persons_is_refused(persons: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(tmp_path, capsys, "--rate", "1/s", f"--persons={persons}")
    assert code == 2
    assert said.startswith("crenel: --persons must be a whole number") and said.endswith(f"not {persons!r}.")


@pytest.mark.parametrize(
    ("options", "changes", "code", "severity", "words"),
    [
        (["--rate", "0.5/s"], {}, 1, "problem", "5 persons within the deadline, fewer than k (10)"),
        (["--rate", "0.5/s"], {}, 1, "problem", "Even one shard needs 8.33 minutes to see that many"),
        (["--rate", "9/s"], {}, 0, "warning", "A shard sees 9 times k persons"),
        (["--rate", "100/s"], {"shards": 16}, 0, "warning", "Use at most 4 shards, or a longer delay."),
        (["--rate", "1k/s", "--persons", "200"], {}, 0, "warning", "The stream has too few persons for k = 10"),
        (["--rate", "150k/s"], {}, 0, "warning", "busy 73% of the time. Use 2 shards."),
        (["--rate", "1M/s"], {}, 1, "problem", "Use "),
        (["--rate", "1M/s"], {"shard_by": "locality", "shards": 8}, 1, "problem", "use shard_by: person"),
        (["--rate", "1k/s"], {"shards": 16}, 0, "note", "keep up, too, and would lose 55% less information."),
        (["--rate", "1M/s", "--persons", "1000"], {}, 1, "warning", "only 4 shards would see enough persons each."),
        (["--rate", "50k/s"], {"delay": "10m"}, 0, "warning", "A shard holds up to 2.22 GB"),
    ],
)  # fmt: skip
def test_what_is_wrong(
    options: list[str],
    changes: dict[str, Any],
    code: int,
    severity: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    returned, said = told(tmp_path, capsys, *options, "--json", **changes)
    found = [finding["text"] for finding in json.loads(said)["findings"] if finding["severity"] == severity]
    assert any(words in text for text in found), said
    assert returned == code


def test_the_calibration_is_that_of_the_page() -> None:
    """A new measurement must change both the code and the page."""
    page = (Path(__file__).parents[3] / "docs" / "scale.md").read_text("utf-8")
    for figure in (MEASURED.row_us, MEASURED.pack_us, MEASURED.spread_us, MEASURED.loss_power, MEASURED.crowd):
        assert f"{figure:g}" in page
