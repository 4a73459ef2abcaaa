"""The promises of the design, as checks that any method must pass.

In the spirit of scikit-learn's and river's estimator checks: each `check_*` takes a method and a
case (see `tests.core.engine.cases`) and raises where a promise is broken. `ALL_CHECKS` lists them;
`tests.core.engine.test_engines` runs them all for every method. What a method does not promise it says
by a flag of `Method`; `reason_to_skip` knows which check that is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from crenel.audit.guarantees import Report, audit
from crenel.encoding.rows import Rows
from crenel.engine import Engine, Kind, Releases
from tests.core.engine.cases import Advance, Call, Case, Push, apply, run, with_watermarks

COLUMNS = {
    "rows": (np.int64, 1),
    "offsets": (np.int64, 1),
    "kind": (np.int8, 1),
    "lo": (np.float64, 2),
    "hi": (np.float64, 2),
    "loss": (np.float64, 1),
    "persons": (np.int64, 1),
    "moment": (np.int64, 1),
    "arrivals": (np.int64, 1),
    "group": (np.int64, 1),
}

FIRST_MOMENT = -(2**63)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method under test, and what it promises."""

    name: str
    cases: st.SearchStrategy[Case]
    #: It publishes values that were changed: a box need not contain the row's own.
    perturbs: bool = False
    #: It leaves rows out on purpose.
    samples: bool = False
    #: No row leaves after its deadline.
    hard_deadline: bool = True
    #: Rows leave in their own order, one by one: a group is complete only in the end.
    reorders: bool = False
    #: Rows may lack quasi-identifiers, and releases not publish them.
    holes: bool = False


Check = Callable[[Method, Case], None]


def reason_to_skip(check: Check, method: Method) -> str | None:
    """Why a check is not for this method, or None if it is."""
    if check is check_true and method.perturbs:
        return "the method perturbs: a box need not contain the row's own values"
    if check in (check_on_time, check_bounded) and not method.hard_deadline:
        return "the method may keep a row beyond its deadline"
    if check in (check_order, check_order_alone) and not method.reorders:
        return "the method does not keep the order of the rows"
    return None


# -- what the checks are made of -----------------------------------------------------------------


@dataclass
class Step:
    """What one call brought, and how the stream stood after it, by the test's own count."""

    call: Call | None
    releases: Releases
    pushed_before: int
    pushed: int
    clock: int
    held: set[int]


def steps(case: Case, engine: Engine) -> Iterator[Step]:
    """Runs a case call by call; the last step, without a call, is the flush."""
    held: set[int] = set()
    clock, pushed = FIRST_MOMENT, 0
    calls: list[Call | None] = [*case.calls(), None]
    for call in calls:
        before = pushed
        if isinstance(call, Advance):
            clock = max(clock, call.now)
        elif isinstance(call, Push):
            for time in case.rows.time[call.start : call.stop]:
                clock = max(clock, int(time) - case.policy.disorder)
            pushed = call.stop
            held |= set(range(call.start, call.stop))
        releases = engine.flush() if call is None else apply(engine, case.rows, call)
        held -= set(releases.rows.tolist())
        yield Step(call, releases, before, pushed, clock, set(held))


def audited(case: Case, releases: Releases) -> Report:
    return audit(case.policy, case.rows, releases, calls=case.moves)


def assert_same(one: Releases, other: Releases) -> None:
    for name in COLUMNS:
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, err_msg=name)


# -- 1. nothing lost -----------------------------------------------------------------------------


def check_nothing_lost(method: Method, case: Case) -> None:
    """Every pushed row leaves exactly once."""
    report = audited(case, run(case))
    assert (report.lost, report.twice, report.unknown, report.early) == (0, 0, 0, 0)
    assert report.published + report.suppressed + report.sampled_out == len(case.rows)
    if not method.samples:
        assert report.sampled_out == 0


def check_held(method: Method, case: Case) -> None:
    """`held` is the number of rows that have not left; after the flush there is none."""
    engine = case.engine()
    assert engine.held == 0
    for step in steps(case, engine):
        assert engine.held == len(step.held)
    assert engine.held == 0
    assert engine.next_deadline() is None
    assert len(engine.flush()) == 0, "a second flush has nothing left to release"


