"""Makes a history that breaks a promise smaller, as long as it breaks the same promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from simulation.history import History, Row, Step

#: Histories that are tried at most.
_MOST = 2_000


def shrink(history: History, is_broken: Callable[[History], bool], most: int = _MOST) -> History:
    """Leave out what is not needed to break the promise, and make the rest simpler.

    Args:
        history: A history that breaks a promise.
        is_broken: Tells whether a history still does.
        most: The most histories to try.
    """
    tries = iter(range(most))
    before = None
    while before != history:
        before = history
        history = _without(history, "steps", is_broken, tries)
        history = _without(history, "rows", is_broken, tries)
        history = _simpler(history, is_broken, tries)
    return history


def _without(history: History, part: str, is_broken: Callable[[History], bool], tries: Iterator[int]) -> History:
    """Leave out steps or rows: many at once, then fewer."""
    size = max(len(getattr(history, part)) // 2, 1)
    while size:
        start = 0
        while start < len(getattr(history, part)):
            whole: Sequence[Any] = getattr(history, part)
            candidate = _changed(history, part, [*whole[:start], *whole[start + size :]])
            if next(tries, None) is None:
                return history
            if is_broken(candidate):
                history = candidate
            else:
                start += size
        size //= 2
    return history


def _changed(history: History, field: str, value: Any) -> History:
    return replace(history, **{field: value})


def _simpler(history: History, is_broken: Callable[[History], bool], tries: Iterator[int]) -> History:
    """Take simpler settings and smaller numbers, one after the other."""
    changed = True
    while changed:
        changed = False
        for candidate in _smaller(history):
            if next(tries, None) is None:
                return history
            if is_broken(candidate):
                history, changed = candidate, True
                break
    return history


def _smaller(history: History) -> Iterator[History]:
    for name, value in (("window", 0), ("ends", False), ("log", 1 << 20), ("workers", history.workers - 1)):
        if getattr(history, name) != value and (name != "workers" or value):
            yield _changed(history, name, value)
    if history.partitions > 1:
        rows = [row._replace(partition=0) for row in history.rows]
        yield replace(history, partitions=1, rows=rows)
    for place, step in enumerate(history.steps):
        for less in _less(step):
            yield replace(history, steps=[*history.steps[:place], less, *history.steps[place + 1 :]])
    for place, row in enumerate(history.rows):
        for plain in _plain(row):
            yield replace(history, rows=[*history.rows[:place], plain, *history.rows[place + 1 :]])


def _less(step: Step) -> Iterator[Step]:
    for field in ("a", "b", "c", "d"):
        value = getattr(step, field)
        for smaller in dict.fromkeys((0, value // 2 if value > 0 else -(-value // 2))):
            if smaller != value:
                yield step._replace(**{field: smaller})


def _plain(row: Row) -> Iterator[Row]:
    if row.fault:
        yield row._replace(fault="")
    if row.at != row.sent:
        yield row._replace(at=row.sent)
