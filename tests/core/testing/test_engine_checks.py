"""The shipped checks find the faults they are made for: each fails on an engine with that fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crenel.encoding.rows import Rows
from crenel.engine import Engine, Kind, Releases, create_engine
from crenel.engine.methods.bastion import BastionParameters
from crenel.engine.methods.castle import CastleParameters
from crenel.policy import Method, OnSuppress, Policy, Reuse, Sensitive, methods
from crenel.policy.quasi_identifiers import Numeric
from crenel.testing import check_engine, engine_checks, engine_streams
from crenel.testing.engine_checks import Check
from crenel.testing.engine_streams import Case, run


def busy_case() -> Case:
    """Make a stream with clusters, reuse, suppression, watermarks and several pushes."""
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
    """Make the same stream, with a policy under which all rows leave in crowds."""
    case = busy_case()
    crowd = {"method": "bastion", "parameters": BastionParameters(reuse=Reuse.OFF), "on_suppress": OnSuppress.DROP}
    return replace(case, policy=replace(case.policy, **crowd))


def spaced_case() -> Case:
    """Make the same stream, with a policy under which rows of a person are published far apart."""
    case = busy_case()
    return replace(case, policy=replace(case.policy, once_per=100))


def linked_case() -> Case:
    """Make a stream of persons who differ and return, with a policy under which all boxes of a person leave k."""
    case = crowded_case()
    age = case.rows.person[:, None] * np.array([2.5, 1.0])
    return replace(case, policy=replace(case.policy, together=True), rows=replace(case.rows, qi=age))


class Broken:
    """An engine that passes all its releases through `change`."""

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
    """Releases depend on the number of calls, which no snapshot contains."""

    def change(self, releases: Releases) -> Releases:
        start, stop = releases.offsets[:2] if len(releases) else (0, 0)
        rows = releases.rows.copy()
        rows[start:stop] = np.roll(rows[start:stop], self.calls)
        return replace(releases, rows=rows)


class Hurries(Broken):
    def advance(self, now: int) -> Releases:
        return Releases.concat([self.engine.advance(now), self.engine.flush()])


class KeepsTheArrays(Broken):
    """Reads the rows of a push only at the next call."""

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


class SortsItsRows(Broken):
    """Releases rows in the order of their arrival."""

    def change(self, releases: Releases) -> Releases:
        rows = [np.sort(release.rows) for release in releases]
        return replace(releases, rows=np.concatenate([*rows, releases.rows[:0]]))


def one_key(policy: Policy, **given: Any) -> Engine:
    return create_engine(policy, secret=b"one", shard=b"for all")


class Forgets(Broken):
    def restore(self, data: bytes) -> None:
        pass


def under(**changes: Any) -> Callable[..., Engine]:
    """Make a factory for engines that changes the policy."""
    return lambda policy, **given: create_engine(replace(policy, **changes), **given)


FAULTS: dict[str, tuple[Any, Check]] = {
    "a row leaves for another": (with_column("rows", other_row), engine_checks.check_nothing_lost),
    "held is wrong": (HoldsNothing, engine_checks.check_held),
    "k is smaller": (under(k=2), engine_checks.check_groups),
    "l is forgotten": (under(l=None, t=None), engine_checks.check_groups),
    "t is forgotten": (under(t=None), engine_checks.check_groups),
    "a crowd is too small": (under(k=2, l=None, t=None), engine_checks.check_crowd),
    "rows leave alone": (under(parameters=BastionParameters(reuse=Reuse.WEIGHTED)), engine_checks.check_crowd),
    "a person is twice in a crowd": (with_column("rows", other_row), engine_checks.check_crowd),
    "a box is too narrow": (with_column("hi", lambda r: r.lo), engine_checks.check_true),
    "a star shows something": (with_column("lo", narrow_star), engine_checks.check_boxes),
    "a loss is wrong": (with_column("loss", lambda r: r.loss / 2), engine_checks.check_boxes),
    "delay is longer": (under(delay=1600, delay_rows=None), engine_checks.check_on_time),
    "delay_rows is longer": (under(delay=None, delay_rows=13), engine_checks.check_on_time),
    "a moment is wrong": (with_column("moment", lambda r: r.moment + 999), engine_checks.check_clock),
    "arrivals are wrong": (with_column("arrivals", lambda r: r.arrivals + 1), engine_checks.check_clock),
    "a repr shows persons": (Talks, engine_checks.check_silent),
    "a column shows persons": (
        with_column("group", lambda r: r.group * 0 + engine_checks.PERSON + 1),
        engine_checks.check_no_person_in_releases,
    ),
    "the cut matters": (CountsPushes, engine_checks.check_cuts),
    "a watermark matters": (Hurries, engine_checks.check_watermarks),
    "an old watermark matters": (Hurries, engine_checks.check_old_watermarks),
    "a snapshot lacks something": (CountsPushes, engine_checks.check_snapshots),
    "restore does nothing": (Forgets, engine_checks.check_snapshots),
    "a replay differs": (Forgets, engine_checks.check_replay),
    "damage is not noticed": (Forgets, engine_checks.check_damage),
    "all share one key": (one_key, engine_checks.check_key),
    "a person's rows are too near": (under(once_per=None), engine_checks.check_once_per),
    "a person lacks company": (under(together=None), engine_checks.check_together),
    "the order of a release is no secret": (SortsItsRows, engine_checks.check_secret_order),
    "arrays are kept": (KeepsTheArrays, engine_checks.check_no_aliasing),
    "releases change later": (ReusesItsArrays, engine_checks.check_releases_stay),
    "rows are kept too long": (under(delay=1600, delay_rows=None), engine_checks.check_bounded),
    "there is no next deadline": (NoDeadline, engine_checks.check_bounded),
    "the next deadline is early": (EarlyDeadline, engine_checks.check_next_deadline),
    "a dtype is wrong": (
        with_column("kind", lambda r: r.kind.astype(np.int64)),
        engine_checks.check_columns,
    ),
    "persons are wrong": (with_column("persons", lambda r: r.persons + 1), engine_checks.check_columns),
    "the order is not kept": (under(), engine_checks.check_order),
}


#: Checks that apply to some policies only, with streams under such policies; the others are tried on `busy_case`.
STREAMS: dict[Check, Callable[[], Case]] = {
    engine_checks.check_crowd: crowded_case,
    engine_checks.check_secret_order: crowded_case,
    engine_checks.check_once_per: spaced_case,
    engine_checks.check_together: linked_case,
}


@pytest.mark.parametrize(("fault", "check"), FAULTS.values(), ids=FAULTS)
def test_a_check_finds_its_fault(fault: Any, check: Check, monkeypatch: pytest.MonkeyPatch):
    case = STREAMS.get(check, busy_case)()
    if check is not engine_checks.check_order:
        check(replace(case))  # a case remembers what was released

    def broken(policy: Policy, **given: Any) -> Any:
        if isinstance(fault, type):
            return fault(create_engine(policy, **given))
        return fault(policy, **given)

    monkeypatch.setattr(engine_streams, "create_engine", broken)
    with pytest.raises(AssertionError):
        check(case)


def test_the_busy_case_is_busy():
    assert set(run(busy_case()).kind.tolist()) == {Kind.CLUSTER, Kind.REUSE, Kind.SUPPRESSED}


def test_every_check_has_a_fault():
    """The exceptions compare two engines, or the columns with themselves."""
    found = {check for _, check in FAULTS.values()}
    assert set(engine_checks.ALL_CHECKS) - found == {engine_checks.check_iteration, engine_checks.check_order_alone}


# --- The suite, as the author of a new method calls it ---


SMALL: dict[str, Any] = {
    "person": "who",
    "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}, "zip": {"type": "prefix", "length": 2}},
    "k": 3,
    "delay_rows": 12,
}


def policy_of(method: Method) -> Policy:
    methods.register(method)
    return Policy.from_dict(SMALL | {"method": method.name})


def theirs(engine: Callable[[Policy, bytes], Any]) -> Method:
    """Declare a third-party method that works like mondrian."""
    return replace(methods.find("mondrian"), name="theirs", engine=engine)


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_registered", {})


def test_a_method_of_somebody_elses_can_be_checked():
    check_engine(policy_of(theirs(methods.find("mondrian").load_engine())), streams=10)


def test_a_broken_promise_is_named_and_can_be_run_again():
    mondrian = methods.find("mondrian").load_engine()
    policy = policy_of(theirs(lambda policy, key: mondrian(replace(policy, k=2), key)))
    with pytest.raises(AssertionError) as raised:
        check_engine(policy, seed=3)
    said = str(raised.value)
    assert said.startswith("check_engine: the method 'theirs' breaks the promise '2. a crowd' on stream ")
    assert "Groups must have at least k persons" in said
    again = re.search(r"Run it again by: check_engine\(policy, streams=\[(\d+)\], seed=3\)", said)
    assert again
    with pytest.raises(AssertionError, match=r"breaks the promise '2\. a crowd'"):
        check_engine(policy, streams=[int(again[1])], seed=3)


def test_an_engine_that_fails_is_reported_with_its_error():
    class Fails(Broken):
        def push(self, rows: Rows) -> Releases:
            if len(rows):
                raise IndexError("a bug")
            return super().push(rows)

    mondrian = methods.find("mondrian").load_engine()
    with pytest.raises(AssertionError, match="It raised IndexError: a bug") as raised:
        check_engine(policy_of(theirs(lambda policy, key: Fails(mondrian(policy, key)))))
    assert isinstance(raised.value.__cause__, IndexError)


@pytest.mark.slow
def test_streams_that_publish_nothing_prove_nothing():
    policy = Policy.from_dict(SMALL | {"k": 1000, "delay_rows": 1000, "method": "castle"})
    with pytest.raises(AssertionError, match="none of 10 streams had a group to publish"):
        check_engine(policy, streams=10)


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.names())
def test_every_method_passes_on_a_few_streams(name: str):
    """`test_engines` tests the methods more thoroughly. This test checks that the drawn streams fit the policy."""
    parameters: dict[str, Any] = {
        "sdgs": {"cover": "quasi_identifiers", "beta_sample": 0.9},
        "rtree-density": {"sample": 10, "window_rows": 30},
        "rtree-full": {"sample": 10, "window_rows": 30},
    }
    said: dict[str, Any] = {
        "person": "who",
        "event_time": "at",
        "quasi_identifiers": {
            "age": {"type": "numeric", "domain": [0, 100]},
            "zip": {"type": "prefix", "length": 2},
            "work": {"type": "categorical", "hierarchy": {"any": {"care": ["nurse", "doctor"], "law": ["judge"]}}},
        },
        "sensitive": {"ill": None, "size": {"values": ["s", "m", "l"]}},
        "l": 2 if methods.find(name).keeps_l else None,
        "k": 3,
        "delay": "1m",
        "delay_rows": 15,
        "method": name,
        "parameters": parameters.get(name, {}),
    }
    check_engine(Policy.from_dict(said), streams=3)
