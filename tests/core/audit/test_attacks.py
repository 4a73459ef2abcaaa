"""The attacks of section II-B of the CASTLEGUARD paper, on castle and castleguard under the same promises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from crenel.audit.attacks import Outcome, boundary, enumeration, homogeneity, noise
from tests.core.audit.streams import WIDEST, N, clouds, observation, observed, policy, stream

METHODS = ["castle", "castleguard"]


def total(outcomes: list[Outcome]) -> Outcome:
    return Outcome(
        attack=outcomes[0].attack,
        targets=sum(outcome.targets for outcome in outcomes),
        claims=sum(outcome.claims for outcome in outcomes),
        right=sum(outcome.right for outcome in outcomes),
    )


def enumerated(method: str) -> Outcome:
    """Attack twenty targets, half of whom are in the stream. The attacker knows the probability of sampling."""
    outcomes = []
    for seed in range(20):
        present = seed % 2 == 0
        of, rows = policy(method, seed), stream(N if present else N - 1, seed)
        beta = getattr(of.parameters, "beta_sample", 1.0)
        outcomes.append(enumeration(observed(of, rows), known=N - 1, present=present, beta_sample=beta))
    return total(outcomes)


def test_enumeration():
    against = {method: enumerated(method) for method in METHODS}
    assert against["castle"] == Outcome(attack="enumeration", targets=20, claims=20, right=20)
    assert against["castleguard"].claims == 0


def bounded(method: str, **parameters: Any) -> Outcome:
    of, rows = policy(method), stream()
    if parameters:
        of = policy(method, parameters=parameters)
    what = observed(of, rows)
    published = np.isin(np.arange(N), what.rows)
    return boundary(what, people=rows.qi, published=published, widest=WIDEST, scale=noise(of, rows.qi))


def test_boundary():
    castle, guarded = bounded("castle"), bounded("castleguard")
    # Every box of CASTLE ends at values of its own rows: in groups of 5 to 9 persons about half are found.
    assert castle.success > 0.4
    assert castle.precision == 1.0
    # Noise of a hundredth of the range leaves few claims, but about half of them are right.
    assert 15 < guarded.right < guarded.claims < castle.claims
    assert guarded.precision > 0.4


def test_little_noise_does_not_protect_boundaries():
    """Ends no longer equal values but lie near them: the nearest value is the right one."""
    least = bounded("castleguard", beta=10, beta_sample=1.0, phi=10_000.0)
    assert least.success > 0.3
    assert least.precision > 0.95


def test_boundary_with_noise_by_hand():
    people = np.array([[1.0], [5.0], [5.2], [9.0], [7.0]])
    boxes = observation([[1.1], [1.1], [5.1], [5.1]], [[4.9], [4.9], [9.1], [9.1]], [0, 0, 0, 0])
    told = {"people": people, "published": np.ones(5, bool), "widest": np.array([[0.0, 10.0]])}
    assert boundary(boxes, **told).claims == 0
    # 1.1 can only come from 1, and 9.1 from 9; 4.9 and 5.1 come from 5 or 5.2, which seem to be in both boxes. With
    # much noise every value is possible.
    coarse, fine = (boundary(boxes, **told, scale=np.array([scale])) for scale in (100.0, 0.1))
    assert (coarse.claims, fine.claims, fine.right) == (0, 2, 2)
    assert noise(policy("castle"), people) is None
    assert noise(policy("castleguard"), stream().qi).tolist() == [1.0, 1.0]


def found_out(method: str, *, timed: bool = False, **changes: Any) -> Outcome:
    """Attack with everyone's quasi-identifiers. With `timed`, the attacker also knows when their rows arrived."""
    of, rows = policy(method, **changes), clouds()
    when: dict[str, Any] = {"arrived": np.arange(N), "within": 60} if timed else {}
    return homogeneity(observed(of, rows), people=rows.qi, truth=rows.sensitive[:, 0], **when)


@pytest.mark.parametrize("timed", [False, True])
def test_noise_does_not_stop_homogeneity(timed: bool):
    """Only l stops the attack, for both methods, and for neither if the attacker knows arrivals."""
    castle, guarded = (found_out(method, timed=timed, on_suppress="drop") for method in METHODS)
    assert castle.success > 0.1
    assert guarded.success > 0.1
    assert castle.precision == 1.0
    assert guarded.precision > 0.9
    castle, guarded = (found_out(method, timed=timed, l=2, on_suppress="drop") for method in METHODS)
    assert (castle.claims > 0) is timed
    assert (guarded.claims > 0) is timed


