"""`shard_by: locality` for a stream: the tree is learned from the first rows, and changes while rows are held."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from apache_beam.transforms.window import FixedWindows, GlobalWindow

from crenel.encoding import tree_following
from crenel.errors import SnapshotError
from crenel.policy import Policy
from crenel.policy.secret import as_secret
from crenel.transforms import Anonymize
from crenel.transforms._deal.learn_step import LearnRows
from crenel.transforms._deal.stored_trees import read_trees
from crenel.transforms._pack.row_pack import KIND, RowPack
from crenel.transforms._pack.sharding import shard_name
from tests.transforms import cells
from tests.transforms.cells import END, Bag, Cell, State, forget, published
from tests.transforms.streams import Stamped, check, policy, rows, run

OF = policy(shards=4, shard_by="locality", method="bastion", on_suppress="star", delay="5m", k=2)
#: The second half has other values: all of them young, and in one place, which is a corner of the first tree.
GIVEN = rows(1_200, every=1.0)
for row in GIVEN[600:]:
    row |= {"age": row["age"] / 20.0, "zipcode": "53001", "education": "primary"}


@pytest.fixture(autouse=True)
def small_samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tree_following, "_SAMPLE", 128)
    monkeypatch.setattr(tree_following, "_SAMPLE_OF_SHARD", 16)
    forget()
    yield
    forget()


class Learner:
    """The state of LEARN, and a worker that may be replaced."""

    def __init__(self, of: Policy = OF) -> None:
        self.trees, self.watch, self.sample = Cell(), Cell(), Bag()
        self.seal = as_secret(b"secret", of).seal
        self.replace(of)

    def replace(self, of: Policy = OF) -> None:
        self.step = LearnRows(of, b"secret")
        self.step.setup()

    def deal(self, pack: bytes) -> list[tuple[int, bytes]]:
        window = GlobalWindow()
        sealed = self.seal.close(KIND, pack, shard_name(0, window))
        return list(self.step.process((0, sealed), window, self.trees, self.watch, self.sample))

    def save(self) -> Any:
        return copy.deepcopy((self.trees, self.watch, self.sample))

    def restore(self, saved: Any) -> None:
        self.trees, self.watch, self.sample = copy.deepcopy(saved)

    @property
    def shards(self) -> list[int]:
        return [tree.shards for tree in read_trees(self.trees.value[self.seal.size :]).trees]


def opened(learner: Learner, dealt: list[tuple[int, bytes]]) -> list[tuple[int, list[int]]]:
    """Return the rows' numbers of dealt packs, with their shards."""
    found = []
    for key, data in dealt:
        pack = RowPack.from_bytes(learner.seal.open(KIND, data, shard_name(key, GlobalWindow())))
        assert pack.shard == key
        found.append((key, list(pack.payload.column("number"))))
    return found


def test_a_stream_is_dealt_out_by_what_it_was_like() -> None:
    outcome = run(GIVEN, Anonymize(OF))
    check(OF, GIVEN, outcome.published, outcome.suppressed)
    shards = {left.value["shard"] for left in outcome.releases}
    assert shards == {0, 1, 2, 3}
    assert outcome.counter("trees of shards learned") >= 2, "one from the first rows, one after they changed"
    counted = [outcome.counter(f"rows of shard {shard}") for shard in range(4)]
    assert sum(counted) == len(GIVEN) and min(counted) > 0


def test_windows_follow_the_stream_apart() -> None:
    outcome = run(Stamped(GIVEN), Anonymize(OF), window=FixedWindows(600))
    assert len(outcome.published) == len(GIVEN)
    assert {left.value["shard"] for left in outcome.releases} == {0, 1, 2, 3}


def test_one_shard_needs_no_tree() -> None:
    outcome = run(GIVEN[:100], Anonymize(policy(**{**OF.to_dict(), "shards": 1})))
    assert outcome.counter("rows of shard 0") == 0
    assert len(outcome.published) == 100


def test_a_tree_changes_under_load_and_under_failures() -> None:
    """Every third pack is first dealt by a worker that dies with its bundle; HOLD's workers die, too."""
    given = cells.packs(policy(**{**OF.to_dict(), "shards": 1}), GIVEN, 25)
    calm, rough = Learner(), Learner()
    expected = [opened(calm, calm.deal(pack)) for pack in given]
    assert len(calm.shards) >= 3 and max(calm.shards) == 4
    states: dict[int, State] = defaultdict(State)
    out: list[Any] = []
    for number, pack in enumerate(given):
        if number % 3 == 0:
            saved = rough.save()
            rough.deal(pack)
            rough.restore(saved)
        if number % 2:
            rough.replace()
        dealt = rough.deal(pack)
        assert opened(rough, dealt) == expected[number]
        for shard, data in dealt:
            if number % 5 == 0:
                cells.Worker(OF, uid="dead").take(cells.rolled_back(states[shard]), data, shard=shard)
                forget()
            out += cells.Worker(OF, uid=f"{number % 3}").take(states[shard], data, shard=shard)
    for shard, state in sorted(states.items()):
        out += cells.Worker(OF).fire(state, at=END, shard=shard)
    left = [row["number"] for row in published(out)]
    assert sorted(left) == list(range(len(GIVEN))), "every row left once"


@pytest.mark.parametrize("cell", ["trees", "watch", "sample"])
def test_damaged_state_is_refused(cell: str) -> None:
    given = cells.packs(policy(**{**OF.to_dict(), "shards": 1}), GIVEN, 60)
    learner = Learner()
    for pack in given[:3]:
        learner.deal(pack)
    learner.replace()
    if cell == "sample":
        learner.sample.items[0] = learner.sample.items[0][:-1] + b"\0\0"
    else:
        held = getattr(learner, cell)
        held.value = held.value[:-1] + bytes([held.value[-1] ^ 1])
    with pytest.raises(SnapshotError, match="damaged or changed"):
        for pack in given[3:]:
            learner.deal(pack)


def test_a_part_of_the_sample_cannot_be_left_out() -> None:
    given = cells.packs(policy(**{**OF.to_dict(), "shards": 1}), GIVEN, 20)
    learner = Learner()
    for pack in given[:4]:
        learner.deal(pack)
    learner.sample.items.pop()
    with pytest.raises(SnapshotError, match="do not fit each other"):
        for pack in given[4:]:
            learner.deal(pack)


def test_a_savepoint_is_taken_up_with_other_shards() -> None:
    given = cells.packs(policy(**{**OF.to_dict(), "shards": 1}), GIVEN, 60)
    learner = Learner()
    for pack in given[:10]:
        learner.deal(pack)
    assert learner.shards[-1] == 4
    learner.replace(policy(**{**OF.to_dict(), "shards": 2}))
    for pack in given[10:]:
        learner.deal(pack)
    assert learner.shards[-1] == 2


def test_other_quasi_identifiers_begin_anew() -> None:
    learner = Learner()
    plain = policy(**{**OF.to_dict(), "shards": 1})
    for pack in cells.packs(plain, GIVEN[:400], 60):
        learner.deal(pack)
    said = {**OF.to_dict(), "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 200]}}}
    other = policy(**said)
    learner.replace(other)
    for pack in cells.packs(policy(**{**said, "shards": 1}), GIVEN[400:500], 60):
        learner.deal(pack)
    assert learner.shards == [1]
    for pack in cells.packs(policy(**{**said, "shards": 1}), GIVEN[500:900], 60):
        learner.deal(pack)
    assert learner.shards[-1] > 1
