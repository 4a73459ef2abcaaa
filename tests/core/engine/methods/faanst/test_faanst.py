"""FAANST against its oracle, and the size of its buffer."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


def policy(**changes: object) -> Policy:
    said = {"person": "p", "quasi_identifiers": {"x": Numeric(domain=(0, 1))}, "k": 5, "method": "faanst-passive"}
    return Policy(**{**said, **changes})


@pytest.mark.parametrize(("delay_rows", "mu"), [(1000, 500), (8, 5), (5, 5)])
def test_the_buffer_holds_half_of_delay_rows_so_that_rows_get_another_round(delay_rows: int, mu: int) -> None:
    engine = create_engine(policy(delay_rows=delay_rows))
    assert engine._until_full() == mu
