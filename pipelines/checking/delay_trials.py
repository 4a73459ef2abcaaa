"""How many rows find no group at several deadlines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from crenel.encoding.encoder import Encoded
<<<<<<< HEAD
=======
from crenel.encoding.row_sample import RowSample
from crenel.encoding.rows import Rows
from crenel.encoding.tree_learning import learned_from, with_tree
from crenel.engine import Kind, Releases, create_engine
from crenel.engine.unknown_roots import as_roots
>>>>>>> policy
from crenel.errors import PolicyError
from crenel.pipelines.checking.engine_trial import Trial, deadline_of, shards_of, tried
from crenel.policy import OnSuppress, Policy, Reuse

__all__ = ["Step", "steps"]

#: The deadlines that are tried, as multiples of the policy's: from ten minutes, say, up to six hours.
_TIMES = (1, 2, 6, 12, 36)


@dataclass(frozen=True)
class Step:
    """What would become of the rows at one deadline. Counts only."""

    #: The deadline in words.
    deadline: str
    rows: int
    suppressed: int
    #: The average over all rows. A suppressed row counts 1.
    loss: float
    #: What the engine did.
    trial: Trial = field(repr=False, compare=False)

    @property
    def share(self) -> float:
        """The share of rows that would be suppressed."""
        return self.suppressed / self.rows


def steps(
    policy: Policy, encoded: Encoded, table: Any, tick: Callable[[str], None] = lambda line: None
) -> Iterator[Step]:
    """Try a stretch of the sample at the policy's deadline, and at longer ones.

    The method is the policy's. What lets rows be released without a crowd, reuse and stars, is turned off where the
    method allows it.

    Args:
        policy: The policy.
        encoded: The sample's rows.
        table: The sample as it was read, an Arrow table.
        tick: Called with a line about the progress.
    """
    strict = _strict(policy)
    if strict is None or not len(encoded.kept):
        return
    shards = shards_of(strict, encoded, table)
    for times in _TIMES:
        longer = _longer(strict, times)
        if longer is None:
            return
        deadline = deadline_of(longer)
        trial = tried(longer, shards, lambda done, of=deadline: tick(f"trying a deadline of {of}: {done}"))
        yield Step(deadline, trial.rows, trial.suppressed, trial.loss, trial)
        if trial.ended:  # all rows were held to the end, as they would be at any longer deadline
            return


def _strict(policy: Policy) -> Policy | None:
    """Turn off reuse and stars, and drop a deadline that the sample cannot show; None if no deadline is left."""
    changes: dict[str, Any] = {"on_suppress": OnSuppress.DROP}
    if policy.declaration.reuses:
        changes["parameters"] = dataclasses.replace(policy.parameters, reuse=Reuse.OFF)
    if policy.event_time is None and policy.delay is not None:
        if policy.delay_rows is None:
            return None
        changes |= {"delay": None, "disorder": 0}
    return _changed(policy, **changes)


def _longer(policy: Policy, times: int) -> Policy | None:
    deadlines = {"delay": policy.delay, "delay_rows": policy.delay_rows}
    return _changed(policy, **{name: times * value for name, value in deadlines.items() if value is not None})


def _changed(policy: Policy, **changes: Any) -> Policy | None:
    """Change a policy; None if the method's parameters do not allow it."""
    try:
        return dataclasses.replace(policy, **changes)
    except PolicyError:
        return None
<<<<<<< HEAD
=======


def _deadline(policy: Policy) -> str:
    delay = None if policy.delay is None else format_duration(policy.delay)
    rows = None if policy.delay_rows is None else count(policy.delay_rows, "row")
    return " or ".join(filter(None, (delay, rows)))


def _stretch(policy: Policy, rows: Rows) -> Ints:
    """Choose consecutive rows from the middle, in the order in which `crenel run` takes them."""
    timeless = policy.event_time is None
    order = np.arange(len(rows)) if timeless else np.argsort(rows.time, kind="stable")
    start = max(len(rows) - MOST_ROWS, 0) // 2
    return order[start : start + MOST_ROWS].astype(np.int64)


def _shards(policy: Policy, encoded: Encoded, table: Any, stretch: Ints) -> list[tuple[int, Rows]]:
    """Split the rows into shards as a run does."""
    if policy.shards == 1 and not policy.within:
        return [(0, encoded.rows.take(stretch))]
    # This loads Beam, which takes a while and logs warnings about packages that are not installed.
    with quiet():
        from crenel.transforms._pack.row_pack import Packer

    if policy.shard_by is ShardBy.LOCALITY:
        sample = RowSample()
        sample.add(encoded.rows)
        policy = with_tree(policy, learned_from(policy, sample))
    part = table.take(encoded.kept[stretch]).combine_chunks()
    time = encoded.rows.time[stretch] if policy.event_time is None else None
    return [(pack.shard, pack.rows) for pack in Packer(policy, _SECRET).pack_arrow(part, time).packs]


def _tried(
    policy: Policy, shards: Sequence[tuple[int, Rows]], deadline: str, tick: Callable[[str], None]
) -> tuple[Step, bool]:
    """Run the engine; return what became of the rows, and whether it released none before the end."""
    suppressed, loss, left, pushed = 0, 0.0, 0, 0
    rows = sum(len(part) for _, part in shards)
    for shard, part in shards:
        engine = create_engine(policy, secret=_SECRET, shard=str(shard).encode())
        for start in range(0, len(part), _ROWS):
            tick(f"trying a deadline of {deadline}: {pushed:,} of {count(rows, 'row')}")
            some = part.slice(start, min(start + _ROWS, len(part)))
            releases = as_roots(policy, engine.push(some))
            pushed, left = pushed + len(some), left + int(releases.sizes.sum())
            suppressed, loss = suppressed + _suppressed(releases), loss + _loss(releases)
        last = as_roots(policy, engine.flush())
        suppressed, loss = suppressed + _suppressed(last), loss + _loss(last)
    return Step(deadline, rows, suppressed, loss / rows), left == 0


def _suppressed(releases: Releases) -> int:
    return int(releases.sizes[releases.kind == Kind.SUPPRESSED].sum())


def _loss(releases: Releases) -> float:
    boxed = releases.kind != Kind.SAMPLED_OUT
    return float((releases.loss * releases.sizes)[boxed].sum())
>>>>>>> policy
