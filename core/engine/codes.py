"""Sensitive values as t-closeness counts them: the stream's histogram, and numbers for values nobody declared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crenel.avro import packed, unpacked
from crenel.policy import Policy


class Codes:
    """Numbers the values of the sensitive columns; those of columns that were not declared, in order of appearance.

    Without t nothing is counted, and values stay as they come.
    """

    def __init__(self, policy: Policy) -> None:
        columns = list(policy.sensitive.values())
        self._counted = policy.t is not None
        self._declared = [column.size for column in columns]
        self._known: list[dict[int, int]] = [{} for _ in columns]
        self.ordered = np.array([column.ordered for column in columns] if self._counted else [], dtype=np.bool_)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many values each counted column has, so far."""
        if not self._counted:
            return np.zeros(0, dtype=np.int64)
        return np.array([size or len(known) for size, known in zip(self._declared, self._known, strict=True)], np.int64)

    def dense(self, sensitive: NDArray[np.int64]) -> NDArray[np.int64]:
        """The values as the histograms count them."""
        if not self._counted or len(sensitive) == 0 or all(size is not None for size in self._declared):
            return sensitive
        numbered = sensitive.copy()
        for j, known in enumerate(self._known):
            if self._declared[j] is not None:
                continue
            values, first, inverse = np.unique(sensitive[:, j], return_index=True, return_inverse=True)
            codes = np.empty(len(values), dtype=np.int64)
            for i in np.argsort(first):
                codes[i] = known.setdefault(int(values[i]), len(known))
            numbered[:, j] = codes[inverse]
        return numbered

    def packed(self) -> list[bytes]:
        """What was learned, to be stored."""
        return [packed(np.array(list(known), dtype=np.int64)) for known in self._known]

    def restore(self, values: list[bytes]) -> None:
        """Become what was stored."""
        self._known = [{v: code for code, v in enumerate(unpacked(known, "<i8").tolist())} for known in values]
