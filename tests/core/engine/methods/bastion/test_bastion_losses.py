"""How much spans grow by many values at once, compared with the geometry's own spans, value by value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crenel.engine.kernels.interpreter import interpret
from crenel.engine.methods.bastion import bastion_losses
from crenel.engine.methods.bastion.bastion_box import leaf_of
from crenel.engine.methods.bastion.bastion_engine import _most_leaves, _most_spans
from crenel.engine.methods.bastion.bastion_state import PART, Terrain
from crenel.engine.space import space_of
from crenel.policy import Policy

FEW = {"any": {"ab": ["a", "b"], "cc": ["c"], "def": ["d", "e", "f"]}}
MANY = {"any": {f"{i}": {f"{i}-{j}": [f"{i}-{j}-{m}" for m in range(9)] for j in range(30)} for i in range(20)}}
COLUMNS = {
    "zip": {"type": "prefix", "length": 5},
    "address": {"type": "ip"},
    "few": {"type": "categorical", "hierarchy": FEW},
    "many": {"type": "categorical", "hierarchy": MANY},
}


@pytest.mark.parametrize("name", COLUMNS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([1, 3, 40, PART, PART + 1, 3 * PART - 7]))
def test_growth_by_values(name: str, seed: int, size: int) -> None:
    policy = Policy.from_dict({"person": "id", "quasi_identifiers": {name: COLUMNS[name]}, "k": 2, "delay_rows": 9})
    (geometry,) = (qi.geometry for qi in policy.quasi_identifiers.values())
    draw, space = np.random.default_rng(seed), space_of(policy)
    terrain = Terrain(
        space, np.empty((2, _most_leaves(policy))), np.empty((2, 3, _most_spans(policy))), np.empty((2, PART))
    )
    near, far = sorted(draw.integers(0, int(geometry.widest()[1]) + 1, 2).tolist())
    column = draw.integers(near, far + 1, size).astype(np.float64)
    first, second = (float(x) for x in draw.integers(near, far + 1, 2))
    leaf = interpret(leaf_of.py_func, space, 0, first)  # type: ignore[attr-defined]
    total = np.zeros(size)
    interpret(bastion_losses.add_growth.py_func, terrain, 0, first, first, leaf, 2.0, column, total)  # type: ignore[attr-defined]
    expected = [2.0 * np.subtract(*geometry.span(*sorted((first, x)))[::-1]) for x in column]
    assert total.tolist() == expected

    lo, hi = geometry.span(*sorted((first, second)))
    node = geometry.ancestor(lo, hi) if hasattr(geometry, "ancestor") else 0
    scale = float(space.dimensions["scale"][0])
    before = [scale * np.subtract(*geometry.span(*sorted((first, x)))[::-1]) for x in column]
    after = [scale * (np.subtract(*geometry.span(min(lo, x), max(hi, x))[::-1]) - (hi - lo)) for x in column]
    total = np.zeros(size)
    box = np.array([[lo], [hi], [node]])
    interpret(bastion_losses.add_regrowth.py_func, terrain, 0, first, first, leaf, box, column, total)  # type: ignore[attr-defined]
    assert total.tolist() == [new - old for new, old in zip(after, before, strict=True)]
