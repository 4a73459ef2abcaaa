"""The checks find what they are for: each fails on an engine that is broken in its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases, create_engine
from crenel.engine.methods.bastion import BastionParameters
from crenel.engine.methods.castle import CastleParameters
from crenel.policy import OnSuppress, Policy, Reuse, Sensitive
from crenel.policy.quasi_identifiers import Numeric
from tests.core.engine import cases, checks
from tests.core.engine.cases import Case, run
from tests.core.engine.checks import Check, Method

ANY = Method(name="any", cases=st.nothing())


def busy_case() -> Case:
    """A stream with clusters, reuse, suppression, watermarks and several pushes."""
    n = 120
    random = np.random.default_rng(5)
    policy = Policy(
        person="person",
        event_time="at",
        quasi_identifiers={"x": Numeric(domain=(0, 100)), "y": Numeric()},
        sensitive={"s": Sensitive(values=tuple("abcd"))},
        k=3,
        l=2,
        t=0.4,
        delay=160,
        delay_rows=12,
        method="castle",
        parameters=CastleParameters(beta=4, mu=4, max_reusable=4),
    )
    rows = Rows(
        qi=np.stack([random.integers(0, 3, n) * 40.0, random.integers(0, 5, n) * 1.0], axis=1),
        person=random.integers(0, 40, n),
        sensitive=random.integers(0, 4, (n, 1)),
        time=np.cumsum(random.integers(0, 30, n)),
    )
    moves = ((30, int(rows.time[30]) - 5), (70, int(rows.time[69]) + 1))
    return Case(policy=policy, rows=rows, cuts=(10, 10, 45, 90), moves=moves)


def crowded_case() -> Case:
    """The same stream, all of which leaves in crowds."""
    case = busy_case()
    crowd = {"method": "bastion", "parameters": BastionParameters(reuse=Reuse.OFF), "on_suppress": OnSuppress.DROP}
    return replace(case, policy=replace(case.policy, **crowd))


class Broken:
    """An engine whose releases pass through `change` on their way out."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def change(self, releases: Releases) -> Releases:
        return releases

    def push(self, rows: Rows) -> Releases:
        self.calls += 1
        return self.change(self.engine.push(rows))

    def advance(self, now: int) -> Releases:
        return self.change(self.engine.advance(now))

    def flush(self) -> Releases:
        return self.change(self.engine.flush())


def changing(change: Callable[[Broken, Releases], Releases]) -> type[Broken]:
    return type("Changing", (Broken,), {"change": change})


def with_column(name: str, new: Callable[[Releases], Any]) -> type[Broken]:
    return changing(lambda _, releases: replace(releases, **{name: new(releases)}))


def other_row(releases: Releases) -> Any:
    rows = releases.rows.copy()
    rows[1:2] = rows[0:1]
    return rows


def narrow_star(releases: Releases) -> Any:
    lo = releases.lo.copy()
    lo[releases.kind == Kind.SUPPRESSED, 0] = 0.25
    return lo


class Talks(Broken):
    def push(self, rows: Rows) -> Releases:
        self.last = rows.person.tolist()
        return super().push(rows)

    def __repr__(self) -> str:
        return f"Talks({getattr(self, 'last', [])})"


class CountsPushes(Broken):
    """What leaves depends on something that no snapshot has."""

    def change(self, releases: Releases) -> Releases:
        start, stop = releases.offsets[:2] if len(releases) else (0, 0)
        rows = releases.rows.copy()
        rows[start:stop] = np.roll(rows[start:stop], self.calls)
        return replace(releases, rows=rows)


class Hurries(Broken):
    def advance(self, now: int) -> Releases:
        return Releases.concat([self.engine.advance(now), self.engine.flush()])


