"""The attacks that an audit tries by itself: at a cost that does not grow without bound, on persons drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit import attacks
from crenel.audit.attacks import Outcome, Seen
from crenel.audit.evidence import Evidence, Input, Output
from crenel.audit.exact import Exact
from crenel.audit.measures import rounded, widest
from crenel.policy import Policy

__all__ = ["tried"]

#: Persons that are asked about.
_TARGETS = 200
#: Published rows beyond which an attack that looks at each of them is left out.
_MOST_ROWS = 200_000


@dataclass(frozen=True, eq=False)
class _Scene:
    """What is attacked, and what an attack is judged by."""

    policy: Policy
    published: Output
    input: Input
    exact: Exact | None
    seed: int

    def targets(self) -> npt.NDArray[np.int64]:
        """Rows of persons who are asked about."""
        _, first = np.unique(self.input.rows.person, return_index=True)
        chosen = np.random.default_rng(self.seed).choice(first, min(_TARGETS, len(first)), replace=False)
        return np.asarray(chosen, dtype=np.int64)

    def seen(self, chosen: Any) -> Seen:
        """What everybody sees of these published rows."""
        out, exact = self.published, self.exact
        box, count = out.box[chosen], len(out.box[chosen])
        return Seen(
            lo=out.lo[box],
            hi=out.hi[box],
            sensitive=out.sensitive[chosen].astype(np.int64),
            star=np.zeros(count, np.bool_) if exact is None else exact.suppressed()[chosen],
            left=np.zeros(count, np.int64),
            rows=np.full(count, -1) if exact is None else exact.rows[chosen],
        )


def _homogeneity(scene: _Scene) -> Outcome | None:
    if not scene.policy.sensitive:
        return None
    # A row more of the same value under the same box tells nothing more.
    codes = np.unique(scene.published.sensitive[:, 0], return_inverse=True)[1]
    pairs = scene.published.box.astype(np.int64) * (int(codes.max(initial=0)) + 1) + codes
    seen, rows = scene.seen(np.unique(pairs, return_index=True)[1]), scene.targets()
    return attacks.homogeneity(seen, people=scene.input.rows.qi[rows], truth=scene.input.rows.sensitive[rows, 0])


def _boundary(scene: _Scene) -> Outcome | None:
    if scene.exact is None or len(scene.published) > _MOST_ROWS:
        return None
    there = np.zeros(len(scene.input), np.bool_)
    there[scene.exact.rows[scene.exact.rows >= 0]] = True
    return attacks.boundary(
        scene.seen(slice(None)), people=scene.input.rows.qi, published=there, widest=widest(scene.policy)
    )


#: Each attack, and what it is in a sentence.
_ATTACKS: tuple[tuple[Callable[[_Scene], Outcome | None], str], ...] = (
    (_homogeneity, "Who knows somebody's quasi-identifiers looks whether all who may be them share a sensitive value."),
    (_boundary, "Who knows everybody's quasi-identifiers looks for values of one person alone at the ends of ranges."),
)


def tried(policy: Policy, evidence: Evidence, exact: Exact | None, seed: int) -> list[dict[str, Any]]:
    """What came of the attacks that can be tried with what is given."""
    if evidence.input is None or not len(evidence.input) or not len(evidence.published):
        return []
    scene = _Scene(policy, evidence.published, evidence.input, exact, seed)
    done = [(attack(scene), text) for attack, text in _ATTACKS]
    return [_entry(outcome, text) for outcome, text in done if outcome is not None]


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
