"""Checks that the audit finds every kind of breach, and counts it exactly.

Each case starts from a correct stream, breaks one thing, and expects that count and no other.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.audit import Published, Report, audit
from crenel.encoding.rows import Rows
from crenel.policy import Policy, Sensitive
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Numeric, Prefix

CLUSTER, REUSE, SUPPRESSED, SAMPLED_OUT = range(4)

# Leaves 0..4; the nodes are 0-1 (fruit), 2-4 (plant), 3-4 (root), 0-4 and the leaves.
FOOD = {"fruit": ["apple", "pear"], "plant": {"kale": None, "root": ["beet", "leek"]}}

POLICY = Policy(
    person="person",
    event_time="at",
    quasi_identifiers={
        "age": Numeric(domain=(0, 100), weight=2.0),
        "food": Categorical(hierarchy=Hierarchy.from_mapping(FOOD)),
        "zip": Prefix(length=3, alphabet="digits"),
    },
    sensitive={
        "illness": Sensitive(),
        "grade": Sensitive(values=("low", "middle", "high"), ordered=True),
    },
    k=3,
    l=2,
    delay="100us",
    delay_rows=6,
    disorder="5us",
    method="bastion",
    parameters={"reuse": "weighted"},
    on_suppress="star",
)

ROWS = Rows(
    qi=np.array(
        [
            [10, 0, 120],
            [20, 1, 121],
            [15, 0, 129],
            [12, 1, 125],
            [50, 3, 500],
            [60, 4, 599],
            [55, 3, 543],
            [99, 2, 999],
            [11, 0, 124],
            [90, 2, 990],
        ],
        np.float64,
    ),
    person=np.array([1, 2, 3, 1, 4, 5, 6, 7, 2, 7], np.int64),
    sensitive=np.array([[7, 0], [8, 1], [7, 2], [9, 0], [7, 1], [7, 2], [8, 0], [9, 1], [8, 1], [7, 1]], np.int64),
    time=np.array([0, 10, 20, 20, 30, 25, 40, 50, 60, 70], np.int64),
)

# Rows 0-2 leave together, rows 3 and 8 by reuse, rows 4-6 together. Rows 7 and 9 are suppressed.
RIGHT: dict[str, Any] = {
    "rows": [2, 0, 1, 3, 5, 4, 6, 7, 8, 9],
    "offsets": [0, 3, 4, 7, 8, 9, 10],
    "kind": [CLUSTER, REUSE, CLUSTER, SUPPRESSED, REUSE, SUPPRESSED],
    "lo": [[10, 0, 120], [10, 0, 120], [50, 3, 500], [0, 0, 0], [10, 0, 120], [0, 0, 0]],
    "hi": [[20, 1, 129], [20, 1, 129], [60, 4, 599], [100, 4, 999], [20, 1, 129], [100, 4, 999]],
    "loss": [
        2 / 4 * 10 / 100 + 1 / 4 * 1 / 4 + 1 / 4 * 9 / 999,
        2 / 4 * 10 / 100 + 1 / 4 * 1 / 4 + 1 / 4 * 9 / 999,
        2 / 4 * 10 / 100 + 1 / 4 * 1 / 4 + 1 / 4 * 99 / 999,
        1.0,
        2 / 4 * 10 / 100 + 1 / 4 * 1 / 4 + 1 / 4 * 9 / 999,
        1.0,
    ],
    "persons": [3, 3, 3, 1, 3, 1],
    "moment": [65, 65, 65, 65, 65, 65],
    "arrivals": [7, 8, 10, 10, 10, 10],
    "group": [0, 0, 2, 3, 0, 5],
}

COUNTS = {
    "lost",
    "twice",
    "unknown",
    "early",
    "lacking_company",
    "small_groups",
    "low_diversity",
    "far",
    "outside",
    "illegal",
    "late",
    "late_rows",
    "wrong_loss",
    "wrong_persons",
    "star_not_widest",
    "left_out_wrongly",
    "too_soon",
    "rare_values",
}


def published(**changes: Any) -> Published:
    return Published(**(RIGHT | changes))


def at(column: str, index: Any, value: Any) -> dict[str, Any]:
    """The correct column, with one value replaced."""
    values = np.array(RIGHT[column], np.float64 if column in ("lo", "hi", "loss") else np.int64)
    values[index] = value
    return {column: values}


def breaches(report: Report) -> dict[str, Any]:
    """Return all counts that show a breach, by name."""
    found = {name: getattr(report, name) for name in COUNTS}
    for name in ("low_diversity", "far"):
        found[name] = {column: count for column, count in found[name].items() if count != 0}
    return {name: count for name, count in found.items() if count not in (0, {})}


def test_a_correct_stream_is_ok():
    report = audit(POLICY, ROWS, published())

    assert report.ok, report.problems() + report.unchecked()
    assert breaches(report) == {}
    assert (report.rows, report.published, report.suppressed) == (10, 8, 2)
    assert (report.sampled_out, report.held, report.lost) == (0, 0, 0)
    assert report.loss == pytest.approx(np.average(RIGHT["loss"], weights=np.diff(RIGHT["offsets"])), abs=1e-12)
    assert "All promises kept." in str(report)


def test_every_count_is_covered():
    kept = {"rows", "published", "suppressed", "sampled_out", "held", "left_out", "loss", "perturbed", "differential"}
    kept |= {"uncertainty_penalty", "information_loss", "mean_delay", "crowd", "alone", "repeated", "no_crowd"}
    assert {field.name for field in fields(Report)} == COUNTS | kept


def crowded(**changes: Any) -> Policy:
    """Return a policy that promises the crowd."""
    said = {"l": None, "parameters": {"reuse": "off"}, "on_suppress": "drop"}
    return replace(POLICY, **said | changes)


def test_rows_that_leave_alone_are_counted():
    """Rows leave alone by reuse, as stars, and in releases that are too small. A dropped row does not leave at all."""
    report = audit(POLICY, ROWS, published())
    assert (report.alone, report.repeated, report.no_crowd) == (4, 0, 4)
    assert str(report).splitlines()[0] == "4 rows left with fewer than k persons at one moment."
    # The policy does not promise a crowd, so this is no breach.
    assert report.ok
    assert audit(replace(POLICY, on_suppress="drop"), ROWS, published()).alone == 2
    few = audit(replace(POLICY, k=4, on_suppress="drop"), ROWS, published())
    assert few.alone == 8


def test_a_row_that_leaves_alone_breaks_a_promised_crowd():
    report = audit(crowded(), ROWS, published())
    assert report.problems() == ["2 rows that left with fewer than k persons at one moment."]
    assert not report.ok
    unknown = audit(
        crowded(),
        ROWS,
        published(
            rows=range(10),
            offsets=None,
            **dict.fromkeys(("kind", "loss", "persons", "moment", "arrivals", "group")),
            lo=np.zeros((10, 3)),
            hi=ROWS.qi,
        ),
    )
    assert (unknown.alone, unknown.no_crowd) == (None, None)
    assert "Not checked: rows that left with fewer than k persons at one moment." in unknown.unchecked()


def test_a_crowd_has_each_person_once():
    """Rows 0, 1, 2 and 3 leave together. They belong to three persons, one of whom has two rows."""
    together = {
        "rows": [2, 0, 1, 3, 5, 4, 6, 7, 8, 9],
        "offsets": [0, 4, 7, 8, 9, 10],
        "kind": [CLUSTER, CLUSTER, SUPPRESSED, SUPPRESSED, SUPPRESSED],
        **{name: [RIGHT[name][0], *RIGHT[name][2:]] for name in ("lo", "hi", "loss", "persons", "moment")},
        "arrivals": [7, 10, 10, 10, 10],
        "group": [0, 2, 3, 4, 5],
    }
    ends = {
        "lo": [*together["lo"][:3], [0, 0, 0], [0, 0, 0]],
        "hi": [*together["hi"][:3], [100, 4, 999], [100, 4, 999]],
    }
    report = audit(crowded(), ROWS, Published(**together | ends | {"loss": None, "persons": None}))
    assert (report.alone, report.repeated, report.no_crowd) == (0, 4, 4)
    assert report.problems() == ["4 rows of releases in which a person is more than once."]


def test_costs_of_continuous_publishing():
    """Definitions 2 and 3 of the paper, by hand: penalties without weights, delays in arrivals or event time."""
    one, other = 0.1 + 1 / 4 + 9 / 999, 0.1 + 1 / 4 + 99 / 999
    # In the order of leaving. Rows 7 and 9 are suppressed, and lose all three columns.
    penalty = np.array([one] * 4 + [other] * 3 + [3.0, one, 3.0])
    rows = np.array(RIGHT["rows"])
    arrived = np.repeat(RIGHT["arrivals"], np.diff(RIGHT["offsets"])) - 1
    report = audit(POLICY, ROWS, published(), alpha=0.5)
    assert report.uncertainty_penalty == pytest.approx(penalty.mean())
    assert report.mean_delay == pytest.approx((arrived - rows).mean())
    assert report.information_loss == pytest.approx((penalty * 1.5 ** (arrived - rows)).mean())
    timed = audit(POLICY, ROWS, published(), alpha=0.5, instant=10)
    delay = np.maximum(65 - ROWS.time[rows], 0) / 10
    assert timed.mean_delay == pytest.approx(delay.mean())
    assert timed.information_loss == pytest.approx((penalty * 1.5**delay).mean())
    assert "information loss" in str(timed)


def test_costs_are_none_without_the_times():
    bare = audit(POLICY, ROWS, published(arrivals=None, moment=None))
    assert bare.uncertainty_penalty is not None
    assert (bare.information_loss, bare.mean_delay) == (None, None)
    nothing = audit(POLICY, ROWS.slice(0, 0), Published(rows=[], lo=np.zeros((0, 3)), hi=np.zeros((0, 3))))
    assert (nothing.uncertainty_penalty, nothing.information_loss, nothing.mean_delay) == (None, None, None)


SHORT_ROWS = RIGHT["rows"][:9]
SHORT = {name: RIGHT[name][:5] for name in RIGHT if name not in ("rows", "offsets")} | {
    "rows": SHORT_ROWS,
    "offsets": RIGHT["offsets"][:6],
}

ONE_BREACH = {
    "a row never leaves": (SHORT, {"lost": 1}),
    "a row leaves twice": (
        {
            **{name: [*RIGHT[name], RIGHT[name][-1]] for name in RIGHT},
            "rows": [*RIGHT["rows"], 9],
            "offsets": [*RIGHT["offsets"], 11],
        },
        {"twice": 1},
    ),
    "a row that was never pushed leaves": (
        {
            **{name: [*RIGHT[name], RIGHT[name][-1]] for name in RIGHT},
            "rows": [*RIGHT["rows"], 10],
            "offsets": [*RIGHT["offsets"], 11],
        },
        {"unknown": 1},
    ),
    "a row leaves before it arrives": (at("arrivals", 1, 3), {"early": 1}),
    "a lone row is published as a cluster": (
        at("kind", 5, CLUSTER) | at("lo", 5, [90, 2, 990]) | at("hi", 5, [90, 2, 990]) | at("loss", 5, 0.0),
        {"small_groups": 1, "low_diversity": {"illness": 1, "grade": 1}},
    ),
    "a reused box was never published": (
        at("lo", 4, [11, 0, 120]) | at("loss", 4, RIGHT["loss"][4] - 2 / 4 * 1 / 100),
        {"small_groups": 1, "low_diversity": {"illness": 1, "grade": 1}},
    ),
    "a reuse leaves before its cluster": (
        {
            "rows": [3, 2, 0, 1, *RIGHT["rows"][4:]],
            "offsets": [0, 1, *RIGHT["offsets"][2:]],
            "kind": [REUSE, CLUSTER, *RIGHT["kind"][2:]],
            "arrivals": [7, 7, *RIGHT["arrivals"][2:]],
        },
        {"small_groups": 1, "low_diversity": {"illness": 1, "grade": 1}},
    ),
    "a row is outside its numeric range": (
        at("lo", 2, [51, 3, 500]) | at("loss", 2, RIGHT["loss"][2] - 2 / 4 * 1 / 100),
        {"outside": 1},
    ),
    "rows are outside their block": (
        at("lo", (2, 2), 600) | at("hi", (2, 2), 699),
        {"outside": 3},
    ),
    "a range in a tree is no node": (
        at("lo", (2, 1), 1) | at("loss", 2, RIGHT["loss"][2] + 1 / 4 * 2 / 4),
        {"illegal": 1},
    ),
    "a range in a tree ends between leaves": (
        at("hi", (2, 1), 4.5) | at("loss", 2, RIGHT["loss"][2] + 1 / 4 * 0.5 / 4),
        {"illegal": 1},
    ),
    "a range of codes begins between numbers": (
        at("lo", (2, 2), 499.5) | at("loss", 2, RIGHT["loss"][2] + 1 / 4 * 0.5 / 999),
        {"illegal": 1},
    ),
    "a range of codes is no prefix": (
        at("hi", (2, 2), 598) | at("loss", 2, RIGHT["loss"][2] - 1 / 4 / 999),
        {"illegal": 1, "outside": 1},
    ),
    "a range ends before it begins": (
        at("hi", (2, 0), 49) | at("loss", 2, RIGHT["loss"][2] - 2 / 4 * 11 / 100),
        {"illegal": 1, "outside": 3},
    ),
    "a box ends at NaN": (
        at("hi", (2, 0), np.nan),
        {"illegal": 1, "outside": 3, "wrong_loss": 1},
    ),
    "a range leaves the domain": (
        at("hi", (2, 0), 101) | at("loss", 2, RIGHT["loss"][2] + 2 / 4 * 41 / 100),
        {"illegal": 1},
    ),
    "a row leaves after delay_rows": (at("arrivals", 0, 8), {"late_rows": 1}),
    "a row leaves after its delay": (
        {"moment": [65, 65, 126, 200, 200, 200]},
        {"late": 3},
    ),
    "a loss is reported too small": (at("loss", 2, 0.1), {"wrong_loss": 1}),
    "a suppressed row's loss is not 1": (at("loss", 3, 0.5), {"wrong_loss": 1}),
    "a loss is not a number": (at("loss", 2, np.nan), {"wrong_loss": 1}),
    "persons are reported wrong": (at("persons", 0, 4), {"wrong_persons": 1}),
    "a reuse reports its own person only": (at("persons", 1, 1), {"wrong_persons": 1}),
    "a suppressed row is not fully generalized": (at("lo", (3, 0), 1), {"star_not_widest": 1}),
}


@pytest.mark.parametrize(("changes", "expected"), ONE_BREACH.values(), ids=ONE_BREACH)
def test_one_breach_is_counted(changes: dict[str, Any], expected: dict[str, Any]):
    report = audit(POLICY, ROWS, published(**changes))

    assert breaches(report) == expected
    assert not report.ok
    assert len(report.problems()) == sum(len(count) if isinstance(count, dict) else 1 for count in expected.values())


def test_rows_that_have_not_left_yet_are_held():
    report = audit(POLICY, ROWS, published(**SHORT), ended=False)
    assert report.ok
    assert (report.held, report.lost) == (1, 0)


def test_a_person_counts_once():
    """Three rows of two persons are not a group of three persons."""
    person = ROWS.person.copy()
    person[1] = person[0]
    report = audit(POLICY, replace(ROWS, person=person), published(persons=[2, 2, 3, 1, 2, 1]))
    # The cluster, and row 3 which reuses it. Row 8 brings the third person.
    assert breaches(report) == {"small_groups": 2}


def test_a_group_that_grows_is_small_only_until_it_has_k_persons():
    person = ROWS.person.copy()
    person[[1, 3]] = person[0], 77
    report = audit(POLICY, replace(ROWS, person=person), published(persons=[2, 2, 3, 1, 2, 1]))
    assert breaches(report) == {"small_groups": 1}


def test_values_of_each_sensitive_column_are_counted():
    sensitive = ROWS.sensitive.copy()
    sensitive[:3, 0] = 7
    sensitive[4:7, 1] = 2
    report = audit(POLICY, replace(ROWS, sensitive=sensitive), published())
    assert breaches(report) == {"low_diversity": {"illness": 1, "grade": 1}}

    sensitive[3, 0] = sensitive[8, 0] = 7
    report = audit(POLICY, replace(ROWS, sensitive=sensitive), published())
    assert breaches(report) == {"low_diversity": {"illness": 3, "grade": 1}}


def test_suppressed_rows_do_not_enlarge_a_group():
    """Stars under the widest box do not help a cluster under the same box."""
    changes = at("kind", 5, CLUSTER) | at("lo", 5, [0, 0, 0]) | at("hi", 5, [100, 4, 999]) | at("loss", 5, 1.0)
    report = audit(POLICY, ROWS, published(**changes))
    assert breaches(report) == {"small_groups": 1, "low_diversity": {"illness": 1, "grade": 1}}


def test_sampled_out_rows_have_no_box():
    changes = at("kind", 5, SAMPLED_OUT) | at("loss", 5, np.nan) | at("persons", 5, 0)
    changes |= {name: [*RIGHT[name][:5], [np.nan] * 3] for name in ("lo", "hi")}
    report = audit(POLICY, ROWS, published(**changes))
    assert report.ok
    assert (report.suppressed, report.sampled_out) == (1, 1)
    assert report.loss == pytest.approx(np.average(RIGHT["loss"][:5], weights=[3, 1, 3, 1, 1]))


# -- time --------------------------------------------------------------------------------------

BY_TIME = replace(POLICY, delay_rows=None, l=None, k=2, disorder=0)


def one_group(time: list[int], **columns: Any) -> Report:
    """Audit rows of distinct persons with one value, each suppressed on its own."""
    n = len(time)
    calls = columns.pop("calls", None)
    rows = Rows(
        qi=np.tile([10.0, 0.0, 120.0], (n, 1)),
        person=np.arange(n),
        sensitive=np.zeros((n, 2), np.int64),
        time=np.array(time, np.int64),
    )
    star = Published(
        rows=np.arange(n),
        offsets=np.arange(n + 1),
        kind=np.full(n, SUPPRESSED),
        lo=np.zeros((n, 3)),
        hi=np.tile([100.0, 4.0, 999.0], (n, 1)),
        loss=np.ones(n),
        persons=np.ones(n, np.int64),
        group=np.arange(n),
        **columns,
    )
    return audit(BY_TIME, rows, star, calls=calls)


def test_a_row_that_arrives_late_may_leave_at_its_arrival():
    # Row 1 has its deadline at 100, and arrives when the clock is at 500.
    report = one_group([500, 0, 510], moment=[500, 500, 510], arrivals=[1, 2, 3])
    assert breaches(report) == {}
    report = one_group([500, 0, 510], moment=[500, 510, 510], arrivals=[1, 3, 3])
    assert breaches(report) == {"late": 1}


def test_a_row_that_a_watermark_makes_late_may_leave_at_its_arrival():
    columns = {"moment": [0, 400, 400], "arrivals": [1, 2, 3]}
    assert breaches(one_group([0, 10, 390], **columns)) == {}
    assert breaches(one_group([0, 10, 390], **columns, calls=[(1, 400)])) == {}
    # A watermark after the last row makes no row late.
    assert breaches(one_group([0, 10, 390], **columns, calls=[(1, 400), (3, 9_999)])) == {}
    # The engine heard the watermark after row 1 only: row 1 was in time, and waited too long.
    assert breaches(one_group([0, 10, 390], **columns, calls=[(2, 400)])) == {"late": 1}


def test_a_false_moment_is_found_out():
    """Row 0 claims to have left at its deadline, but was still held when the clock was past it."""
    report = one_group([0, 200, 210], moment=[100, 200, 210], arrivals=[2, 2, 3])
    assert breaches(report) == {"late": 1}
    report = one_group([0, 50, 60], moment=[60, 60, 60], arrivals=[3, 3, 3], calls=[(1, 100)])
    assert breaches(report) == {"late": 1}


def test_the_clock_lags_by_the_disorder():
    rows = replace(ROWS, time=np.array([0, 100, 104, 104, 104, 104, 104, 104, 104, 104]))
    assert breaches(audit(POLICY, rows, published())) == {}
    assert breaches(audit(replace(POLICY, disorder=3), rows, published())) == {"late": 1}


def test_times_at_the_limits_of_int64():
    last = np.iinfo(np.int64).max
    first = np.iinfo(np.int64).min
    report = one_group([first, last, last], moment=[first + 100, last, last], arrivals=[1, 2, 3])
    assert breaches(report) == {}


# -- learned domains ---------------------------------------------------------------------------


def test_loss_in_a_learned_domain_is_measured_at_its_moment():
    policy = replace(BY_TIME, quasi_identifiers={"x": Numeric()}, delay=None, delay_rows=10, k=2)
    rows = Rows(
        qi=np.array([[0.0], [4.0], [8.0], [-2.0], [0.0]]),
        person=np.arange(5),
        sensitive=np.zeros((5, 2), np.int64),
        time=np.zeros(5, np.int64),
    )
    columns: dict[str, Any] = {
        "rows": [0, 1, 2, 3, 4],
        "offsets": [0, 2, 4, 5],
        "kind": [CLUSTER, CLUSTER, SUPPRESSED],
        "lo": [[0], [-2], [-np.inf]],
        "hi": [[4], [8], [np.inf]],
        "loss": [4 / 8, 10 / 10, 1.0],
        "persons": [2, 2, 1],
        "moment": [0, 0, 0],
        "arrivals": [3, 4, 5],
        "group": [0, 1, 2],
    }
    report = audit(policy, rows, Published(**columns))
    assert breaches(report) == {}
    assert report.loss == pytest.approx((0.5 * 2 + 2 + 1) / 5)

    wrong = Published(**columns | {"arrivals": [2, 4, 5]})
    assert breaches(audit(policy, rows, wrong)) == {"wrong_loss": 1}

    # Publishing the learned domain would show the values of the two most extreme persons.
    shown = Published(**columns | {"lo": [[0], [-2], [-2]], "hi": [[4], [8], [8]]})
    assert breaches(audit(policy, rows, shown)) == {"star_not_widest": 1}

    # A range with one infinite end shows the other end.
    half = Published(**columns | {"lo": [[0], [-np.inf], [-np.inf]], "loss": [0.5, np.inf, 1.0]})
    assert breaches(audit(policy, rows, half)) == {"illegal": 1, "wrong_loss": 1}

    # Without the domain at that moment, only the reported loss is known.
    unknown = audit(policy, rows, Published(**columns | {"arrivals": None}))
    assert unknown.wrong_loss is None
    assert unknown.loss == pytest.approx((0.5 * 2 + 2 + 1) / 5)
    unknown = audit(policy, rows, Published(**columns | {"arrivals": None, "loss": None}))
    assert unknown.loss is None
    assert "unknown" in str(unknown)


# -- t -----------------------------------------------------------------------------------------


def closeness(t: float, **changes: Any) -> dict[str, Any]:
    """Six rows, values a a b b c c and the grades 0 0 1 1 2 2, in two groups."""
    policy = replace(POLICY, l=None, t=t, k=2)
    rows = Rows(
        qi=np.tile([10.0, 0.0, 120.0], (6, 1)),
        person=np.arange(6),
        sensitive=np.array([[5, 0], [5, 0], [6, 1], [6, 1], [7, 2], [7, 2]]),
        time=np.zeros(6, np.int64),
    )
    columns: dict[str, Any] = {
        "rows": [0, 1, 2, 3, 4, 5],
        "offsets": [0, 2, 5, 6],
        "kind": [CLUSTER, CLUSTER, REUSE],
        "lo": np.tile([10.0, 0.0, 120.0], (3, 1)),
        "hi": np.tile([10.0, 0.0, 120.0], (3, 1)),
        "loss": [0.0, 0.0, 0.0],
        "persons": [2, 3, 2],
        "moment": [0, 0, 0],
        "arrivals": [4, 6, 6],
        "group": [0, 1, 0],
    }
    return breaches(audit(policy, rows, Published(**columns | changes)))


def test_the_distance_from_the_stream():
    # Group 0, at row 4: (1, 0) from (1/2, 1/2): 1/2; grades: (1/2 + 0 ...) / 2 = 1/4.
    # Group 1: (0, 2/3, 1/3) from thirds: 1/3; grades: (1/3 + 0) / 2 = 1/6.
    # Group 0 with a third row: (2/3, 0, 1/3) from thirds: 1/3; grades: (1/3 + 0) / 2 = 1/6.
    assert closeness(0.5) == {}
    assert closeness(0.4) == {"far": {"illness": 1}}
    assert closeness(0.3) == {"far": {"illness": 3}}
    assert closeness(0.2) == {"far": {"illness": 3, "grade": 1}}
    assert closeness(0.1) == {"far": {"illness": 3, "grade": 3}}


def test_the_distance_is_measured_at_its_moment():
    # With all six rows in the stream, (1, 0, 0) is 2/3 away; grades: (2/3 + 1/3) / 2.
    assert closeness(0.5, arrivals=[6, 6, 6]) == {"far": {"illness": 1}}


def test_the_distance_if_arrivals_go_back():
    # Group 1, (2/3, 1/3) of b and c, from the four rows of a and b: 1/2.
    assert closeness(0.6, arrivals=[6, 4, 6]) == {"early": 1, "far": {"illness": 1}}
    assert closeness(0.45, arrivals=[4, 4, 6]) == {"early": 1, "far": {"illness": 2}}


def test_the_distance_of_two_ordered_values():
    policy = replace(POLICY, sensitive={"s": Sensitive(values=(0, 1), ordered=True)}, l=None, k=2, t=0.2)
    rows = replace(ROWS, sensitive=(np.arange(10)[:, None] >= 3).astype(np.int64))
    # All three rows of the first cluster have the value 0, as have 3 of the 7 arrivals: the distance is 4/7.
    assert audit(policy, rows, published()).far["s"] != 0
    assert audit(replace(policy, t=0.8), rows, published()).far["s"] == 0


def test_the_distance_is_measured_for_the_whole_group():
    # In a group of its own the last row is (0, 0, 1): 2/3 away.
    assert closeness(0.5, group=[0, 1, 2], persons=[2, 3, 0]) == {"far": {"illness": 1}}
    # Joined to the other group: (0, 1/2, 1/2) is 1/3 away.
    assert closeness(0.5, group=[0, 1, 1], persons=[2, 3, 3]) == {}


def test_the_distance_of_declared_values_without_order():
    policy = replace(POLICY, sensitive={"illness": Sensitive(values=("a", "b"))}, l=None, t=0.5)
    rows = replace(ROWS, sensitive=(ROWS.sensitive[:, :1] == 7).astype(np.int64))
    assert audit(policy, rows, published()).far == {"illness": 0}


# -- unknown things ----------------------------------------------------------------------------


def test_boxes_and_row_numbers_decide_what_they_show():
    sizes = np.diff(RIGHT["offsets"])
    bare = Published(
        rows=RIGHT["rows"],
        lo=np.repeat(RIGHT["lo"], sizes, axis=0),
        hi=np.repeat(RIGHT["hi"], sizes, axis=0),
    )
    report = audit(POLICY, ROWS, bare)

    assert report.problems() == []
    assert not report.ok, "an unchecked promise is not ok"
    assert (report.published, report.suppressed) == (8, 2)
    unknown = {"early", "late", "late_rows", "wrong_loss", "wrong_persons"}
    assert breaches(report) == dict.fromkeys(unknown)
    assert len(report.unchecked()) == len(unknown)
    assert "Not checked: rows later than delay." in str(report)

    report = audit(replace(POLICY, t=0.5, l=None), ROWS, bare)
    assert report.far == {"illness": None, "grade": None}
    assert audit(replace(POLICY, k=4), ROWS, bare).small_groups == 8


def test_moments_alone_show_late_rows():
    report = audit(POLICY, ROWS, published(arrivals=None))
    assert (report.late, report.late_rows) == (0, None)
    report = audit(POLICY, ROWS, published(arrivals=None, moment=[65, 65, 126, 200, 200, 200]))
    # Without arrivals, nobody knows that row 9 left at its own arrival.
    assert report.late == 4


def test_a_promise_that_was_not_made_needs_no_check():
    bare = published(moment=None)
    assert audit(replace(POLICY, delay=None), ROWS, bare).late == 0
    bare = published(arrivals=None)
    assert audit(replace(POLICY, delay_rows=None), ROWS, bare).late_rows == 0


def test_the_whole_output_is_judged_at_once():
    """Rows of one group that leave one by one form a group in the end."""
    order = np.argsort(RIGHT["rows"])
    of = np.repeat(np.arange(6), np.diff(RIGHT["offsets"]))[order]
    single = {name: np.array(RIGHT[name])[of] for name in RIGHT if name not in ("rows", "offsets")}
    single |= {"rows": np.arange(10), "offsets": np.arange(11)}
    assert audit(POLICY, ROWS, Published(**single)).small_groups == 4
    assert breaches(audit(POLICY, ROWS, Published(**single), in_order=False)) == {}

    reordered = replace(POLICY, delay=None, parameters=replace(POLICY.parameters, reorder=True))
    assert breaches(audit(reordered, ROWS, Published(**single))) == {}


# -- the audit itself --------------------------------------------------------------------------


def test_an_empty_stream():
    rows = Rows(
        qi=np.empty((0, 3)),
        person=np.empty(0, np.int64),
        sensitive=np.empty((0, 2), np.int64),
        time=np.empty(0, np.int64),
    )
    nothing = Published(**{name: np.empty((0, 3)) if name in ("lo", "hi") else [] for name in RIGHT} | {"offsets": [0]})
    report = audit(POLICY, rows, nothing)
    assert report.ok
    assert report.loss is None
    assert audit(replace(POLICY, l=None, t=0.1), rows, nothing).ok
    assert audit(POLICY, ROWS, nothing).lost == 10


def test_a_report_shows_no_value():
    rows = replace(ROWS, person=ROWS.person + 7_777_777, time=ROWS.time + 8_888_888)
    out = published(**at("hi", (2, 0), 51.234567))
    report = audit(POLICY, rows, out)
    shown = f"{report} {report!r} {report.problems()} {out!r} {out}"
    assert report.problems()
    for value in ("7777", "8888", "51.2", "599"):
        assert value not in shown


def test_releases_of_another_policy_are_refused():
    with pytest.raises(ValueError, match=r"^published: .* must have one column per quasi-identifier"):
        audit(POLICY, ROWS, published(lo=np.zeros((6, 2)), hi=np.zeros((6, 2))))


def plain_small_groups(k: int, boxes: list[int], persons: list[list[int]], whole: bool) -> int:
    """Promise 2, word for word."""
    under: dict[int, set[int]] = {}
    count = 0
    for box, leaving in zip(boxes, persons, strict=True):
        under.setdefault(box, set()).update(leaving)
        count += len(leaving) > 0 and len(under[box]) < k and not whole
    if whole:
        pairs = zip(boxes, persons, strict=True)
        count = sum(len(leaving) > 0 and len(under[box]) < k for box, leaving in pairs)
    return count


@given(
    k=st.integers(2, 5),
    releases=st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 6), max_size=6)), max_size=20),
    whole=st.booleans(),
)
def test_small_groups_follow_the_wording_of_the_promise(k: int, releases: list[tuple[int, list[int]]], whole: bool):
    boxes = [box for box, _ in releases]
    persons = [leaving for _, leaving in releases]
    person = np.array([one for leaving in persons for one in leaving], np.int64)
    n, m = len(person), len(boxes)
    rows = Rows(
        qi=np.zeros((n, 1)),
        person=person,
        sensitive=person[:, None].copy(),
        time=np.zeros(n, np.int64),
    )
    policy = replace(
        POLICY,
        quasi_identifiers={"x": Numeric(domain=(-1, 9))},
        sensitive={"s": Sensitive()},
        k=k,
        l=k,
    )
    out = Published(
        rows=np.arange(n),
        offsets=np.cumsum([0, *map(len, persons)]),
        kind=np.zeros(m, np.int64),
        lo=np.full((m, 1), -0.0),
        hi=np.array(boxes, np.float64).reshape(m, 1),
    )
    report = audit(policy, rows, out, in_order=not whole)
    assert report.small_groups == plain_small_groups(k, boxes, persons, whole)
    assert report.low_diversity == {"s": report.small_groups}
