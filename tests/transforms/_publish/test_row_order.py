"""The order of rows by their hashes."""

from __future__ import annotations

import numpy as np

from crenel.transforms._publish.row_order import order_of


def test_rows_of_different_hashes_are_sorted() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64, 10_000, dtype=np.uint64)
    assert order_of(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


def test_rows_of_one_hash_stay_in_their_order() -> None:
    hashes = np.random.default_rng(0).integers(0, 50, 10_000, dtype=np.uint64)
    assert order_of(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


def test_one_row_and_none_are_in_order() -> None:
    assert order_of(np.zeros(1, dtype=np.uint64)).tolist() == [0]
    assert order_of(np.zeros(0, dtype=np.uint64)).tolist() == []
