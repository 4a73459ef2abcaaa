"""Streams to try an engine with: a policy, rows, and the calls that bring them.

Rows drawn freely hardly ever meet again: most would be suppressed, and nearly none would be published under an earlier
generalization. Most streams therefore draw most of their rows from a few places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crenel.audit import Report, audit
from crenel.encoding.rows import Rows
from crenel.engine import create_engine
from crenel.engine.contract import Engine, Releases
from crenel.policy import Policy
from crenel.policy.geometry import Geometry, Interval

__all__ = ["Advance", "Call", "Case", "Push", "apply", "draw_case", "make_rows", "run", "with_watermarks"]

#: How event time goes on from row to row: it may stand still, jump or go back. In fiftieths of the delay.
STEPS = ((0, 5, 20), (0, 1, 2), (-30, -1, 0, 7, 60), (40, -35, 5, 0), (10,), (0,))

#: The fewest and the most rows of the longest streams; between them, several times k.
_FEW_ROWS, _MOST_ROWS = 80, 600

#: Places that most rows of a stream are drawn from.
_PLACES = 4

#: A source of integers from `low` up to, and not including, `high`.
Below = Callable[[int, int], Any]


class Push(NamedTuple):
    """The rows from `start` up to, and not including, `stop` arrive."""

    start: int
    stop: int


class Advance(NamedTuple):
    """The watermark moves to `now`."""

    now: int


Call = Push | Advance


@dataclass(frozen=True, kw_only=True)
class Case:
    """One stream under one policy."""

    policy: Policy
    rows: Rows
    #: Where the pushes are cut; a place named twice is an empty push.
    cuts: tuple[int, ...] = ()
    #: Watermarks, as (number of rows pushed before, watermark).
    moves: tuple[tuple[int, int], ...] = ()
    secret: bytes = b"secret"
    shard: bytes = b""

    def engine(self) -> Engine:
        """Make an engine for the stream."""
        return create_engine(self.policy, secret=self.secret, shard=self.shard)

    @cached_property
    def releases(self) -> Releases:
        """Everything that is released. Checks only read it, so that the stream is run once for most of them."""
        return run(self)

    @cached_property
    def report(self) -> Report:
        """What the audit says of the releases."""
        return audit(self.policy, self.rows, self.releases, calls=self.moves)

    def calls(self, cuts: Sequence[int] | None = None) -> list[Call]:
        """Return the calls that bring the rows, cut as given, and the watermarks."""
        places = sorted([*(self.cuts if cuts is None else cuts), len(self.rows)])
        moves = sorted(self.moves, key=lambda move: move[0])
        calls: list[Call] = []
        start = 0
        for stop in places:
            while moves and moves[0][0] <= stop:
                place, now = moves.pop(0)
                if place > start:
                    calls.append(Push(start, place))
                    start = place
                calls.append(Advance(now))
            calls.append(Push(start, stop))
            start = stop
        return calls

    def deadlines(self) -> list[int] | None:
        """Return the deadline of each row in event time; a method may keep an earlier one."""
        if self.policy.delay is None:
            return None
        return [int(time) + self.policy.delay for time in self.rows.time]

    def __repr__(self) -> str:
        """Show all of it: the rows are made up, and whoever debugs a failure needs to see them."""
        rows = self.rows
        columns = ", ".join(f"{name}={getattr(rows, name).tolist()}" for name in ("qi", "person", "sensitive", "time"))
        return (
            f"Case(policy={self.policy!r}, rows=({columns}), cuts={self.cuts}, "
            f"moves={self.moves}, secret={self.secret!r}, shard={self.shard!r})"
        )


def apply(engine: Engine, rows: Rows, call: Call) -> Releases:
    """Make one call to the engine."""
    if isinstance(call, Advance):
        return engine.advance(call.now)
    return engine.push(rows.slice(call.start, call.stop))


def run(case: Case, calls: Sequence[Call] | None = None) -> Releases:
    """Return everything that is released, up to the end of the stream."""
    engine = case.engine()
    parts = [apply(engine, case.rows, call) for call in (case.calls() if calls is None else calls)]
    return Releases.concat([*parts, engine.flush()])


def with_watermarks(case: Case, behind: Sequence[int]) -> Case:
    """Return the same stream, with a watermark before each row that the row itself would bring."""
    told = [(i, int(time) - case.policy.disorder - behind[i % len(behind)]) for i, time in enumerate(case.rows.time)]
    return replace(case, moves=tuple(sorted([*case.moves, *told], key=lambda move: move[0])))


def draw_case(policy: Policy, random: np.random.Generator) -> Case:
    """Draw a stream that fits a policy, with whatever is awkward.

    Values tie, columns are constant, persons return, times stand still or go back, pushes are empty, and watermarks are
    behind and ahead of the rows.
    """
    # Half of the streams are lively: nothing about them is so unusual that hardly a row would be published.
    lively = bool(random.integers(0, 2))
    longest = int(np.clip(6 * policy.k, _FEW_ROWS, _MOST_ROWS))
    n = int(random.integers(longest // 2, longest + 1) if lively else random.integers(0, longest + 1))
    pools = [
        _pool(qi.geometry, random, most=8 if lively else int(random.integers(1, 9)))
        for qi in policy.quasi_identifiers.values()
    ]
    codes = [_codes(column.size, policy.l, random, lively=lively) for column in policy.sensitive.values()]
    usual = max(3 * policy.k, 10)
    persons = usual if lively else int(random.choice([usual, 1000, policy.k, 1]))
    steps = STEPS[0] if lively else STEPS[random.integers(0, len(STEPS))]
    unit = 1 if policy.delay is None else max(policy.delay // 50, 1)
    rows = make_rows(
        random.integers,
        n,
        pools,
        codes,
        persons=persons,
        steps=[step * unit for step in steps],
        gathered=7 if lively else int(random.choice([7, 9, 10, 0])),
    )
    if policy.declaration.takes_holes:
        rows = replace(rows, qi=_with_holes(rows.qi, random))
    return Case(
        policy=policy,
        rows=rows,
        cuts=tuple(sorted(random.integers(0, n + 1, random.integers(0, 7)).tolist())),
        moves=() if lively else _moves(rows, unit, random),
        shard=bytes(random.integers(0, 256, 2).astype(np.uint8)),
    )


def make_rows(
    below: Below,
    n: int,
    pools: Sequence[Sequence[float]],
    codes: Sequence[Sequence[int]],
    *,
    persons: int,
    steps: Sequence[int],
    gathered: int,
    start: int = 0,
) -> Rows:
    """Make rows from small pools of values; a pool of one value is a constant column.

    Args:
        below: The source of all choices.
        n: The number of rows.
        pools: The coordinates that each quasi-identifier may have.
        codes: The codes that each sensitive column may have.
        persons: The number of persons, less one.
        steps: By how much event time may go on from one row to the next.
        gathered: How many of ten rows are in one of a few places; the others are anywhere.
        start: The event time before the first row.
    """

    def pick(values: Sequence[Any]) -> Any:
        return values[int(below(0, len(values)))]

    places = [tuple(pick(pool) for pool in pools) for _ in range(_PLACES)]
    picked = []
    for _ in range(n):
        here = int(below(0, 10)) < gathered
        qi = pick(places) if here else tuple(pick(pool) for pool in pools)
        sensitive = tuple(pick(values) for values in codes)
        picked.append((qi, _person(int(below(0, persons + 1))), sensitive, pick(steps)))
    return Rows(
        qi=np.array([qi for qi, _, _, _ in picked], np.float64).reshape(n, len(pools)),
        person=np.array([person for _, person, _, _ in picked], np.int64),
        sensitive=np.array([sensitive for _, _, sensitive, _ in picked], np.int64).reshape(n, len(codes)),
        time=start + np.cumsum(np.array([step for _, _, _, step in picked], np.int64)),
    )


def _person(number: int) -> int:
    """Persons are hashes; the extremes are as likely as any other."""
    return {0: 2**63 - 1, 1: -(2**63), 2: 0, 3: -1}.get(number, number * 7_919_777_777)


def _pool(geometry: Geometry, random: np.random.Generator, most: int) -> list[float]:
    """A few coordinates that a quasi-identifier may have."""
    whole = not isinstance(geometry, Interval) or geometry.cells
    lo, hi = geometry.widest()
    if np.isinf(lo):
        # Small whole numbers tie often; numbers far away widen a learned domain.
        spread = int(random.choice([10, 1_000_000]))
        values = random.integers(-spread, spread, most).astype(np.float64)
        return [float(value) for value in (values if whole else values / random.choice([1.0, 3.0]))]
    if whole:
        return [float(value) for value in random.integers(int(lo), int(hi) + 1, most)]
    places = random.integers(0, 11, most) / 10.0
    return [float(min(hi, lo + (hi - lo) * place)) for place in places]


def _codes(size: int | None, l: int | None, random: np.random.Generator, *, lively: bool) -> list[int]:
    """Codes that a sensitive column may have. Those of undeclared values are hashes: far apart, in no order."""
    if not lively and random.integers(0, 5) == 0:
        return [0]
    if size is not None:
        return list(range(size))
    count = max(l or 2, 2) + int(random.integers(0, 4))
    return [int(code) for code in random.integers(0, 2**63 - 1, count)]


def _with_holes(qi: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Give each row one of a few patterns of missing values: more patterns would hardly ever meet again."""
    patterns = np.concatenate([np.zeros((1, qi.shape[1]), bool), random.integers(0, 2, (3, qi.shape[1])) == 1])
    return np.where(patterns[random.integers(0, len(patterns), len(qi))], np.nan, qi)


def _moves(rows: Rows, unit: int, random: np.random.Generator) -> tuple[tuple[int, int], ...]:
    """Watermarks near the times of the rows around them, behind and ahead."""
    times = rows.time.tolist() or [0]
    places = sorted(random.integers(0, len(rows) + 1, random.integers(0, 4)).tolist())
    ahead = random.choice([-50, -1, 0, 1, 30, 500], len(places)).tolist()
    return tuple(
        (place, times[min(place, len(times) - 1)] + by * unit) for place, by in zip(places, ahead, strict=True)
    )
