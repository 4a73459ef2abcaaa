"""Judges HOLD, call by call: crowds, deadlines, state, and that the same calls always emit the same.

There is an account for each key and window: which rows arrived, which are held, what time it is there. A bundle that a
runner takes back is taken back here, too.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crenel.policy import OnSuppress, Policy
from crenel.transforms._pack.row_options import Clock
from simulation.history import Row
from simulation.judging.promises import Promise, expect
from simulation.judging.seen_rows import box, check_published, event_time, is_exact, is_widest, rejected_number
from simulation.model.state import KeyState

#: Microseconds that a timer may be late: runners keep milliseconds.
_ROUNDED = 1_000
#: Bytes of the entry that begins a log, which is not counted against the log's limit.
_BEGIN = 4_096
#: Bytes of a snapshot: at most this many, and this many for each held row.
_SNAPSHOT, _SNAPSHOT_ROW = 40_000, 4_000
#: Moments are rounded to this part of the delay, or to a second.
_TICKS, _SECOND = 16, 1_000_000
_NEVER = float("inf")


@dataclass
class Call:
    """One call of HOLD: with a pack of rows, or by a timer; and what it emitted."""

    key: Any
    window: Any
    #: The numbers of the rows; None for a timer.
    rows: list[int] | None
    #: The pack, or the time of the timer; and the timestamp of the pack.
    given: Any
    at: Any = None
    #: Elements by tag; those of None are published rows.
    emitted: list[tuple[str | None, Any]] = field(default_factory=list)
    #: The numbers of the rows that went into the engine.
    taken: list[int] = field(default_factory=list)
    #: The numbers of the rows that began to wait for the watermark.
    began_to_wait: list[int] = field(default_factory=list)
    #: The trees of shards that LEARN adopted, each time with those before.
    learned: list[Any] = field(default_factory=list)

    @property
    def did_something(self) -> bool:
        """Whether it was more than a timer that found nothing to do."""
        return self.rows is not None or bool(self.emitted or self.taken or self.began_to_wait)


@dataclass(frozen=True)
class Held:
    """A row that waits for its time, or a held row."""

    #: Its place among the rows that came; once it is taken, among the rows that were.
    place: int
    #: Its deadline, and how many rows may follow it.
    deadline: float
    rows: float
    #: By how much it may be ahead of the latest time.
    ahead: float
    #: Whether it waits for the watermark.
    for_watermark: bool = False


@dataclass
class Account:
    """What the judge knows of one key and window."""

    #: How many rows came; and the numbers of those that went into the engine, in this order.
    came: int = 0
    taken: list[int] = field(default_factory=list)
    #: Rows that wait because they are ahead of their time, and held rows, by number.
    waiting: dict[int, Held] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    #: The latest event time of a row that was taken; and the same, less the disorder that the policy allows.
    front: float = -_NEVER
    clock: float = -_NEVER
    #: The persons published so far, by generalization.
    persons: dict[str, frozenset[int]] = field(default_factory=dict)
    #: The calls so far, each with its job; and a digest of them.
    calls: list[tuple[Any, Call]] = field(default_factory=list)
    chain: bytes = b""

    def copy(self) -> Account:
        """A copy to go back to."""
        return replace(
            self,
            taken=list(self.taken),
            waiting=dict(self.waiting),
            held=dict(self.held),
            persons=dict(self.persons),
            calls=list(self.calls),
        )

    def inside(self) -> dict[int, Held]:
        """All rows that came and have not left."""
        return {**self.held, **self.waiting}


class HoldJudge:
    """Judges the calls of HOLD in one history.

    Args:
        rows: The rows that go in.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.accounts: dict[tuple[Any, Any], Account] = {}
        #: The generalization of each row that was released, by number; empty if it was suppressed.
        self.released: dict[int, str] = {}
        #: The rows that were refused because they were ahead of their time.
        self.refused: set[int] = set()
        #: What each sequence of calls emitted, whoever made it, as digests.
        self._answers: dict[bytes, bytes] = {}

    @property
    def has_held(self) -> bool:
        """Whether any row is held."""
        return any(account.held or account.waiting for account in self.accounts.values())

    # -- Repeatable --------------------------------------------------------------------------------------

    def failed(self, job: Any, calls: Sequence[Call]) -> None:
        """Remember what the calls of a bundle that failed emitted: when they are made again, it must be the same."""
        chains = {address: account.chain for address, account in self.accounts.items()}
        for call in calls:
            address = (call.key, call.window)
            chains[address] = self.compared(chains.get(address, b""), job, call)

    def compared(self, chain: bytes, job: Any, call: Call) -> bytes:
        """Compare a call with the same call before; return the digest of the calls up to it."""
        if not call.did_something:
            return chain
        chain = _digest(f"{chain!r} {job.name} {call.key} {call.window} {call.given!r}")
        told = [(tag, element.value, element.timestamp.micros) for tag, element in call.emitted]
        emitted = _digest(repr(told))
        is_same = self._answers.setdefault(chain, emitted) == emitted
        expect(Promise.REPEATABLE, is_same, f"the same calls of key {call.key} emitted something else than before")
        return chain

    # -- Calls -------------------------------------------------------------------------------------------

    def called(self, job: Any, calls: Sequence[Call]) -> None:
        """Judge the calls of a bundle that was committed."""
        for call in calls:
            account = self.accounts.setdefault((call.key, call.window), Account())
            account.chain = self.compared(account.chain, job, call)
            if call.did_something:
                account.calls.append((job, call))
            front = account.front
            for number in call.rows or ():
                self._come(account, job.policy, number)
            for number in call.began_to_wait:
                account.waiting[number] = replace(account.waiting[number], for_watermark=True)
            for number in call.taken:
                self._take(account, job, number)
            self._check_releases(account, job.policy, call)
            self._check_refusals(account, call, front)
            self._check_deadlines(account, call)

    def _come(self, account: Account, policy: Policy, number: int) -> None:
        known = number in self.released or number in self.refused
        known = known or any(number in one.inside() for one in self.accounts.values())
        expect(Promise.NOTHING_LOST, not known, f"row {number} arrives twice")
        deadline = _NEVER if policy.delay is None else event_time(self._rows[number]) + policy.delay
        rows = _NEVER if policy.delay_rows is None else policy.delay_rows
        account.waiting[number] = Held(account.came, deadline, rows, _ahead(policy))
        account.came += 1

    def _take(self, account: Account, job: Any, number: int) -> None:
        expect(Promise.NOTHING_LOST, number in account.waiting, f"row {number} is taken, and does not wait")
        account.held[number] = replace(account.waiting.pop(number), place=len(account.taken))
        account.taken.append(number)
        at = event_time(self._rows[number])
        account.front = max(account.front, at)
        if job.clock is Clock.ROWS:
            # By the disorder of when the row came: a savepoint under a smaller one does not move the clock by itself.
            account.clock = max(account.clock, at - job.policy.disorder)

    def _check_refusals(self, account: Account, call: Call, front: float) -> None:
        """Judge the rows that were refused, and those that wait: for the watermark, or ahead of the latest time."""
        for number in [rejected_number(element.value) for tag, element in call.emitted if tag == "rejected"]:
            expect(Promise.NOTHING_LOST, number in account.waiting, f"row {number} is refused, and does not wait")
            if number is not None:
                is_ahead = event_time(self._rows[number]) > front + account.waiting.pop(number).ahead
                expect(Promise.NOTHING_LOST, is_ahead, f"row {number} is refused, and is not ahead of its time")
                self.refused.add(number)
        for number, waiting in account.waiting.items():
            if waiting.for_watermark:
                continue  # until its deadline at most, which is judged with those of all others
            is_ahead = event_time(self._rows[number]) > account.front + waiting.ahead
            expect(Promise.ON_TIME, is_ahead, f"row {number} waits, and is not ahead of its time")
            waited = account.came - waiting.place - 1
            expect(Promise.ON_TIME, waited <= waiting.rows, f"row {number} waits for {waited} rows")

    def _check_deadlines(self, account: Account, call: Call) -> None:
        # What a timer said is true for this call; afterwards another process may have the key, which was not told.
        told = -_NEVER if call.rows is not None else call.given
        for number, held in account.inside().items():
            now = told if held.for_watermark and number in account.waiting else max(account.clock, told)
            expect(Promise.ON_TIME, held.deadline > now, f"row {number} is held after its deadline")
        for number, held in account.held.items():
            waited = len(account.taken) - held.place - 1
            expect(Promise.ON_TIME, waited <= held.rows, f"row {number} is held for {waited} rows")

    # -- Releases ----------------------------------------------------------------------------------------

    def _check_releases(self, account: Account, policy: Policy, call: Call) -> None:
        """Find out which rows were released together: each record of a release follows its rows."""
        published: list[Any] = []
        suppressed: list[Any] = []
        groups: list[tuple[int, list[Any]]] = []
        for tag, element in call.emitted:
            if tag is None:
                _check_timestamp(policy, call, element)
                published.append(element)
            elif tag == "suppressed":
                suppressed.append(element.value)
            elif tag == "releases":
                rows = self._check_release(account, policy, element.value, published, suppressed)
                groups.append((element.timestamp.micros, rows))
        left = len(published) + len(suppressed)
        expect(Promise.NOTHING_LOST, not left, f"{left} rows are emitted without a release")
        self._check_persons(account, policy, groups)

    def _check_release(
        self, account: Account, policy: Policy, record: Mapping[str, Any], published: list[Any], suppressed: list[Any]
    ) -> list[Any]:
        """Judge a release; return the rows that it publishes in a group."""
        size, is_suppressed = record["rows"], record["kind"] == "suppressed"
        is_star = is_suppressed and policy.on_suppress is OnSuppress.STAR
        hidden = [suppressed.pop(0) for _ in range(size)] if is_suppressed else []
        elements = [published.pop(0) for _ in range(size)] if is_star or not is_suppressed else []
        rows = [element.value for element in elements]
        for row in rows or hidden:
            self._leave(account, policy, row["n"], record["arrivals"])
            self.released[row["n"]] = box(row) if rows else ""
        for row in rows:
            check_published(row, self._rows)
            expect(Promise.CROWD, not is_star or is_widest(row), f"row {row['n']} is suppressed, and is no star")
        for row in hidden:
            number = row["n"]
            expect(Promise.TRUE, is_exact(row, self._rows[number]), f"suppressed row {number} has other values")
        if is_suppressed:
            return []
        self._check_group(account, policy, elements, record)
        return rows

    def _leave(self, account: Account, policy: Policy, number: int, arrivals: int) -> None:
        expect(Promise.NOTHING_LOST, number in account.held, f"row {number} leaves and is not held")
        held = account.held.pop(number)
        waited = arrivals - held.place - 1
        expect(Promise.NOTHING_LOST, waited >= 0, f"row {number} leaves, and {-waited} rows before it are missing")
        most = max(held.rows, policy.delay_rows or 0)
        expect(Promise.ON_TIME, waited <= most, f"row {number} leaves {waited} rows later")

    def _check_group(
        self, account: Account, policy: Policy, elements: Sequence[Any], record: Mapping[str, Any]
    ) -> None:
        numbers = [element.value["n"] for element in elements]
        boxes = {box(element.value) for element in elements}
        expect(Promise.CROWD, len(boxes) == 1, f"rows {numbers} left together under {len(boxes)} generalizations")
        if policy.crowd:
            persons = {self._rows[number].person for number in numbers}
            moments = {element.timestamp.micros for element in elements}
            told = record["persons"]
            expect(Promise.CROWD, len(persons) >= policy.k, f"rows {numbers} left with {len(persons)} persons")
            expect(Promise.CROWD, len(persons) == len(numbers), f"rows {numbers} have a person twice")
            expect(Promise.CROWD, len(moments) == 1, f"rows {numbers} left at {len(moments)} moments")
            expect(Promise.CROWD, len(persons) == told, f"rows {numbers} are told to have {told} persons")
        if record["kind"] == "cluster":
            self._check_values(account, policy, numbers, record["arrivals"])

    def _check_values(self, account: Account, policy: Policy, numbers: Sequence[int], arrivals: int) -> None:
        """Judge `l` and `t`."""
        group = Counter(self._rows[number].illness for number in numbers)
        expect(Promise.CROWD, len(group) >= (policy.l or 0), f"rows {numbers} have {len(group)} values")
        if policy.t is not None:
            stream = Counter(self._rows[number].illness for number in account.taken[:arrivals])
            apart = sum(abs(group[v] / group.total() - stream[v] / stream.total()) for v in stream) / 2
            expect(Promise.CROWD, apart <= policy.t + 1e-9, f"rows {numbers} are {apart:.3f} from the stream")

    def _check_persons(self, account: Account, policy: Policy, groups: Sequence[tuple[int, list[Any]]]) -> None:
        """Count the persons so far under each generalization. The order of releases of one moment means nothing."""
        for moment in sorted({moment for moment, _ in groups}):
            now = [rows for at, rows in groups if at == moment and rows]
            for rows in now:
                persons = frozenset(self._rows[row["n"]].person for row in rows)
                account.persons[box(rows[0])] = account.persons.get(box(rows[0]), frozenset()) | persons
            for rows in now:
                count, numbers = len(account.persons[box(rows[0])]), [row["n"] for row in rows]
                expect(Promise.CROWD, count >= policy.k, f"rows {numbers} left under a box of {count} persons")

    # -- State -------------------------------------------------------------------------------------------

    def committed(self, address: tuple[Any, Any], before: KeyState, state: KeyState, shortest: int) -> None:
        """Judge the state of a key after a bundle: a timer that will wake it, and its size.

        Args:
            address: The key, and the window.
            before: The state before the bundle.
            state: The state after it.
            shortest: Bytes that a log may have whatever the size of the snapshot.
        """
        account = self.accounts.get(address, Account())
        key, window = address
        inside = account.inside()
        if inside:
            due = min(held.deadline for held in inside.values())
            latest = min(due, window.max_timestamp().micros) + _ROUNDED
            at = min(state.timers.values(), default=_NEVER)
            expect(Promise.ON_TIME, at <= latest, f"no timer will wake key {key} in time")
        log, snapshot = state.size("log"), state.size("snapshot")
        last = max(map(len, state.cells.get("log", ())), default=0)
        is_short = log <= max(shortest, 2 * snapshot) + last + _BEGIN
        expect(Promise.BOUNDED, is_short, f"key {key} has a log of {log} bytes, and {snapshot} in its snapshot")
        if snapshot != before.size("snapshot"):
            rows = len(inside)
            is_small = snapshot <= _SNAPSHOT + rows * _SNAPSHOT_ROW
            expect(Promise.BOUNDED, is_small, f"key {key} has a snapshot of {snapshot} bytes for {rows} rows")

    def taken_up(self, policy: Policy) -> None:
        """Note that state is taken up under another policy: held rows may wait as long as either of the two allows."""
        for account in self.accounts.values():
            for rows in (account.held, account.waiting):
                rows.update({number: self._under(policy, number, row) for number, row in rows.items()})

    def _under(self, policy: Policy, number: int, row: Held) -> Held:
        return replace(
            row,
            deadline=max(row.deadline, event_time(self._rows[number]) + (policy.delay or 0)),
            rows=max(row.rows, policy.delay_rows or 0),
            ahead=min(row.ahead, _ahead(policy)),
        )


def _ahead(policy: Policy) -> float:
    """By how much a row may be ahead of the latest time, in microseconds."""
    most = policy.delay if policy.max_ahead is None else policy.max_ahead
    return _NEVER if policy.delay is None or most is None else most


def _check_timestamp(policy: Policy, call: Call, element: Any) -> None:
    """Check that the timestamp of a published row is rounded, in milliseconds if need be, or the window's end."""
    tick = _SECOND if policy.delay is None else max(policy.delay // _TICKS, 1)
    at = element.timestamp.micros
    before, end = at // tick * tick, call.window.max_timestamp().micros
    is_rounded = at in (before, -(-before // 1000) * 1000, end, end // 1000 * 1000)
    expect(Promise.SILENT, is_rounded, f"row {element.value['n']} has a timestamp that is not rounded")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
