"""Sensitive values as t-closeness counts them: codes for values that were not declared, and histograms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crenel.avro import packed, unpacked
from crenel.engine.kernels.closeness import Closeness
from crenel.engine.kernels.reusable_boxes import ReusableBoxes
from crenel.policy import Policy


class Codes:
    """Codes of sensitive values, from 0: values of columns that do not declare them get codes in order of appearance.

    Without t nothing is counted, and values stay as they are.
    """

    def __init__(self, policy: Policy) -> None:
        columns = list(policy.sensitive.values())
        #: Whether anything is counted: whether the policy has t.
        self.counted = policy.t is not None
        self._declared = [column.size for column in columns]
        self._known: list[dict[int, int]] = [{} for _ in columns]
        self._ordered = np.array([column.ordered for column in columns] if self.counted else [], dtype=np.bool_)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many values each counted column has so far."""
        if not self.counted:
            return np.zeros(0, dtype=np.int64)
        return np.array([size or len(known) for size, known in zip(self._declared, self._known, strict=True)], np.int64)

    def dense(self, sensitive: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the codes of the values, and learn those that are new."""
        if not self.counted or len(sensitive) == 0 or all(size is not None for size in self._declared):
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

    def closeness(self, stream: bytes = b"") -> Closeness:
        """Return the histograms of the stream so far, which were stored like this."""
        counts = unpacked(stream, "<i8").reshape(len(self.sizes), -1) if stream else np.zeros((len(self.sizes), 0))
        width = int(self.sizes.max(initial=counts.shape[1]))
        histogram = np.zeros((len(self.sizes), width), dtype=np.int64)
        histogram[:, : counts.shape[1]] = counts
        return Closeness(values=self.sizes, ordered=self._ordered, stream=histogram, scratch=np.zeros_like(histogram))

    def widened(self, closeness: Closeness, boxes: ReusableBoxes) -> tuple[Closeness, ReusableBoxes]:
        """Return histograms with space for all values so far. They at least double, so that this is rare."""
        closeness.values[:] = self.sizes
        needed, width = int(self.sizes.max(initial=0)), closeness.stream.shape[1]
        if needed <= width:
            return closeness, boxes
        more = (0, max(needed, 2 * width) - width)
        stream = np.pad(closeness.stream, ((0, 0), more))
        return (
            closeness._replace(stream=stream, scratch=np.zeros_like(stream)),
            boxes._replace(histogram=np.pad(boxes.histogram, ((0, 0), (0, 0), more))),
        )

    def packed(self) -> list[bytes]:
        """Return the learned values of each column, to be stored."""
        return [packed(np.array(list(known), dtype=np.int64)) for known in self._known]

    def restore(self, values: list[bytes]) -> None:
        """Take over what `packed` returned."""
        self._known = [{v: code for code, v in enumerate(unpacked(known, "<i8").tolist())} for known in values]
