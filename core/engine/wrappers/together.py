"""k persons for whoever links the rows of a person (`together`), for a method that publishes crowds.

Each box alone contains k persons, but an attacker who knows which rows are of one person intersects their boxes. Here
the engine remembers, for each person, what all boxes of the person have in common. When a group with a person who
returns is about to leave, and the group's box leaves fewer than k persons in that common part, the box is widened until
it contains k of them: those that widen it least.

Persons are looked for among those who left lately. If there are fewer than k of them in the common part, the box is
widened until it contains the whole of it, which had k persons when it was published. So every box can be widened.

A person whose quasi-identifiers change, so that the new row is outside of the common part, begins anew: boxes that no
one person of a register can be inside of have nothing in common to protect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, expect, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Kind, Releases, SnapshotError
from crenel.engine.kernels import compiler
from crenel.engine.space import check_rows, space_of
from crenel.engine.wrappers.inside import find_inside
from crenel.engine.wrappers.wrapper import Wrapper
from crenel.policy import Policy
from crenel.policy.geometry import Interval

__all__ = ["Together"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SCHEMAS = Schemas("crenel.engine.wrappers", ("together.1.avsc",))

#: Persons among whom company is looked for: those who left last. At least so many, and so many times k.
_KNOWN, _KNOWN_TO_K = 4_096, 4
#: Persons whose time is over stay in memory until they may be half of all, and there are this many.
_FEW = 4_096


class _Held:
    """The rows that have arrived and not left."""

    def __init__(self, dimensions: int) -> None:
        self.number: Ints = np.zeros(0, np.int64)
        self.person: Ints = np.zeros(0, np.int64)
        self.qi: Floats = np.zeros((0, dimensions))
        self._parts: list[tuple[Ints, Ints, Floats]] = []

    def add(self, first: int, rows: Rows) -> None:
        """Add rows that arrived after all others; their numbers begin with `first`."""
        # Copies, since the caller may write to its arrays.
        self._parts.append((np.arange(first, first + len(rows)), rows.person.copy(), rows.qi.copy()))

    def pop(self, numbers: Ints) -> tuple[Ints, Floats]:
        """Remove rows; return their persons and their coordinates."""
        self.join()
        places = np.searchsorted(self.number, numbers)
        left = self.person[places], self.qi[places]
        stays = np.ones(len(self.number), np.bool_)
        stays[places] = False
        self.number, self.person, self.qi = self.number[stays], self.person[stays], self.qi[stays]
        return left

    def join(self) -> None:
        """Let the columns have all rows."""
        if self._parts:
            parts = zip((self.number, self.person, self.qi), *self._parts, strict=True)
            self.number, self.person, self.qi = (np.concatenate(part) for part in parts)
            self._parts = []


class _Domains:
    """The widths of the domains that losses are parts of. One that is not declared is as wide as the rows so far."""

    def __init__(self, policy: Policy) -> None:
        dimensions = space_of(policy).dimensions
        self.share, self.cell = dimensions["share"].copy(), dimensions["cell"].copy()
        self._learned = dimensions["learned"] != 0
        self.lo, self.hi = dimensions["domain_lo"].copy(), dimensions["domain_hi"].copy()

    def learn(self, qi: Floats) -> Floats:
        """Let the domains contain rows; return the widths before the first of them, and after each."""
        if not self._learned.any() or len(qi) == 0:
            return np.broadcast_to(self._widths(self.lo, self.hi), (len(qi) + 1, len(self.lo)))
        lo = np.minimum.accumulate(np.vstack([self.lo, np.where(self._learned, qi, self.lo)]))
        hi = np.maximum.accumulate(np.vstack([self.hi, np.where(self._learned, qi, self.hi)]))
        self.lo, self.hi = lo[-1], hi[-1]
        return self._widths(lo, hi)

    def _widths(self, lo: Floats, hi: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(lo <= hi, hi - lo + self.cell, 0.0))

    def scales(self, widths: Floats) -> Floats:
        """Return what a coordinate weighs in the loss, if domains are so wide."""
        shares = np.broadcast_to(self.share, widths.shape)
        return np.asarray(np.divide(shares, widths, out=np.zeros(widths.shape), where=widths > 0))


class _Known:
    """The persons who left lately, each with the coordinates of the last row."""

    def __init__(self, dimensions: int, k: int) -> None:
        self.most = max(_KNOWN, _KNOWN_TO_K * k)
        self.columns = np.zeros((dimensions, self.most))
        self.persons: list[int] = []
        self._place: dict[int, int] = {}
        #: The place of the next new person once all are taken.
        self._next = 0
        self._found = np.zeros(self.most, np.int64)

    def add(self, persons: Sequence[int], qi: Floats) -> None:
        """Add persons who leave, or their new coordinates."""
        for person, point in zip(persons, qi, strict=True):
            self.columns[:, self._place_of(person)] = point

    def _place_of(self, person: int) -> int:
        place = self._place.get(person)
        if place is not None:
            return place
        if len(self.persons) < self.most:
            self.persons.append(person)
            place = len(self.persons) - 1
        else:
            place, self._next = self._next, (self._next + 1) % self.most
            del self._place[self.persons[place]]
            self.persons[place] = person
        self._place[person] = place
        return place

    def are_inside(self, lo: Floats, hi: Floats, enough: int) -> bool:
        """Return whether so many persons are inside a box."""
        return self._find(lo, hi, enough) >= enough

    def inside(self, lo: Floats, hi: Floats) -> Floats:
        """Return the coordinates of the persons inside a box."""
        count = self._find(lo, hi, self.most)
        return np.asarray(self.columns[:, self._found[:count]].T)

    def _find(self, lo: Floats, hi: Floats, enough: int) -> int:
        return int(find_inside(lo, hi, self.columns, len(self.persons), enough, self._found))

    def in_order(self) -> tuple[Ints, Floats]:
        """Return persons and points, those who are forgotten first in front."""
        order = np.roll(np.arange(len(self.persons)), -self._next)
        return np.array(self.persons, np.int64)[order], self.columns.T[order]


class _Published:
    """What all boxes of each person have in common."""

    def __init__(self, dimensions: int, span: int) -> None:
        self._span = span
        self.slot: dict[int, int] = {}
        self.lo = np.zeros((0, dimensions))
        self.hi = np.zeros((0, dimensions))
        self.last = np.zeros(0, np.int64)
        self._most = _FEW

    def of(self, person: int, moment: int) -> int:
        """Return the slot of a person who is remembered; -1 if nothing is."""
        slot = self.slot.get(person, -1)
        return -1 if slot >= 0 and moment - int(self.last[slot]) > self._span else slot

    def publish(self, person: int, lo: Floats, hi: Floats, moment: int, *, anew: bool) -> None:
        """Take note of a box. `anew`: what was published before does not count any more."""
        slot = self.slot.get(person)
        if slot is None:
            slot = self._new_slot(person)
            anew = True
        self.lo[slot] = lo if anew else np.maximum(self.lo[slot], lo)
        self.hi[slot] = hi if anew else np.minimum(self.hi[slot], hi)
        self.last[slot] = moment

    def _new_slot(self, person: int) -> int:
        slot = self.slot[person] = len(self.slot)
        if slot == len(self.last):
            grown = max(256, 2 * slot)
            self.lo = np.resize(self.lo, (grown, self.lo.shape[1]))
            self.hi = np.resize(self.hi, (grown, self.hi.shape[1]))
            self.last = np.resize(self.last, grown)
        return slot

    def forget(self, now: int) -> None:
        """Forget, now and then, those whose time is over."""
        if len(self.slot) > self._most:
            self.keep_only(now)
            self._most = 2 * len(self.slot) + _FEW

    def keep_only(self, now: int) -> None:
        """Forget those whose time is over."""
        persons = np.array(list(self.slot), np.int64)
        stays = np.flatnonzero(now - self.last[: len(persons)] <= self._span)
        if len(stays) < len(persons):
            self.slot = {person: i for i, person in enumerate(persons[stays].tolist())}
            self.lo, self.hi, self.last = self.lo[stays], self.hi[stays], self.last[stays]


class Together(Wrapper):
    """A method whose boxes, all those of a person together, leave k persons."""

    def __init__(self, method: Engine, policy: Policy) -> None:
        super().__init__(method)
        self._policy = policy
        self._space = space_of(policy)
        self._geometries = [qi.geometry for qi in policy.quasi_identifiers.values()]
        self._span: int = policy.together or 0
        count = len(self._geometries)
        self._domains = _Domains(policy)
        self._held = _Held(count)
        self._known = _Known(count, policy.k)
        self._published = _Published(count, self._span)
        self._arrivals = 0

    # --- The contract ---

    def push(self, rows: Rows) -> Releases:  # noqa: D102 - as in the contract
        check_rows(self._policy, self._space, rows)
        compiler.expect(len(rows))
        first = self._arrivals
        self._held.add(first, rows)
        self._arrivals += len(rows)
        widths = self._domains.learn(rows.qi)
        releases = self._method.push(rows)
        return self._widened(releases, widths[releases.arrivals - first])

    def advance(self, now: int) -> Releases:  # noqa: D102 - as in the contract
        return self._after_all(self._method.advance(now))

    def flush(self) -> Releases:  # noqa: D102 - as in the contract
        return self._after_all(self._method.flush())

    # --- Boxes ---

    def _after_all(self, releases: Releases) -> Releases:
        """Widen what leaves when no row arrives."""
        widths = self._domains.learn(np.zeros((0, len(self._geometries))))
        return self._widened(releases, np.repeat(widths, len(releases), axis=0))

    def _widened(self, releases: Releases, widths: Floats) -> Releases:
        """Widen the boxes of releases that need it. `widths` has those of the domains, for each release."""
        if not len(releases):
            return releases
        person, qi = self._held.pop(releases.rows)
        persons, offsets = person.tolist(), releases.offsets.tolist()
        lo, hi, loss = releases.lo.copy(), releases.hi.copy(), releases.loss.copy()
        scales = self._domains.scales(widths)
        for i in np.flatnonzero(releases.kind == Kind.CLUSTER).tolist():
            rows = slice(offsets[i], offsets[i + 1])
            if self._publish(persons[rows], qi[rows], lo[i], hi[i], int(releases.moment[i]), scales[i]):
                loss[i] = float(((hi[i] - lo[i] + self._domains.cell) * scales[i]).sum())
        self._published.forget(int(releases.moment[-1]))
        return replace(releases, lo=lo, hi=hi, loss=loss)

    def _publish(self, persons: list[int], qi: Floats, lo: Floats, hi: Floats, moment: int, scale: Floats) -> bool:
        """Widen the box of a group until it leaves k persons to everyone in it, and remember it."""
        self._known.add(persons, qi)
        published = self._published
        slots = np.array([published.of(person, moment) for person in persons])
        returns = np.flatnonzero(slots >= 0)
        slots = slots[returns]
        inside = ((published.lo[slots] <= qi[returns]) & (qi[returns] <= published.hi[slots])).all(axis=1)
        is_wider = False
        for slot in slots[inside].tolist():
            is_wider |= self._widen(lo, hi, published.lo[slot], published.hi[slot], scale)
        stays = set(returns[inside].tolist())
        for i, person in enumerate(persons):
            published.publish(person, lo, hi, moment, anew=i not in stays)
        return is_wider

    def _widen(self, lo: Floats, hi: Floats, common_lo: Floats, common_hi: Floats, scale: Floats) -> bool:
        """Widen a box until k persons are inside it and inside what a person's earlier boxes have in common."""
        k = self._policy.k
        if self._known.are_inside(np.maximum(lo, common_lo), np.minimum(hi, common_hi), k):
            return False
        points = self._known.inside(common_lo, common_hi)
        if len(points) < k:
            points = np.stack([common_lo, common_hi])
        else:
            cost = (np.maximum(lo - points, 0.0) + np.maximum(points - hi, 0.0)) @ scale
            points = points[np.argsort(cost, kind="stable")[:k]]
        lo[:], hi[:] = np.minimum(lo, points.min(axis=0)), np.maximum(hi, points.max(axis=0))
        for d, geometry in enumerate(self._geometries):
            if not isinstance(geometry, Interval):
                lo[d], hi[d] = geometry.span(lo[d], hi[d])
        return True

    # --- Snapshots ---

    def dump(self) -> bytes:  # noqa: D102 - as in the contract
        self._held.join()
        held, published = self._held, self._published
        persons = np.array(list(published.slot), "<i8")
        known, points = self._known.in_order()
        return _SCHEMAS.encode(
            {
                "method": self._method.dump(),
                "k": self._policy.k,
                "span": self._span,
                "arrivals": self._arrivals,
                "number": packed(held.number),
                "person": packed(held.person),
                "qi": packed(held.qi),
                "domain_lo": packed(self._domains.lo),
                "domain_hi": packed(self._domains.hi),
                "published": packed(persons),
                "last": packed(published.last[: len(persons)]),
                "lo": packed(published.lo[: len(persons)]),
                "hi": packed(published.hi[: len(persons)]),
                "known": packed(known),
                "points": packed(points),
            }
        )

    def load(self, data: bytes) -> None:  # noqa: D102 - as in the contract
        record = _SCHEMAS.decode(data)
        if record["k"] < self._policy.k or record["span"] < self._span:
            message = (
                "The state was written with a smaller k or a shorter together: what it remembers of each person is not "
                "enough. Drain the pipeline before you raise them."
            )
            raise SnapshotError(message)
        self._method.load(record["method"])
        count = len(self._geometries)
        self._arrivals = record["arrivals"]
        held = self._held = _Held(count)
        held.number = unpacked(record["number"], "<i8")
        held.person = unpacked(record["person"], "<i8", (len(held.number),))
        held.qi = unpacked(record["qi"], shape=(len(held.number), count))
        expect(len(held.number) == self._method.held)
        self._domains.lo = unpacked(record["domain_lo"], shape=(count,))
        self._domains.hi = unpacked(record["domain_hi"], shape=(count,))
        self._restore_published(record)
        known = unpacked(record["known"], "<i8").tolist()
        self._known = _Known(count, self._policy.k)
        expect(len(set(known)) == len(known))
        self._known.add(known, unpacked(record["points"], shape=(len(known), count)))

    def _restore_published(self, record: dict[str, bytes]) -> None:
        count = len(self._geometries)
        persons = unpacked(record["published"], "<i8").tolist()
        self._published = published = _Published(count, self._span)
        published.slot = {person: slot for slot, person in enumerate(persons)}
        expect(len(published.slot) == len(persons))
        published.last = unpacked(record["last"], "<i8", (len(persons),))
        published.lo, published.hi = (unpacked(record[name], shape=(len(persons), count)) for name in ("lo", "hi"))
