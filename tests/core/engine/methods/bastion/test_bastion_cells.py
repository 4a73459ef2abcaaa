"""Cells have the held rows, and each row is where the cuts say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from crenel.encoding.rows import Rows
from crenel.engine.kernels.arrays import NONE
from crenel.engine.methods.bastion import bastion_engine
from crenel.engine.methods.bastion.bastion_cells import BLOCK, FIRST, LEFT, ROWS
from crenel.engine.methods.bastion.bastion_engine import Bastion
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Categorical, Numeric
from tests.core.engine.methods.bastion import bastion_oracle
from tests.core.engine.methods.bastion.bastion_oracle import BastionOracle
from tests.core.engine.methods.bastion.test_bastion_oracle import compare, large

POLICY = Policy(
    person="person",
    event_time="time",
    quasi_identifiers={
        "x": Numeric(domain=(0, 1000)),
        "y": Numeric(domain=(0, 1000)),
        "letter": Categorical(hierarchy={"any": {"vowels": ["a", "e", "i"], "others": ["b", "c", "d", "f"]}}),
    },
    k=3,
    delay="4000us",
    method="bastion",
    seed=0,
)
KEY = bytes(32)


def rows_of(count: int, seed: int) -> Rows:
    random = np.random.default_rng(seed)
    spread = [1, 5, 1000][seed % 3]
    qi = np.stack([random.integers(0, spread, count), random.normal(500, 90, count).clip(0, 1000)], axis=1)
    qi = np.column_stack([qi, random.integers(0, 7, count)]).astype(np.float64)
    return Rows(qi, random.integers(0, count, count), np.zeros((count, 0), np.int64), np.arange(count))


def check_cells(engine: Bastion) -> int:
    """Return how many cells there are."""
    state = engine._state
    held, cells, nodes = state.held, state.cells, int(state.cells.counts[1])
    leaves = np.flatnonzero(cells.links[:nodes, LEFT] == NONE)
    found: list[int] = []
    used = 0
    for node in leaves:
        block, left = int(cells.links[node, FIRST]), int(cells.links[node, ROWS])
        while block != NONE:
            size = (left - 1) % BLOCK + 1
            part = slice(block * BLOCK, block * BLOCK + size)
            place = cells.place[part]
            assert np.array_equal(cells.columns[block, :, :size], held.columns[:, place])
            for name in ("number", "person", "deadline", "lonely"):
                assert np.array_equal(getattr(cells, name)[part], getattr(held, name)[place]), name
            assert np.array_equal(cells.where[place], np.arange(part.start, part.stop))
            assert (held.columns[:, place] >= cells.boxes[node, 0][:, None]).all()
            inside = held.columns[:, place] < cells.boxes[node, 1][:, None]
            assert (inside | np.isinf(cells.boxes[node, 1])[:, None]).all()
            found += place.tolist()
            used, left, block = used + 1, left - size, int(cells.next[block])
        assert left == 0
    assert sorted(found) == engine._places().tolist()
    assert used + cells.counts[0] == len(cells.free)
    return len(leaves)


@pytest.mark.parametrize("seed", range(6))
def test_cells_have_the_held_rows(seed: int) -> None:
    engine, rows = Bastion(POLICY, KEY), rows_of(9_000, seed)
    most = 0
    for start in range(0, 9_000, 450):
        engine.push(rows.slice(start, start + 450))
        if engine._state.numbers["indexed"][0]:
            most = max(most, check_cells(engine))
            restored = Bastion(POLICY, KEY)
            restored.load(engine.dump())
            assert check_cells(restored) == check_cells(engine)
    assert most > 8
    engine.advance(20_000)
    assert engine.held == 0


def test_cells_of_rows_that_became_few_are_restored() -> None:
    """Cells stay until as many rows have arrived as were held when they were cut, however many leave meanwhile."""
    engine, rows = Bastion(POLICY, KEY), rows_of(4_000, 1)
    engine.push(rows)
    engine.advance(7_900)
    assert engine.held < 110
    assert engine._state.numbers["indexed"][0]
    again = Bastion(POLICY, KEY)
    again.load(engine.dump())
    assert check_cells(again) == check_cells(engine) > 8
    later = replace(rows_of(3_000, 2), time=np.arange(7_900, 10_900))
    for start in range(0, 3_000, 60):
        part = later.slice(start, start + 60)
        assert [r.rows.tolist() for r in again.push(part)] == [r.rows.tolist() for r in engine.push(part)]
        if again._state.numbers["indexed"][0]:
            assert check_cells(again) == check_cells(engine)


def test_nothing_is_left_of_cells_that_ended() -> None:
    engine = Bastion(POLICY, KEY)
    engine.push(rows_of(4_000, 1))
    assert engine._state.numbers["indexed"][0]
    engine.push(replace(rows_of(5_000, 2), time=20_000 + 100 * np.arange(5_000)))
    assert not engine._state.numbers["indexed"][0]
    again = Bastion(POLICY, KEY)
    again.load(engine.dump())
    assert again.dump() == engine.dump()


def test_few_rows_are_in_no_cells() -> None:
    engine = Bastion(POLICY, KEY)
    engine.push(rows_of(600, 2))
    assert not engine._state.numbers["indexed"][0]
    assert len(engine._state.cells.place) == 0


def test_rows_that_are_all_alike_are_one_cell() -> None:
    engine, rows = Bastion(POLICY, KEY), rows_of(3_000, 2)
    engine.push(replace(rows, qi=np.zeros_like(rows.qi)))
    assert engine._state.numbers["indexed"][0]
    assert check_cells(engine) == 1


def test_a_small_cell_beside_a_large_one_is_no_reason_to_look_at_all_rows() -> None:
    """With a million rows held, groups that did so took most of the time."""
    engine, small, large = Bastion(POLICY, KEY), 3 * 266 + 2, 800
    qi = np.tile([0.0, 500.0, 0.0], (small + large, 1))
    qi[small:, 0] = 1_000.0
    number = np.arange(len(qi))
    time = np.append(np.arange(small), 3_000 + np.arange(large))
    engine.push(Rows(qi, number, np.zeros((len(qi), 0), np.int64), time))
    assert check_cells(engine) == 2
    left = engine.advance(4_900)
    assert left.sizes.tolist() == [3] * 267
    assert set(left.rows[:-3].tolist()) < set(range(small))
    assert sorted(left.rows[-3:] < small) == [False, True, True]
    assert engine._state.numbers["nearby"][0] == 1


@pytest.mark.slow
def test_cells_begin_and_end_as_in_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come more and more slowly: first there are cells, then there are none."""
    monkeypatch.setattr(bastion_engine, "_CELLED", 2)  # fewer rows are enough: the oracle is slow
    monkeypatch.setattr(bastion_oracle, "CELLED", 2)
    seen: set[bool] = set()
    keep = BastionOracle.keep_cells
    monkeypatch.setattr(BastionOracle, "keep_cells", lambda self: keep(self) or seen.add(bool(self.cells)))
    time = (np.arange(1_300) ** 1.7).astype(np.int64)
    compare(replace(large(1_300, 2, time, delay="69000us"), cuts=(400, 650, 1_100)))
    assert seen == {True, False}
