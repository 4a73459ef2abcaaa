"""Trees of shards that follow each other: which one holds is a matter of a row's event time alone.

So every worker, and every replay after a failure, sends a row to the same shard, and no worker has to be told when a
tree changes. Rows that are held when it changes are released from the shards they are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.errors import PolicyError, Rejected
from crenel.policy.columns import moment
from crenel.policy.quasi_identifiers import QuasiIdentifier
from crenel.policy.reading.named_files import PolicyFiles
from crenel.policy.sharding.shard_tree import ShardTree

__all__ = ["TreeSchedule", "read_tree"]

_RULE = "must be a list of {tree: FILE, from: MOMENT}, the first without a moment, the others in the order of theirs."


@dataclass(frozen=True)
class TreeSchedule:
    """Trees, the first of which holds from the beginning, and each other one from a moment on.

    Raises:
        PolicyError: there is no tree, or the moments do not rise.
    """

    trees: tuple[ShardTree, ...]
    #: Event times in microseconds, one fewer than trees.
    moments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rises = all(earlier < later for earlier, later in pairwise(self.moments))
        if not self.trees or len(self.moments) != len(self.trees) - 1 or not rises:
            raise PolicyError([("", _RULE)], "")

    @property
    def shards(self) -> int:
        """The most leaves of a tree: trees share their shards."""
        return max(tree.shards for tree in self.trees)

    def find(self, qi: NDArray[np.float64], time: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the shard of each row, given the rows' coordinates and event times."""
        place = np.searchsorted(np.array(self.moments, dtype=np.int64), time, side="right")
        shard = np.zeros(len(qi), dtype=np.int64)
        for number in np.unique(place).tolist():
            rows = place == number
            shard[rows] = self.trees[number].find(qi[rows])
        return shard

    def check(self, quasi_identifiers: Mapping[str, QuasiIdentifier]) -> None:
        """Refuse other quasi-identifiers than those that the trees were learned for.

        Raises:
            PolicyError: they differ.
        """
        for tree in self.trees:
            tree.check(quasi_identifiers)

    def to_list(self) -> list[dict[str, Any]]:
        """Return what `from_list` makes this schedule from."""
        begins: list[dict[str, Any]] = [{}, *({"from": _text(one)} for one in self.moments)]
        return [{"tree": tree.to_dict(), **begin} for tree, begin in zip(self.trees, begins, strict=True)]

    @classmethod
    def from_list(cls, given: Any, files: PolicyFiles) -> TreeSchedule:
        """Read a schedule. A tree is named by its file, or given by its content.

        Raises:
            PolicyError: it is wrong.
        """
        if not isinstance(given, Iterable) or isinstance(given, (str, Mapping)):
            raise PolicyError([("", _RULE)], "")
        entries = list(given)
        expected = [{"tree"} if place == 0 else {"tree", "from"} for place in range(len(entries))]
        if any(
            not isinstance(entry, Mapping) or set(entry) != keys for entry, keys in zip(entries, expected, strict=True)
        ):
            raise PolicyError([("", _RULE)], "")
        trees = tuple(read_tree(entry["tree"], files) for entry in entries)
        try:
            return cls(trees, tuple(int(moment(entry["from"])) for entry in entries[1:]))
        except Rejected:
            raise PolicyError([("", _RULE)], "") from None


def read_tree(given: Any, files: PolicyFiles) -> ShardTree:
    """Read a tree that is named by its file, or given by its content.

    Raises:
        PolicyError: it cannot be read, or is something else.
    """
    if isinstance(given, ShardTree):
        return given
    if isinstance(given, (str, PathLike)):
        return ShardTree.read(files.path(given))
    return ShardTree.from_dict(given)


def _text(micros: int) -> str:
    return f"{np.datetime64(micros, 'us')}Z"
