"""SPILL: keeps packs of bounded rows out of Beam's memory, in which several copies of them would lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.utils import windowed_value

from crenel.policy.secret import Secret
from crenel.transforms._hold.sorted_runs import Sealed, SortSpace, spill
from crenel.transforms._pack.sharding import shard_name

__all__ = ["SpillRows"]


class SpillRows(beam.DoFn):
    """Passes packs on if those of a bundle fit into memory; else references to runs that it sorts into files.

    A run counts only if its bundle succeeds: only then does HOLD get the reference.

    Args:
        space: How much fits into memory, and the folder for the files.
        row_number: The column, if packs carry one, that orders rows which are equal in everything else.
        secret: Keys the seals of packs and runs.
    """

    def __init__(self, space: SortSpace, row_number: str | None, secret: Secret) -> None:
        self._space = space
        self._row_number = row_number
        self._secret = secret

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._seal = self._secret.seal

    def start_bundle(self) -> None:
        """Begin without packs: a bundle that failed leaves none."""
        self._packs: defaultdict[tuple[Any, int], list[bytes]] = defaultdict(list)
        self._bytes = 0
        self._spilled = False

    def process(self, element: tuple[int, bytes], window: Any = beam.DoFn.WindowParam) -> Iterable[Any]:
        """Keep a pack until the bundle ends, or memory is full."""
        shard, data = element
        self._packs[window, shard].append(data)
        self._bytes += len(data)
        return self._spill() if self._bytes > self._space.memory else ()

    def finish_bundle(self) -> Iterator[Any]:
        """Emit the packs that are left."""
        if self._spilled and self._packs:
            yield from self._spill()
        for (window, shard), packs in self._packs.items():
            for data in packs:
                yield _element(window, shard, data)
        self.start_bundle()

    def _spill(self) -> Iterator[Any]:
        self._spilled = True
        shards = {(key, Sealed(self._seal, shard_name(key[1], key[0]))): packs for key, packs in self._packs.items()}
        runs = spill(self._space, shards, self._row_number)
        self._packs.clear()
        self._bytes = 0
        for (window, shard), reference in runs:
            yield _element(window, shard, reference)


def _element(window: Any, shard: int, data: bytes) -> Any:
    return windowed_value.create((shard, data), window.max_timestamp().micros, (window,))
