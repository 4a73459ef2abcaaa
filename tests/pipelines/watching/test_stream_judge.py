"""Groups of published rows: judged when they are complete, and never called more than was seen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.watching.stream_judge import StreamJudge
from crenel.policy import Policy

SETTLE = 10


def policy(**changes: Any) -> Policy:
    said = {"person": "who", "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}}}
    return Policy.from_dict({**said, "sensitive": ["ill"], "k": 3, "delay_rows": 100, **changes})


def judge(rows: list[tuple[bytes, int, int]], now: int = 10**9, **changes: Any) -> tuple[StreamJudge, list[str]]:
    made = StreamJudge(policy(**changes), SETTLE)
    for key, at, code in rows:
        made.see(key, at, (code,))
    return made, [alarm.promise for alarm in made.advance(now)]


REUSE = {"method": "bastion", "parameters": {"reuse": "weighted"}}


def test_a_group_of_fewer_than_k_rows() -> None:
    made, alarms = judge([(b"a", 0, 1), (b"b", 0, 1), (b"a", 10, 2), (b"a", 19, 1), (b"b", 5, 1)])
    assert alarms == ["k"]
    assert (made.groups, made.least) == (2, 2)


def test_too_few_values() -> None:
    made, alarms = judge([(b"a", 0, 1), (b"a", 1, 1), (b"a", 2, 1), (b"b", 0, 1), (b"b", 1, 2), (b"b", 2, 1)], l=2)
    assert alarms == ["l"]
    assert made.least_values == [1]


def test_a_group_is_judged_when_nothing_more_can_come() -> None:
    made = StreamJudge(policy(), SETTLE)
    made.see(b"a", 100, (1,))
    assert not list(made.advance(110))
    made.see(b"a", 104, (1,))
    made.see(b"a", 96, (1,))  # of a partition that is behind
    assert not list(made.advance(114))
    assert not list(made.advance(115))
    assert made.sizes == {3: 1}
    made.see(b"a", 120, (1,))
    assert [alarm.promise for alarm in made.advance(200)] == ["k"]


def test_where_generalizations_are_reused_all_rows_so_far_count() -> None:
    rows = [(b"a", at, 1) for at in (0, 1, 2, 100, 200)]
    assert judge(rows)[1] == ["k", "k"]
    assert judge(rows, **REUSE)[1] == []
    assert judge([*rows, (b"b", 5, 1)], **REUSE)[1] == ["k"]
    assert judge([(b"b", 5, 1), (b"b", 100, 1), (b"b", 200, 1)], **REUSE)[1] == ["k", "k"]


@pytest.mark.parametrize("changes", [{}, REUSE], ids=["crowd", "reuse"])
def test_what_may_have_begun_before_is_not_judged(changes: dict[str, Any]) -> None:
    made = StreamJudge(policy(**changes), SETTLE, is_whole=False)
    made.since = 50
    made.see(b"a", 55, (1,))
    assert list(made.advance(1000)) == []
    assert (made.unjudged, made.groups) == (1, 0)
    made.see(b"b", 500, (1,))
    alarms = list(made.advance(1000))
    # A reused generalization may have been published with k rows long before.
    assert [alarm.promise for alarm in alarms] == ([] if changes else ["k"])


@given(
    rows=st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 80), st.integers(0, 2)), max_size=30),
    cuts=st.lists(st.integers(0, 120), max_size=5).map(sorted),
)
def test_groups_are_those_of_the_whole_stream_however_it_is_read(
    rows: list[tuple[bytes, int, int]], cuts: list[int]
) -> None:
    """Rows that come in any order, but none before a time that was judged already, give the same groups."""
    made = StreamJudge(policy(l=2), SETTLE)
    found: list[str] = []
    begin = 0
    for cut in [*cuts, 10**9]:
        for key, at, code in rows:
            if begin <= at < cut:
                made.see(key, at, (code,))
        found += [alarm.promise for alarm in made.advance(cut)]
        begin = cut
    sizes: list[int] = []
    expected: list[str] = []
    for key in (b"a", b"b"):
        group: list[tuple[int, int]] = []
        for at, code in [*sorted((at, code) for one, at, code in rows if one == key), (10**8, 0)]:
            if group and at > group[-1][0] + SETTLE:
                sizes.append(len(group))
                expected += ["k"] * (len(group) < 3) + ["l"] * (len({value for _, value in group}) < 2)
                group = []
            group.append((at, code))
    assert sorted(made.sizes.elements()) == sorted(sizes)
    assert sorted(found) == sorted(expected)
