"""The simulator: some hundred histories keep every promise, and it is sharp enough to find planted defects."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from simulation import __main__ as command
from simulation import campaign
from simulation.campaign import Tally
from simulation.defects import DEFECTS
from simulation.drawing import draw
from simulation.history import History
from simulation.judging.promises import Promise
from simulation.shrink import shrink
from simulation.world import World

#: Seeds that are known to find each planted defect. If one of them no longer does, because histories are drawn in
#: another way, the search must still find the defect; then note the new seed here.
FOUND_BY = {
    "lost-log-entry": 0,
    "token-not-checked": 1,
    "confirmed-early": 10,
    "timer-lost": 0,
    "draw-not-restored": 18,
    "ledger-not-checked": 14,
    "rows-of-failed-bundle": 92,
    "packs-forgotten": 0,
    "topic-not-watched": 88,
    "partitions-ignored": 1,
    "refused-dropped": 120,
    "trees-not-compared": 53,
}
#: Seeds among which a defect must be found.
ENOUGH = 1_000


# Two halves, for two workers of pytest.
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 150])
def test_every_history_keeps_every_promise(first: int) -> None:
    tally = campaign.play(range(first, first + 150))
    assert tally.failures == {}, "run `make simulate` to see the failing histories, shrunk"
    # The histories have something to say: every kind of fault took effect.
    assert len(tally.faults) >= 20
    assert tally.steps > 100 * tally.histories


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect: str) -> None:
    with campaign.simulated(defect):
        searched = (FOUND_BY[defect], *range(ENOUGH))
        assert any(campaign.broken(draw(seed)) for seed in searched), f"{defect} is not found in {ENOUGH} histories"


def test_a_seed_is_one_history() -> None:
    tallies = [campaign.play([7, 8, 7]) for _ in range(2)]
    assert tallies[0].steps == tallies[1].steps
    assert tallies[0].faults == tallies[1].faults
    assert draw(7) == draw(7) != draw(8)


def test_what_is_printed_is_the_history() -> None:
    history = draw(11)
    read = eval(history.source(), {"History": History})
    assert read == history


def test_a_failing_history_is_shrunk() -> None:
    with campaign.simulated("timer-lost"):

        def is_broken(candidate: History) -> bool:
            found = campaign.broken(candidate)
            return found is not None and found.promise is Promise.ON_TIME

        history = draw(FOUND_BY["timer-lost"])
        small = shrink(history, is_broken, most=200)
        assert is_broken(small)
    assert len(small.steps) + len(small.rows) < (len(history.steps) + len(history.rows)) / 3
    with campaign.simulated():
        assert campaign.broken(small) is None, "without the defect, the promise is kept"


def test_any_part_of_a_history_may_be_left_out() -> None:
    whole = draw(5)
    with campaign.simulated():
        for part in (History(seed=5, policy=whole.policy, rows=[], steps=whole.steps), whole):
            World(part).run()
        for start in range(0, len(whole.steps), 10):
            steps = [*whole.steps[:start], *whole.steps[start + 10 :]]
            World(History(seed=5, policy=whole.policy, rows=whole.rows, steps=steps, partitions=3)).run()


def test_the_command_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "1", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    said = json.loads(printed.splitlines()[-1])
    assert (said["histories"], said["failures"]) == (1, 0)
    assert f"{said['steps']:,} steps, 0 failures" in printed


def test_ctrl_c_shows_what_was_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def play_all(*_: object) -> Iterator[Tally]:
        yield Tally(histories=25, steps=1_234)
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "play_all", play_all)
    assert command.main(["--seeds", "100"]) == 130
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["histories"], said["steps"], said["interrupted"]) == (25, 1_234, True)


def test_an_unknown_defect_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--defect", "unknown"]) == 2
    assert "DEFECT must be one of lost-log-entry," in capsys.readouterr().err
