"""Published rows, as a topic has them: what the policy cannot have published is found, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from crenel.pipelines.watching.published_rows import PublishedRows
from crenel.policy import Policy

POLICY = Policy.from_dict(
    {
        "person": "who",
        "quasi_identifiers": {
            "a.age": {"type": "numeric", "domain": [0, 100], "step": 5},
            "zip": {"type": "prefix", "length": 3},
        },
        "sensitive": ["ill"],
        "publish": ["tenant"],
        "within": ["tenant"],
        "k": 2,
        "delay_rows": 9,
    }
)
GOOD: dict[str, Any] = {"a.age": {"lo": 20, "hi": 40}, "zip": "48*", "ill": "flu", "tenant": "x"}


def read(*rows: dict[str, Any]) -> Any:
    return PublishedRows(POLICY).read(rows)


def test_rows_of_one_generalization_have_one_key_in_every_form() -> None:
    text = {**GOOD, "a.age": "[20, 40]"}
    ends = {"a.age_lo": 20, "a.age_hi": 40, **{name: GOOD[name] for name in ("zip", "ill", "tenant")}}
    found = read(GOOD, text, ends, {**GOOD, "zip": "4**"}, {**GOOD, "tenant": "y"}, {**GOOD, "ill": "cold"})
    keys = found.keys
    assert None not in keys
    assert keys[0] == keys[1] == keys[2] == keys[5]
    assert len(set(keys)) == 3
    assert found.codes[0] == found.codes[4] != found.codes[5]
    assert found.losses[0] == pytest.approx((0.2 + 0.009) / 2, abs=0.02)
    assert found.leaks == 0


def test_names_without_dots() -> None:
    plain = {"a_age": {"lo": 20, "hi": 40}, **{name: GOOD[name] for name in ("zip", "ill", "tenant")}}
    assert PublishedRows(POLICY, plain=True).read([plain]).keys == read(GOOD).keys
    assert read(plain).keys == [None]


def test_stars() -> None:
    assert read(GOOD, {**GOOD, "a.age": {"lo": 0, "hi": 100}, "zip": "***"}).stars == [False, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"a.age": {"lo": 21, "hi": 40}},
        {"a.age": {"lo": 40, "hi": 20}},
        {"a.age": {"lo": 0, "hi": 200}},
        {"a.age": 33},
        {"a.age": "33"},
        {"zip": "4*8"},
        {"zip": None},
        {"ill": {"x": 1}},
        {"a.age": None},
    ],
    ids=str,
)
def test_values_that_the_policy_cannot_have_published(changes: dict[str, Any]) -> None:
    assert [key is None for key in read(GOOD, {**GOOD, **changes}, GOOD).keys] == [False, True, False]


def test_columns_that_the_policy_does_not_publish() -> None:
    found = read(GOOD, {**GOOD, "who": 7}, {**GOOD, "_at": 1})
    assert found.leaks == 2
    assert None not in found.keys
    assert read({name: GOOD[name] for name in ("zip", "ill", "tenant")}).keys == [None]
