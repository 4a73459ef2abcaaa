"""What was published, read back into boxes: for an audit by an owner who kept a number with each row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel import columns
from crenel.audit.guarantees import Published
from crenel.policy import Policy
from crenel.quasi_identifiers import Categorical, Datetime, Numeric, Prefix, QuasiIdentifier

__all__ = ["box", "published"]

_KINDS = {"cluster": 0, "reuse": 1, "suppressed": 2, "sampled_out": 3}


def published(policy: Policy, rows: pa.Table, releases: pa.Table, number: NDArray[np.int64]) -> Published:
    """The published rows of one shard for `crenel.audit.guarantees.audit`.

    Args:
        policy: With `on_suppress: star`: a row that was dropped cannot be read back.
        rows: The published rows, in their order.
        releases: The records of the same releases, in their order.
        number: Which arrival each published row is.
    """
    sizes = releases["rows"].to_numpy()
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    first = rows.take(pa.array(offsets[:-1]))
    lo, hi = np.empty((2, len(sizes), len(policy.quasi_identifiers)))
    for place, (name, qi) in enumerate(policy.quasi_identifiers.items()):
        known: dict[Any, tuple[float, float]] = {}
        for release, value in enumerate(first[name].to_pylist()):
            key = tuple(value.values()) if isinstance(value, dict) else value
            if key not in known:
                known[key] = box(qi, value)
            lo[release, place], hi[release, place] = known[key]
    moment = releases["moment"].cast(pa.int64())
    return Published(
        rows=number,
        lo=lo,
        hi=hi,
        offsets=offsets,
        kind=np.array([_KINDS[kind] for kind in releases["kind"].to_pylist()], dtype=np.int64),
        loss=releases["loss"].to_numpy(),
        persons=releases["persons"].to_numpy(),
        moment=None if moment.null_count else moment.to_numpy(),
        arrivals=releases["arrivals"].to_numpy(),
        group=releases["group"].to_numpy(),
    )


def box(qi: QuasiIdentifier, value: Any) -> tuple[float, float]:
    """The span that a published value stands for; NaN if there is none.

    Raises:
        TypeError: the quasi-identifier is not of a type that is built in.
        KeyError: no such value is published.
    """
    if value is None:
        return math.nan, math.nan
    if isinstance(qi, Numeric):
        return _end(value["lo"], -math.inf), _end(value["hi"], math.inf)
    if isinstance(qi, Datetime):
        ends = (value["lo"], -math.inf), (value["hi"], math.inf)
        lo, hi = (nowhere if end is None else columns.moment(end) for end, nowhere in ends)
        return lo, hi
    if isinstance(qi, Prefix):
        first, last = qi.characters[0], qi.characters[-1]
        return qi.coordinate(value.replace("*", first)), qi.coordinate(value.replace("*", last))
    if isinstance(qi, Categorical):
        tree = qi.hierarchy.tree
        for node in range(len(tree.parent)):
            if qi.hierarchy.label(node) == value:
                return float(tree.first[node]), float(tree.last[node])
        raise KeyError(value)
    message = f"trace: {type(qi).__name__} must be built in to be read back."
    raise TypeError(message)


def _end(value: float | None, nowhere: float) -> float:
    return nowhere if value is None else float(value)
