"""Treated columns: a pseudonym without its key is never made."""

from __future__ import annotations

import numpy as np
import pytest

from crenel.encoding.treated_values import TreatedValues
from crenel.policy import Policy

POLICY = Policy.from_dict(
    {
        "version": 1,
        "person": "who",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}},
        "treat": {"card": {"pseudonymize": "env:KEY"}, "price": {"round": 10}},
        "k": 2,
        "delay_rows": 10,
    }
)
TIME = np.zeros(2, dtype=np.int64)


def test_a_key_that_is_missing_fails() -> None:
    with pytest.raises(KeyError):
        TreatedValues(POLICY, {}).of("card", ["a", "b"], TIME)


def test_without_keys_pseudonyms_are_left_out() -> None:
    assert list(TreatedValues(POLICY, None).columns) == ["price"]


def test_pseudonyms_depend_on_the_key_and_the_value() -> None:
    one, other = (TreatedValues(POLICY, {"card": key * 32}).of("card", ["a", "b"], TIME).values for key in (b"1", b"2"))
    assert len({*one, *other}) == 4
    assert "a" not in one
