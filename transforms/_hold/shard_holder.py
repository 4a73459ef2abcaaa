"""One shard: its engine, and the columns of held rows that are published unchanged. Independent of Beam."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel import avro, engine
from crenel.engine import Kind, Releases
from crenel.engine.unknown_roots import as_roots
from crenel.errors import SnapshotError
from crenel.policy import OnSuppress, Policy
from crenel.policy.durations import LONGEST
from crenel.policy.secret import Secret
from crenel.transforms._hold.ahead import AheadRows, Refusal
from crenel.transforms._hold.watermark_order import WatermarkOrder, rounded_deadline
from crenel.transforms._pack import payloads
from crenel.transforms._pack.fingerprints import check_space, policy_text
from crenel.transforms._pack.payloads import Form, Payload
from crenel.transforms._pack.row_pack import RowPack
from crenel.transforms._pack.sharding import check_apart

_SCHEMAS = avro.Schemas("crenel.transforms._hold", ("held.2.avsc", "held.1.avsc"))

_OTHER_PERSONS = (
    "Persons were hashed under another secret, or another policy.person, so it is unknown whose rows were published, "
    "as policy.{} needs. Name a secret in the policy (secret), and keep it; or drain the pipeline before you change it."
)

#: More parts than this are joined: the cost of finding a row grows with their number.
_MOST_PARTS = 32
#: Released rows stay in memory until they outnumber the held ones by this many.
_MOST_LEFT = 8192


@dataclass(eq=False, repr=False)
class _Part:
    """Some of the held rows, in order of arrival; released rows stay in it until parts are joined."""

    number: NDArray[np.int64]
    time: NDArray[np.int64]
    qi: NDArray[np.float64]
    form: Form
    payload: Payload
    #: Which rows are still held, and how many.
    held: NDArray[np.bool_]
    count: int
    #: The latest event time of all rows, also of those that were released.
    latest: int

    @classmethod
    def of(
        cls,
        number: NDArray[np.int64],
        time: NDArray[np.int64],
        qi: NDArray[np.float64],
        form: Form,
        payload: Payload,
    ) -> _Part:
        latest = int(time.max(initial=np.iinfo(np.int64).min))
        return cls(number, time, qi, form, payload, np.ones(len(number), dtype=bool), len(number), latest)

    def release(self, numbers: NDArray[np.int64], *, exact: bool) -> _Part:
        """Release the rows of these numbers; return them in this order, without coordinates unless `exact`."""
        places = numbers - self.number[0]
        if self.number[-1] - self.number[0] >= len(self.number):  # rows between the first and the last have left
            places = np.searchsorted(self.number, numbers)
        self.held[places] = False
        self.count -= len(places)
        return self.take(places, exact=exact)

    def kept(self) -> _Part:
        """The rows that are still held."""
        return self if self.count == len(self.number) else self.take(np.flatnonzero(self.held))

    def take(self, indices: NDArray[np.int64], *, exact: bool = True) -> _Part:
        return _Part.of(
            self.number[indices],
            self.time[indices],
            self.qi[indices] if exact else self.qi[:0],
            self.form,
            self.payload.take(indices),
        )

    def join(self, others: list[_Part]) -> _Part:
        parts = [self, *others]
        return _Part.of(
            np.concatenate([part.number for part in parts]),
            np.concatenate([part.time for part in parts]),
            np.concatenate([part.qi for part in parts]),
            self.form,
            self.payload.join([part.payload for part in others]),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Departure:
    """Releases, and the columns of their rows that the engine does not know."""

    #: The releases. `rows` holds places in the columns below, not the engine's row numbers.
    releases: Releases
    #: The number of each release in its shard, from 0; -1 for a row that is left out.
    release: NDArray[np.int64]
    #: The number of each row in its shard, in order of arrival, from 0.
    number: NDArray[np.int64]
    time: NDArray[np.int64]
    #: The coordinates of all rows, for the owner's records of suppressed and left-out rows; empty if there are none.
    qi: NDArray[np.float64]
    form: Form
    payload: Payload
    #: For each release, whether it publishes rows without a crowd: rows of fewer than k persons, or a person twice.
    alone: NDArray[np.bool_]

    def __repr__(self) -> str:
        """Show sizes, never values."""
        return f"Departure({self.releases!r})"

    @property
    def rows_alone(self) -> int:
        """The number of rows published without a crowd."""
        return int(self.releases.sizes[self.alone].sum())


class ShardHolder:
    """Holds the rows of one shard and window until they are released.

    Args:
        policy: The policy to enforce.
        secret: Seeds the random generators of all engines.
        shard: Tells this engine from all others.
    """

    def __init__(self, policy: Policy, secret: bytes | Secret, shard: bytes) -> None:
        self._policy = policy
        #: Whether the watermark alone moves the clock. Then rows come in order, and no clock need lag behind them.
        self._by_watermark = policy.disorder == LONGEST
        ordered = replace(policy, disorder=0) if self._by_watermark else policy
        self._engine = engine.create_engine(ordered, secret=secret, shard=shard)
        self._ahead = AheadRows(policy)
        self._later = WatermarkOrder(policy)
        self._persons = b""
        self._arrivals = 0
        self._releases = 0
        self._parts: list[_Part] = []

    def __repr__(self) -> str:
        """Show sizes, never values."""
        return f"ShardHolder({self._engine!r})"

    @property
    def held(self) -> int:
        """The number of rows that were neither released nor refused yet."""
        return self._engine.held + len(self._ahead) + len(self._later)

    def push(self, pack: RowPack) -> list[Departure | Refusal]:
        """Push rows in order of arrival; return what became due, and what was refused."""
        check_space(pack.space, self._policy)
        check_apart(self._policy, pack.payload, *(part.payload for part in self._parts[:1]))
        left = self._compare(pack.persons)
        taken, refused = self._ahead.push(pack)
        return left + self._take(self._ready(taken)) + refused

    def _ready(self, packs: list[RowPack], now: int | None = None) -> list[RowPack]:
        """Let rows wait for the watermark, if it alone moves the clock; return those that need not wait any more."""
        if not self._by_watermark:
            return [*self._later.flush(), *packs]  # the first have waited, under another clock
        self._later.push(packs)
        return [] if now is None else self._later.advance(now)

    def _take(self, packs: list[RowPack]) -> list[Departure | Refusal]:
        """Pass rows to the engine, in this order."""
        departures: list[Departure | Refusal] = []
        for pack in packs:
            rows = pack.rows
            number = np.arange(self._arrivals, self._arrivals + len(rows), dtype=np.int64)
            self._arrivals += len(rows)
            self._parts.append(_Part.of(number, rows.time, rows.qi, pack.form, pack.payload))
            departures += self._depart(self._engine.push(rows))
        return departures

    def _compare(self, persons: bytes) -> list[Departure | Refusal]:
        """Release the held rows if their persons cannot be compared with the new ones: one person would count as two.

        Raises:
            SnapshotError: the policy remembers persons, but nobody can tell any more whose rows were published.
        """
        lasting = self._policy.remembers_persons
        if lasting and self._arrivals and persons != self._persons:
            raise SnapshotError(_OTHER_PERSONS.format(lasting[0]))
        left = self.flush() if self.held and persons != self._persons else []
        self._persons = persons
        return left

    def advance(self, now: int) -> list[Departure | Refusal]:
        """Advance event time to `now`, in microseconds."""
        taken, refused = self._ahead.advance(now)
        return self._take(self._ready(taken, now)) + self._depart(self._engine.advance(now)) + refused

    def flush(self) -> list[Departure | Refusal]:
        """Release everything: the stream is over."""
        taken, refused = self._ahead.flush()
        self._later.push(taken)
        return self._take(self._later.flush()) + self._depart(self._engine.flush()) + refused

    def next_deadline(self) -> int | None:
        """The time at which `advance` is next needed."""
        times = (self._engine.next_deadline(), self._ahead.next_deadline(), self._later.next_deadline())
        return min((time for time in times if time is not None), default=None)

    def last_deadline(self) -> int | None:
        """The time at which `advance` releases all held rows, or a later one; None if no row has a deadline."""
        if self._policy.delay is None:
            return None
        held = max((part.latest for part in self._parts), default=None)
        own = None if held is None else rounded_deadline(held, self._policy.delay, self._policy.tick)
        return max((time for time in (own, self._later.last_deadline()) if time is not None), default=None)

    def _depart(self, releases: Releases) -> list[Departure | Refusal]:
        departures: list[Departure | Refusal] = []
        releases = as_roots(self._policy, releases)
        if len(releases):
            forms = {part.form for part in self._parts}
            alone = self._alone(releases)
            number = self._numbers(releases)
            if len(forms) == 1:
                departures = [self._departure(releases, number, alone, forms.pop())]
            else:
                departures += self._departures_by_form(releases, number, alone)
        self._tidy()
        return departures

    def _numbers(self, releases: Releases) -> NDArray[np.int64]:
        """Number the releases; -1 for rows that are left out, which belong to none."""
        counted = releases.kind != Kind.LEFT_OUT
        number = np.where(counted, self._releases + np.cumsum(counted) - 1, -1)
        self._releases += int(np.count_nonzero(counted))
        return number.astype(np.int64)

    def _tidy(self) -> None:
        """Drop released rows now and then, and keep the parts few."""
        self._parts = [part for part in self._parts if part.count]
        sizes = [part.count for part in self._parts]
        if sum(len(part.number) for part in self._parts) > 2 * sum(sizes) + _MOST_LEFT:
            self._join_parts()
        elif len(sizes) > _MOST_PARTS:
            # Join older parts too, unless one has more rows than all after it: so each row is copied only a few times.
            start = len(sizes) - _MOST_PARTS // 2
            while start > 0 and sizes[start - 1] <= sum(sizes[start:]):
                start -= 1
            self._join_parts(start)

    def _alone(self, releases: Releases) -> NDArray[np.bool_]:
        """Tell which releases publish rows without a crowd."""
        k, sizes, persons = self._policy.k, releases.sizes, releases.persons
        # A release may be a part of its group (reordered rows), and then has fewer rows than the group has persons.
        crowd = (sizes >= k) & (persons >= k) & (persons >= sizes)
        star = (releases.kind == Kind.SUPPRESSED) & (self._policy.on_suppress is OnSuppress.STAR)
        alone: NDArray[np.bool_] = ((releases.kind == Kind.CLUSTER) & ~crowd) | (releases.kind == Kind.REUSE) | star
        return alone

    def _departures_by_form(
        self, releases: Releases, number: NDArray[np.int64], alone: NDArray[np.bool_]
    ) -> list[Departure]:
        """Split releases of rows that came in several forms: each row leaves in its own."""
        departures = []
        form_of: dict[int, Form] = {int(number): part.form for part in self._parts for number in part.number}
        forms = np.array([list(Form).index(form_of[n]) for n in releases.rows.tolist()])
        for place in np.unique(forms).tolist():
            part, left = _only(releases, forms == place)
            departures.append(self._departure(part, number[left], alone[left], list(Form)[place]))
        return departures

    def _departure(
        self, releases: Releases, number: NDArray[np.int64], alone: NDArray[np.bool_], form: Form
    ) -> Departure:
        parts = [part for part in self._parts if part.form is form]
        first = np.array([part.number[0] for part in parts])
        part_of = np.searchsorted(first, releases.rows, side="right") - 1
        order = np.argsort(part_of.astype(np.min_scalar_type(len(parts))), kind="stable")  # by their digits
        ends = np.cumsum(np.bincount(part_of, minlength=len(parts))).tolist()
        numbers = releases.rows[order]
        exact = bool(np.any((releases.kind == Kind.SUPPRESSED) | (releases.kind == Kind.LEFT_OUT)))
        taken = [
            part.release(numbers[start:end], exact=exact)
            for part, start, end in zip(parts, [0, *ends], ends, strict=False)
            if start < end
        ]
        whole = taken[0].join(taken[1:]) if len(taken) > 1 else taken[0]
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        columns = {name: getattr(releases, name) for name in _COLUMNS}
        moved = Releases(rows=places, **columns)
        return Departure(moved, number, whole.number, whole.time, whole.qi, form, whole.payload, alone)

    def _join_parts(self, start: int = 0) -> None:
        """Join the held rows of each form into one part, from the part `start` on."""
        joined = self._parts[:start]
        for form in Form:
            kept = [part.kept() for part in self._parts[start:] if part.form is form and part.count]
            if kept:
                joined.append(kept[0].join(kept[1:]))
        self._parts = joined

    def snapshot(self) -> bytes:
        """Write everything, for a caller that protects and stores it."""
        self._join_parts()
        return _SCHEMAS.encode(
            {
                "policy": policy_text(self._policy),
                "engine": self._engine.dump(),
                "persons": self._persons,
                "arrivals": self._arrivals,
                "releases": self._releases,
                "ahead": self._ahead.snapshot(),
                "later": self._later.snapshot(),
                "parts": [
                    {
                        "number": avro.packed(part.number),
                        "time": avro.packed(part.time),
                        "qi": avro.packed(part.qi),
                        "form": part.form.value,
                        "payload": part.payload.to_bytes(),
                    }
                    for part in self._parts
                ],
            }
        )

    @staticmethod
    def written_under(data: bytes) -> str:
        """Read the policy of a snapshot, as text."""
        return str(_SCHEMAS.decode(data)["policy"])

    def restore(self, data: bytes) -> None:
        """Restore what `snapshot` wrote, and nobody has changed, under the policy of this holder.

        Raises:
            SnapshotError: the policy has other quasi-identifiers, sensitive columns, or another method.
        """
        record = _SCHEMAS.decode(data)
        self._engine.load(record["engine"])
        self._persons = record["persons"]
        self._arrivals = record["arrivals"]
        self._releases = record["releases"]
        self._ahead.restore(record["ahead"])
        self._later.restore(record["later"])
        dimensions = len(self._policy.quasi_identifiers)
        self._parts = [_restored(part, dimensions) for part in record["parts"]]
        check_apart(self._policy, *(part.payload for part in self._parts))


_COLUMNS = ("offsets", "kind", "lo", "hi", "loss", "persons", "moment", "arrivals", "group")


def _only(releases: Releases, chosen: NDArray[np.bool_]) -> tuple[Releases, NDArray[np.int64]]:
    """Keep only some rows of the releases, and the releases that still have any; return their places too."""
    release_of = np.repeat(np.arange(len(releases)), releases.sizes)
    sizes = np.bincount(release_of[chosen], minlength=len(releases))
    left = np.flatnonzero(sizes)
    columns = {name: getattr(releases, name)[left] for name in _COLUMNS if name != "offsets"}
    offsets = np.concatenate([[0], np.cumsum(sizes[left])]).astype(np.int64)
    return Releases(rows=releases.rows[chosen], offsets=offsets, **columns), left


def _restored(part: dict[str, Any], dimensions: int) -> _Part:
    number = avro.unpacked(part["number"], "<i8")
    rows, form = len(number), Form(part["form"])
    payload = payloads.from_bytes(form, part["payload"])
    avro.expect(len(payload) == rows)
    time = avro.unpacked(part["time"], "<i8", (rows,))
    return _Part.of(number, time, avro.unpacked(part["qi"], shape=(rows, dimensions)), form, payload)
