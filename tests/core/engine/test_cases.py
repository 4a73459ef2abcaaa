"""The suite's strategy reaches the situations that the checks are about.

A check that passes without ever meeting a reused generalization proves nothing about reuse.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from crenel.engine import Kind
from crenel.testing.engine_streams import Case, run
from tests.core.engine.cases import cases

EXAMPLES = 200

# Far below the averages, because Hypothesis draws unevenly: this fails only if a situation is hardly reached any more.
LEAST = {"a cluster": 50, "a split": 3, "a reuse": 6, "a suppression": 40, "a late row": 2}

KINDS: dict[str, dict[str, Any]] = {
    "k": {},
    "l": {"diverse": True},
    "t": {"close": True},
    "l and t": {"diverse": True, "close": True},
}


def reached(case: Case) -> set[str]:
    """Return the situations that occur in a case."""
    releases = run(case)
    kinds = set(releases.kind.tolist())
    found = {
        name
        for kind, name in (
            (Kind.CLUSTER, "a cluster"),
            (Kind.REUSE, "a reuse"),
            (Kind.SUPPRESSED, "a suppression"),
        )
        if kind in kinds
    }
    # Before the flush, two clusters at one arrival and one moment mean that a cluster was split.
    before = (releases.kind == Kind.CLUSTER) & (releases.arrivals < len(case.rows))
    moments = list(zip(releases.arrivals[before], releases.moment[before], strict=True))
    if len(moments) > len(set(moments)):
        found.add("a split")
    deadlines = case.deadlines()
    if deadlines is not None:
        clock = -(2**63)
        for deadline, time in zip(deadlines, case.rows.time.tolist(), strict=True):
            clock = max(clock, time - case.policy.disorder)
            if deadline <= clock:
                found.add("a late row")
    return found


@pytest.mark.parametrize("kind", ["k", *(pytest.param(name, marks=pytest.mark.slow) for name in [*KINDS][1:])])
def test_cases_reach_what_they_are_for(kind: str):
    counts: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(**KINDS[kind]))
    def count(case: Case) -> None:
        counts.update(reached(case))

    count()
    short = {name: counts[name] for name, least in LEAST.items() if counts[name] < least}
    assert not short, f"too few of {EXAMPLES} cases have: {short}; all: {dict(counts)}"