@pytest.mark.parametrize("method", ["castle", "bastion", "mondrian", "partition"])
def test_l_stops_homogeneity(method: str):
    """As the paper says: l stops the attack, not noise."""
    assert found_out(method, on_suppress="drop").claims > 0
    assert found_out(method, l=2, on_suppress="drop").claims == 0
    assert found_out("castleguard", on_suppress="drop").claims > 0


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_l_does_not_stop_an_attacker_who_knows_arrivals(method: str):
    """Nothing is promised here: a row that leaves alone under a reused box may be the only one in its time."""
    told = found_out(method, timed=True, l=2, on_suppress="drop")
    assert told.claims > 0
    assert told.precision == 1.0
    # If rows leave only in groups, the whole group leaves in that time.
    never = {"beta": 10, "reuse": "off"} if method == "castle" else {"reuse": "off"}
    assert found_out(method, timed=True, l=2, on_suppress="drop", parameters=never).claims == 0


def test_l_is_not_promised_for_stars():
    """A person inside no box was suppressed, and all suppressed rows together may have a single value."""
    boxes = observation([[0.0], [0.0], [0.0]], [[5.0], [5.0], [9.0]], [1, 2, 1], [False, False, True])
    outcome = homogeneity(boxes, people=np.array([[3.0], [7.0]]), truth=np.array([2, 1]))
    assert (outcome.claims, outcome.right) == (1, 1)


# -- the attacks themselves, by hand ---------------------------------------------------------------------------------


def test_enumeration_by_hand():
    three = observation([[0.0]] * 3, [[1.0]] * 3, [0, 0, 0])
    for known, present, right in ((2, True, 1), (3, False, 1), (2, False, 0), (3, True, 0)):
        outcome = enumeration(three, known=known, present=present)
        assert (outcome.claims, outcome.right) == (1, right)
    assert enumeration(three, known=7, present=True).claims == 0
    # 3 of 3 or of 2: only the first is possible. 3 of 4 or of 3, each kept with 0.99: 0.0388 against 0.9703.
    assert enumeration(three, known=2, present=True, beta_sample=0.5).right == 1
    certain = enumeration(three, known=3, present=False, beta_sample=0.99)
    assert math.comb(4, 3) * 0.99**3 * 0.01 / 0.99**3 < 0.05
    assert (certain.claims, certain.right) == (1, 1)
    assert enumeration(three, known=3, present=False, beta_sample=0.5).claims == 0


def test_boundary_by_hand():
    people = np.array([[1.0], [5.0], [5.0], [9.0], [7.0]])
    boxes = observation([[1.0], [1.0], [5.0], [5.0]], [[5.0], [5.0], [9.0], [9.0]], [0, 0, 0, 0])
    published = np.array([True, True, True, True, False])
    outcome = boundary(boxes, people=people, published=published, widest=np.array([[0.0, 10.0]]))
    # 1 is only the first person's, 9 only the fourth's; 5 may be either of two persons'.
    assert (outcome.targets, outcome.claims, outcome.right) == (4, 2, 2)
    ends = boundary(boxes, people=people, published=published, widest=np.array([[1.0, 9.0]]))
    assert ends.claims == 0


def test_homogeneity_by_hand():
    boxes = observation([[0.0], [0.0], [4.0], [4.0]], [[5.0], [5.0], [9.0], [9.0]], [1, 1, 1, 2])
    people, truth = np.array([[2.0], [3.0], [4.5], [8.0], [99.0]]), np.array([1, 2, 1, 1, 1])
    outcome = homogeneity(boxes, people=people, truth=truth)
    # 2 and 3 lie only in the first box, where all rows have 1; one of the two has another value. 99 lies in no box.
    assert (outcome.targets, outcome.claims, outcome.right) == (5, 2, 1)
    late = np.array([0, 0, 9, 0, 0])  # the third arrived after all had left
    assert homogeneity(boxes, people=people, truth=truth, arrived=late, within=8).claims == 2
    assert homogeneity(boxes, people=people, truth=truth, arrived=late, within=7).claims == 0
    starred = observation([[0.0], [-np.inf]], [[5.0], [np.inf]], [1, 2], [False, True])
    # 8 and 99 lie in no other box, so they can only be the star.
    assert homogeneity(starred, people=people, truth=truth).claims == 2


def test_what_an_attacker_observes():
    rows = stream(30)
    star, drop = policy("castle", k=20, delay_rows=20), policy("castle", k=20, delay_rows=20, on_suppress="drop")
    assert len(observed(star, rows)) == 30
    assert observed(star, rows).star.sum() == 30 - len(observed(drop, rows))
    sampled = policy("castleguard", on_suppress="star")
    assert len(observed(sampled, rows)) < 30
    assert "0." not in repr(observed(star, rows))


@pytest.mark.parametrize("method", METHODS)
def test_outcomes_have_a_text(method: str):
    assert "claims on" in str(found_out(method))
    assert Outcome(attack="a", targets=0, claims=0, right=0).success == 0.0
    assert Outcome(attack="a", targets=1, claims=0, right=0).precision is None
