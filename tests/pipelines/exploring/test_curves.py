"""The curves of `crenel explore`: what is written beside them."""

from __future__ import annotations

import pytest

from crenel.pipelines.exploring.curves import _told_apart, draw


@pytest.mark.parametrize(
    ("deadlines", "labels"),
    [
        (["1h or 1,000 rows", "6h or 1,000 rows"], ["1h", "6h"]),
        (["1h or 10 rows", "1h or 20 rows"], ["10 rows", "20 rows"]),
        (["1h or 10 rows", "2h or 20 rows"], ["1h or 10 rows", "2h or 20 rows"]),
        (["1h", "6h"], ["1h", "6h"]),
        (["1h or 10 rows"], ["1h or 10 rows"]),
        (["1h", "1h or 10 rows"], ["1h", "1h or 10 rows"]),
    ],
)
def test_an_axis_leaves_out_what_all_deadlines_share(deadlines: list[str], labels: list[str]) -> None:
    assert _told_apart(deadlines) == labels


def test_every_curve_has_its_name() -> None:
    settings = [
        {"guarantee": f"k = {k}", "deadline": deadline, "suppressed": 0.0, "wait": 100.0 - k}
        for k in (2, 3, 4, 5, 6)
        for deadline in ("1h", "2h")
    ]
    for drawn in draw({"settings": settings, "unit": "rows"}, ["suppressed", "wait"]).values():
        assert all(f"k = {k}" in drawn for k in (2, 3, 4, 5, 6))
