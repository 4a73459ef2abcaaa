"""A tree of cuts through the space of quasi-identifiers: rows that could be in one group go to one shard.

Each cut asks one question about one quasi-identifier: is the coordinate at least this number? The leaves are shards.
`crenel.encoding.tree_learning` makes a tree from a sample; this module stores it and finds the shard of a row.

A tree tells where many rows are. It belongs to the owner of the stream, and is never published.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.errors import PolicyError
from crenel.policy.checks import as_number
from crenel.policy.geometry import Interval
from crenel.policy.quasi_identifiers import QuasiIdentifier
from crenel.policy.reading.named_files import NotReadable, read_bounded

__all__ = ["MOST_SHARDS", "Cut", "ShardTree", "fingerprint"]

#: The most leaves of a tree.
MOST_SHARDS = 4096

_FORMAT, _VERSION = "crenel.shards", 1


@dataclass(frozen=True)
class Cut:
    """One cut. A side is the number of another cut, or, as `~shard`, a shard."""

    #: The place of the quasi-identifier.
    column: int
    #: Rows with a coordinate of at least this go to `above`; all others, and rows that lack it, go to `below`.
    at: float
    below: int
    above: int


@dataclass(frozen=True)
class ShardTree:
    """Cuts, the first of them at the root. Without cuts there is one shard.

    It is immutable, and compares by content.

    Raises:
        PolicyError: the cuts are not a tree with the shards 0, 1, 2, ...
    """

    columns: tuple[str, ...]
    cuts: tuple[Cut, ...]
    #: What the coordinates mean: the `fingerprint` of the quasi-identifiers.
    space: str = field(repr=False)

    def __post_init__(self) -> None:
        sides = [side for cut in self.cuts for side in (cut.below, cut.above)]
        inner = [side for side in sides if side >= 0]
        shards = sorted(~side for side in sides if side < 0)
        # Each cut but the first is a side of one before it, so that there is no cycle and every cut is reached.
        ordered = all(
            side > place for place, cut in enumerate(self.cuts) for side in (cut.below, cut.above) if side >= 0
        )
        is_tree = sorted(inner) == list(range(1, len(self.cuts))) and ordered
        known = all(0 <= cut.column < len(self.columns) for cut in self.cuts)
        if not (is_tree and known and shards == list(range(len(shards)))) or len(shards) > MOST_SHARDS:
            msg = f"must be a tree of cuts with at most {MOST_SHARDS:,} leaves, which are numbered from 0."
            raise PolicyError([("", msg)], "")

    @property
    def shards(self) -> int:
        """The number of leaves."""
        return len(self.cuts) + 1

    def find(self, qi: NDArray[np.float64]) -> NDArray[np.int64]:
        """Find the shard of each row, given the rows' coordinates."""
        shard = np.zeros(len(qi), dtype=np.int64)
        waiting = {0: np.arange(len(qi))} if self.cuts else {}
        for place, cut in enumerate(self.cuts):
            rows = waiting.pop(place)
            above = qi[rows, cut.column] >= cut.at
            for side, part in ((cut.below, rows[~above]), (cut.above, rows[above])):
                if side < 0:
                    shard[part] = ~side
                else:
                    waiting[side] = part
        return shard

    def boxes(self) -> list[list[tuple[float, float]]]:
        """Return the region of each shard: for each quasi-identifier, from which coordinate on, and before which."""
        everywhere = [(-np.inf, np.inf)] * len(self.columns)
        regions: dict[int, list[tuple[float, float]]] = {0 if self.cuts else ~0: everywhere}
        for place, cut in enumerate(self.cuts):
            region = regions.pop(place)
            lo, hi = region[cut.column]
            for side, part in ((cut.below, (lo, min(hi, cut.at))), (cut.above, (max(lo, cut.at), hi))):
                regions[side] = [*region[: cut.column], part, *region[cut.column + 1 :]]
        return [regions[~shard] for shard in range(self.shards)]

    def check(self, quasi_identifiers: Mapping[str, QuasiIdentifier]) -> None:
        """Refuse other quasi-identifiers than those that the tree was learned for.

        Raises:
            PolicyError: they differ.
        """
        if tuple(quasi_identifiers) == self.columns and fingerprint(quasi_identifiers) == self.space:
            return
        msg = (
            "must be a tree that was learned for these quasi-identifiers; their names, types, domains, steps or "
            "hierarchies have changed. Make it anew: crenel plan POLICY --data SAMPLE --shards N --write FILE."
        )
        raise PolicyError([("", msg)], "")

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` makes this tree from: plain values that JSON can hold."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "space": self.space,
            "columns": list(self.columns),
            "cuts": [
                {
                    "column": self.columns[cut.column],
                    "at": cut.at,
                    "below": _side(cut.below),
                    "above": _side(cut.above),
                }
                for cut in self.cuts
            ],
        }

    @classmethod
    def from_dict(cls, given: Any) -> ShardTree:
        """Make a tree from what its file holds.

        Raises:
            PolicyError: it is something else. The message never quotes the content.
        """
        if not isinstance(given, Mapping) or given.get("format") != _FORMAT or given.get("version") != _VERSION:
            msg = f"must be a tree of shards of version {_VERSION}, as crenel plan --write makes it."
            raise PolicyError([("", msg)], "")
        try:
            columns = tuple(map(str, given["columns"]))
            places = {name: place for place, name in enumerate(columns)}
            cuts = tuple(
                Cut(places[cut["column"]], _finite(cut["at"]), _number(cut["below"]), _number(cut["above"]))
                for cut in given["cuts"]
            )
            space = str(given["space"])
        except (KeyError, TypeError, ValueError):
            msg = "must be a tree of shards that nobody has changed: a field is missing, or is not what it should be."
            raise PolicyError([("", msg)], "") from None
        return cls(columns, cuts, space)

    def write(self, path: str | PathLike[str]) -> None:
        """Write the tree as JSON that only its owner may read: it tells where many rows are."""
        text = json.dumps(self.to_dict(), indent=1) + "\n"
        file = Path(path)
        file.touch(mode=0o600)
        file.write_text(text, "utf-8")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> ShardTree:
        """Read what `write` wrote.

        Raises:
            PolicyError: the file cannot be read, or holds something else.
        """
        try:
            given = json.loads(read_bounded(path))
        except FileNotFoundError:
            raise PolicyError([("", f": there is no file {str(path)!r}.")], "") from None
        except NotReadable as error:
            raise PolicyError([("", f": {str(path)!r} {error}.")], "") from None
        except (ValueError, RecursionError):
            raise PolicyError([("", f": {str(path)!r} is not JSON.")], "") from None
        return cls.from_dict(given)


def fingerprint(quasi_identifiers: Mapping[str, QuasiIdentifier]) -> str:
    """Return a digest of what coordinates mean: names, types and declarations, without the weights."""
    digest = hashlib.blake2b(digest_size=16, person=b"crenel.shards")
    for name, qi in quasi_identifiers.items():
        said = {key: value for key, value in qi.to_spec().items() if key != "weight"}
        kind = f"{type(qi).__module__}.{type(qi).__qualname__}"
        digest.update(json.dumps([name, kind, said], default=str).encode())
        if isinstance(qi.geometry, Interval):
            digest.update(repr((qi.geometry.widest(), qi.geometry.cells)).encode())
    return digest.hexdigest()


def _side(side: int) -> dict[str, int]:
    return {"cut": side} if side >= 0 else {"shard": ~side}


def _number(side: Mapping[str, Any]) -> int:
    ((kind, number),) = side.items()
    if isinstance(number, bool) or not isinstance(number, int) or number < 0 or kind not in ("cut", "shard"):
        raise ValueError(kind)
    return number if kind == "cut" else ~number


def _finite(value: Any) -> float:
    number = as_number(value)
    if number is None:
        raise ValueError
    return number
