"""Judges `once_per`: whether any two published rows of a person are at least so far apart in event time.

The rows that a run left out for this promise are not taken on trust. Each must have had a reason: another row of its
person that near in time, which came before it and may have been published; or it came too late to be compared.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit.evidence import LEFT_OUT, SUPPRESSED, Published
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy

__all__ = ["left_out_wrongly", "too_soon", "without_left_out"]

Ints = npt.NDArray[np.int64]


def too_soon(period: int, person: Ints, time: Ints) -> int:
    """Count the published rows that follow another one of their person within the period."""
    order = np.lexsort([time, person])
    person, time = person[order], time[order]
    return int(np.count_nonzero((person[1:] == person[:-1]) & (time[1:] - time[:-1] < period)))


def left_out_wrongly(policy: Policy, rows: Rows, out: Published) -> int:
    """Count the rows of a shard that were left out without a reason."""
    if out.kind is None or not (out.kind == LEFT_OUT).any():
        return 0
    if policy.once_per is None:
        return len(_rows_of(out, out.kind == LEFT_OUT))
    left = _rows_of(out, out.kind == LEFT_OUT)
    taken = np.ones(len(rows), np.bool_)
    taken[left] = False
    suppressed = np.zeros(len(rows), np.bool_)
    if policy.on_suppress is OnSuppress.DROP:
        suppressed[_rows_of(out, out.kind == SUPPRESSED)] = True
    return sum(not _has_reason(policy, rows, taken, suppressed, people) for people in _People.of(rows, taken, left))


class _People:
    """A row that was left out, and the rows of its person that were not, by their times."""

    def __init__(self, row: int, times: list[int], places: list[int], front: int, count: int) -> None:
        self.row = row
        self.times = times
        self.places = places
        #: The latest event time before the row, and the rows before it that were not left out.
        self.front = front
        self.count = count

    @classmethod
    def of(cls, rows: Rows, taken: npt.NDArray[np.bool_], left: Ints) -> list[_People]:
        times: defaultdict[int, list[int]] = defaultdict(list)
        places: defaultdict[int, list[int]] = defaultdict(list)
        person, time = rows.person.tolist(), rows.time.tolist()
        wanted = set(rows.person[left].tolist())
        for at in np.argsort(rows.time, kind="stable").tolist():
            if taken[at] and person[at] in wanted:
                times[person[at]].append(time[at])
                places[person[at]].append(at)
        front = np.maximum.accumulate(rows.time)
        count = np.cumsum(taken)
        return [
            cls(at, times[person[at]], places[person[at]], int(front[at - 1]), int(count[at]))
            for at in left.tolist()
            if at > 0
        ] + [cls(at, [], [], time[at], 0) for at in left.tolist() if at == 0]


def _has_reason(
    policy: Policy, rows: Rows, taken: npt.NDArray[np.bool_], suppressed: npt.NDArray[np.bool_], one: _People
) -> bool:
    period, time = policy.once_per or 0, int(rows.time[one.row])
    if time < one.front - max(period, policy.delay or 0) - policy.disorder:
        return True
    near = slice(bisect_right(one.times, time - period), bisect_left(one.times, time + period))
    for place in one.places[near]:
        if place < one.row and not (suppressed[place] and _is_due(policy, rows, taken, place, one)):
            return True
    return False


def _is_due(policy: Policy, rows: Rows, taken: npt.NDArray[np.bool_], place: int, one: _People) -> bool:
    """Whether a row had reached its deadline when another came: if it was suppressed, that is no reason any more."""
    now = max(one.front, int(rows.time[one.row])) - policy.disorder
    if policy.delay is not None and now >= int(rows.time[place]) + policy.delay:
        return True
    later = one.count - int(np.count_nonzero(taken[: place + 1]))
    return policy.delay_rows is not None and later >= policy.delay_rows


def without_left_out(rows: Rows, out: Published) -> tuple[Rows, Published, Ints]:
    """Return the rows that were not left out, as if no other had come; their releases; and their places.

    What a group must have is judged by the rows that the method saw.
    """
    left = out.kind is not None and bool((out.kind == LEFT_OUT).any())
    if out.kind is None or not left:
        return rows, out, np.arange(len(rows))
    gone = _rows_of(out, out.kind == LEFT_OUT)
    kept = np.ones(len(rows), np.bool_)
    kept[gone[(gone >= 0) & (gone < len(rows))]] = False
    before = np.concatenate([[0], np.cumsum(kept)])
    stays = np.flatnonzero(out.kind != LEFT_OUT)
    sizes = np.ones(len(out), np.int64) if out.offsets is None else np.diff(out.offsets)
    member = np.repeat(out.kind != LEFT_OUT, sizes)
    known = (out.rows >= 0) & (out.rows < len(rows))
    number = np.where(known, before[np.where(known, out.rows, 0)], len(rows))
    columns: dict[str, Any] = {
        name: None if (column := getattr(out, name)) is None else column[stays]
        for name in ("lo", "hi", "kind", "loss", "persons", "moment", "group")
    }
    arrivals = None if out.arrivals is None else before[np.clip(out.arrivals[stays], 0, len(rows))]
    offsets = None if out.offsets is None else np.concatenate([[0], np.cumsum(sizes[stays])])
    moved = replace(out, rows=number[member], offsets=offsets, arrivals=arrivals, **columns)
    places = np.flatnonzero(kept)
    return rows.take(places), moved, places


def _rows_of(out: Published, which: npt.NDArray[np.bool_]) -> Ints:
    sizes = np.ones(len(out), np.int64) if out.offsets is None else np.diff(out.offsets)
    return out.rows[np.repeat(which, sizes)]
