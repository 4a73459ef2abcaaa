"""A random order has all items, and each order is as likely as another."""

from __future__ import annotations

from collections import Counter

from crenel.transforms._publish.random_order import shuffled


def test_all_items_are_there() -> None:
    given = list(range(1000))
    made = shuffled(given)
    assert sorted(made) == given
    assert made != given
    assert given == list(range(1000)), "what is given stays as it is"
    assert shuffled([]) == []


def test_every_order_is_as_likely() -> None:
    counts = Counter(tuple(shuffled("abc")) for _ in range(6000))
    assert len(counts) == 6
    assert all(800 < count < 1200 for count in counts.values()), "1000 is the mean, 29 the deviation"