# -- 2. k, l, t ----------------------------------------------------------------------------------


def check_groups(method: Method, case: Case) -> None:
    """Whenever a row is published, its group is of k persons, l values, and within t."""
    report = audited(case, run(case))
    assert report.small_groups == 0
    assert not any(report.low_diversity.values()), report.low_diversity
    if method.reorders:
        # The stream has moved on when a row leaves that was decided before: see check_order_alone.
        assert set(report.far.values()) <= {None}
    else:
        assert all(far == 0 for far in report.far.values()), report.far


def check_crowd(method: Method, case: Case) -> None:
    """Where a crowd is promised, a row leaves with k persons, each of them once, or it is suppressed."""
    if not case.policy.declaration.crowd(case.policy.parameters):
        return
    for release in run(case):
        persons = case.rows.person[release.rows]
        if Kind(release.kind) is Kind.SUPPRESSED:
            assert len(persons) == 1
        else:
            assert Kind(release.kind) is Kind.CLUSTER
            assert len(persons) == len(set(persons.tolist())) == release.persons >= case.policy.k
    if case.policy.crowd:
        assert audited(case, run(case)).no_crowd == 0


# -- 3. true -------------------------------------------------------------------------------------


def check_true(method: Method, case: Case) -> None:
    """A published generalization contains the row's own values."""
    assert audited(case, run(case)).outside == 0


def check_boxes(method: Method, case: Case) -> None:
    """Every box can be published, a suppressed row's is the widest, and its loss is as reported."""
    report = audited(case, run(case))
    assert (report.illegal, report.star_not_widest) == (0, 0)
    if method.perturbs:
        # A learned domain is that of the perturbed values, which only the engine knows.
        assert report.wrong_loss in (0, None)
    elif not method.reorders:
        # A learned domain may have grown between the decision and the leaving.
        assert report.wrong_loss == 0


# -- 4. on time ----------------------------------------------------------------------------------


def check_on_time(method: Method, case: Case) -> None:
    """No row leaves after its deadline; one that arrives after it leaves at once."""
    report = audited(case, run(case))
    assert (report.late, report.late_rows) == (0, 0)


def check_clock(method: Method, case: Case) -> None:
    """The moments and arrivals that releases carry are those at which they left, and never fall."""
    moment, arrivals = FIRST_MOMENT, 0
    for step in steps(case, case.engine()):
        for release in step.releases:
            assert moment <= release.moment <= step.clock
            assert max(arrivals, step.pushed_before) <= release.arrivals <= step.pushed
            moment, arrivals = release.moment, release.arrivals


# -- 5. silent -----------------------------------------------------------------------------------

# Digits that nothing but a row brings.
PERSON, TIME, COORDINATE, CODE = 31_415_926_535, 16_180_339_887, 27_182_818_284, 14_142_135_623


def check_silent(method: Method, case: Case) -> None:
    """Neither text, nor log, nor error shows a value of a row."""
    case = _loud(case)
    with _logged() as logged:
        engine = case.engine()
        texts = [repr(case.rows), str(case.rows), repr(engine), str(engine)]
        for step in steps(case, engine):
            texts += [repr(engine), str(engine), repr(step.releases), str(step.releases)]
            texts += [text for release in step.releases for text in (repr(release), str(release))]
        texts += _errors(case)
    shown = "\n".join([*texts, *logged]).replace(".", "").replace("_", "").replace(",", "")
    for number in (PERSON, TIME, COORDINATE, CODE):
        assert str(number)[:6] not in shown


def check_no_person_in_releases(method: Method, case: Case) -> None:
    """Releases have no column for person or event time, nor show a person in another."""
    case = _loud(case)
    releases = run(case)
    if is_dataclass(releases):
        assert {field.name for field in fields(releases)} <= set(COLUMNS)
    for name in set(COLUMNS) - {"lo", "hi", "loss", "moment"}:
        assert not np.isin(getattr(releases, name), case.rows.person).any(), name


