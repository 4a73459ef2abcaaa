"""Judges published rows as they come, by what every reader of the topic sees.

Published rows do not say which release they are of. So rows under one generalization that were published close together
are taken for one group, and a group is judged when nothing more came under its generalization for some time. That can
hide something (two releases of too few rows, one after the other under one generalization, look like one), and it knows
rows, not persons. So a promise is broken, or nothing against it was seen. It is never called kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crenel.policy import OnSuppress, Policy

__all__ = ["Alarm", "Group", "StreamJudge"]

#: Generalizations that are remembered under a policy that reuses them; and names of records.
_MOST_REMEMBERED = 1 << 18


@dataclass(frozen=True)
class Alarm:
    """A broken promise: which one, and in a sentence without values what was seen."""

    promise: str
    said: str


@dataclass
class Group:
    """Rows under one generalization that were published together."""

    rows: int = 0
    #: The distinct values of each sensitive column.
    values: tuple[set[int], ...] = ()
    first: int = 0
    last: int = 0

    def add(self, at: int, codes: Sequence[int]) -> None:
        """Add a row."""
        self.first = min(self.first, at) if self.rows else at
        self.last = max(self.last, at)
        self.rows += 1
        for known, code in zip(self.values, codes, strict=True):
            known.add(code)


@dataclass
class _Before:
    """What was published under a generalization before."""

    rows: int = 0
    values: tuple[set[int], ...] = field(default=())


class StreamJudge:
    """Judges groups of published rows.

    Args:
        policy: The policy that the rows were published under.
        settle: Microseconds without a further row after which a group is complete.
        is_whole: Whether all rows of the topic are seen; otherwise earlier ones may belong to the first groups.
    """

    def __init__(self, policy: Policy, settle: int, *, is_whole: bool = True) -> None:
        self._policy = policy
        self._settle = settle
        #: The time of the first row that was seen of the partition that began last; None if all rows are seen.
        self.since: int | None = None if is_whole else 0
        self._waiting: dict[bytes, list[tuple[int, tuple[int, ...]]]] = {}
        self._before: OrderedDict[bytes, _Before] = OrderedDict()
        #: Whether something was published before that is not known, or not known any more.
        self._is_partial = not is_whole
        #: The rows of the groups that were judged, the smallest of them, and groups that could not be judged.
        self.sizes: Counter[int] = Counter()
        self.least_values: list[int | None] = [None] * len(policy.sensitive)
        self.unjudged = 0

    @property
    def groups(self) -> int:
        """How many groups were judged."""
        return self.sizes.total()

    @property
    def least(self) -> int | None:
        """The rows of the smallest group; None if there is none."""
        return min(self.sizes, default=None)

    def see(self, key: bytes, at: int, codes: tuple[int, ...]) -> None:
        """Take a row: its generalization, when it was published, and the codes of its sensitive values."""
        self._waiting.setdefault(key, []).append((at, codes))

    def advance(self, now: int) -> Iterator[Alarm]:
        """Judge the groups that are complete: no row is expected any more that was published before `now`."""
        for key in list(self._waiting):
            rows = sorted(self._waiting[key], key=lambda row: row[0])
            while rows:
                group, left = self._first(rows)
                if group.last + self._settle >= now:
                    break
                rows = left
                yield from self._judge(key, group)
            if rows:
                self._waiting[key] = rows
            else:
                del self._waiting[key]

    def _first(self, rows: list[tuple[int, tuple[int, ...]]]) -> tuple[Group, list[tuple[int, tuple[int, ...]]]]:
        """The first group among rows in the order of their times, and the rows after it."""
        group = Group(values=tuple(set() for _ in self._policy.sensitive))
        for place, (at, codes) in enumerate(rows):
            if group.rows and at > group.last + self._settle:
                return group, rows[place:]
            group.add(at, codes)
        return group, []

    def _judge(self, key: bytes, group: Group) -> Iterator[Alarm]:
        rows, values = (group.rows, group.values) if self._policy.crowd else self._so_far(key, group)
        may_lack = self.since is not None and group.first <= self.since + self._settle
        if not self._policy.crowd:
            may_lack = self._is_partial and (rows < self._policy.k or self._lacks_values(values))
        if may_lack:
            self.unjudged += 1
            return
        self.sizes[group.rows if self._policy.crowd else rows] += 1
        for j, found in enumerate(values):
            least = self.least_values[j]
            self.least_values[j] = len(found) if least is None else min(least, len(found))
        if rows < self._policy.k:
            said = f"{rows} rows are under a generalization of their own, fewer than k = {self._policy.k}"
            yield Alarm("k", said if self._policy.crowd else f"{said}, with all that came under it before")
        for name, found in zip(self._policy.sensitive, values, strict=True):
            if self._policy.l is not None and len(found) < self._policy.l:
                yield Alarm("l", f"a group has {len(found)} values of {name}, fewer than l = {self._policy.l}")

    def _lacks_values(self, values: tuple[set[int], ...]) -> bool:
        return self._policy.l is not None and any(len(found) < self._policy.l for found in values)

    def _so_far(self, key: bytes, group: Group) -> tuple[int, tuple[set[int], ...]]:
        """What was published under a generalization so far, this group included."""
        before = self._before.pop(key, None) or _Before(values=tuple(set() for _ in self._policy.sensitive))
        before.rows += group.rows
        most = self._policy.l or 0
        for known, fresh in zip(before.values, group.values, strict=True):
            if len(known) < max(most, 1):
                known.update(fresh)
        self._before[key] = before
        if len(self._before) > _MOST_REMEMBERED:
            self._before.popitem(last=False)
            self._is_partial = True
        return before.rows, before.values

    @property
    def has_stars(self) -> bool:
        """Whether suppressed rows are published, as widely as can be."""
        return self._policy.on_suppress is OnSuppress.STAR
