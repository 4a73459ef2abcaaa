"""The attacks that an audit tries by itself: at a cost that does not grow without bound, on persons drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit import attacks
from crenel.audit.attacks import Outcome, Seen
from crenel.audit.evidence import Input
from crenel.audit.measures import rounded, widest
from crenel.audit.view import View

__all__ = ["tried"]

Ints = npt.NDArray[np.int64]

#: Persons that are asked about.
_TARGETS = 200
#: Published rows beyond which an attack that looks at each of them is left out.
_MOST_ROWS = 200_000


def tried(view: View, seed: int) -> list[dict[str, Any]]:
    """What came of the attacks that can be tried with what is given."""
    given = view.given.input
    if given is None or not len(given) or not len(view.out):
        return []
    found = [_homogeneity(view, given, seed), _boundary(view, given)]
    return [_entry(*attack) for attack in found if attack is not None]


def _homogeneity(view: View, given: Input, seed: int) -> tuple[Outcome, str] | None:
    if not view.policy.sensitive:
        return None
    _, first = np.unique(given.rows.person, return_index=True)
    rows = np.random.default_rng(seed).choice(first, min(_TARGETS, len(first)), replace=False)
    truth = given.rows.sensitive[rows, 0]
    outcome = attacks.homogeneity(_seen(view, _distinct(view)), people=given.rows.qi[rows], truth=truth)
    return outcome, "Who knows somebody's quasi-identifiers looks whether all who may be them share a sensitive value."


def _boundary(view: View, given: Input) -> tuple[Outcome, str] | None:
    if view.exact is None or len(view.out) > _MOST_ROWS:
        return None
    there = view.exact.times() > 0
    seen = _seen(view, np.arange(len(view.out)))
    outcome = attacks.boundary(seen, people=given.rows.qi, published=there, widest=widest(view.policy))
    return (
        outcome,
        "Who knows everybody's quasi-identifiers looks for values of one person alone at the ends of ranges.",
    )


def _distinct(view: View) -> Ints:
    """Of rows with the same box and sensitive values one: another tells nothing more of these."""
    kinds = np.column_stack([view.out.box, view.out.sensitive])
    mark = np.zeros(len(kinds), np.int64)
    for column in kinds.T:
        _, code = np.unique(column, return_inverse=True)
        _, mark = np.unique(mark * (int(code.max(initial=0)) + 1) + code, return_inverse=True)
    return np.unique(mark, return_index=True)[1]


def _seen(view: View, chosen: Ints) -> Seen:
    """What everybody sees of these published rows."""
    out, box = view.out, view.out.box[chosen]
    return Seen(
        lo=out.lo[box],
        hi=out.hi[box],
        sensitive=out.sensitive[chosen],
        star=~view.grouped[chosen],
        left=np.zeros(len(chosen), np.int64),
        rows=np.full(len(chosen), -1) if view.exact is None else view.exact.rows[chosen],
    )


def _entry(outcome: Outcome, text: str) -> dict[str, Any]:
    return {
        "name": outcome.attack,
        "text": text,
        "targets": outcome.targets,
        "claims": outcome.claims,
        "right": outcome.right,
        "bound": None,
        "success": rounded(outcome.success),
        "state": "information",
    }