def _loud(case: Case) -> Case:
    """The same case with values that are known again wherever they appear."""
    policy, rows = case.policy, case.rows
    qi, sensitive = rows.qi.copy(), rows.sensitive.copy()
    for j, column in enumerate(policy.quasi_identifiers.values()):
        if column.geometry.widest() == (-np.inf, np.inf):
            qi[:, j] = COORDINATE + np.round(qi[:, j] % 1000)
    for j, secret in enumerate(policy.sensitive.values()):
        if secret.size is None:
            sensitive[:, j] = CODE + sensitive[:, j] % 1000
    time = TIME * 1_000 + (rows.time - rows.time.min(initial=0)) % 1_000_000
    loud = Rows(qi=qi, person=PERSON + rows.person % 1000, sensitive=sensitive, time=time)
    return replace(case, rows=loud, moves=())


def _errors(case: Case) -> list[str]:
    """The messages of all that can be wrong with rows; a refused push changes nothing."""
    engine, rows = case.engine(), case.rows
    engine.push(rows.slice(0, len(rows) // 2))
    before = engine.snapshot()
    messages = []
    for wrong in _wrong_rows(case):
        with pytest.raises((TypeError, ValueError)) as raised:
            engine.push(wrong())
        messages.append(f"{raised.value!r} {raised.value}")
        assert engine.snapshot() == before
    return messages


def _wrong_rows(case: Case) -> list[Callable[[], Rows]]:
    """Makers of rows whose shapes are not of this policy."""
    rows = case.rows if len(case.rows) else _one_row(case)
    return [
        lambda: replace(rows, qi=np.hstack([rows.qi, rows.qi[:, :1]])),
        lambda: replace(rows, sensitive=np.hstack([rows.sensitive, rows.person[:, None]])),
        lambda: replace(rows, person=rows.person[:-1]),
        lambda: replace(rows, time=rows.time.astype(np.float64)),
    ]


def _one_row(case: Case) -> Rows:
    lows = [column.geometry.widest()[0] for column in case.policy.quasi_identifiers.values()]
    return Rows(
        qi=np.array([[COORDINATE if low == -np.inf else low for low in lows]], np.float64),
        person=np.array([PERSON], np.int64),
        sensitive=np.zeros((1, len(case.policy.sensitive)), np.int64),
        time=np.array([TIME], np.int64),
    )


@contextmanager
def _logged() -> Iterator[list[str]]:
    """All that is logged meanwhile, whatever its level."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(self.format(record))

    logger, handler = logging.getLogger(), Keep(logging.NOTSET)
    level = logger.level
    logger.addHandler(handler)
    # Hypothesis and numba talk below this about themselves.
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# -- 6. repeatable -------------------------------------------------------------------------------


def check_cuts(method: Method, case: Case) -> None:
    """The same rows bring the same releases, however they are cut into pushes."""
    whole = run(case, case.calls(cuts=()))
    assert_same(run(case, case.calls(cuts=range(len(case.rows)))), whole)
    assert_same(run(case), whole)


def check_watermarks(method: Method, case: Case) -> None:
    """A watermark that says no more than the next row will makes no difference."""
    expected = run(case)
    assert_same(run(with_watermarks(case, [0])), expected)
    assert_same(run(with_watermarks(case, [1, 0, 50])), expected)


def check_old_watermarks(method: Method, case: Case) -> None:
    """A timer that fires again, or late, releases nothing: what was due has left."""
    engine = case.engine()
    for step in steps(case, engine):
        if step.call is not None:
            before = engine.snapshot()
            for now in (step.clock, step.clock - 17):
                if now >= FIRST_MOMENT:
                    assert len(engine.advance(now)) == 0
            assert engine.snapshot() == before


def check_snapshots(method: Method, case: Case) -> None:
    """An engine restored after every call goes on as if nothing had happened."""
    expected = run(case)
    engine, stale = case.engine(), case.engine()
    parts = []
    for number, call in enumerate(case.calls()):
        parts.append(apply(engine, case.rows, call))
        stored = engine.snapshot()
        assert isinstance(stored, bytes)
        assert engine.snapshot() == stored, "a snapshot changes nothing"
        # Every other time into an engine that has seen other rows: nothing of them stays.
        fresh = stale if number % 2 else case.engine()
        fresh.restore(stored)
        assert fresh.snapshot() == stored
        assert (fresh.held, fresh.next_deadline()) == (engine.held, engine.next_deadline())
        engine, stale = fresh, engine
    assert_same(Releases.concat([*parts, engine.flush()]), expected)


def check_replay(method: Method, case: Case) -> None:
    """Going back to any snapshot and replaying what came after publishes the same again."""
    calls = case.calls()
    engine = case.engine()
    stored = [engine.snapshot()]
    parts = []
    for call in calls:
        parts.append(apply(engine, case.rows, call))
        stored.append(engine.snapshot())
    parts.append(engine.flush())
    for start in {0, len(calls) // 2, len(calls)}:
        again = case.engine()
        again.restore(stored[start])
        rest = [apply(again, case.rows, call) for call in calls[start:]]
        assert_same(Releases.concat([*rest, again.flush()]), Releases.concat(parts[start:]))


def check_key(method: Method, case: Case) -> None:
    """The key alone is the seed: of the secret and the shard, or of the policy's own seed."""
    assert_same(run(case), run(case))
    keys = {
        replace(case, secret=secret, shard=shard).engine().key
        for secret in (b"one", b"two")
        for shard in (b"", b"a", b"b")
    }
    assert len(keys) == 6
    assert all(isinstance(key, bytes) and len(key) == 32 for key in keys)

    seeded = replace(case, policy=replace(case.policy, seed=7))
    assert_same(run(seeded), run(replace(seeded, secret=b"another secret")))
    assert seeded.engine().key != replace(seeded, shard=b"another shard").engine().key


def check_no_aliasing(method: Method, case: Case) -> None:
    """Pushed arrays are not touched, and what happens to them afterwards changes nothing."""
    expected = run(case)
    engine = case.engine()
    parts = []
    for call in case.calls():
        if isinstance(call, Advance):
            parts.append(engine.advance(call.now))
            continue
        pushed = case.rows.take(np.arange(call.start, call.stop))
        arrays = [pushed.qi, pushed.person, pushed.sensitive, pushed.time]
        before = [array.copy() for array in arrays]
        parts.append(engine.push(pushed))
        for array, old in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, old)
            array[...] = 0
    assert_same(Releases.concat([*parts, engine.flush()]), expected)


def check_releases_stay(method: Method, case: Case) -> None:
    """Releases that were handed out do not change when the engine goes on."""
    handed = []
    for step in steps(case, case.engine()):
        copy = {name: getattr(step.releases, name).copy() for name in COLUMNS}
        handed.append((step.releases, copy))
    for releases, copy in handed:
        for name, column in copy.items():
            np.testing.assert_array_equal(getattr(releases, name), column)


# -- 7. bounded ----------------------------------------------------------------------------------


def check_bounded(method: Method, case: Case) -> None:
    """What is held is inside its deadline, and the next deadline is the first of these."""
    deadlines = case.deadlines()
    delay_rows = case.policy.delay_rows
    engine = case.engine()
    assert engine.next_deadline() is None
    for step in steps(case, engine):
        if delay_rows is not None:
            assert engine.held <= delay_rows
            assert all(step.pushed - row <= delay_rows for row in step.held)
        if deadlines is None or not step.held:
            assert engine.next_deadline() is None
        else:
            # A method may round a deadline down, lest its moment show the row's time.
            first = min(deadlines[row] for row in step.held)
            next_deadline = engine.next_deadline()
            assert next_deadline is not None
            assert step.clock < next_deadline <= first


def check_next_deadline(method: Method, case: Case) -> None:
    """Nothing leaves before the next deadline if no row comes, and something leaves at it."""
    engine = case.engine()
    for step in steps(case, engine):
        next_deadline = engine.next_deadline()
        if step.call is not None and next_deadline is not None:
            woken = case.engine()
            woken.restore(engine.snapshot())
            assert len(woken.advance(next_deadline - 1)) == 0
            assert woken.next_deadline() == next_deadline
            assert len(woken.advance(next_deadline)) > 0


# -- the columns ---------------------------------------------------------------------------------


def check_columns(method: Method, case: Case) -> None:
    """The columns of releases fit each other, and what they count is right."""
    dimensions = len(case.policy.quasi_identifiers)
    number = 0
    boxes: dict[int, tuple[bytes, bytes]] = {}
    for step in steps(case, case.engine()):
        releases = step.releases
        m = len(releases)
        _assert_shapes(releases, m, dimensions)
        if not method.holes:
            assert not np.isnan(releases.lo).any()
        for release in releases:
            kind = Kind(release.kind)
            if kind is Kind.REUSE and not method.reorders:
                assert release.group < number
                assert boxes[release.group] == (release.lo.tobytes(), release.hi.tobytes())
            elif not method.reorders:
                assert release.group == number
                boxes[number] = (release.lo.tobytes(), release.hi.tobytes())
            if kind is Kind.SUPPRESSED:
                assert release.loss == 1.0
            number += 1
    report = audited(case, run(case))
    assert report.wrong_persons == 0


def _assert_shapes(releases: Releases, m: int, dimensions: int) -> None:
    for name, (dtype, rank) in COLUMNS.items():
        column = getattr(releases, name)
        assert column.dtype == dtype, name
        assert column.ndim == rank, name
        if name not in ("rows", "offsets"):
            assert len(column) == m, name
    assert releases.lo.shape == releases.hi.shape == (m, dimensions)
    assert releases.offsets.shape == (m + 1,)
    assert releases.offsets[0] == 0
    assert releases.offsets[-1] == len(releases.rows)
    assert (np.diff(releases.offsets) >= 1).all(), "no release is empty"
    np.testing.assert_array_equal(np.isnan(releases.lo), np.isnan(releases.hi))
    assert ((releases.loss >= 0) & (releases.loss <= 1 + 1e-12)).all()


def check_iteration(method: Method, case: Case) -> None:
    """Releases iterate as what their columns say, and join to what they are."""
    releases = run(case)
    seen = list(releases)
    assert len(seen) == len(releases)
    for i, release in enumerate(seen):
        start, stop = releases.offsets[i : i + 2]
        np.testing.assert_array_equal(release.rows, releases.rows[start:stop])
        np.testing.assert_array_equal(release.lo, releases.lo[i])
        np.testing.assert_array_equal(release.hi, releases.hi[i])
        for name in ("kind", "loss", "persons", "moment", "arrivals", "group"):
            assert getattr(release, name) == getattr(releases, name)[i], name
    parts = [step.releases for step in steps(case, case.engine())]
    assert_same(Releases.concat(parts), releases)


# -- only for methods that keep the order --------------------------------------------------------


def check_order(method: Method, case: Case) -> None:
    """Rows leave in order of arrival; by `delay`, in order of event time among those held."""
    releases = run(case)
    rows = releases.rows.tolist()
    if case.policy.delay is None:
        assert rows == sorted(rows)
        return
    arrivals = np.repeat(releases.arrivals, np.diff(releases.offsets)).tolist()
    place = [(int(case.rows.time[row]), row) for row in rows]
    for i, first in enumerate(place):
        for later in place[i + 1 :]:
            assert later[1] >= arrivals[i] or first < later


def check_order_alone(method: Method, case: Case) -> None:
    """Keeping the order decides nothing: each row has the box it would have had without."""
    parameters = replace(case.policy.parameters, reorder=False)
    freely = replace(case, policy=replace(case.policy, parameters=parameters))
    assert _decisions(run(case)) == _decisions(run(freely))
    report = audited(freely, run(freely))
    assert all(far == 0 for far in report.far.values())


def _decisions(releases: Releases) -> dict[int, Any]:
    return {
        int(row): (int(release.kind), tuple(release.lo), tuple(release.hi), float(release.loss))
        for release in releases
        for row in release.rows
    }


ALL_CHECKS: list[Check] = [
    check_nothing_lost,
    check_held,
    check_groups,
    check_crowd,
    check_true,
    check_boxes,
    check_on_time,
    check_clock,
    check_silent,
    check_no_person_in_releases,
    check_cuts,
    check_watermarks,
    check_old_watermarks,
    check_snapshots,
    check_replay,
    check_key,
    check_no_aliasing,
    check_releases_stay,
    check_bounded,
    check_next_deadline,
    check_columns,
    check_iteration,
    check_order,
    check_order_alone,
]
