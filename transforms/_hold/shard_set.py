"""The shards that are kept under one key: mostly one, on Beam's local runner all. Nothing here knows of Beam."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from crenel import avro
from crenel.policy import Policy
from crenel.transforms._hold.holder import Departure, Holder
from crenel.transforms._pack.row_pack import UNSAID, Pack

__all__ = ["Left", "Shards"]

_SCHEMAS = avro.Schemas("crenel.transforms._hold", ("shards.1.avsc",))

#: What leaves, by shard.
Left = list[tuple[int, list[Departure]]]


class Shards:
    """Holders by shard. What leaves a shard is the same whichever others are beside it.

    Args:
        policy: What is to be guaranteed.
        secret: What the generators of all engines are seeded from.
        name: What tells the engine of a shard from all others: by default its number.
        own: The shard that is meant where packs and state do not say: those of earlier releases, when each key was one.
    """

    def __init__(
        self, policy: Policy, secret: bytes, name: Callable[[int], bytes] = lambda shard: b"%d" % shard, own: int = 0
    ) -> None:
        self._policy = policy
        self._secret = secret
        self._name = name
        self._own = own
        self._holders: dict[int, Holder] = {}
        #: Of shards that hold rows: how many, and when the first of them must leave.
        self._held: dict[int, int] = {}
        self._due: dict[int, int] = {}

    def __repr__(self) -> str:
        """Say how much, never what."""
        return f"Shards({len(self._holders)}, held={self.held})"

    def __len__(self) -> int:
        """Count the shards."""
        return len(self._holders)

    @property
    def held(self) -> int:
        """Rows that have arrived and not left."""
        return sum(self._held.values())

    def held_by(self, shard: int) -> int:
        """The same of one shard."""
        return self._held.get(shard, 0)

    def begin(self, pack: Pack) -> bytes:
        """If the pack is the first of its shard: its holder before it, to be stored."""
        shard = self._shard(pack)
        return b"" if shard in self._holders else _written({shard: self._holder(shard)})

    def push(self, pack: Pack) -> Left:
        """Take rows as they arrive; return what became due."""
        return self._left([self._shard(pack)], lambda holder: holder.push(pack))

    def is_due(self, now: int) -> bool:
        """Whether some row must leave by `now`, in microseconds."""
        return any(due <= now for due in self._due.values())

    def wake(self, now: int) -> Left:
        """Take note, in shards of which a row is due, that event time has moved on to `now`."""
        due = [shard for shard, at in self._due.items() if at <= now]
        return self._left(due, lambda holder: holder.advance(now))

    def advance(self, now: int) -> Left:
        """The same in every shard, as earlier releases did."""
        return self._left(self._held, lambda holder: holder.advance(now))

    def flush(self) -> Left:
        """Take note that the stream is over."""
        return self._left(self._held, Holder.flush)

    def next_deadline(self) -> int | None:
        """When some shard has next to be woken."""
        return min(self._due.values(), default=None)

    def snapshot(self) -> bytes:
        """All of it, to be stored."""
        return _written(self._holders)

    def restore(self, data: bytes) -> None:
        """Let the shards of a snapshot, or the one that began, be as they were then, under this policy.

        Raises:
            SnapshotError: the policy has other quasi-identifiers, sensitive columns, or another method.
        """
        for shard, held in _read(data, self._own):
            self._holder(shard).restore(held)
            self._note(shard)

    @staticmethod
    def written_under(data: bytes) -> str:
        """The policy of what was stored, as text."""
        _, held = _read(data)[0]
        return Holder.written_under(held)

    def _shard(self, pack: Pack) -> int:
        return self._own if pack.shard == UNSAID else pack.shard

    def _holder(self, shard: int) -> Holder:
        if shard not in self._holders:
            self._holders[shard] = Holder(self._policy, self._secret, self._name(shard))
        return self._holders[shard]

    def _left(self, shards: Iterable[int], step: Callable[[Holder], list[Departure]]) -> Left:
        left = []
        for shard in sorted(shards):
            left.append((shard, step(self._holder(shard))))
            self._note(shard)
        return left

    def _note(self, shard: int) -> None:
        """Remember how many rows a shard holds now, and until when."""
        holder = self._holders[shard]
        self._held.pop(shard, None)
        self._due.pop(shard, None)
        if not holder.held:
            return
        self._held[shard] = holder.held
        due = holder.next_deadline()
        if due is not None:
            self._due[shard] = due


def _written(holders: Mapping[int, Holder]) -> bytes:
    return _SCHEMAS.encode({"shards": [{"shard": shard, "held": held.snapshot()} for shard, held in holders.items()]})


def _read(data: bytes, own: int = 0) -> list[tuple[int, bytes]]:
    if not _SCHEMAS.wrote(data):
        return [(own, data)]  # an earlier release's: the holder of the shard that was the key
    return [(record["shard"], record["held"]) for record in _SCHEMAS.decode(data)["shards"]]
