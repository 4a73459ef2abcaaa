"""The judge of `together`, compared with one that looks at every person and every row."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from crenel.audit.over_time.company import lacking_company
from crenel.encoding.rows import Rows
from crenel.policy import Policy


def plainly(of: Policy, rows: Rows, left: list[tuple[int, list[float], list[float], int, int]]) -> int:
    """Count the persons who lack company, by the definition."""
    lacking = set()
    for person in set(rows.person.tolist()):
        chains: list[list[tuple[int, list[float], list[float], int, int]]] = []
        for one in left:
            row, moment = one[0], one[3]
            if rows.person[row] != person:
                continue
            chain = chains[-1] if chains else None
            inside = chain is not None and all(
                (np.array(b[1]) <= rows.qi[row]).all() and (rows.qi[row] <= np.array(b[2])).all() for b in chain
            )
            if chain is not None and inside and moment - chain[-1][3] <= (of.together or 0):
                chain.append(one)
            else:
                chains.append([one])
        for chain in chains:
            fits = {
                int(rows.person[row])
                for row in range(chain[-1][4])
                if all((np.array(b[1]) <= rows.qi[row]).all() and (rows.qi[row] <= np.array(b[2])).all() for b in chain)
            }
            if len(chain) > 1 and len(fits) < of.k:
                lacking.add(person)
    return len(lacking)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), together=st.sampled_from([True, "3s", "10s"]), k=st.integers(2, 6))
def test_company_is_counted_as_it_is_defined(seed: int, together: object, k: int) -> None:
    column = {"type": "numeric", "domain": [0, 9]}
    of = Policy.from_dict(
        {"person": "id", "quasi_identifiers": {"a": column, "b": column}, "k": k, "delay": "1s", "together": together}
    )
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 40))
    qi = draw.integers(0, 10, (n, 2)).astype(np.float64)
    rows = Rows(qi, draw.integers(0, 8, n), np.zeros((n, 0), np.int64), np.zeros(n, np.int64))
    row = draw.permutation(n)[: int(draw.integers(0, n + 1))]
    lo, hi = qi[row] - draw.integers(0, 4, (len(row), 2)), qi[row] + draw.integers(0, 4, (len(row), 2))
    moment = np.cumsum(draw.integers(0, 4_000_000, len(row)))
    arrivals = np.sort(draw.integers(1, n + 1, len(row)))
    left = list(zip(row.tolist(), lo.tolist(), hi.tolist(), moment.tolist(), arrivals.tolist(), strict=True))
    assert lacking_company(of, rows, row, lo, hi, moment, arrivals) == plainly(of, rows, left)
