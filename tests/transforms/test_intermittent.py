"""Intermittent streams: bursts, a silent hour, a key that never has k persons. Rows are released by their deadlines."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from crenel.transforms._hold import hold_step
from tests.transforms.streams import SECOND, UNNAMED, Outcome, anonymize, check, policy, rows, run, stream

HOUR = 3600
FIRST = 1_000_000.0
METHODS: dict[str, dict[str, Any]] = {
    "adaptive-window": {"method": "adaptive-window"},
    "adaptive-window, short windows": {
        "method": "adaptive-window",
        "parameters": {"min_delay": "1m", "max_delay": "3m"},
    },
    "faanst-passive": {"method": "faanst-passive", "parameters": {"mu": 12}},
    "faanst-proactive": {"method": "faanst-proactive", "parameters": {"mu": 12}},
    "mondrian": {"method": "mondrian"},
}


def burst(count: int, at: float, number: int, every: float = 2.0) -> list[dict[str, Any]]:
    """Return `count` rows, `every` seconds apart, the first of them at FIRST + `at`."""
    return [
        {**row, "seen": FIRST + at + i * every, "number": number + i, "patient": f"patient-{number + i}"}
        for i, row in enumerate(rows(count, seed=number))
    ]


def streamed(parts: list[Any], **changes: Any) -> Outcome:
    return run(stream(parts), anonymize(**changes), runner="BundleBasedDirectRunner")


@pytest.fixture
def firings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the times at which timers fire."""
    fired: list[int] = []
    wake = hold_step.HoldRows._wake

    def counted(self: Any, key: Any, now: int, *rest: Any) -> Any:
        fired.append(now)
        return wake(self, key, now, *rest)

    monkeypatch.setattr(hold_step.HoldRows, "_wake", counted)
    return fired


@pytest.mark.parametrize("changes", METHODS.values(), ids=METHODS)
def test_bursts_and_a_silent_hour(changes: dict[str, Any], firings: list[int]):
    one, two, three = burst(40, 0, 0), burst(3, 400, 100, every=90.0), burst(50, HOUR + 1000, 200)
    told = [FIRST + minutes * 60 for minutes in range(12, 76)]
    parts = [one[:25], FIRST + 45, one[25:], FIRST + 300, two, FIRST + 600, *told, three, FIRST + HOUR + 2000]
    out = streamed(parts, **changes)
    report = check(policy(**changes), [*one, *two, *three], out.published, out.suppressed)
    assert report.published >= 80
    # In the silent hour no row is held and no timer fires: an idle key costs nothing.
    last_deadline = int((FIRST + 400 + 180 + 600) * SECOND)
    assert [at for at in firings if last_deadline < at < int((FIRST + HOUR + 1000) * SECOND)] == []


@pytest.mark.parametrize("changes", METHODS.values(), ids=METHODS)
def test_a_key_that_never_has_k_persons(changes: dict[str, Any]):
    lonely = burst(3, 0, 0, every=100.0)
    out = streamed([lonely[:1], FIRST + 50, lonely[1:], *(FIRST + 60 * minutes for minutes in range(5, 30))], **changes)
    report = check(policy(**changes), lonely, out.published, out.suppressed)
    assert report.suppressed == 3
    # Each is released at its own deadline, none at the end of the stream.
    tick = policy(**changes).tick
    deadlines = [round(row["seen"] * SECOND) + 600 * SECOND for row in lonely]
    assert sorted(left.timestamp // tick for left in out.suppressed) == [deadline // tick for deadline in deadlines]


@pytest.mark.parametrize("changes", METHODS.values(), ids=METHODS)
def test_keys_do_not_wait_for_each_other(changes: dict[str, Any]):
    """The windows of a busy key neither hasten nor delay those of a slow key."""
    busy = [{**row, UNNAMED: "busy"} for row in burst(60, 0, 0)]
    slow = [{**row, UNNAMED: "slow"} for row in burst(3, 0, 100, every=40.0)]
    changes = {**changes, "shards": 64, "shard_by": [UNNAMED]}
    given = sorted([*busy, *slow], key=lambda row: row["seen"])
    out = streamed([given, *(FIRST + 60 * minutes for minutes in range(2, 25))], **changes)
    by_shard: dict[int, int] = defaultdict(int)
    for left in out.releases:
        by_shard[left.value["shard"]] += left.value["rows"]
    assert sorted(by_shard.values()) == [3, 60]
    assert {left.value["number"] for left in out.suppressed if left.value["number"] >= 100} == {100, 101, 102}
    assert {left.value["number"] for left in out.published} == {row["number"] for row in given}
    here, hidden = ([left for left in found if left.value["number"] < 100] for found in (out.published, out.suppressed))
    check(policy(**changes), busy, here, hidden)
    alone = streamed([busy, *(FIRST + 60 * minutes for minutes in range(2, 25))], **changes)
    assert here == alone.published
    assert hidden == alone.suppressed
