"""Draws a history from its seed. Each history has its own habits: which faults it has at all, and how often."""

from __future__ import annotations

import random
from dataclasses import replace

from simulation.history import REFUSED, History, Row, Step
from simulation.model.broker import FAULTS
from simulation.policies import FOLLOWING, POLICIES, policy

#: Steps of every history, and how often they come: while rows arrive, and after that.
_ARRIVING = {"arrive": 10, "read": 12, "hold": 12, "send": 6, "clock": 3}
_LEAVING = {"arrive": 1, "read": 6, "hold": 10, "send": 24, "clock": 6}
#: Checkpoints, in one piece or in parts.
_WHOLE, _PARTS = {"checkpoint": 14}, {"barrier": 12, "complete": 12, "notify": 16}
#: Steps that only some histories have.
_FAULTS = {
    "again": 4,
    "abort": 2,
    "forget": 2,
    "crash": 2,
    "move": 3,
    "visit": 5,
    "restart": 1,
    "skew": 2,
    "savepoint": 1,
    "mistake": 1,
    "refuse": 6,
    "split": 2,
}
#: How often a bundle fails, of which histories choose one.
_FAILING = (0.0, 0.05, 0.2)

#: The share of histories whose shards are by person; the trees of the others follow the stream.
_PERSONS = 0.8


def draw(seed: int) -> History:
    """Draw the history of a seed."""
    chance = random.Random(seed)
    name = chance.choice(sorted(POLICIES))
    partitions, workers = chance.choice((1, 1, 2, 3)), chance.choice((1, 2, 2, 3))
    rows = _rows(chance, name, partitions)
    history = History(
        seed=seed,
        policy=name,
        rows=rows,
        steps=_steps(chance, len(rows)),
        partitions=partitions,
        workers=workers,
        log=chance.choice((0, 400, 1_500, 1 << 20)),
        window=chance.choice((0, 0, 0, 60)),
        ends=chance.random() < 0.3,
    )
    return history if chance.random() < _PERSONS else replace(history, policy=chance.choice(sorted(FOLLOWING)))


def _rows(chance: random.Random, name: str, partitions: int) -> list[Row]:
    given = policy(name)
    count = chance.choice((6, 12, 20, 30, 40, 80))
    delay = (given.delay or 30_000_000) // 1000
    gap = chance.choice((delay // 60, delay // 20, delay // 6))
    persons, odd = chance.choice((4, 8, 40)), chance.choice((0.0, 0.0, 0.05, 0.2))
    added = chance.choice((0, 0, 0, 1, 3))
    rows: list[Row] = []
    sent = 0
    for number in range(count):
        sent += int(chance.expovariate(1 / gap)) if chance.random() < 0.7 else 0
        late = chance.choice((0, 0, 0, given.disorder // 1000, gap))
        if chance.random() < odd:
            # Another row's own time, too: its timer may have fired.
            again = sent - chance.choice(rows).at if rows else 0
            late = chance.choice((again, 2 * delay, delay, -delay // 2, -delay // 4, -3 * delay, -100 * delay))
        rows.append(
            Row(
                partition=chance.randrange(partitions + (added if number > count // 3 else 0)),
                sent=sent,
                at=sent - late,
                person=chance.randrange(persons),
                age=chance.choice((20, 30, 70)) + chance.randrange(10),
                area=chance.choice((100, 120, 900)) + chance.randrange(9),
                illness=chance.randrange(3),
                fault=chance.choice((*REFUSED, "gap")) if chance.random() < odd / 2 else "",
            )
        )
    return rows


def _steps(chance: random.Random, rows: int) -> list[Step]:
    checkpoints, often = chance.choice((_WHOLE, _PARTS)), chance.choice((0.1, 0.3, 0.6))
    faults = {name: weight for name, weight in _FAULTS.items() if chance.random() < often}
    failing, size = chance.choice(_FAILING), chance.choice((2, 6, 30))
    count = chance.choice((12, 24, 40))
    steps = []
    for work, length in ((_ARRIVING, count), (_LEAVING, 2 * count)):
        weights = {name: weight * chance.choice((0.5, 1, 2)) for name, weight in {**work, **checkpoints}.items()}
        weights |= faults
        names = chance.choices(list(weights), list(weights.values()), k=length)
        # All rows have arrived when the first half is over, or nearly.
        share = 1 + rows * 2 // (names.count("arrive") + 1)
        steps += [_step(chance, name, failing, share if name == "arrive" else size) for name in names]
    return steps


def _step(chance: random.Random, name: str, failing: float, size: int) -> Step:
    worker, count = chance.randrange(3), 1 + chance.randrange(size)
    fail = 1 + chance.randrange(40) if chance.random() < failing else 0
    away = chance.random() < 0.5
    if name == "read":
        return Step(name, worker, count - 1, fail, int(away))
    if name in ("hold", "send"):
        # Many timers of the outbox find nothing to do.
        return Step(name, worker, count + (4 if name == "send" else 0), chance.randrange(100), -fail if away else fail)
    if name == "arrive":
        return Step(name, count)
    if name == "clock":
        return Step(name, chance.choice((1, 2, 5, 30, 70)))
    if name == "skew":
        return Step(name, worker, chance.choice((-100, -5, 0, 5, 100)))
    if name == "crash":
        return Step(name, chance.randrange(8), chance.randrange(3))
    if name == "move":
        return Step(name, chance.randrange(3), chance.randrange(4), worker)
    if name == "visit":
        return Step(name, chance.randrange(4), worker, count, chance.randrange(100))
    if name == "refuse":
        return Step(name, chance.randrange(len(FAULTS)), 1 + chance.randrange(2))
    if name == "savepoint":
        return Step(name, worker, chance.randrange(6), chance.choice((0, 0, 1)), chance.randrange(3))
    if name == "split":
        return Step(name, 1 + chance.randrange(4))
    if name in ("again", "mistake"):
        return Step(name, chance.randrange(100))
    return Step(name, worker)
