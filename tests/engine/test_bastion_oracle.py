"""The engine publishes what the oracle does, bit for bit.

The oracle (`tests.engine.bastion_oracle`) is `docs/bastion.md` in plain Python.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.engine import Kind
from crenel.parameters import BastionParameters
from crenel.policy import Policy, Sensitive
from crenel.quasi_identifiers import Categorical, Numeric
from crenel.rows import Rows
from tests.engine.bastion_oracle import BastionOracle
from tests.engine.cases import RAGGED, Case, bastion_cases, judged, promised, run
from tests.engine.oracle import OracleRelease
from tests.engine.test_castle_oracle import as_oracle

PROMISES = {
    "k": bastion_cases(),
    "l": bastion_cases(diverse=True),
    "t": bastion_cases(close=True),
    "l and t": bastion_cases(diverse=True, close=True),
}


def oracle(case: Case) -> BastionOracle:
    parameters = case.policy.parameters
    return BastionOracle(
        **promised(case.policy),
        reuse=parameters.reuse,
        max_reusable=parameters.max_reusable,
        eta=parameters.eta,
        lonely=parameters.lonely,
        search=parameters.search,
        key=case.engine().key,
    )


def oracle_run(case: Case) -> list[OracleRelease]:
    return judged(case, oracle(case))


def compare(case: Case) -> list[OracleRelease]:
    expected = oracle_run(case)
    published = as_oracle(run(case))
    for number, (ours, theirs) in enumerate(zip(published, expected, strict=False)):
        assert astuple(ours) == astuple(theirs), f"release {number}"
    assert len(published) == len(expected)
    return published


@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_engine_publishes_what_the_oracle_does(promise: str, data: st.DataObject):
    compare(data.draw(PROMISES[promise], label="case"))


def seeded_case(seed: int, rows: int = 700) -> Case:
    random = np.random.default_rng(seed)
    diverse, close, by_time = seed % 3 == 1, seed % 4 == 2, seed % 2 == 1
    policy = Policy(
        person="person",
        quasi_identifiers={
            "x": Numeric(domain=(0, 100)),
            "y": Numeric(),
            "c": Categorical(hierarchy=RAGGED, weight=2.0),
        },
        sensitive={"s": Sensitive(values=tuple("abcd")), "u": Sensitive()},
        k=5,
        l=2 if diverse else None,
        t=0.6 if close else None,
        delay="200us" if by_time else None,
        delay_rows=None if by_time else 60,
        method="bastion",
        parameters=BastionParameters(max_reusable=20, search=2 + seed % 3, eta=2.0 * (seed % 4)),
    )
    places = random.normal(50, 15, (rows, 2)).clip(0, 100).round(seed % 3)
    return Case(
        policy=policy,
        rows=Rows(
            qi=np.column_stack([places, random.integers(0, len(RAGGED.leaves), rows)]).astype(np.float64),
            person=random.integers(0, [40, 400, 10**6][seed % 3], rows),
            sensitive=np.column_stack(
                [random.integers(0, 4, rows), random.integers(0, 2**60, 3)[random.integers(0, 3, rows)]]
            ),
            time=np.cumsum(random.integers(0, 8, rows)) + random.integers(-20, 20, rows),
        ),
        cuts=tuple(sorted(random.integers(0, rows, 5).tolist())),
    )


@pytest.mark.parametrize("seed", range(12))
def test_engine_publishes_what_the_oracle_does_for_longer(seed: int):
    """Streams long enough for boxes to be reused and pushed out, and for gaps to be closed."""
    kinds = {release.kind for release in compare(seeded_case(seed))}
    assert {Kind.CLUSTER, Kind.REUSE} <= kinds


def test_engine_publishes_what_the_oracle_does_with_many_rows():
    """So many that they need more room than there is at first, and are not all candidates."""
    random = np.random.default_rng(5)
    rows, k = 1_300, 80
    policy = Policy(
        person="person",
        quasi_identifiers={"x": Numeric(domain=(0, 100)), "c": Categorical(hierarchy=RAGGED)},
        k=k,
        delay="900us",
        delay_rows=2_000,
        method="bastion",
    )
    assert policy.parameters.search * k > 512
    qi = np.column_stack([random.normal(50, 15, rows).clip(0, 100), random.integers(0, len(RAGGED.leaves), rows)])
    case = Case(
        policy=policy,
        rows=Rows(qi, np.arange(rows), np.zeros((rows, 0), np.int64), np.arange(rows) - random.integers(0, 90, rows)),
        cuts=(700,),
    )
    engine = case.engine()
    engine.push(case.rows.slice(0, 740))
    assert engine.held == 740
    assert {release.kind for release in compare(case)} == {Kind.CLUSTER, Kind.REUSE}


def test_engines_in_many_threads_do_not_disturb_each_other():
    """Engines of one thread share room to compute in, and kernels run beside each other: not in the same room."""
    cases = [seeded_case(2 * seed, rows=3_000) for seed in range(4)] * 4
    alone = [as_oracle(run(case)) for case in cases]
    with ThreadPoolExecutor(max_workers=8) as threads:
        together = list(threads.map(lambda case: as_oracle(run(case)), cases))
    assert together == alone
