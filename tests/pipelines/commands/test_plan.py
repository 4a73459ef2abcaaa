"""`crenel plan`: its rule of thumb gives the results computed by hand, and its assumptions are printed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.checking.scale import MEASURED, Calibration, make_plan
from crenel.pipelines.cli import main
from crenel.policy import Policy, ShardTree

#: Round figures, so that results can be worked out by hand.
ROUND = Calibration(
    row_us=10, pack_us=1_000, spread_us=10, held_bytes=100, held_bytes_qi=50, log_bytes=20, log_bytes_qi=10, crowd=25
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
    assert plan.asked.loss == pytest.approx(4**ROUND.loss_power)
    assert plan.advised is not None and plan.advised.shards == 1
    assert plan.most == 10_000 // (25 * 10)
    assert plan.shortest == 250 / 1_000
    assert plan.cores == pytest.approx(1_000 * 24e-6 / 0.5)
    assert plan.held_bytes == 10_000 * 150
    assert plan.stored_bytes == 10_000 * 150 * 3
    assert make_plan(policy(shards=4), 1, known=ROUND).stored_bytes == 10 * 150 + 4 * 2**16
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


def test_local_shards_cost_less_loss_and_are_a_little_uneven() -> None:
    plan = make_plan(policy(shards=8, shard_by="locality"), 10_000, known=ROUND)
    assert plan.asked.loss == pytest.approx(8**ROUND.loss_power_tree)
    assert plan.asked.busy == pytest.approx(10_000 / 8 * ROUND.fullest * 18e-6)


def test_auto_is_the_fewest_shards_that_keep_up_and_are_fed() -> None:
    auto = {"shards": "auto", "shard_by": "locality"}
    assert make_plan(policy(**auto), 1_000).asked.shards == 1
    assert make_plan(policy(**auto, delay="10m"), 1_000).asked.shards == 6  # 600,000 rows within the deadline
    assert make_plan(policy(**auto, delay="1s"), 100_000).asked.shards == 3  # what a core can do, twice and a half
    assert make_plan(policy(**auto, delay="10m", k=30_000), 1_000).asked.shards == 2  # so many see enough persons


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
    assert f"the fullest shard has {MEASURED.fullest:g} times the mean" in said
    _, said = told(tmp_path, capsys, "--rate", "1000/s", shard_by="locality", shards="auto", delay="10m")
    assert "auto, which is 6 (one for each 100,000 of 600,000 rows within the deadline" in said
    assert "one key that learns the tree" not in said
    _, said = told(tmp_path, capsys, "--rate", "400000/s", shard_by="locality", shards=32)
    assert "all rows pass through one key that learns the tree, which would be busy 60% of the time" in said


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


def test_how_long_after_the_deadline_records_are_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = told(tmp_path, capsys, "--rate", "1/s", "--json")
    assert json.loads(said)["sent"] == 3 * 10 + MEASURED.steps_seconds
    _, said = told(tmp_path, capsys, "--rate", "1/s", "--checkpoints", "500ms")
    assert f"at most about {1.5 + MEASURED.steps_seconds:g} seconds after the deadline" in said
    code, said = told(tmp_path, capsys, "--rate", "1/s", "--checkpoints", "0s")
    assert code == 2
    assert "--checkpoints must be a duration above 0 such as 500ms, 1s or 10s, not '0s'." in said


@pytest.mark.parametrize("persons", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_of_persons_is_refused(persons: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(tmp_path, capsys, "--rate", "1/s", f"--persons={persons}")
    assert code == 2
    assert said.startswith("crenel: --persons must be a whole number") and said.endswith(f"not {persons!r}.")


@pytest.mark.parametrize(
    ("options", "changes", "code", "severity", "words"),
    [
        (["--rate", "0.5/s"], {}, 1, "problem", "5 persons within the deadline, fewer than k (10)"),
        (["--rate", "0.5/s"], {}, 1, "problem", "Even one shard needs 2.67 minutes to see that many"),
        (["--rate", "5/s"], {}, 0, "warning", "A shard sees 5 times k persons"),
        (["--rate", "100/s"], {"shards": 16}, 0, "warning", "Use at most 12 shards, or a longer delay."),
        (["--rate", "1k/s", "--persons", "70"], {}, 0, "warning", "The stream has too few persons for k = 10"),
        (["--rate", "475k/s"], {}, 0, "warning", "busy 91% of the time. Use 2 shards."),
        (["--rate", "1M/s"], {}, 1, "problem", "Use "),
        (["--rate", "1k/s"], {"shards": 8}, 0, "note", "A tree of shards (--data SAMPLE --write shards.json)"),
        (["--rate", "1k/s"], {"shards": 16}, 0, "note", "keep up, too, and would lose 58% less information."),
        (["--rate", "1M/s", "--persons", "500"], {}, 1, "warning", "only 6 shards would see enough persons each."),
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


# --- A tree from a sample ---


def sample_of(folder: Path, rows: int = 2_000) -> Path:
    draw = np.random.default_rng(0)
    lines = [f"p{i},{draw.integers(0, 101)},{1_700_000_000 + i / 50:.2f}" for i in range(rows)]
    path = folder / "sample.csv"
    path.write_text("who,age,seen\n" + "\n".join(lines) + "\n")
    return path


def test_a_tree_is_learned_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, tree = str(sample_of(tmp_path)), tmp_path / "shards.json"
    options = ["--data", data, "--shards", "4", "--write", str(tree)]
    code, said = told(tmp_path, capsys, *options, event_time="seen")
    assert code == 0
    assert "50 rows per second" in said  # that of the sample
    assert "4, learned from 2,000 rows" in said and "cut by age (3)" in said
    assert f"Wrote {tree}. Name it in the policy, and never publish it" in said
    elsewhere = said.replace(str(tree), "")  # the folder's name may have any number
    assert not any(f"{cut.at:g}" in elsewhere for cut in ShardTree.read(tree).cuts if cut.at > 30)
    named = Policy.from_dict(policy(event_time="seen").to_dict() | {"shard_by": {"tree": "shards.json"}}, tmp_path)
    assert named.shards == 4
    # The same rows lead to the same tree.
    before = tree.read_text()
    told(tmp_path, capsys, *options, event_time="seen")
    assert tree.read_text() == before


def test_a_tree_is_no_larger_than_the_stream_feeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """50 rows a second and a deadline of 10 seconds: 500 persons, of whom a shard needs 80."""
    code, said = told(
        tmp_path, capsys, "--data", str(sample_of(tmp_path)), "--shards", "32", "--json", event_time="seen"
    )
    found = json.loads(said)
    assert code == 0 and 3 <= found["tree"]["shards"] <= 6 and found["tree"]["crowd"] >= MEASURED.crowd
    assert any("not 32: a shard should meet 8 times k persons" in finding["text"] for finding in found["findings"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rate", "1/s", "--write", "shards.json"], "--write needs --data"),
        (["--rate", "1/s", "--shards", "4"], "--shards needs --data"),
        (["--data", "SAMPLE", "--shards", "0"], "--shards must be a whole number from 1 to 4096, not '0'."),
        (["--data", "SAMPLE"], "--rate must be given, unless --data has rows with event times."),
        ([], "--rate must be given, unless --data has rows with event times."),
        (["--data", "SAMPLE", "--rate", "1/s", "--write", "none/shards.json"], "none/shards.json: cannot be written"),
    ],
)
def test_a_tree_that_cannot_be_made(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(sample_of(tmp_path, 200))
    code, said = told(tmp_path, capsys, *(data if option == "SAMPLE" else option for option in options))
    assert code == 2 and words in said
