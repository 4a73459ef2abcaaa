"""Rows that wait for the watermark: they reach the engine once it has passed their event times, in that order.

A source that reads one partition far ahead of another mixes the times of rows. The clock of an engine follows its rows,
so the rows of the slower partition would all be late. Where the watermark alone moves the clock, the engine sees the
stream in the order of event times instead, as if nothing had been read ahead. Independent of Beam.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from crenel.policy import Policy
from crenel.transforms._hold.event_order import in_order
from crenel.transforms._pack.row_pack import RowPack

__all__ = ["WatermarkOrder"]


@dataclass(frozen=True, eq=False, repr=False)
class _Waiting:
    """Rows that wait, and their first and last event time."""

    pack: RowPack
    first: int
    last: int

    @classmethod
    def of(cls, pack: RowPack) -> _Waiting:
        return cls(pack, int(pack.rows.time.min()), int(pack.rows.time.max()))

    def cut(self, now: int) -> tuple[RowPack, _Waiting]:
        """The rows up to a moment, and the others; there are some of both."""
        is_ahead = self.pack.rows.time > now
        ahead = self.pack.take(np.flatnonzero(is_ahead))
        return self.pack.take(np.flatnonzero(~is_ahead)), _Waiting.of(ahead)


class WatermarkOrder:
    """Holds back the rows that are ahead of the watermark.

    Args:
        policy: Says when rows are due.
    """

    def __init__(self, policy: Policy) -> None:
        self._delay = policy.delay or 0
        self._tick = policy.tick
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        """Count the rows that wait."""
        return sum(len(one.pack.rows) for one in self._waiting)

    def push(self, packs: Iterable[RowPack]) -> None:
        """Let rows wait."""
        self._waiting += [_Waiting.of(pack) for pack in packs if len(pack.rows)]

    def advance(self, now: int) -> list[RowPack]:
        """Return the rows that are not ahead of the watermark `now`, in the order of their event times."""
        reached: list[RowPack] = []
        waiting: list[_Waiting] = []
        for one in self._waiting:
            if one.last <= now:
                reached.append(one.pack)
            elif one.first > now:
                waiting.append(one)
            else:
                pack, rest = one.cut(now)
                reached.append(pack)
                waiting.append(rest)
        self._waiting = waiting
        return list(in_order(reached))

    def flush(self) -> list[RowPack]:
        """Return all rows, in the order of their event times."""
        waiting, self._waiting = self._waiting, []
        return list(in_order([one.pack for one in waiting]))

    def next_deadline(self) -> int | None:
        """The deadline of the row that is due first."""
        return self._deadline(min((one.first for one in self._waiting), default=None))

    def last_deadline(self) -> int | None:
        """The deadline of the row that is due last."""
        return self._deadline(max((one.last for one in self._waiting), default=None))

    def _deadline(self, time: int | None) -> int | None:
        return None if time is None else rounded_deadline(time, self._delay, self._tick)

    def snapshot(self) -> list[bytes]:
        """Return the rows, to be stored."""
        return [one.pack.to_bytes() for one in self._waiting]

    def restore(self, stored: Iterable[bytes]) -> None:
        """Take over what `snapshot` returned."""
        self._waiting = [_Waiting.of(RowPack.from_bytes(data)) for data in stored]


def rounded_deadline(time: int, delay: int, tick: int) -> int:
    """The deadline of a row with this event time, rounded down: without a kernel, since numba is slow to import."""
    at = time + delay
    return at - at % tick
