"""A policy as the kernels see it: its quasi-identifiers as arrays, and the check of rows against them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.avro import packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.kernels.box_geometry import DIMENSION, INTERVAL, NODE, RADIX, TREE, Space
from crenel.policy import Policy
from crenel.policy.geometry import Interval, Radix, Tree

_KINDS = {Interval: INTERVAL, Tree: TREE, Radix: RADIX}


def space_of(policy: Policy) -> Space:
    """Return the quasi-identifiers of a policy. A domain that is not declared is empty until rows arrive."""
    geometries = [qi.geometry for qi in policy.quasi_identifiers.values()]
    dimensions = np.zeros(len(geometries), dtype=DIMENSION)
    nodes, leaves = [np.zeros(0, dtype=NODE)], [np.zeros(0, dtype=np.int64)]
    for dimension, geometry, share in zip(dimensions, geometries, _shares(policy), strict=True):
        dimension["kind"] = _KINDS[type(geometry)]
        dimension["share"] = share
        dimension["widest_lo"], dimension["widest_hi"] = geometry.widest()
        if isinstance(geometry, Radix):
            dimension["digits"] = geometry.base
        if isinstance(geometry, Interval):
            dimension["learned"] = geometry.learned
            dimension["cell"] = geometry.cell
        if isinstance(geometry, Tree):
            dimension["leaf_offset"] = sum(map(len, leaves))
            leaves.append(geometry.leaf.astype(np.int64) + sum(map(len, nodes)))
            nodes.append(_nodes(geometry, sum(map(len, nodes))))
    learned = dimensions["learned"] != 0
    space = Space(dimensions=dimensions, nodes=np.concatenate(nodes), leaf=np.concatenate(leaves))
    set_domains(
        space,
        np.where(learned, np.inf, dimensions["widest_lo"]),
        np.where(learned, -np.inf, dimensions["widest_hi"]),
    )
    return space


def _shares(policy: Policy) -> list[float]:
    """Return each quasi-identifier's share of the loss."""
    weights = [qi.weight for qi in policy.quasi_identifiers.values()]
    total = 0.0
    for weight in weights:
        total += weight
    return [weight / total for weight in weights]


def _nodes(tree: Tree, offset: int) -> NDArray[Any]:
    nodes = np.zeros(len(tree.parent), dtype=NODE)
    nodes["parent"] = tree.parent
    nodes["parent"] += offset
    nodes["first"] = tree.first
    nodes["last"] = tree.last
    return nodes


def set_domains(space: Space, lo: NDArray[np.float64], hi: NDArray[np.float64]) -> None:
    """Set the domains that widths are compared with."""
    dimensions = space.dimensions
    dimensions["domain_lo"] = lo
    dimensions["domain_hi"] = hi
    width = hi - lo + dimensions["cell"]
    dimensions["scale"] = 0.0
    np.divide(dimensions["share"], width, out=dimensions["scale"], where=width > 0.0)


def restore_domains(space: Space, record: Mapping[str, Any]) -> None:
    """Set the domains that a record has stored."""
    count = (len(space.dimensions),)
    set_domains(space, unpacked(record["domain_lo"], shape=count), unpacked(record["domain_hi"], shape=count))


def fingerprint(policy: Policy, space: Space) -> bytes:
    """Return a digest of everything that gives the numbers in a snapshot their meaning."""
    digest = hashlib.blake2b(digest_size=16)
    for name in policy.quasi_identifiers:
        digest.update(f"{name}\0".encode())
    digest.update(packed(space.dimensions) + packed(space.nodes) + packed(space.leaf))
    for name, qi in policy.quasi_identifiers.items():
        if isinstance(qi.geometry, Interval) and qi.geometry.cells:  # the step gives the numbers their meaning
            digest.update(f"{name}\0{json.dumps(qi.to_spec(), sort_keys=True, default=str)}\0".encode())
    for name, column in policy.sensitive.items():
        digest.update(f"{name}\0{column.size}\0{column.ordered}\0".encode())
    digest.update(b"t" if policy.t is not None else b"")
    return digest.digest()


def check_rows(policy: Policy, space: Space, rows: Rows, *, holes: bool = False) -> None:
    """Refuse rows that are outside the space: the kernels look up leaves and values without checking them.

    Args:
        policy: Whose columns the rows have.
        space: Its quasi-identifiers.
        rows: The rows.
        holes: Whether a coordinate may be missing (NaN).

    Raises:
        ValueError: A row is outside the space. The message names the columns.
    """
    expected = (len(policy.quasi_identifiers), len(policy.sensitive))
    got = (rows.qi.shape[1], rows.sensitive.shape[1])
    if got != expected:
        message = (
            f"{policy.method}: rows must have {expected[0]} quasi-identifiers and {expected[1]} sensitive columns, "
            f"not {got[0]} and {got[1]}."
        )
        raise ValueError(message)
    if len(rows) == 0:
        return
    dimensions, qi = space.dimensions, rows.qi
    if holes:  # a missing coordinate passes, as one that is inside
        qi = np.where(np.isnan(qi), np.where(dimensions["learned"], 0.0, dimensions["widest_lo"]), qi)
    lo, hi = qi.min(axis=0), qi.max(axis=0)
    # A comparison with NaN is false, and so NaN is outside.
    inside = (lo >= dimensions["widest_lo"]) & (hi <= dimensions["widest_hi"]) & np.isfinite(lo) & np.isfinite(hi)
    for d in np.flatnonzero(inside & ((dimensions["kind"] != INTERVAL) | (dimensions["cell"] > 0.0))):
        inside[d] = np.array_equal(qi[:, d], np.floor(qi[:, d]))
    names = [*policy.quasi_identifiers]
    wrong = [names[d] for d in np.flatnonzero(~inside)]
    wrong += [
        name
        for j, (name, column) in enumerate(policy.sensitive.items())
        if column.size is not None and not 0 <= rows.sensitive[:, j].min() <= rows.sensitive[:, j].max() < column.size
    ]
    if wrong:
        message = f"{policy.method}: rows must be inside the declared domains; those of {', '.join(wrong)} are not."
        raise ValueError(message)


def own(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that can be written to. numba would compile the kernels again for one that cannot."""
    return np.require(array, requirements=["C", "W"])
