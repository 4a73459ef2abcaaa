"""The method `partition`: it matches its oracle, follows the paper's rules, and withstands attacks."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from crenel.audit import audit
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Release, Releases, create_engine
from crenel.engine.methods.partition import PartitionParameters
from crenel.errors import PolicyError
from crenel.policy import Policy, Sensitive
from crenel.policy.parameters import Reuse
from crenel.policy.quasi_identifiers import Categorical, Numeric
from crenel.testing.engine_streams import Case, run
from tests.core.engine.cases import RAGGED, cases, judged, partition_parameters
from tests.core.engine.methods.castle.castle_oracle import OracleRelease
from tests.core.engine.methods.partition.partition_oracle import PartitionOracle

NAN = float("nan")
CASES: dict[str, Any] = {"method": "partition", "parameters": partition_parameters()}


# -- the oracle ----------------------------------------------------------------------------------


def oracle_run(case: Case) -> list[OracleRelease]:
    return judged(case, PartitionOracle(case.policy, case.engine().key))


def as_oracle(releases: Releases) -> list[OracleRelease]:
    def ends(values: Any) -> tuple[float | None, ...]:
        return tuple(None if np.isnan(x) else float(x) for x in values)

    return [
        OracleRelease(
            rows=release.rows.tolist(),
            kind=int(release.kind),
            lo=ends(release.lo),
            hi=ends(release.hi),
            loss=release.loss,
            persons=release.persons,
            moment=release.moment,
            arrivals=release.arrivals,
            group=release.group,
        )
        for release in releases
    ]


@pytest.mark.parametrize("diverse", [False, True], ids=["k", "l"])
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_engine_publishes_what_the_oracle_does(diverse: bool, data: st.DataObject):
    case = data.draw(cases(diverse=diverse, **CASES), label="case")
    for number, (ours, theirs) in enumerate(zip(as_oracle(run(case)), oracle_run(case), strict=True)):
        assert ours == theirs, f"release {number}"


@pytest.mark.parametrize("seed", range(12))
def test_engine_publishes_what_the_oracle_does_for_longer(seed: int):
    case = seeded_case(seed)
    assert as_oracle(run(case)) == oracle_run(case)


def test_longer_streams_reach_every_situation():
    kinds: Counter[int] = Counter()
    merged = 0
    for seed in range(12):
        case = seeded_case(seed)
        for release in run(case):
            kinds[release.kind] += 1
            merged += len({sets(case.rows)[row] for row in release.rows}) > 1
    assert kinds[Kind.CLUSTER] - merged > 50
    assert merged > 50
    assert kinds[Kind.REUSE] > 30
    assert kinds[Kind.SUPPRESSED] > 10


def seeded_case(seed: int, n: int = 300) -> Case:
    random = np.random.default_rng(seed)
    k = int(random.integers(2, 5))
    policy = Policy(
        person="person",
        event_time="at",
        quasi_identifiers={
            "declared": Numeric(domain=(0, 20)),
            "learned": Numeric(weight=2.0),
            "tree": Categorical(hierarchy=RAGGED, weight=0.5),
        },
        sensitive={"s": Sensitive(values=tuple("abcd")), "u": Sensitive()},
        k=k,
        l=2 if seed % 3 == 1 else None,
        delay=None if seed % 5 == 0 else 600,
        delay_rows=None if seed % 5 == 1 else 8 * k,
        disorder=seed % 7,
        method="partition",
        parameters=PartitionParameters(
            reuse=[Reuse.BEST, Reuse.UNIFORM, Reuse.WEIGHTED][seed % 3],
            reuse_for=40 if seed % 2 else None,
            fill_missing=seed % 4 == 3,
        ),
    )
    centre = random.integers(0, 3, n)
    qi = np.stack(
        [
            np.clip(centre * 8 + random.integers(0, 4, n), 0, 20) * 1.0,
            centre * 10 + np.round(random.random(n) * 3, 1),
            np.minimum(centre * 3 + random.integers(0, 2, n), len(RAGGED.leaves) - 1) * 1.0,
        ],
        axis=1,
    )
    qi[random.random(qi.shape) < 0.15] = NAN
    rows = Rows(
        qi=qi,
        person=random.integers(0, 60, n),
        sensitive=np.stack([random.integers(0, 4, n), random.integers(0, 5, n) * 10**15], axis=1),
        time=np.cumsum(random.integers(0, 25, n)) + random.integers(-40, 40, n),
    )
    cuts = tuple(sorted(random.integers(0, n, 5).tolist()))
    return Case(policy=policy, rows=rows, cuts=cuts, secret=bytes([seed]))


def sets(rows: Rows) -> list[tuple[bool, ...]]:
    return [tuple(row) for row in (~np.isnan(rows.qi)).tolist()]


# -- the cases of the shared suite reach every situation -----------------------------------------


def test_cases_reach_what_they_are_for():
    counts: Counter[str] = Counter()

    @settings(
        max_examples=150,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(**CASES))
    def count(case: Case) -> None:
        releases = run(case)
        counts.update(Kind(kind).name for kind in set(releases.kind.tolist()))
        of = sets(case.rows)
        counts["merged"] += any(len({of[row] for row in release.rows}) > 1 for release in releases)

    count()
    assert counts["CLUSTER"] >= 60, counts
    assert counts["REUSE"] >= 8, counts
    assert counts["SUPPRESSED"] >= 30, counts
    assert counts["merged"] >= 15, counts


# -- the paper's rules, by hand ------------------------------------------------------------------


def small(
    *batches: list[list[float]], persons: list[int] | None = None, names: str = "ab", **said: Any
) -> list[Release]:
    """Return the releases of a few rows under k = 2, in order. The engine is flushed after each batch."""
    settings: dict[str, Any] = {"k": 2, "delay_rows": 1000, "seed": 1, **said}
    policy = Policy(
        person="person",
        quasi_identifiers={name: Numeric(domain=(0, 100)) for name in names},
        method="partition",
        **settings,
    )
    qi = [row for batch in batches for row in batch]
    rows = Rows(
        qi=np.array(qi, np.float64),
        person=np.array(persons if persons is not None else range(len(qi)), np.int64),
        sensitive=np.zeros((len(qi), 0), np.int64),
        time=np.zeros(len(qi), np.int64),
    )
    engine = create_engine(policy)
    parts, start = [], 0
    for batch in batches:
        parts += [engine.push(rows.slice(start, start + len(batch))), engine.flush()]
        start += len(batch)
    releases = Releases.concat(parts)
    assert audit(policy, rows, releases).ok
    return list(releases)


def seen(release: Release) -> tuple[set[int], list[tuple[float, float] | None]]:
    spans = zip(release.lo.tolist(), release.hi.tolist(), strict=True)
    return set(release.rows.tolist()), [None if np.isnan(lo) else (lo, hi) for lo, hi in spans]


def test_nearest_neighbours_of_the_own_partition():
    first, second = small([[10, 10], [90, 90], [12, 14], [80, 80]])
    assert seen(first) == ({0, 2}, [(10, 12), (10, 14)])
    assert seen(second) == ({1, 3}, [(80, 90), (80, 90)])


def test_neighbours_are_distinct_persons():
    (release, alone) = small([[10, 10], [10, 10], [90, 90]], persons=[1, 1, 2])
    assert seen(release) == ({0, 2}, [(10, 90), (10, 90)])
    assert alone.kind is Kind.REUSE or alone.kind is Kind.SUPPRESSED


def test_the_own_partition_comes_first_even_if_another_is_nearer():
    first, second = small([[10, 10], [10, NAN], [90, 90], [12, NAN]])
    assert seen(first) == ({0, 2}, [(10, 90), (10, 90)])
    assert seen(second) == ({1, 3}, [(10, 12), None])


def test_partitions_merge_by_similarity_then_size():
    """Row 0 has a, b and c. {a, b} and {b, c} are equally similar (2/3), {a} is less (1/3). {b, c} has more rows."""
    rows = [[10, 10, 10], [10, NAN, NAN], [10, 10, NAN], [NAN, 50, 50], [NAN, 60, 60]]
    first, *_ = small(rows, names="abc")
    assert seen(first) == ({0, 3}, [None, (10, 50), (10, 50)])


def test_rows_left_of_a_merged_partition_return_to_it():
    """Row 4 finds row 2 in its own partition, although that partition was merged for row 0."""
    first, second, *_ = small([[10, 10], [12, NAN], [80, NAN], [14, 90], [82, NAN]], persons=[0, 1, 2, 0, 4])
    assert seen(first) == ({0, 1}, [(10, 12), None])
    assert seen(second) == ({2, 4}, [(80, 82), None])


def test_rows_with_nothing_in_common_are_not_published_together():
    released = small([[10, NAN], [NAN, 10], [NAN, NAN]])
    assert [release.kind for release in released] == [Kind.SUPPRESSED] * 3
    assert all(seen(release)[1] == [(0, 100), (0, 100)] for release in released)


def test_rows_without_any_quasi_identifier_leave_together():
    (release,) = small([[NAN, NAN], [NAN, NAN]])
    assert release.kind is Kind.CLUSTER
    assert seen(release) == ({0, 1}, [None, None])
    assert release.loss == 0.0  # there was nothing to lose


# -- loss: definition 5 --------------------------------------------------------------------------


def test_a_value_that_is_not_published_counts_as_lost():
    (release,) = small([[10, 10, 40], [20, 30, NAN]], names="abc")
    assert seen(release) == ({0, 1}, [(10, 20), (10, 30), None])
    # (0.1 + 0.2 + 1) / 3 for the first, (0.1 + 0.2) / 2 for the second.
    assert release.loss == pytest.approx((1.3 / 3 + 0.3 / 2) / 2)


def test_a_value_that_is_filled_in_counts_as_lost_as_in_the_paper():
    (release,) = small([[10, 10, 40], [20, 30, NAN]], names="abc", parameters={"fill_missing": True})
    assert seen(release) == ({0, 1}, [(10, 20), (10, 30), (40, 40)])
    # (0.1 + 0.2 + 0) / 3 for the first, (0.1 + 0.2 + 1) / 3 for the second.
    assert release.loss == pytest.approx((0.3 / 3 + 1.3 / 3) / 2)


# -- reuse ---------------------------------------------------------------------------------------


def reuse_case(x: float, y: float, reuse: str = "best", reuse_for: int = 100) -> Release:
    """Publish [10, x], then return the release of a row at 15 that has a neighbour at y."""
    _, release, *_ = small(
        [[10, 10], [x, 10]], [[15, 10], [y, 10]], parameters={"reuse": reuse, "reuse_for": reuse_for}
    )
    assert 2 in release.rows
    return release


def test_the_cheaper_is_published():
    """Line 4 of algorithm 3, with its comparison corrected."""
    assert reuse_case(20, 90).kind is Kind.REUSE  # [10, 20] is cheaper than [15, 90]
    assert reuse_case(60, 20).kind is Kind.CLUSTER  # [15, 20] is cheaper than [10, 60]
    assert reuse_case(20, 25).kind is Kind.CLUSTER  # at equal cost, the group is better: it releases more rows


def test_reuse_off():
    assert reuse_case(20, 90, "off").kind is Kind.CLUSTER


def test_reuse_for_rows():
    """Two more rows have arrived since [10, 20] was published."""
    assert reuse_case(20, 90, reuse_for=2).kind is Kind.CLUSTER
    assert reuse_case(20, 90, reuse_for=3).kind is Kind.REUSE


def test_a_row_reuses_only_boxes_of_its_own_partition():
    """The third row is inside [10, 20] but lacks b. Publishing it under the box would claim that it has b."""
    released = small([[10, 10], [20, 10]], [[15, NAN]], parameters={"reuse_for": 100})
    assert released[-1].kind is Kind.SUPPRESSED


@pytest.mark.parametrize("reuse", ["best", "uniform", "weighted"])
def test_choice_among_reusable_generalizations(reuse: str):
    """[10, 30] and [0, 40] both contain the row at 20: count how often each of them is chosen."""
    chosen: Counter[float] = Counter()
    for seed in range(200):
        batches = [[10, 10], [30, 10]], [[0, 10], [40, 10]], [[20, 10], [90, 10]]
        said = {"reuse": reuse, "reuse_for": 100, "eta": 2.0}
        chosen[float(last_of(small(*batches, parameters=said, seed=seed), 4).hi[0])] += 1
    if reuse == "best":
        assert chosen == {30.0: 200}
    elif reuse == "uniform":
        assert 70 <= chosen[30.0] <= 130  # the mean is 100, and the probability of a value outside is below 1e-4
    else:
        # Losses 0.1 and 0.2 have the weights exp(-2 * 2/3) and exp(-2 * 4/3), so the shares are 0.79 and 0.21.
        assert 130 <= chosen[30.0] <= 185
    assert chosen[30.0] + chosen[40.0] == 200


def last_of(released: list[Release], row: int) -> Release:
    return next(release for release in released if row in release.rows)


# -- what an attacker could try ------------------------------------------------------------------


def test_a_person_who_alone_has_an_attribute_is_not_recognized_by_it():
    """An attacker knows that only one person's device measures b. A row that alone showed b would be that person's."""
    for fill in (False, True):
        (release,) = small([[10, 50], [12, NAN]], parameters={"fill_missing": fill})
        # Both rows share one box, which shows b for both or for neither.
        assert len(release.rows) == 2
        assert (seen(release)[1][1] is not None) is fill


@pytest.mark.parametrize("fill", [False, True])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_what_is_published_is_of_k_persons_by_values_and_by_presence(fill: bool, data: st.DataObject):
    """Count rows that look the same to an attacker, without the audit."""
    case = data.draw(cases(**{**CASES, "parameters": st.just(PartitionParameters(fill_missing=fill))}))
    looks: dict[Any, set[int]] = defaultdict(set)
    for release in run(case):
        if release.kind is not Kind.SUPPRESSED:
            looks[str(seen(release)[1])].update(case.rows.person[release.rows].tolist())
    assert all(len(persons) >= case.policy.k for persons in looks.values())


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=cases(**{**CASES, "parameters": st.just(PartitionParameters())}))
def test_without_filling_a_row_shows_only_what_it_has(case: Case):
    for release in run(case):
        if release.kind is not Kind.SUPPRESSED:
            has = ~np.isnan(case.rows.qi[release.rows])
            assert (has | np.isnan(release.lo)).all()


def test_a_suppressed_row_does_not_show_what_it_lacks():
    star, other = small([[10, NAN], [NAN, 10]])
    assert seen(star)[1] == seen(other)[1] == [(0, 100), (0, 100)]


# -- the policy ----------------------------------------------------------------------------------


def policy(**said: Any) -> Policy:
    settings: dict[str, Any] = {"k": 2, "delay_rows": 10, "method": "partition", "sensitive": ["s"], **said}
    return Policy(person="p", quasi_identifiers={"a": Numeric()}, **settings)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"t": 0.5},
            "policy.t is not kept by the method 'partition'",
        ),
        ({"parameters": {"reuse": "worst"}}, "reuse must be 'uniform', 'best', 'weighted' or 'off', not 'worst'"),
        ({"parameters": {"eta": -1}}, "eta must be a number of at least 0, not -1"),
        ({"parameters": {"reuse_for": 0}}, "reuse_for must be an integer of at least 1, not 0"),
        ({"parameters": {"reuse_for": "soon"}}, "reuse_for must be a duration such as"),
        ({"parameters": {"reuse_for": "10s"}}, "must be a number of rows where policy.delay is not given."),
        ({"parameters": {"fill_missing": "yes"}}, "fill_missing must be true or false"),
    ],
)
def test_settings_that_a_policy_must_not_have(said: dict[str, Any], expected: str):
    with pytest.raises(PolicyError) as error:
        policy(**said)
    assert expected in str(error.value)


def test_settings_that_a_policy_may_have():
    assert policy(parameters={"reuse": False}).parameters.reuse is Reuse.OFF  # how YAML reads a bare off
    timed = policy(delay="1h", parameters={"reuse_for": "90s", "reuse": "weighted", "eta": 2})
    assert timed.parameters.reuse_for == "90s"
    assert Policy.from_dict(timed.to_dict()) == timed


def test_reuse_for_a_duration():
    """[10, 20] was published at 2 s. At 5 s its age is below 4 s, but not below 3 s."""
    for reuse_for, kind in (("3s", Kind.CLUSTER), ("4s", Kind.REUSE)):
        rows = Rows(
            qi=np.array([[10.0], [20.0], [15.0], [90.0]]),
            person=np.arange(4),
            sensitive=np.zeros((4, 1), np.int64),
            time=np.array([0, 1, 3, 4]) * 1_000_000,
        )
        engine = create_engine(policy(delay="2s", delay_rows=None, parameters={"reuse_for": reuse_for}))
        released = list(Releases.concat([engine.push(rows), engine.advance(5_000_000), engine.flush()]))
        assert [release.kind for release in released if 2 in release.rows] == [kind]


def test_a_stronger_guarantee_forgets_what_was_published_under_the_weaker():
    before, after = create_engine(policy(delay_rows=3)), create_engine(policy(delay_rows=3, k=3))
    rows = Rows(np.array([[1.0], [2.0], [1.5]]), np.arange(3), np.zeros((3, 1), np.int64), np.zeros(3, np.int64))
    before.push(rows)
    after.restore(before.snapshot())
    assert all(release.kind is not Kind.REUSE for release in after.flush())


def test_other_methods_refuse_holes():
    engine = create_engine(Policy(person="p", quasi_identifiers={"a": Numeric()}, k=2, delay_rows=10))
    rows = Rows(np.array([[NAN]]), np.zeros(1, np.int64), np.zeros((1, 0), np.int64), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="rows must be inside the declared domains"):
        engine.push(rows)
