"""FAANST against its oracle, and the size of its buffer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.encoding.rows import Rows
from crenel.engine import Kind, create_engine
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric
from crenel.testing.engine_streams import Case, run
from tests.core.engine.cases import cases, faanst_parameters
from tests.core.engine.methods.faanst.faanst_oracle import FaanstOracle


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    case=st.tuples(st.booleans(), st.sampled_from(["faanst-passive", "faanst-proactive"])).flatmap(
        lambda drawn: cases(diverse=drawn[0], method=drawn[1], parameters=faanst_parameters(), counted=True)
    )
)
def test_releases_are_those_of_the_oracle(case: Case) -> None:
    releases, expected = list(run(case)), FaanstOracle(case).run()
    found = [(int(r.kind), tuple(sorted(r.rows.tolist())), r.moment, r.arrivals, r.persons, r.group) for r in releases]
    assert found == [(one.kind, one.rows, one.moment, one.arrivals, one.persons, one.group) for one in expected]
    for release, one in zip(releases, expected, strict=True):
        assert release.loss == pytest.approx(one.loss)
        if release.kind is not Kind.SUPPRESSED:
            assert list(zip(release.lo.tolist(), release.hi.tolist(), strict=True)) == one.box


@pytest.mark.parametrize("method", ["faanst-passive", "faanst-proactive"])
def test_a_longer_stream_is_that_of_the_oracle(method: str) -> None:
    """Here k-means takes several passes: Hypothesis draws too few rows for that."""
    random = np.random.default_rng(8)
    rows = Rows(
        random.uniform(0, 1, (240, 2)), random.integers(0, 90, 240), np.zeros((240, 0), np.int64), np.arange(240)
    )
    columns = {"x": Numeric(domain=(0, 1)), "y": Numeric(domain=(0, 1))}
    case = Case(
        policy=policy(quasi_identifiers=columns, k=3, delay_rows=80, method=method, parameters={"max_loss": 0.2}),
        rows=rows,
    )
    found = [(int(r.kind), tuple(sorted(r.rows.tolist())), r.group) for r in run(case)]
    assert found == [(one.kind, one.rows, one.group) for one in FaanstOracle(case).run()]


def policy(**changes: object) -> Policy:
    said = {"person": "p", "quasi_identifiers": {"x": Numeric(domain=(0, 1))}, "k": 5, "method": "faanst-passive"}
    return Policy(**{**said, **changes})


@pytest.mark.parametrize(("delay_rows", "mu"), [(1000, 500), (8, 5), (5, 5)])
def test_the_buffer_holds_half_of_delay_rows_so_that_rows_get_another_round(delay_rows: int, mu: int) -> None:
    engine = create_engine(policy(delay_rows=delay_rows))
    assert engine._until_full() == mu
