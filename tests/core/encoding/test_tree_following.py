"""A tree of shards that follows a stream: learned from the first rows, and anew when the stream has changed."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.encoding import tree_following
from crenel.encoding.rows import Rows
from crenel.encoding.tree_following import MOST_TREES, TreeFollower, Watch, one_shard
from crenel.policy import Policy

SECOND = 1_000_000


def policy(**changes: Any) -> Policy:
    said: dict[str, Any] = {
        "version": 1,
        "person": "who",
        "event_time": "at",
        "quasi_identifiers": {"x": {"type": "numeric", "domain": [0, 100]}, "y": {"type": "numeric"}},
        "k": 5,
        "delay": "10m",
        "shards": 8,
        "shard_by": "locality",
    }
    return Policy.from_dict({**said, **changes})


def rows(count: int, *, rate: float = 100.0, begin: float = 0.0, lo: float = 0.0, hi: float = 100.0) -> Rows:
    """Rows of different persons, evenly in time, with x between two numbers."""
    draw = np.random.default_rng(count)
    qi = np.stack([draw.uniform(lo, hi, count), draw.normal(size=count)], axis=1)
    time = ((begin + np.arange(count) / rate) * SECOND).astype(np.int64)
    return Rows(qi, draw.integers(1 << 40, size=count), np.zeros((count, 0), dtype=np.int64), time)


class Stream:
    """A follower, and the sample that it would keep in state."""

    def __init__(self, of: Policy) -> None:
        self.of = of
        self.schedule, self.watch = one_shard(of), Watch()
        self.sample: list[Rows] = []

    def deal(self, given: Rows, size: int = 1_000) -> np.ndarray[Any, Any]:
        return np.concatenate(
            [self._deal(given.slice(i, min(i + size, len(given)))) for i in range(0, len(given), size)]
        )

    def _deal(self, part: Rows) -> np.ndarray[Any, Any]:
        follower = TreeFollower(self.of, self.schedule, self.watch, lambda: self.sample)
        shard = follower.deal(part)
        self.sample = [*([] if follower.is_over else self.sample), *follower.fresh]
        self.schedule, self.watch = follower.schedule, follower.watch
        assert sum(map(len, self.sample)) == self.watch.sampled
        return shard

    @property
    def shards(self) -> list[int]:
        return [tree.shards for tree in self.schedule.trees]


def fullest(shard: np.ndarray[Any, Any], shards: int) -> float:
    """The rows of the fullest shard, to the mean."""
    return float(np.bincount(shard, minlength=shards).max() * shards / len(shard))


def test_one_shard_holds_the_first_rows_until_a_tree_is_learned_from_them() -> None:
    stream = Stream(policy())
    first = stream.deal(rows(8_192))
    assert not first.any()
    assert stream.shards == [1, 8]
    (moment,) = stream.schedule.moments
    latest = rows(8_192).time.max()
    assert latest < moment <= latest + 600 * SECOND // 16 + 1
    later = stream.deal(rows(20_000, begin=moment / SECOND))
    assert fullest(later, 8) < 1.6
    assert stream.shards == [1, 8], "an even stream keeps its tree"


def test_a_row_goes_by_the_tree_of_its_event_time() -> None:
    stream = Stream(policy())
    stream.deal(rows(8_192))
    (moment,) = stream.schedule.moments
    late = rows(500, begin=moment / SECOND - 2)
    is_before = late.time < moment
    assert is_before.any() and not is_before.all()
    shard = stream.deal(late)
    assert not shard[is_before].any()
    assert len(set(shard[~is_before].tolist())) > 4


def test_drift_brings_another_tree_at_a_moment_after_all_rows() -> None:
    stream = Stream(policy())
    stream.deal(rows(100_000))
    begin = 1_000.0
    # All rows come to lie where one or two leaves are.
    changed = rows(400_000, begin=begin, hi=12.0)
    before = stream.deal(changed.slice(0, 20_000))
    assert fullest(before, 8) > 3
    after = stream.deal(changed.slice(20_000, len(changed)), size=10_000)
    assert len(stream.shards) >= 3 and stream.shards[-1] == 8
    assert fullest(after[-50_000:], 8) < 1.8
    assert list(stream.schedule.moments) == sorted(stream.schedule.moments)


def test_leaves_are_merged_when_the_stream_gets_thin() -> None:
    stream = Stream(policy())
    stream.deal(rows(100_000))
    assert stream.shards[-1] == 8
    # 60 rows inside the deadline: not 8 times k persons for two leaves.
    stream.deal(rows(30_000, rate=0.1, begin=2_000))
    assert stream.shards[-1] == 1


def test_leaves_are_added_when_the_stream_grows() -> None:
    stream = Stream(policy())
    stream.deal(rows(3_000, rate=0.2))
    assert stream.shards[-1] <= 2
    stream.deal(rows(200_000, rate=200.0, begin=20_000), size=5_000)
    assert stream.shards[-1] == 8


def test_auto_follows_what_cores_can_do() -> None:
    stream = Stream(policy(shards="auto"))
    stream.deal(rows(50_000, rate=100.0))  # 60,000 rows inside the deadline
    assert stream.shards == [1]
    stream.deal(rows(200_000, rate=2_000.0, begin=1_000), size=20_000)  # 1,200,000
    assert stream.shards[-1] in (12, 13)


def test_fewer_shards_are_made_if_the_policy_asks_for_fewer() -> None:
    stream = Stream(policy())
    stream.deal(rows(20_000))
    stream.of = policy(shards=2)
    stream.deal(rows(60_000, begin=500), size=10_000)
    assert stream.shards[-1] == 2


def test_wrong_dates_do_not_put_the_moment_off() -> None:
    stream = Stream(policy())
    given = rows(8_192)
    given.time[::200] += 10**9 * SECOND
    stream.deal(given)
    (moment,) = stream.schedule.moments
    assert moment < 200 * SECOND


def test_a_moment_that_wrong_dates_put_off_is_forgotten() -> None:
    stream = Stream(policy())
    given = rows(8_192)
    given.time[::10] += 3_000 * SECOND
    stream.deal(given)
    assert stream.schedule.moments[0] > 3_000 * SECOND
    stream.deal(rows(100_000, begin=100, hi=12.0))
    assert len(stream.schedule.moments) == 1 and stream.schedule.moments[0] < 2_000 * SECOND


def test_a_deadline_of_rows_alone() -> None:
    stream = Stream(policy(delay=None, delay_rows=5_000))
    stream.deal(rows(50_000))
    assert stream.shards == [1, 8]
    thin = Stream(policy(delay=None, delay_rows=30))
    thin.deal(rows(50_000))
    assert thin.shards == [1]


def test_only_some_trees_are_remembered() -> None:
    stream = Stream(policy())
    for number in range(MOST_TREES + 2):
        lo = 80.0 if number % 2 else 0.0
        stream.deal(rows(120_000, begin=number * 3_000.0, lo=lo, hi=lo + 12.0), size=20_000)
    assert len(stream.shards) == MOST_TREES


@pytest.mark.parametrize("times", ["same", "backwards"])
def test_odd_times_do_no_harm(times: str) -> None:
    stream = Stream(policy())
    given = rows(40_000)
    given.time[:] = 0 if times == "same" else given.time[::-1].copy()
    assert stream.deal(given).max() < 8


@given(sizes=st.lists(st.integers(1, 700), min_size=1, max_size=12), changed=st.booleans())
def test_packs_of_any_size_are_dealt_alike(sizes: list[int], changed: bool) -> None:
    with patch.object(tree_following, "_SAMPLE", 256):
        of = policy(shards=4, k=2)
        given = [rows(3_000), rows(3_000, begin=30, hi=20.0 if changed else 100.0)]
        whole, cut = Stream(of), Stream(of)
        expected = np.concatenate([whole.deal(part) for part in given])
        found, place = [], 0
        joined = np.concatenate
        every = Rows(
            joined([part.qi for part in given]),
            joined([part.person for part in given]),
            joined([part.sensitive for part in given]),
            joined([part.time for part in given]),
        )
        while place < len(every):
            size = sizes[len(found) % len(sizes)]
            found.append(cut._deal(every.slice(place, min(place + size, len(every)))))
            place += size
        assert np.array_equal(np.concatenate(found), expected)
        assert cut.schedule == whole.schedule and cut.watch == whole.watch
