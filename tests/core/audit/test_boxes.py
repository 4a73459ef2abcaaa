"""The audit decides by itself which boxes a policy can publish."""

from __future__ import annotations

import numpy as np
import pytest

from crenel.audit.boxes import legal
from crenel.policy import Policy
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Numeric, Prefix, QuasiIdentifier

FOOD = {"fruit": ["apple", "pear"], "plant": {"kale": None, "root": ["beet", "leek"]}}
TYPES: dict[str, QuasiIdentifier] = {
    "tree": Categorical(hierarchy=Hierarchy.from_mapping(FOOD)),
    "radix": Prefix(length=2, alphabet="012"),
    "interval": Numeric(domain=(0, 8)),
    "cells": Numeric(domain=(0, 8), step=2),
}


@pytest.mark.parametrize("qi", TYPES.values(), ids=TYPES)
def test_a_box_is_legal_if_it_is_its_own_span(qi: QuasiIdentifier):
    """The audit does not call `span`, but must agree with it."""
    policy = Policy(person="person", quasi_identifiers={"x": qi}, k=2, delay_rows=5)
    least, most = (int(end) for end in qi.geometry.widest())
    ranges = [(lo, hi) for lo in range(least, most + 1) for hi in range(lo, most + 1)]
    lo, hi = (np.array(ends, np.float64)[:, None] for ends in zip(*ranges, strict=True))
    assert legal(policy, lo, hi).tolist() == [qi.geometry.span(*ends) == ends for ends in ranges]
