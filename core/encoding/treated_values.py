"""Applies the treatments of a policy (`treat`) to columns of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crenel.encoding.encoder import Rejection
from crenel.errors import Rejected
from crenel.policy import Policy, columns
from crenel.policy.treatments.treatment import Pseudonymize, Treatment

__all__ = ["Treated", "TreatedValues"]


class Treated(NamedTuple):
    """A treated column."""

    #: For each row, the place of its value in `values`.
    codes: NDArray[np.int64]
    #: The different values that are published; None for a missing one, and where there is a reason.
    values: list[Any]
    #: For each of these, why a row with it is rejected; None if it is not.
    reasons: list[str | None]

    def refused(self, name: str) -> list[Rejection]:
        """List the rows that are rejected."""
        if not any(self.reasons):
            return []
        found = ((row, self.reasons[code]) for row, code in enumerate(self.codes.tolist()))
        return [Rejection(row, name, reason) for row, reason in found if reason is not None]


class TreatedValues:
    """Treats the columns that a policy says are to be treated.

    Args:
        policy: The columns, and what is done to each.
        keys: The keys of all pseudonyms, by column. None for a judge, who has none and leaves pseudonyms out.
    """

    def __init__(self, policy: Policy, keys: Mapping[str, bytes] | None) -> None:
        self._keys = keys or {}
        self.columns: dict[str, Treatment] = {
            name: treatment
            for name, treatment in policy.treat.items()
            if keys is not None or not isinstance(treatment, Pseudonymize)
        }

    def of(self, name: str, values: Any, time: NDArray[np.int64]) -> Treated:
        """Treat a column.

        Args:
            name: The column.
            values: Its values.
            time: The event times of the rows, for pseudonyms that change.
        """
        treatment = self.columns[name]
        # A key that is missing must fail here: without one, everybody could compute the pseudonyms.
        key = self._keys[name] if isinstance(treatment, Pseudonymize) else b""
        codes, distinct = columns.factorize(values)
        rotate = treatment.rotate if isinstance(treatment, Pseudonymize) else None
        if rotate is None:
            return Treated(codes, *_treated(treatment, [(value, 0) for value in distinct], key))
        pairs, codes = np.unique(np.stack([codes, time // rotate], axis=1), axis=0, return_inverse=True)
        each = [(distinct[place], period) for place, period in pairs.tolist()]
        return Treated(codes.reshape(-1), *_treated(treatment, each, key))


def _treated(treatment: Treatment, pairs: list[tuple[Any, int]], key: bytes) -> tuple[list[Any], list[str | None]]:
    values: list[Any] = []
    reasons: list[str | None] = []
    for value, period in pairs:
        found, reason = treatment.of_missing, None
        if not columns.is_missing(value):
            try:
                found = treatment.treat(value, key, period)
            except Rejected as error:
                found, reason = None, error.reason
        values.append(found)
        reasons.append(reason)
    return values, reasons
