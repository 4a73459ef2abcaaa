"""The parts of the soak that need neither a broker nor a cluster: its faults, its rows, and its judge."""

from __future__ import annotations

import json
import random
from itertools import islice
from typing import Any

import pytest

from benchmarks import soak, soak_judge
from benchmarks.soak_judge import Judge, is_true, row

NAMES = [bytes([number]) * 16 for number in range(250)]


class Message:
    def __init__(self, value: dict[str, Any], key: bytes, at: int = 0) -> None:
        self._value = json.dumps(value).encode()
        self._key = key
        self._at = at

    def value(self) -> bytes:
        return self._value

    def key(self) -> bytes:
        return self._key

    def timestamp(self) -> tuple[int, int]:
        return 1, self._at


def published(number: int, lo: int = 0, hi: int = 100) -> dict[str, Any]:
    origin = row(number, 0.0)
    return {"age": {"lo": lo, "hi": hi}, "zip": "*****", "ill": origin["ill"], "note": number}


def judged(monkeypatch: pytest.MonkeyPatch, came: list[int], left: list[Message]) -> dict[str, Any]:
    topics = {"in": [Message(row(number, 1.0), b"") for number in came], "out": left}

    class Reader:
        def __init__(self, _: Any, topic: str) -> None:
            self._topic = topic

        def read(self) -> list[Message]:
            return topics.pop(self._topic, [])

    monkeypatch.setattr(soak_judge, "Reader", Reader)
    judge = Judge(None, "in", "out")  # type: ignore[arg-type]
    judge.look()
    return judge.verdict()


def test_one_seed_is_one_sequence_of_faults() -> None:
    first, again, other = (list(islice(soak.sequence(random.Random(seed)), 30)) for seed in (1, 1, 2))
    assert first == again != other
    kinds = len(soak.FAULTS)
    assert all(set(first[start : start + kinds]) == set(soak.FAULTS) for start in range(0, 30, kinds))


def test_a_stream_that_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [Message(published(number), NAMES[number], number * 1000) for number in range(5)]
    found = judged(monkeypatch, list(range(5)), left)
    assert found["rows_in"] == found["rows_out"] == 5
    assert found["longest_silence_seconds"] == 1.0
    assert not any(found[name] for name in ("lost", "records_twice", "two_generalizations", "untrue", "invented"))


@pytest.mark.parametrize(
    ("left", "name"),
    [
        ([(0, 0, 100, 0), (1, 0, 100, 1)], "lost"),
        ([(0, 0, 100, 0), (1, 0, 100, 1), (2, 0, 100, 2), (2, 0, 100, 2)], "records_twice"),
        ([(0, 0, 100, 0), (1, 0, 100, 1), (2, 0, 100, 2), (2, 0, 99, 3)], "two_generalizations"),
        ([(0, 0, 100, 0), (1, 0, 100, 1), (2, 0, 100, 2), (2, 0, 100, 3)], "two_generalizations"),
        ([(0, 0, 100, 0), (1, 0, 100, 1), (2, 200, 300, 2)], "untrue"),
        ([(0, 0, 100, 0), (1, 0, 100, 1), (2, 0, 100, 2), (9, 0, 100, 3)], "invented"),
    ],
)
def test_the_judge_finds_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, left: list[tuple[int, int, int, int]], name: str
) -> None:
    messages = [Message(published(number, lo, hi), NAMES[key]) for number, lo, hi, key in left]
    found = judged(monkeypatch, [0, 1, 2], messages)
    wrong = {one for one in ("lost", "records_twice", "two_generalizations", "untrue", "invented") if found[one]}
    assert wrong == {name}
    assert found[name] == 1


def test_rows_follow_from_their_numbers() -> None:
    assert row(7, 1.0) == row(7, 1.0)
    assert {**row(7, 2.0), "at": 1.0} == row(7, 1.0)
    assert is_true(published(7))


def test_growth_and_recovery() -> None:
    sizes = [100 + at for at in range(20)]
    assert soak.growth(sizes) == {"checkpoints": 20, "checkpoint_bytes_first": 101, "checkpoint_bytes_last": 117}
    found = [soak.Recovery("a", 0.0, 3.0), soak.Recovery("a", 0.0, 5.0), soak.Recovery("b", 0.0)]
    assert soak.recoveries(found) == {"a": {"median": 4.0, "most": 5.0}}


def test_a_checkpoint_that_began_before_a_fault_is_no_recovery() -> None:
    recovery = soak.Recovery("a", 100.0)
    recovery.note(soak.Completed("chk-1", 99.0, 5), 101.0)
    assert recovery.seconds is None
    recovery.note(soak.Completed("chk-2", 103.0, 5), 104.0)
    recovery.note(soak.Completed("chk-3", 113.0, 5), 114.0)
    assert recovery.seconds == 4.0
