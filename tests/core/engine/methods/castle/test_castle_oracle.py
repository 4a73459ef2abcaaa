"""The engine publishes exactly what the oracle publishes, bit for bit.

The oracle (`tests.core.engine.methods.castle.castle_oracle`) was written from `docs/castle.md` alone, in plain Python.
"""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases
from crenel.engine.methods.castle import CastleParameters, castle_engine
from crenel.policy import Policy, Sensitive
from crenel.policy.parameters import Reuse
from crenel.policy.quasi_identifiers import Categorical, Numeric
from crenel.testing.engine_streams import Case, run
from tests.core.engine.cases import RAGGED, cases, judged, promised
from tests.core.engine.methods.castle.castle_oracle import Oracle, OracleRelease

PROMISES = {
    "k": cases(),
    "l": cases(diverse=True),
    "t": cases(close=True),
    "l and t": cases(diverse=True, close=True),
}


def oracle(case: Case) -> Oracle:
    parameters = case.policy.parameters
    return Oracle(
        **promised(case.policy),
        beta=parameters.beta,
        mu=parameters.mu,
        reuse=parameters.reuse is Reuse.UNIFORM,
        max_reusable=parameters.max_reusable,
        key=case.engine().key,
    )


def oracle_run(case: Case) -> list[OracleRelease]:
    return judged(case, oracle(case))


def as_oracle(releases: Releases) -> list[OracleRelease]:
    return [
        OracleRelease(
            rows=[int(row) for row in release.rows],
            kind=int(release.kind),
            lo=tuple(float(x) for x in release.lo),
            hi=tuple(float(x) for x in release.hi),
            loss=float(release.loss),
            persons=int(release.persons),
            moment=int(release.moment),
            arrivals=int(release.arrivals),
            group=int(release.group),
        )
        for release in releases
    ]


@pytest.mark.slow
@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_engine_publishes_what_the_oracle_does(promise: str, data: st.DataObject):
    case = data.draw(PROMISES[promise], label="case")
    expected = [astuple(release) for release in oracle_run(case)]
    published = [astuple(release) for release in as_oracle(run(case))]
    for number, (ours, theirs) in enumerate(zip(published, expected, strict=False)):
        assert ours == theirs, f"release {number}"
    assert len(published) == len(expected)


@pytest.mark.parametrize("seed", range(24))
def test_engine_publishes_what_the_oracle_does_for_longer(seed: int):
    """The streams are long enough for generalizations to be reused, pushed out and found again."""
    case = seeded_case(seed)
    published = as_oracle(run(case))
    assert published == oracle_run(case)
    # Without a cluster, the comparison would prove nothing.
    assert any(release.kind == Kind.CLUSTER for release in published)


@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_an_engine_that_grows_publishes_the_same(promise: str, data: st.DataObject):
    """The engine begins with little space and grows repeatedly, whatever it holds then."""
    case = data.draw(PROMISES[promise], label="case")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(castle_engine, "_FIRST_ROWS", 1)
        patch.setattr(castle_engine.Castle, "chunk", data.draw(st.integers(1, 3), label="rows at once"))
        published = as_oracle(run(case))
    assert published == oracle_run(case)


def test_longer_streams_reach_reuse_and_large_splits():
    reused = large = 0
    for seed in range(24):
        releases = run(seeded_case(seed))
        clusters = releases.arrivals[releases.kind == Kind.CLUSTER]
        reused += bool((releases.kind == Kind.REUSE).any())
        large += int(np.unique(clusters, return_counts=True)[1].max(initial=0)) > 4
    assert reused >= 8
    assert large >= 8


def test_a_row_left_by_the_split_joins_the_part_it_is_inside():
    """Row 9, at 6, is inside the fifth part, from 3 to 9, so it does not widen the fourth part."""
    policy = Policy(
        person="person",
        quasi_identifiers={"x": Numeric(domain=(0, 10))},
        k=2,
        delay_rows=1000,
        method="castle",
        parameters=CastleParameters(beta=1, mu=1, max_reusable=0),
    )
    rows = Rows(
        qi=np.array([[1.0, 4, 9, 3, 0, 10, 5, 9, 2, 6, 3]]).T.copy(),
        person=np.array([0, 6, 5, 5, 5, 3, 6, 5, 0, 5, 6]),
        sensitive=np.zeros((11, 0), np.int64),
        time=np.zeros(11, np.int64),
    )
    case = Case(policy=policy, rows=rows, secret=bytes([213, 224, 27, 195]))
    expected = oracle_run(case)
    assert len(expected) == 5
    assert 9 in expected[4].rows
    assert as_oracle(run(case)) == expected


def seeded_case(seed: int, n: int = 400) -> Case:
    random = np.random.default_rng(seed)
    k = int(random.integers(2, 6))
    policy = Policy(
        person="person",
        event_time="at",
        quasi_identifiers={
            "declared": Numeric(domain=(0, 20)),
            "learned": Numeric(weight=2.0),
            "tree": Categorical(hierarchy=RAGGED, weight=0.5),
        },
        sensitive={
            "s": Sensitive(values=tuple("abcd"), ordered=bool(seed % 2)),
            "u": Sensitive(),
        },
        k=k,
        l=2 if seed % 3 == 1 else None,
        t=0.7 if seed % 4 == 2 else None,
        delay=None if seed % 5 == 0 else (300, 3000)[seed // 2 % 2],
        # Long delays lead to large clusters, which split into many parts.
        delay_rows=None if seed % 5 == 1 else (4, 30)[seed // 2 % 2] * k,
        disorder=seed % 7,
        method="castle",
        parameters=CastleParameters(beta=int(random.integers(1, 9)), mu=int(random.integers(2, 12)), max_reusable=6),
    )
    centre = random.integers(0, 3, n)
    rows = Rows(
        qi=np.stack(
            [
                np.clip(centre * 8 + random.integers(0, 4, n), 0, 20) * 1.0,
                centre * 10 + np.round(random.random(n) * 3, 1),
                np.minimum(centre * 3 + random.integers(0, 2, n), len(RAGGED.leaves) - 1) * 1.0,
            ],
            axis=1,
        ),
        person=random.integers(0, 60, n),
        sensitive=np.stack([random.integers(0, 4, n), random.integers(0, 5, n) * 10**15], axis=1),
        time=np.cumsum(random.integers(0, 25, n)) + random.integers(-40, 40, n),
    )
    cuts = tuple(sorted(random.integers(0, n, 5).tolist()))
    return Case(policy=policy, rows=rows, cuts=cuts, secret=bytes([seed]))
