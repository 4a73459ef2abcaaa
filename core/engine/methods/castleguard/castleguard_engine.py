"""CASTLEGUARD: CASTLE on rows that are sampled, and whose quasi-identifiers are perturbed.

Robinson, Brown, Hall, Jackson, Kemp, Leeke: *CASTLEGUARD: Anonymised Data Streams with Guaranteed Differential
Privacy*, DASC 2020. How each step is done, what of the title is proven and what is not: `docs/castleguard.md`.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, packed, unpacked
from crenel.encoding import noise
from crenel.encoding.rows import Rows
from crenel.engine.contract import Releases, SnapshotError
from crenel.engine.draws import Draws
from crenel.engine.kernels import common
from crenel.engine.methods.castle.castle_engine import Castle
from crenel.engine.methods.castleguard import CastleGuardParameters
from crenel.policy import Policy
from crenel.policy.cells import Cells
from crenel.policy.geometry import EXACT
from crenel.policy.quasi_identifiers import Datetime

_SCHEMAS = Schemas("crenel.engine.methods.castleguard", ("castleguard.1.avsc",))
#: Where a perturbed value of a learned domain ends: what is twice as much is still a number.
_MOST = 1e300


class CastleGuard(Castle):
    """CASTLEGUARD with l-diversity, on one shard's rows.

    Parameters
    ----------
    policy
        What is to be guaranteed; its `parameters` are `CastleGuardParameters`.
    key
        32 bytes for the generators. Whoever knows them can take the noise off again.
    """

    def __init__(self, policy: Policy, key: bytes) -> None:
        super().__init__(policy, key)
        if not isinstance(policy.parameters, CastleGuardParameters):
            message = f"CastleGuard: policy.parameters must be CastleGuardParameters, not those of {policy.method!r}."
            raise TypeError(message)
        self._guard = policy.parameters
        dimensions = self._space.dimensions
        #: The quasi-identifiers whose coordinates are whole numbers: leaves, codes, cells.
        self._whole = (dimensions["kind"] != common.INTERVAL) | (dimensions["cell"] > 0.0)
        #: Per quasi-identifier the range that noise is scaled to: the domain, or what was seen of it.
        self._seen_lo, self._seen_hi = dimensions["domain_lo"].copy(), dimensions["domain_hi"].copy()
        self._clamp_lo, self._clamp_hi = _limits(policy, dimensions["widest_lo"], dimensions["widest_hi"])
        self._draws = Draws(key, 1 + self._dimensions)
        #: What rows of this engine have in their sensitive columns; they are perturbed before they come here.
        self._noise_mark = json.dumps(dict(self._guard.perturb_sensitive), sort_keys=True)

    def _take(self, rows: Rows) -> Releases:
        """Algorithm 1, lines 3 to 6; `best_selection` and what follows are CASTLE's."""
        bits = self._draws.of(int(self._state.numbers["arrivals"][0]), len(rows))
        kept = noise.sampled(bits[:, 0], self._guard.beta_sample)
        qi = rows.qi.copy()
        qi[kept] = self._perturbed(rows.qi[kept], bits[kept, 1:])
        return self._run(replace(rows, qi=qi), left_out=~kept)

    def _perturbed(self, qi: NDArray[np.float64], bits: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Algorithm 2: noise by the range as it is when a row arrives, the row included."""
        lo = np.minimum.accumulate(np.vstack([self._seen_lo, qi]))
        hi = np.maximum.accumulate(np.vstack([self._seen_hi, qi]))
        self._seen_lo, self._seen_hi = lo[-1], hi[-1]
        scale = (hi[1:] - lo[1:]) / self._guard.phi
        moved = noise.on_grid(qi + noise.laplace(bits, scale), scale)
        moved[:, self._whole] = np.rint(moved[:, self._whole])
        return np.clip(moved, self._clamp_lo, self._clamp_hi)

    def snapshot(self) -> bytes:
        """Return all of the engine, its random generators included."""
        record = {
            "castle": super().snapshot(),
            "noise": self._noise_mark,
            "seen_lo": packed(self._seen_lo),
            "seen_hi": packed(self._seen_hi),
        }
        return _SCHEMAS.encode(record)

    def restore(self, data: bytes) -> None:
        """Become the engine that `snapshot` was called on."""
        record = _SCHEMAS.decode(data)
        if record["noise"] != self._noise_mark:
            message = (
                "CastleGuard: a snapshot can be restored only under the noise its rows came with: "
                "policy.parameters.perturb_sensitive has changed."
            )
            raise SnapshotError(message)
        super().restore(record["castle"])
        self._seen_lo, self._seen_hi = unpacked(record["seen_lo"]), unpacked(record["seen_hi"])
        self._draws = Draws(self.key, 1 + self._dimensions)


def _limits(
    policy: Policy, lo: NDArray[np.float64], hi: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What perturbed values stay inside of.

    Of a learned domain that is not the range seen: its ends are two persons' values, and would be published.
    """
    least, most = np.full(len(lo), -_MOST), np.full(len(hi), _MOST)
    for d, qi in enumerate(policy.quasi_identifiers.values()):
        cells = getattr(qi, "cells", None)
        if isinstance(cells, Cells):
            least[d], most[d] = cells.first, cells.last
        elif isinstance(qi, Datetime):
            least[d], most[d] = -EXACT, EXACT
    return np.maximum(lo, least), np.minimum(hi, most)
