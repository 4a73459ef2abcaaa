"""CASTLEGUARD: CASTLE on a sample of the rows, with perturbed quasi-identifiers.

Robinson, Brown, Hall, Jackson, Kemp, Leeke: *CASTLEGUARD: Anonymised Data Streams with Guaranteed Differential
Privacy*, DASC 2020. How each step is done, and how much of the title is proven, is in `docs/castleguard.md`.
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
from crenel.engine.kernels.box_geometry import INTERVAL
from crenel.engine.methods.castle.castle_engine import Castle
from crenel.engine.methods.castleguard import CastleGuardParameters
from crenel.policy import Policy
from crenel.policy.cells import Cells
from crenel.policy.geometry import EXACT
from crenel.policy.quasi_identifiers import Datetime

_SCHEMAS = Schemas("crenel.engine.methods.castleguard", ("castleguard.1.avsc",))
#: Perturbed values of a learned domain are clamped here: twice as much is still a finite number.
_MOST = 1e300


class CastleGuard(Castle):
    """CASTLEGUARD with l-diversity, on one shard's rows.

    Args:
        policy: What is to be guaranteed. Its `parameters` are `CastleGuardParameters`.
        key: 32 bytes for the generators. An attacker who knows them can remove the noise.
    """

    def __init__(self, policy: Policy, key: bytes) -> None:
        super().__init__(policy, key)
        if not isinstance(policy.parameters, CastleGuardParameters):
            message = f"CastleGuard: policy.parameters must be CastleGuardParameters, not those of {policy.method!r}."
            raise TypeError(message)
        self._guard = policy.parameters
        dimensions = self._space.dimensions
        #: Quasi-identifiers whose coordinates are whole numbers: leaves, codes, cells.
        self._whole = (dimensions["kind"] != INTERVAL) | (dimensions["cell"] > 0.0)
        #: The range of each quasi-identifier that noise is scaled to: the domain, or what was seen of it.
        self._seen_lo, self._seen_hi = dimensions["domain_lo"].copy(), dimensions["domain_hi"].copy()
        self._clamp_lo, self._clamp_hi = _limits(policy, dimensions["widest_lo"], dimensions["widest_hi"])
        self._draws = Draws(key, 1 + self._dimensions)
        #: The noise in the sensitive columns: rows are perturbed there before they reach the engine.
        self._sensitive_noise = json.dumps(dict(self._guard.perturb_sensitive), sort_keys=True)

    def _take(self, rows: Rows) -> Releases:
        """Sample and perturb the rows: algorithm 1, lines 3 to 6. `best_selection` and what follows are CASTLE's."""
        bits = self._draws.of(int(self._state.numbers["arrivals"][0]), len(rows))
        kept = noise.sampled(bits[:, 0], self._guard.beta_sample)
        qi = rows.qi.copy()
        qi[kept] = self._perturbed(rows.qi[kept], bits[kept, 1:])
        return self._run(replace(rows, qi=qi), left_out=~kept)

    def _perturbed(self, qi: NDArray[np.float64], bits: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Add noise that is scaled to the range when a row arrives, including the row: algorithm 2."""
        lo = np.minimum.accumulate(np.vstack([self._seen_lo, qi]))
        hi = np.maximum.accumulate(np.vstack([self._seen_hi, qi]))
        self._seen_lo, self._seen_hi = lo[-1], hi[-1]
        scale = (hi[1:] - lo[1:]) / self._guard.phi
        moved = noise.on_grid(qi + noise.laplace(bits, scale), scale)
        moved[:, self._whole] = np.rint(moved[:, self._whole])
        return np.clip(moved, self._clamp_lo, self._clamp_hi)

    def dump(self) -> bytes:
        """Return the complete state of the engine, including its random generators."""
        record = {
            "castle": super().dump(),
            "noise": self._sensitive_noise,
            "seen_lo": packed(self._seen_lo),
            "seen_hi": packed(self._seen_hi),
        }
        return _SCHEMAS.encode(record)

    def load(self, data: bytes) -> None:
        """Take over the state of the engine that `dump` was called on."""
        record = _SCHEMAS.decode(data)
        if record["noise"] != self._sensitive_noise:
            message = (
                "CastleGuard: a snapshot can be restored only under the noise that its rows have: "
                "policy.parameters.perturb_sensitive has changed."
            )
            raise SnapshotError(message)
        super().load(record["castle"])
        seen = (unpacked(record[end], shape=(self._dimensions,)) for end in ("seen_lo", "seen_hi"))
        self._seen_lo, self._seen_hi = seen
        self._draws = Draws(self.key, 1 + self._dimensions)


def _limits(
    policy: Policy, lo: NDArray[np.float64], hi: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the limits that perturbed values are clamped to.

    For a learned domain these are not the ends of what was seen: those are two persons' values, and clamping would
    publish them.
    """
    least, most = np.full(len(lo), -_MOST), np.full(len(hi), _MOST)
    for d, qi in enumerate(policy.quasi_identifiers.values()):
        cells = getattr(qi, "cells", None)
        if isinstance(cells, Cells):
            least[d], most[d] = cells.first, cells.last
        elif isinstance(qi, Datetime):
            least[d], most[d] = -EXACT, EXACT
    return np.maximum(lo, least), np.minimum(hi, most)
