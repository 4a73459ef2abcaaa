"""The shards that share a key: mostly one, on Beam's local runner all. Independent of Beam."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from crenel import avro
from crenel.policy import Policy
from crenel.policy.secret import Secret
from crenel.transforms._hold.ahead import Refusal
from crenel.transforms._hold.shard_holder import Departure, ShardHolder
from crenel.transforms._pack.row_pack import RowPack

__all__ = ["Left", "ShardSet"]

_SCHEMAS = avro.Schemas("crenel.transforms._hold", ("shards.1.avsc",))

#: Released and refused rows, by shard.
Left = list[tuple[int, list[Departure | Refusal]]]


class ShardSet:
    """Holders by shard. The releases of a shard do not depend on the shards beside it.

    Args:
        policy: The policy to enforce.
        secret: Seeds the random generators of all engines.
        name: Names the engine of a shard, differently from all others: by default by its number.
    """

    def __init__(
        self, policy: Policy, secret: bytes | Secret, name: Callable[[int], bytes] = lambda shard: b"%d" % shard
    ) -> None:
        self._policy = policy
        self._secret = secret
        self._name = name
        self._holders: dict[int, ShardHolder] = {}
        #: For shards that hold rows: the number of rows, and the next deadline.
        self._held: dict[int, int] = {}
        self._due: dict[int, int] = {}
        #: For shards whose rows have deadlines: when the last of them is due.
        self._last: dict[int, int] = {}

    def __repr__(self) -> str:
        """Show sizes, never values."""
        return f"ShardSet({len(self._holders)}, held={self.held})"

    def __len__(self) -> int:
        """Count the shards."""
        return len(self._holders)

    @property
    def held(self) -> int:
        """The number of rows that were not released yet."""
        return sum(self._held.values())

    def held_by(self, shard: int) -> int:
        """Count the held rows of one shard."""
        return self._held.get(shard, 0)

    def begin(self, pack: RowPack) -> bytes:
        """If the pack is the first of its shard, write the new holder before the pack, for a caller that stores it."""
        shard = pack.shard
        return b"" if shard in self._holders else _written({shard: self._holder(shard)})

    def push(self, pack: RowPack) -> Left:
        """Push rows in order of arrival; return what became due."""
        return self._left([pack.shard], lambda holder: holder.push(pack))

    def is_due(self, now: int) -> bool:
        """Tell whether some row must be released by `now`, in microseconds."""
        return any(due <= now for due in self._due.values())

    def wake(self, now: int) -> Left:
        """Advance event time to `now`, in the shards in which a row is due."""
        due = [shard for shard, at in self._due.items() if at <= now]
        return self._left(due, lambda holder: holder.advance(now))

    def flush(self) -> Left:
        """Release everything: the stream is over."""
        return self._left(self._held, ShardHolder.flush)

    def next_deadline(self) -> int | None:
        """The time at which `wake` is next needed."""
        return min(self._due.values(), default=None)

    def last_deadline(self) -> int | None:
        """The time at which `wake` releases all rows that have a deadline, or a later one."""
        return max(self._last.values(), default=None)

    def snapshot(self) -> bytes:
        """Write everything, for a caller that protects and stores it."""
        return _written(self._holders)

    def restore(self, data: bytes) -> None:
        """Restore the shards that `snapshot` or `begin` wrote, and nobody has changed, under the policy of this set.

        Raises:
            SnapshotError: the policy has other quasi-identifiers, sensitive columns, or another method.
        """
        for shard, held in _read(data):
            self._holder(shard).restore(held)
            self._note(shard)

    @staticmethod
    def written_under(data: bytes) -> str:
        """Read the policy of what was stored, as text."""
        _, held = _read(data)[0]
        return ShardHolder.written_under(held)

    def _holder(self, shard: int) -> ShardHolder:
        if shard not in self._holders:
            self._holders[shard] = ShardHolder(self._policy, self._secret, self._name(shard))
        return self._holders[shard]

    def _left(self, shards: Iterable[int], step: Callable[[ShardHolder], list[Departure | Refusal]]) -> Left:
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
        self._last.pop(shard, None)
        if not holder.held:
            return
        self._held[shard] = holder.held
        due, last = holder.next_deadline(), holder.last_deadline()
        if due is not None:
            self._due[shard] = due
        if last is not None:
            self._last[shard] = last


def _written(holders: Mapping[int, ShardHolder]) -> bytes:
    return _SCHEMAS.encode({"shards": [{"shard": shard, "held": held.snapshot()} for shard, held in holders.items()]})


def _read(data: bytes) -> list[tuple[int, bytes]]:
    return [(record["shard"], record["held"]) for record in _SCHEMAS.decode(data)["shards"]]
