"""How many rows find no group at several deadlines: the engine, run on a stretch of a sample.

A sample with gaps makes a stream look thinner than it is. So the stretch is of consecutive rows: all
of a short sample, or the middle of a long one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crenel.encoding.encoder import Encoded
from crenel.encoding.row_sample import RowSample
from crenel.encoding.rows import Rows
from crenel.encoding.tree_learning import learned_from, with_tree
from crenel.engine import Kind, Releases, create_engine
from crenel.engine.unknown_roots import as_roots
from crenel.errors import PolicyError
from crenel.pipelines.commands.run import quiet
from crenel.pipelines.console.sections import count
from crenel.policy import OnSuppress, Policy, Reuse, ShardBy
from crenel.policy.columns import Ints
from crenel.policy.durations import format_duration

__all__ = ["MOST_ROWS", "Step", "steps"]

#: The most rows that the engine is run on. Most methods then need about a second for each deadline.
MOST_ROWS = 20_000

#: The deadlines that are tried, as multiples of the policy's: from ten minutes, say, up to six hours.
_TIMES = (1, 2, 6, 12, 36)

#: Rows that are pushed at once: few, so that the user sees progress and Ctrl-C works.
_ROWS = 512

#: The engines' secret, if the policy has no seed. It may be known, since nothing is published; and it is fixed, so that
#: the same sample always gives the same table.
_SECRET = b"crenel check"


@dataclass(frozen=True)
class Step:
    """What would become of the rows at one deadline. Counts only."""

    #: The deadline in words.
    deadline: str
    rows: int
    suppressed: int
    #: The average over all rows. A suppressed row counts 1.
    loss: float

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
    shards = _shards(strict, encoded, table, _stretch(strict, encoded.rows))
    for times in _TIMES:
        longer = _longer(strict, times)
        if longer is None:
            return
        step, ended = _tried(longer, shards, _deadline(longer), tick)
        yield step
        if ended:  # all rows were held to the end, as they would be at any longer deadline
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
