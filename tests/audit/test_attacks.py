"""The attacks of the CASTLEGUARD paper's section II-B: each succeeds against castle, and fails against castleguard."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from crenel.audit.attacks import Outcome, Seen, boundary, enumeration, homogeneity
from crenel.engine import Releases, create
from crenel.policy import Policy, Sensitive
from crenel.quasi_identifiers import Numeric
from crenel.rows import Rows

N = 400
WIDEST = np.array([[0.0, 100.0], [0.0, 100.0]])
METHODS = ["castle", "castleguard"]


def policy(method: str, seed: int = 1, **changes: Any) -> Policy:
    guarded = {"beta_sample": 0.6, "phi": 100.0} if method == "castleguard" else {}
    said: dict[str, Any] = {
        "person": "who",
        "quasi_identifiers": {"x": Numeric(domain=(0, 100)), "y": Numeric(domain=(0, 100))},
        "sensitive": {"s": Sensitive(values=tuple("abcd"))},
        "k": 5,
        "delay_rows": 60,
        "method": method,
        "parameters": {"beta": 10} | guarded,
        "seed": seed,
    }
    return Policy(**said | changes)


def stream(n: int = N, seed: int = 5) -> Rows:
    """One row a person; the sensitive value hangs on where a row lies."""
    random = np.random.default_rng(seed)
    qi = random.uniform(1, 99, (n, 2))
    return Rows(qi, np.arange(n), (qi[:, :1] // 25).astype(np.int64), np.zeros(n, np.int64))


def seen(of: Policy, rows: Rows) -> Seen:
    engine = create(of)
    return Seen.of(of, rows, Releases.concat([engine.push(rows), engine.flush()]))


def total(outcomes: list[Outcome]) -> Outcome:
    return Outcome(
        attack=outcomes[0].attack,
        targets=sum(outcome.targets for outcome in outcomes),
        claims=sum(outcome.claims for outcome in outcomes),
        right=sum(outcome.right for outcome in outcomes),
    )


def enumerated(method: str) -> Outcome:
    """Twenty targets, half of whom are in the stream; the attacker knows the chance of sampling."""
    outcomes = []
    for seed in range(20):
        present = seed % 2 == 0
        of, rows = policy(method, seed), stream(N if present else N - 1, seed)
        beta = getattr(of.parameters, "beta_sample", 1.0)
        outcomes.append(enumeration(seen(of, rows), known=N - 1, present=present, beta_sample=beta))
    return total(outcomes)


def test_enumeration():
    against = {method: enumerated(method) for method in METHODS}
    assert against["castle"] == Outcome(attack="enumeration", targets=20, claims=20, right=20)
    assert against["castleguard"].claims == 0


def bounded(method: str, **parameters: Any) -> Outcome:
    of, rows = policy(method), stream()
    if parameters:
        of = policy(method, parameters=parameters)
    view = seen(of, rows)
    published = np.isin(np.arange(N), view.rows)
    return boundary(view, people=rows.qi, published=published, widest=WIDEST)


def test_boundary():
    castle, guarded = bounded("castle"), bounded("castleguard")
    # Every box of CASTLE's ends at values of its own rows: about one in two of groups of 5 to 9 persons is found.
    assert castle.success > 0.4
    assert castle.precision == 1.0
    assert guarded.right == 0


def test_boundary_holds_even_for_the_least_noise_of_the_paper():
    assert bounded("castleguard", beta=10, beta_sample=1.0, phi=10_000.0).right == 0


def clouds() -> Rows:
    """Four places far from each other, each with a sensitive value of its own."""
    rows = stream()
    qi = np.stack([rows.qi[:, 0] // 25 * 30 + rows.qi[:, 0] % 25 / 5, rows.qi[:, 1]], axis=1)
    return Rows(qi, rows.person, rows.sensitive, rows.time)


def found_out(method: str, **changes: Any) -> Outcome:
    of, rows = policy(method, **changes), clouds()
    return homogeneity(seen(of, rows), people=rows.qi, truth=rows.sensitive[:, 0], arrived=np.arange(N), within=60)


def test_homogeneity():
    castle, guarded = found_out("castle"), found_out("castleguard", l=2, on_suppress="drop")
    assert castle.success > 0.2
    assert castle.precision == 1.0
    assert guarded.claims == 0


def test_l_alone_stops_homogeneity_too():
    """As the paper says: it is l that closes it, not noise."""
    assert found_out("castle", l=2, on_suppress="drop").claims == 0
    assert found_out("castleguard", on_suppress="drop").claims > 0


# -- the attacks themselves, by hand ---------------------------------------------------------------------------------


def view(lo: list[list[float]], hi: list[list[float]], values: list[int], star: list[bool] | None = None) -> Seen:
    return Seen(
        lo=np.array(lo),
        hi=np.array(hi),
        sensitive=np.array(values)[:, None],
        star=np.zeros(len(lo), bool) if star is None else np.array(star),
        left=np.full(len(lo), 9),
        rows=np.arange(len(lo)),
    )


def test_enumeration_by_hand():
    three = view([[0.0]] * 3, [[1.0]] * 3, [0, 0, 0])
    for known, present, right in ((2, True, 1), (3, False, 1), (2, False, 0), (3, True, 0)):
        outcome = enumeration(three, known=known, present=present)
        assert (outcome.claims, outcome.right) == (1, right)
    assert enumeration(three, known=7, present=True).claims == 0
    # 3 of 3 or of 2: only one can be. 3 of 4 or of 3, each kept with 0.99: 0.0388 against 0.9703.
    assert enumeration(three, known=2, present=True, beta_sample=0.5).right == 1
    certain = enumeration(three, known=3, present=False, beta_sample=0.99)
    assert math.comb(4, 3) * 0.99**3 * 0.01 / 0.99**3 < 0.05
    assert (certain.claims, certain.right) == (1, 1)
    assert enumeration(three, known=3, present=False, beta_sample=0.5).claims == 0


def test_boundary_by_hand():
    people = np.array([[1.0], [5.0], [5.0], [9.0], [7.0]])
    boxes = view([[1.0], [1.0], [5.0], [5.0]], [[5.0], [5.0], [9.0], [9.0]], [0, 0, 0, 0])
    published = np.array([True, True, True, True, False])
    outcome = boundary(boxes, people=people, published=published, widest=np.array([[0.0, 10.0]]))
    # 1 is only of the first, 9 only of the fourth; 5 may be of either of two.
    assert (outcome.targets, outcome.claims, outcome.right) == (4, 2, 2)
    ends = boundary(boxes, people=people, published=published, widest=np.array([[1.0, 9.0]]))
    assert ends.claims == 0


def test_homogeneity_by_hand():
    boxes = view([[0.0], [0.0], [4.0], [4.0]], [[5.0], [5.0], [9.0], [9.0]], [1, 1, 1, 2])
    people, truth = np.array([[2.0], [3.0], [4.5], [8.0], [99.0]]), np.array([1, 2, 1, 1, 1])
    outcome = homogeneity(boxes, people=people, truth=truth)
    # 2 and 3 lie in the first box alone, where all have 1; one of them has not. 99 lies nowhere.
    assert (outcome.targets, outcome.claims, outcome.right) == (5, 2, 1)
    late = np.array([0, 0, 9, 0, 0])  # the third came after all had left
    assert homogeneity(boxes, people=people, truth=truth, arrived=late, within=8).claims == 2
    assert homogeneity(boxes, people=people, truth=truth, arrived=late, within=7).claims == 0
    starred = view([[0.0], [-np.inf]], [[5.0], [np.inf]], [1, 2], [False, True])
    assert homogeneity(starred, people=people, truth=truth).claims == 2  # 8 and 99 can only be the star


def test_what_an_outsider_sees():
    rows = stream(30)
    star, drop = policy("castle", k=20, delay_rows=20), policy("castle", k=20, delay_rows=20, on_suppress="drop")
    assert len(seen(star, rows)) == 30
    assert seen(star, rows).star.sum() == 30 - len(seen(drop, rows))
    sampled = policy("castleguard", on_suppress="star")
    assert len(seen(sampled, rows)) < 30
    assert "0." not in repr(seen(star, rows))


@pytest.mark.parametrize("method", METHODS)
def test_outcomes_are_told(method: str):
    assert "claims on" in str(found_out(method))
    assert Outcome(attack="a", targets=0, claims=0, right=0).success == 0.0
    assert Outcome(attack="a", targets=1, claims=0, right=0).precision is None