class KeepsTheArrays(Broken):
    """Looks at the rows of a push only when the next call comes."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.kept: Rows | None = None

    def late(self) -> list[Releases]:
        kept, self.kept = self.kept, None
        return [] if kept is None else [self.engine.push(kept)]

    def push(self, rows: Rows) -> Releases:
        late = self.late()
        self.kept = rows
        return Releases.concat([*late, self.engine.advance(-(2**63))])

    def flush(self) -> Releases:
        return Releases.concat([*self.late(), self.engine.flush()])


class ReusesItsArrays(Broken):
    def change(self, releases: Releases) -> Releases:
        if self.calls > 1:
            self.before.moment[...] = 0
        self.before = releases
        return releases


class NoDeadline(Broken):
    def next_deadline(self) -> int | None:
        return None


class EarlyDeadline(Broken):
    def next_deadline(self) -> int | None:
        deadline = self.engine.next_deadline()
        return None if deadline is None else deadline - 1


class HoldsNothing(Broken):
    held = 0


class OneKey(Broken):
    key = bytes(32)


class Forgets(Broken):
    def restore(self, data: bytes) -> None:
        pass


def under(**changes: Any) -> Callable[[Policy], Policy]:
    return lambda policy: replace(policy, **changes)


FAULTS: dict[str, tuple[Any, Check]] = {
    "a row leaves for another": (with_column("rows", other_row), checks.check_nothing_lost),
    "held is wrong": (HoldsNothing, checks.check_held),
    "k is smaller": (under(k=2), checks.check_groups),
    "l is forgotten": (under(l=None, t=None), checks.check_groups),
    "t is forgotten": (under(t=None), checks.check_groups),
    "a crowd is too small": (under(k=2, l=None, t=None), checks.check_crowd),
    "rows leave alone": (under(parameters=BastionParameters(reuse=Reuse.WEIGHTED)), checks.check_crowd),
    "a person is twice in a crowd": (with_column("rows", other_row), checks.check_crowd),
    "a box is too narrow": (with_column("hi", lambda r: r.lo), checks.check_true),
    "a star shows something": (with_column("lo", narrow_star), checks.check_boxes),
    "a loss is wrong": (with_column("loss", lambda r: r.loss / 2), checks.check_boxes),
    "delay is longer": (under(delay=1600, delay_rows=None), checks.check_on_time),
    "delay_rows is longer": (under(delay=None, delay_rows=13), checks.check_on_time),
    "a moment is wrong": (with_column("moment", lambda r: r.moment + 999), checks.check_clock),
    "arrivals are wrong": (with_column("arrivals", lambda r: r.arrivals + 1), checks.check_clock),
    "a repr shows persons": (Talks, checks.check_silent),
    "a column shows persons": (
        with_column("group", lambda r: r.group * 0 + checks.PERSON + 1),
        checks.check_no_person_in_releases,
    ),
    "the cut matters": (CountsPushes, checks.check_cuts),
    "a watermark matters": (Hurries, checks.check_watermarks),
    "an old watermark matters": (Hurries, checks.check_old_watermarks),
    "a snapshot lacks something": (CountsPushes, checks.check_snapshots),
    "restore does nothing": (Forgets, checks.check_snapshots),
    "a replay differs": (Forgets, checks.check_replay),
    "all share one key": (OneKey, checks.check_key),
    "arrays are kept": (KeepsTheArrays, checks.check_no_aliasing),
    "releases change later": (ReusesItsArrays, checks.check_releases_stay),
    "rows are kept too long": (under(delay=1600, delay_rows=None), checks.check_bounded),
    "there is no next deadline": (NoDeadline, checks.check_bounded),
    "the next deadline is early": (EarlyDeadline, checks.check_next_deadline),
    "a dtype is wrong": (
        with_column("kind", lambda r: r.kind.astype(np.int64)),
        checks.check_columns,
    ),
    "persons are wrong": (with_column("persons", lambda r: r.persons + 1), checks.check_columns),
    "the order is not kept": (under(), checks.check_order),
}


@pytest.mark.parametrize(("fault", "check"), FAULTS.values(), ids=FAULTS)
def test_a_check_finds_its_fault(fault: Any, check: Check, monkeypatch: pytest.MonkeyPatch):
    case = crowded_case() if check is checks.check_crowd else busy_case()
    if check is not checks.check_order:
        check(ANY, case)

    def broken(policy: Policy, **given: Any) -> Any:
        if isinstance(fault, type):
            return fault(create_engine(policy, **given))
        return create_engine(fault(policy), **given)

    monkeypatch.setattr(cases, "create_engine", broken)
    with pytest.raises(AssertionError):
        check(ANY, case)


def test_the_busy_case_is_busy():
    assert set(run(busy_case()).kind.tolist()) == {Kind.CLUSTER, Kind.REUSE, Kind.SUPPRESSED}


def test_every_check_has_a_fault():
    """But for those that compare two engines, or the columns with themselves."""
    found = {check for _, check in FAULTS.values()}
    assert set(checks.ALL_CHECKS) - found == {checks.check_iteration, checks.check_order_alone}
