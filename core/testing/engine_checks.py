"""The promises of an engine, as checks of one stream. `crenel.audit`, which shares no code with engines, is the judge.

Each `check_*` takes a `Case`, and raises an AssertionError if a promise is broken. `PROMISES` lists them all, and
`reason_to_skip` knows which of them a policy's method does not promise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from crenel.audit import Report, audit
from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Kind, Releases, SnapshotError
from crenel.policy import Policy
from crenel.testing.engine_streams import Advance, Call, Case, Push, apply, run, with_watermarks

__all__ = ["ALL_CHECKS", "PROMISES", "Check", "audited", "expect", "expect_same", "reason_to_skip"]

#: The columns of `Releases`: their types and numbers of dimensions.
COLUMNS: dict[str, tuple[Any, int]] = {
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

#: Bits of choice in the order of rows from which on two orders that agree are no coincidence.
_NO_COINCIDENCE = 40

Check = Callable[[Case], None]


def expect(condition: object, message: str) -> None:
    """Raise an AssertionError unless the condition holds; unlike `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def expect_same(one: Releases, other: Releases, when: str) -> None:
    """Expect that two runs released the same; `when` says what must not have made a difference."""
    for name in COLUMNS:
        left, right = getattr(one, name), getattr(other, name)
        same = left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        expect(same, f"The releases must be the same {when}; their column {name!r} differs.")


def audited(case: Case, releases: Releases) -> Report:
    """Let the audit judge what a stream released."""
    return audit(case.policy, case.rows, releases, calls=case.moves)


@dataclass
class Step:
    """What one call released, and how the stream stands after it by this module's own count."""

    #: None is the flush at the end.
    call: Call | None
    releases: Releases
    pushed_before: int
    pushed: int
    clock: int
    held: set[int]
    #: Rows that were left out so far.
    left_out: frozenset[int]

    def left_out_since(self, row: int) -> int:
        """Count the rows that were left out since a row arrived."""
        return sum(other > row for other in self.left_out)


def steps(case: Case, engine: Engine) -> Iterator[Step]:
    """Run a stream call by call; the last step is the flush."""
    held: set[int] = set()
    clock, pushed = FIRST_MOMENT, 0
    left_out: frozenset[int] = frozenset()
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
        left_out |= set(releases.rows[releases.per_row(releases.kind) == Kind.LEFT_OUT].tolist())
        yield Step(call, releases, before, pushed, clock, set(held), left_out)


# --- 1. Nothing lost ---


def check_nothing_lost(case: Case) -> None:
    """Every pushed row leaves exactly once."""
    report = case.report
    expect(report.lost == 0, f"Every row must leave; {report.lost} did not.")
    expect(report.twice == 0, f"Every row must leave once; {report.twice} left again.")
    expect(report.unknown == 0, f"Only rows that were pushed may leave; {report.unknown} others did.")
    expect(report.early == 0, f"A row must not leave before it arrives; {report.early} did.")
    left = report.published + report.suppressed + report.sampled_out + report.left_out
    expect(left == len(case.rows), f"{len(case.rows)} rows must be published, suppressed or sampled out, not {left}.")
    wrong = report.left_out_wrongly
    expect(wrong == 0, f"Only another row of the same person is a reason to leave a row out; {wrong} had none.")
    if not case.policy.declaration.samples:
        what = f"{report.sampled_out} rows were sampled out, and the method does not declare that it samples."
        expect(report.sampled_out == 0, what)


def check_held(case: Case) -> None:
    """`held` is the number of rows that have not left; none are held after the flush."""
    engine = case.engine()
    expect(engine.held == 0, f"A new engine must hold 0 rows, not {engine.held}.")
    for step in steps(case, engine):
        expect(engine.held == len(step.held), f"held must be {len(step.held)}, not {engine.held}.")
    expect(engine.held == 0, f"After the flush held must be 0, not {engine.held}.")
    expect(engine.next_deadline() is None, "After the flush next_deadline must be None.")
    expect(len(engine.flush()) == 0, "A second flush must release nothing.")


# --- 2. A crowd ---


def check_groups(case: Case) -> None:
    """Whenever a row is published, its group has k persons and l values, and is within t."""
    report = case.report
    rare = report.rare_values
    expect(rare == 0, f"At least k persons must have had each published value; of {rare} values fewer had.")
    expect(report.small_groups == 0, f"Groups must have at least k persons; {report.small_groups} have fewer.")
    low = {name: count for name, count in report.low_diversity.items() if count}
    expect(not low, f"Groups must have at least l values; too few of them, by column: {low}.")
    # A row published in the order of the input was decided on before, and the stream has moved on since.
    far = {name: count for name, count in report.far.items() if count != 0 and not case.policy.reorders}
    expect(not far, f"Groups must be within t of the stream; too far from it, by column: {far}.")


def check_crowd(case: Case) -> None:
    """If a crowd is promised, a row leaves with k persons, each of them once, or it is suppressed."""
    if not case.policy.declaration.crowd(case.policy.parameters):
        return
    k = case.policy.k
    for release in case.releases:
        persons = case.rows.person[release.rows]
        if Kind(release.kind) in (Kind.SUPPRESSED, Kind.LEFT_OUT):
            expect(len(persons) == 1, f"A suppressed row must leave alone, not among {len(persons)}.")
            continue
        expect(Kind(release.kind) is Kind.CLUSTER, f"Rows must leave in groups of their own, not by {release.kind!r}.")
        distinct = len(set(persons.tolist()))
        expect(distinct == len(persons), f"Each person must be in a release once; {distinct} have {len(persons)} rows.")
        expect(release.persons == distinct, f"persons must be {distinct}, not {release.persons}.")
        expect(distinct >= k, f"A release must have at least k ({k}) persons, not {distinct}.")
    if case.policy.crowd:
        alone = case.report.no_crowd
        expect(alone == 0, f"Every published row must leave in a crowd; {alone} did not.")


def check_once_per(case: Case) -> None:
    """Any two published rows of a person are at least `once_per` apart in event time."""
    report = case.report
    expect(report.too_soon == 0, f"Rows of a person must be once_per apart; {report.too_soon} are nearer.")


def check_together(case: Case) -> None:
    """The boxes of a person, all together, leave k persons."""
    lacking = case.report.lacking_company
    expect(lacking == 0, f"All boxes of a person must have k persons in common; those of {lacking} persons have fewer.")


def check_secret_order(case: Case) -> None:
    """If a crowd is promised, the order of the rows in a release depends on the secret."""
    if not case.policy.declaration.crowd(case.policy.parameters) or case.policy.reorders:
        return
    one, other = case.releases, run(replace(case, shard=case.shard + b"another"))
    orders = sum(math.log2(math.factorial(min(int(size), 100))) for size in one.sizes)
    if orders >= _NO_COINCIDENCE:
        same = np.array_equal(one.rows, other.rows)
        expect(not same, "Rows must leave in an order drawn from the engine's key; two shards have the same order.")


# --- 3. True ---


def check_true(case: Case) -> None:
    """A published generalization contains the row's own values."""
    outside = case.report.outside
    expect(outside == 0, f"A box must contain its rows' own values; {outside} rows are outside.")


def check_boxes(case: Case) -> None:
    """Every box can be published, that of a suppressed row is the widest, and the reported losses are right."""
    report = case.report
    expect(
        report.illegal == 0, f"Every box must be one that its quasi-identifiers can publish; {report.illegal} are not."
    )
    stars = report.star_not_widest
    expect(stars == 0, f"A suppressed row must have the widest box; {stars} have another.")
    if case.policy.declaration.perturbs:
        # A learned domain is that of the perturbed values, which only the engine knows.
        expect(report.wrong_loss in (0, None), f"{report.wrong_loss} releases report a wrong loss.")
    elif not case.policy.reorders:
        # A learned domain may have grown between the decision and the release.
        expect(report.wrong_loss == 0, f"{report.wrong_loss} releases report a wrong loss.")


# --- 4. On time ---


def check_on_time(case: Case) -> None:
    """No row leaves after its deadline; one that arrives after it leaves at once."""
    report = case.report
    expect(report.late == 0, f"Rows must leave within delay; {report.late} left later.")
    expect(report.late_rows == 0, f"Rows must leave within delay_rows; {report.late_rows} left later.")


def check_clock(case: Case) -> None:
    """The moments and arrivals that releases carry are those at which they left, and never fall."""
    moment, arrivals = FIRST_MOMENT, 0
    for step in steps(case, case.engine()):
        for release in step.releases:
            in_time = moment <= release.moment <= step.clock
            expect(in_time, f"A release's moment must be from {moment} to {step.clock}, not {release.moment}.")
            least = max(arrivals, step.pushed_before)
            counted = least <= release.arrivals <= step.pushed
            expect(counted, f"A release's arrivals must be from {least} to {step.pushed}, not {release.arrivals}.")
            moment, arrivals = release.moment, release.arrivals


# --- 5. Silent ---

#: Digits that nothing but a row brings.
PERSON, TIME, COORDINATE, CODE = 31_415_926_535, 16_180_339_887, 27_182_818_284, 14_142_135_623


def check_silent(case: Case) -> None:
    """No text, log or error shows a value of a row."""
    case = _loud(case)
    with _logged() as logged:
        engine = case.engine()
        texts = [repr(case.rows), str(case.rows), repr(engine), str(engine)]
        for step in steps(case, engine):
            texts += [repr(engine), str(engine), repr(step.releases), str(step.releases)]
            texts += [text for release in step.releases for text in (repr(release), str(release))]
        texts += _errors(case)
    shown = "\n".join([*texts, *logged]).replace(".", "").replace("_", "").replace(",", "")
    for what, digits in (("person", PERSON), ("time", TIME), ("quasi-identifier", COORDINATE), ("sensitive", CODE)):
        expect(str(digits)[:6] not in shown, f"A repr, log or error must not show a row's {what}.")


def check_no_person_in_releases(case: Case) -> None:
    """Releases have no column for person or event time, nor show a person in another."""
    case = _loud(case)
    releases = case.releases
    if is_dataclass(releases):
        more = {field.name for field in fields(releases)} - set(COLUMNS)
        expect(not more, f"Releases must have the columns of the contract alone, not {sorted(more)}.")
    for name in set(COLUMNS) - {"lo", "hi", "loss", "moment"}:
        shown = np.isin(getattr(releases, name), case.rows.person).any()
        expect(not shown, f"The column {name!r} of releases must not hold persons.")


def _loud(case: Case) -> Case:
    """The same stream with values that are recognized wherever they appear."""
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
    """The messages of errors about malformed rows; a push that is refused changes nothing."""
    engine, rows = case.engine(), case.rows
    engine.push(rows.slice(0, len(rows) // 2))
    before = engine.snapshot()
    messages = []
    for what, wrong in _wrong_rows(case).items():
        try:
            engine.push(wrong())
        except (TypeError, ValueError) as error:
            messages.append(f"{error!r} {error}")
        else:
            expect(False, f"Rows with {what} must be refused with a TypeError or a ValueError.")
        expect(engine.snapshot() == before, f"A refused push must change nothing; one with {what} did.")
    return messages


def _wrong_rows(case: Case) -> dict[str, Callable[[], Rows]]:
    """Makers of rows whose shapes do not fit the policy."""
    rows = case.rows if len(case.rows) else _one_row(case)
    return {
        "one quasi-identifier too many": lambda: replace(rows, qi=np.hstack([rows.qi, rows.qi[:, :1]])),
        "one sensitive column too many": lambda: replace(
            rows, sensitive=np.hstack([rows.sensitive, rows.person[:, None]])
        ),
        "one person too few": lambda: replace(rows, person=rows.person[:-1]),
        "times that are not integers": lambda: replace(rows, time=rows.time.astype(np.float64)),
    }


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
    """All that is logged meanwhile, from INFO on: below it, libraries log about themselves."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(self.format(record))

    logger, handler = logging.getLogger(), Keep(logging.NOTSET)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# --- 6. Repeatable ---


def check_cuts(case: Case) -> None:
    """The same rows lead to the same releases, however they are cut into pushes."""
    whole = run(case, case.calls(cuts=()))
    expect_same(run(case, case.calls(cuts=range(len(case.rows)))), whole, "if every row is a push of its own")
    expect_same(case.releases, whole, "however the rows are cut into pushes")


def check_watermarks(case: Case) -> None:
    """A watermark that says no more than the next row does makes no difference."""
    expected = case.releases
    for behind in ([0], [1, 0, 50]):
        told = run(with_watermarks(case, behind))
        expect_same(told, expected, "if watermarks tell what the next row would tell")


def check_old_watermarks(case: Case) -> None:
    """A timer that fires again, or late, releases nothing: what was due has left."""
    engine = case.engine()
    for step in steps(case, engine):
        if step.call is not None:
            before = engine.snapshot()
            for now in (step.clock, step.clock - 17):
                if now >= FIRST_MOMENT:
                    again = len(engine.advance(now))
                    expect(again == 0, f"A watermark that is not new must release nothing, not {again} releases.")
            expect(engine.snapshot() == before, "A watermark that is not new must change nothing.")


def check_snapshots(case: Case) -> None:
    """An engine restored after every call goes on as if nothing had happened."""
    expected = case.releases
    engine, stale = case.engine(), case.engine()
    parts = []
    for number, call in enumerate(case.calls()):
        parts.append(apply(engine, case.rows, call))
        stored = engine.snapshot()
        expect(isinstance(stored, bytes), f"A snapshot must be bytes, not {type(stored).__name__}.")
        expect(engine.snapshot() == stored, "Taking a snapshot must change nothing.")
        # Every other time into an engine that has seen other rows: nothing of them may stay.
        fresh = stale if number % 2 else case.engine()
        fresh.restore(stored)
        expect(fresh.snapshot() == stored, "A restored engine must have the snapshot that it was restored from.")
        state = (fresh.held, fresh.next_deadline())
        expect(state == (engine.held, engine.next_deadline()), "A restored engine must hold what the original held.")
        engine, stale = fresh, engine
    expect_same(Releases.concat([*parts, engine.flush()]), expected, "if the engine is restored after every call")


def check_replay(case: Case) -> None:
    """Going back to any snapshot and replaying what came after publishes the same again."""
    calls = case.calls()
    engine = case.engine()
    stored = [engine.snapshot()]
    parts = []
    for call in calls:
        parts.append(apply(engine, case.rows, call))
        stored.append(engine.snapshot())
    parts.append(engine.flush())
    for start in sorted({0, len(calls) // 2, len(calls)}):
        again = case.engine()
        again.restore(stored[start])
        rest = [apply(again, case.rows, call) for call in calls[start:]]
        replayed = Releases.concat([*rest, again.flush()])
        expect_same(replayed, Releases.concat(parts[start:]), f"if the stream is replayed from call {start}")


def check_damage(case: Case) -> None:
    """A snapshot that was damaged, or taken from another shard, is refused, and changes nothing."""
    engine, fresh = case.engine(), case.engine()
    engine.push(case.rows.slice(0, len(case.rows) // 2))
    stored, before = engine.snapshot(), fresh.snapshot()
    wrong = [replace(case, shard=b"another shard").engine().snapshot(), stored[:-1], stored + b"\0"]
    for place in range(0, len(stored), -(-len(stored) // 50)):
        wrong.append(stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :])
    for data in wrong:
        try:
            fresh.restore(data)
        except SnapshotError:
            pass
        else:
            expect(False, "A snapshot that is damaged, or of another shard, must be refused with a SnapshotError.")
    expect(fresh.snapshot() == before, "A snapshot that is refused must change nothing.")


def check_key(case: Case) -> None:
    """The generator starts from the key alone: that of the secret and the shard, or of the policy's own seed."""
    expect_same(run(case), case.releases, "if the same rows come again")
    unseeded = replace(case, policy=replace(case.policy, seed=None))
    stored = {
        replace(unseeded, secret=secret, shard=shard).engine().dump()
        for secret in (b"one", b"two")
        for shard in (b"", b"a", b"b")
    }
    expect(
        len(stored) == 6,
        "Engines of different secrets or shards must have different states: what an engine dumps must include the "
        "random generator, which must start from the key that the engine is given.",
    )
    seeded = replace(case, policy=replace(case.policy, seed=7, secret=None))
    expect_same(run(seeded), run(replace(seeded, secret=b"another secret")), "if the policy has a seed")
    other = replace(seeded, shard=b"another shard")
    differs = seeded.engine().dump() != other.engine().dump()
    expect(differs, "Engines of different shards must have different states, also if the policy has a seed.")


def check_no_aliasing(case: Case) -> None:
    """The engine does not write to pushed arrays, nor reads them after the push."""
    expected = case.releases
    engine = case.engine()
    parts = []
    for call in case.calls():
        if isinstance(call, Advance):
            parts.append(engine.advance(call.now))
            continue
        pushed = case.rows.take(np.arange(call.start, call.stop))
        arrays = {"qi": pushed.qi, "person": pushed.person, "sensitive": pushed.sensitive, "time": pushed.time}
        before = {name: array.copy() for name, array in arrays.items()}
        parts.append(engine.push(pushed))
        for name, array in arrays.items():
            same = np.array_equal(array, before[name], equal_nan=array.dtype.kind == "f")
            expect(same, f"push must not write to the rows it is given; it changed {name!r}.")
            array[...] = 0
    after = Releases.concat([*parts, engine.flush()])
    expect_same(after, expected, "if the caller overwrites the arrays after the push")


def check_releases_stay(case: Case) -> None:
    """Releases that were handed out do not change when the engine goes on."""
    handed = []
    for step in steps(case, case.engine()):
        copy = {name: getattr(step.releases, name).copy() for name in COLUMNS}
        handed.append((step.releases, copy))
    for releases, copy in handed:
        for name, column in copy.items():
            same = np.array_equal(getattr(releases, name), column, equal_nan=column.dtype.kind == "f")
            expect(same, f"Releases must not change after they are handed out; their column {name!r} did.")


# --- 7. Bounded ---


def check_bounded(case: Case) -> None:
    """Held rows are inside their deadlines, and `next_deadline` is the first of these."""
    deadlines = case.deadlines()
    delay_rows = case.policy.delay_rows
    engine = case.engine()
    expect(engine.next_deadline() is None, "The next deadline of a new engine must be None.")
    for step in steps(case, engine):
        if delay_rows is not None:
            expect(engine.held <= delay_rows, f"At most delay_rows ({delay_rows}) rows may be held, not {engine.held}.")
            # Rows that are left out do not count: the method does not see them.
            oldest = max((step.pushed - row - step.left_out_since(row) for row in step.held), default=0)
            expect(oldest <= delay_rows, f"A row may be held for delay_rows ({delay_rows}) arrivals, not {oldest}.")
        found = engine.next_deadline()
        if deadlines is None or not step.held:
            expect(found is None, f"Without a deadline in event time next_deadline must be None, not {found}.")
            continue
        # A method may round a deadline down, so that its moment does not show the row's time.
        first = min(deadlines[row] for row in step.held)
        expect(found is not None, "next_deadline must not be None while rows with a deadline are held.")
        due = found is not None and step.clock < found <= first
        expect(due, f"next_deadline must be after {step.clock} and at most {first}, not {found}.")


def check_next_deadline(case: Case) -> None:
    """If no row comes, nothing leaves before the next deadline, and something leaves at it."""
    engine = case.engine()
    for step in steps(case, engine):
        due = engine.next_deadline()
        if step.call is not None and due is not None:
            woken = case.engine()
            woken.restore(engine.snapshot())
            expect(len(woken.advance(due - 1)) == 0, "Nothing may leave before next_deadline if no row comes.")
            expect(woken.next_deadline() == due, "next_deadline must not change while nothing happens.")
            expect(len(woken.advance(due)) > 0, "Something must leave at next_deadline.")


# --- The contract: what the columns of releases hold ---


def check_columns(case: Case) -> None:
    """The columns of releases fit each other, and what they count is right."""
    dimensions = len(case.policy.quasi_identifiers)
    number = 0
    boxes: dict[int, tuple[bytes, bytes]] = {}
    for step in steps(case, case.engine()):
        _expect_shapes(step.releases, dimensions)
        if not case.policy.declaration.takes_holes:
            expect(not np.isnan(step.releases.lo).any(), "Every quasi-identifier must be published; a box has NaN.")
        for release in step.releases:
            if release.kind is Kind.LEFT_OUT:
                expect(release.group == -1, f"The group of a row that is left out must be -1, not {release.group}.")
                continue
            kind, box = Kind(release.kind), (release.lo.tobytes(), release.hi.tobytes())
            if kind is Kind.REUSE and not case.policy.reorders:
                expect(release.group < number, f"Release {number} must reuse an earlier one, not {release.group}.")
                same = boxes.get(release.group) == box
                expect(same, f"Release {number} must have the box of release {release.group}, which it reuses.")
            elif not case.policy.reorders:
                expect(release.group == number, f"group of release {number} must be its own, not {release.group}.")
                boxes[number] = box
            if kind is Kind.SUPPRESSED:
                expect(release.loss == 1.0, f"The loss of a suppressed row must be 1, not {release.loss}.")
            number += 1
    wrong = case.report.wrong_persons
    expect(wrong == 0, f"persons must be the number of distinct persons; {wrong} releases report another.")


def _expect_shapes(releases: Releases, dimensions: int) -> None:
    m = len(releases)
    for name, (dtype, rank) in COLUMNS.items():
        column = getattr(releases, name)
        expect(column.dtype == dtype, f"The column {name!r} must be {np.dtype(dtype).name}, not {column.dtype}.")
        expect(column.ndim == rank, f"The column {name!r} must have {rank} dimensions, not {column.ndim}.")
        if name not in ("rows", "offsets"):
            expect(len(column) == m, f"The column {name!r} must have {m} values, not {len(column)}.")
    boxes = releases.lo.shape == releases.hi.shape == (m, dimensions)
    expect(boxes, f"lo and hi must have {dimensions} columns, one for each quasi-identifier.")
    offsets = releases.offsets
    lined_up = offsets.shape == (m + 1,) and offsets[0] == 0 and offsets[-1] == len(releases.rows)
    expect(lined_up, f"offsets must be {m + 1} numbers from 0 to the number of rows.")
    expect((np.diff(offsets) >= 1).all(), "No release may be empty.")
    expect(np.array_equal(np.isnan(releases.lo), np.isnan(releases.hi)), "lo and hi must be NaN in the same places.")
    within = ((releases.loss >= 0) & (releases.loss <= 1 + 1e-12)).all()
    expect(within, "Losses must be from 0 to 1.")


def check_iteration(case: Case) -> None:
    """Releases iterate as their columns say, and join to what they are."""
    releases = case.releases
    seen = list(releases)
    expect(len(seen) == len(releases), f"{len(releases)} releases must be iterated, not {len(seen)}.")
    for i, release in enumerate(seen):
        start, stop = releases.offsets[i : i + 2]
        same = (
            np.array_equal(release.rows, releases.rows[start:stop])
            and np.array_equal(release.lo, releases.lo[i], equal_nan=True)
            and np.array_equal(release.hi, releases.hi[i], equal_nan=True)
            and all(
                getattr(release, name) == getattr(releases, name)[i]
                for name in ("kind", "loss", "persons", "moment", "arrivals", "group")
            )
        )
        expect(same, f"Release {i} must iterate as its columns say.")
    parts = [step.releases for step in steps(case, case.engine())]
    expect_same(Releases.concat(parts), releases, "if the parts are joined")


# --- The order of the input: only for policies that ask for it ---


def check_order(case: Case) -> None:
    """Rows leave in order of arrival; by `delay`, in order of event time among those held."""
    every = case.releases
    # Rows that are left out leave when they arrive, and are not published.
    releases = every.take(np.flatnonzero(every.kind != Kind.LEFT_OUT))
    rows = releases.rows.tolist()
    if case.policy.delay is None:
        expect(rows == sorted(rows), "With reorder, rows must leave in the order of arrival.")
        return
    arrivals = np.repeat(releases.arrivals, np.diff(releases.offsets)).tolist()
    place = [(int(case.rows.time[row]), row) for row in rows]
    for i, first in enumerate(place):
        for later in place[i + 1 :]:
            in_order = later[1] >= arrivals[i] or first < later
            expect(in_order, "With reorder, rows that are held together must leave in the order of event time.")


def check_order_alone(case: Case) -> None:
    """Keeping the order decides nothing: each row has the box that it would have had without."""
    parameters = replace(case.policy.parameters, reorder=False)
    freely = replace(case, policy=replace(case.policy, parameters=parameters))
    same = _decisions(case.releases) == _decisions(run(freely))
    expect(same, "With reorder, each row must have the box that it would have without.")
    far = {name: count for name, count in audited(freely, run(freely)).far.items() if count}
    expect(not far, f"Groups must be within t of the stream; too far from it, by column: {far}.")


def _decisions(releases: Releases) -> dict[int, Any]:
    return {
        int(row): (int(release.kind), tuple(release.lo), tuple(release.hi), float(release.loss))
        for release in releases
        for row in release.rows
    }


#: The checks of each promise, in the order of the design.
PROMISES: dict[str, tuple[Check, ...]] = {
    "1. nothing lost": (check_nothing_lost, check_held),
    "2. a crowd": (check_groups, check_crowd, check_once_per, check_together, check_secret_order),
    "3. true": (check_true, check_boxes),
    "4. on time": (check_on_time, check_clock),
    "5. silent": (check_silent, check_no_person_in_releases),
    "6. repeatable": (
        check_cuts,
        check_watermarks,
        check_old_watermarks,
        check_snapshots,
        check_replay,
        check_damage,
        check_key,
        check_no_aliasing,
        check_releases_stay,
    ),
    "7. bounded": (check_bounded, check_next_deadline),
    "the contract": (check_columns, check_iteration),
    "the order of the input": (check_order, check_order_alone),
}

ALL_CHECKS: tuple[Check, ...] = tuple(check for checks in PROMISES.values() for check in checks)


def reason_to_skip(check: Check, policy: Policy) -> str | None:
    """Return why a check is not for this policy, by what its method declares; None if it is."""
    if check is check_true and policy.declaration.perturbs:
        return "the method perturbs: a box need not contain the row's own values"
    if check in (check_order, check_order_alone) and not policy.reorders:
        return "the policy does not ask for the order of the input"
    return None
