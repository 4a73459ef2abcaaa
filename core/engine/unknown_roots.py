"""Unknown categories (`unknown: root`) are only ever published as the root of their hierarchy.

An engine knows them as one more leaf, so it may form a group of them alone. What is published then is the root, and the
release says so: its box is the root's, and its loss.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from crenel.engine.contract import Kind, Releases
from crenel.policy import Policy

__all__ = ["as_roots"]


def as_roots(policy: Policy, releases: Releases) -> Releases:
    """Widen boxes of nothing but unknown categories to the root of the hierarchy."""
    kinds = list(policy.quasi_identifiers.values())
    places = [getattr(qi, "unknown_at", None) for qi in kinds]
    if all(place is None for place in places):
        return releases
    lo, hi, loss = releases.lo.copy(), releases.hi.copy(), releases.loss.copy()
    weights = sum(qi.weight for qi in kinds)
    boxed = (releases.kind != Kind.SAMPLED_OUT) & (releases.kind != Kind.LEFT_OUT)
    for d, place in enumerate(places):
        if place is not None:
            alone = np.flatnonzero(boxed & (lo[:, d] == place) & (hi[:, d] == place))
            lo[alone, d], hi[alone, d] = kinds[d].geometry.widest()
            loss[alone] += kinds[d].weight / weights
    return replace(releases, lo=lo, hi=hi, loss=loss)
