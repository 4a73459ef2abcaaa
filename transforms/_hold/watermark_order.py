"""Rows that wait for the watermark: they reach the engine once it has passed their event times, in that order.

A source that reads one partition far ahead of another mixes the times of rows. The clock of an engine follows its rows,
so the rows of the slower partition would all be late. Where the watermark alone moves the clock, the engine sees the
stream in the order of event times instead, as if nothing had been read ahead. Independent of Beam.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from crenel.policy import Policy
from crenel.transforms._hold.event_order import in_order
from crenel.transforms._pack.row_pack import RowPack

__all__ = ["WatermarkOrder"]


class WatermarkOrder:
    """Holds back the rows that are ahead of the watermark.

    Args:
        policy: The rows' deadlines.
    """

    def __init__(self, policy: Policy) -> None:
        self._delay = policy.delay or 0
        self._tick = policy.tick
        self._packs: list[RowPack] = []

    def __len__(self) -> int:
        """Count the rows that wait."""
        return sum(len(pack.rows) for pack in self._packs)

    def push(self, packs: Iterable[RowPack]) -> None:
        """Let rows wait."""
        self._packs += [pack for pack in packs if len(pack.rows)]

    def advance(self, now: int) -> list[RowPack]:
        """Return the rows that are not ahead of the watermark `now`, in the order of their event times."""
        reached: list[RowPack] = []
        waiting: list[RowPack] = []
        for pack in self._packs:
            is_ahead = pack.rows.time > now
            if not is_ahead.any():
                reached.append(pack)
            elif is_ahead.all():
                waiting.append(pack)
            else:
                reached.append(pack.take(np.flatnonzero(~is_ahead)))
                waiting.append(pack.take(np.flatnonzero(is_ahead)))
        self._packs = waiting
        return list(in_order(reached))

    def flush(self) -> list[RowPack]:
        """Return all rows, in the order of their event times."""
        packs, self._packs = self._packs, []
        return list(in_order(packs))

    def next_deadline(self) -> int | None:
        """The deadline of the row that is due first."""
        return self._deadline(min((int(pack.rows.time.min()) for pack in self._packs), default=None))

    def last_deadline(self) -> int | None:
        """The deadline of the row that is due last."""
        return self._deadline(max((int(pack.rows.time.max()) for pack in self._packs), default=None))

    def _deadline(self, time: int | None) -> int | None:
        return None if time is None else rounded_deadline(time, self._delay, self._tick)

    def snapshot(self) -> list[bytes]:
        """Return the rows, to be stored."""
        return [pack.to_bytes() for pack in self._packs]

    def restore(self, stored: Iterable[bytes]) -> None:
        """Take over what `snapshot` returned."""
        self._packs = [RowPack.from_bytes(data) for data in stored]


def rounded_deadline(time: int, delay: int, tick: int) -> int:
    """The deadline of a row with this event time, rounded down: without a kernel, since numba is slow to import."""
    at = time + delay
    return at - at % tick
