"""The ranges of the source: nothing that was claimed is read again, and nothing else is left out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.kafka.partition_ranges import FOREVER, Partitions, Tracker, Watermarks, elements
from crenel.pipelines.kafka.source import _added

offsets = st.integers(0, 1000)


def test_ranges_are_split_only_behind_what_was_claimed() -> None:
    """The source claims all records of a read at once, so a split inside of them would lose some."""
    tracker = Tracker([(0, 0, 100)])
    assert tracker.try_claim({0: 31})
    assert tracker.try_split(0.5) is None
    assert tracker.try_split(0) == (((0, 0, 31),), ((0, 31, 100),))
    assert not tracker.try_claim({0: 61})
    tracker.check_done()


@given(st.lists(st.dictionaries(st.integers(0, 4), offsets), max_size=6))
def test_what_was_claimed_and_what_is_left_are_everything(claims: list[Mapping[int, int]]) -> None:
    tracker = Tracker([(0, 5, FOREVER), (1, 7, 500)])
    at = {0: 5, 1: 7}
    for claim in claims:
        moved = {number: max(offset, at.get(number, 0)) for number, offset in claim.items()}
        assert tracker.try_claim(moved)
        at |= moved
    ends = {number: 500 if number == 1 else FOREVER for number in at}
    split = tracker.try_split(0)
    assert split is not None
    done, left = split
    assert {number: stop for number, _, stop in done} == at
    assert {(number, start, stop) for number, start, stop in left} == {
        (number, offset, ends[number]) for number, offset in at.items() if offset < ends[number]
    }
    tracker.check_done()


def test_a_call_that_leaves_records_unclaimed_is_an_error() -> None:
    with pytest.raises(ValueError, match="records are left"):
        Tracker([(0, 0, 3)]).check_done()


@given(st.lists(st.tuples(st.integers(0, 1 << 31), st.integers(0, FOREVER), st.integers(0, FOREVER))))
def test_checkpoints_hold_numbers(ranges: list[tuple[int, int, int]]) -> None:
    """What is restored from a checkpoint is never code."""
    coder = Partitions().restriction_coder()
    stored = coder.encode(tuple(ranges))
    assert coder.decode(stored) == tuple(ranges)
    assert len(stored) <= 8 + 30 * len(ranges)
    at = Watermarks().estimator_state_coder()
    for known in (MIN_TIMESTAMP, Timestamp(micros=1_600_000_000_000_000)):
        assert at.decode(at.encode(known)) == known


@given(st.integers(1, 8), st.integers(0, 20))
def test_each_partition_that_is_added_has_one_reader(at_start: int, more: int) -> None:
    parts = elements({number: (0, None) for number in range(at_start)}, "id")
    taken = [new for part in parts for new in _added(part, at_start + more, {part[0]: FOREVER})]
    assert sorted(taken) == list(range(at_start, at_start + more))


def test_a_run_up_to_the_end_reads_no_partition_that_is_added() -> None:
    (part,) = elements({0: (0, 10)}, "id")
    assert _added(part, 5, {0: 10}) == []
