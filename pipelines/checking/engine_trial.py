"""The engine, run on a stretch of a sample: what would become of the rows. Nothing is published.

A sample with gaps makes a stream look thinner than it is. So the stretch is of consecutive rows: all of a short sample,
or the middle of a long one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from crenel.encoding.encoder import Encoded
from crenel.encoding.row_sample import RowSample
from crenel.encoding.rows import Rows
from crenel.encoding.tree_learning import learned_from, with_tree
from crenel.engine import Kind, Releases, create_engine
from crenel.engine.unknown_roots import as_roots
from crenel.pipelines.commands.run import quiet
from crenel.pipelines.console.sections import count
from crenel.policy import Policy, ShardBy
from crenel.policy.columns import Floats, Ints
from crenel.policy.durations import format_duration
from crenel.policy.frozen import FrozenDict

__all__ = ["MOST_ROWS", "Shards", "Trial", "deadline_of", "shards_of", "tried"]

#: The most rows that the engine is run on. Most methods then need about a second for each run.
MOST_ROWS = 20_000

#: Rows that are pushed at once: few, so that the user sees progress and Ctrl-C works.
_ROWS = 512

#: The engines' secret, if the policy has no seed. It may be known, since nothing is published; and it is fixed, so that
#: the same sample always gives the same figures.
_SECRET = b"crenel check"

#: The rows of each shard, with its number.
Shards = Sequence[tuple[int, Rows]]


@dataclass(frozen=True, eq=False)
class Trial:
    """What would become of the rows. Its figures are counts, shares and means."""

    policy: Policy
    #: The rows of each shard, and how they left.
    parts: Sequence[tuple[Rows, Releases]]
    #: Whether no row left before the end of the stretch, as none would at any longer deadline.
    ended: bool

    @property
    def rows(self) -> int:
        """The rows that were tried."""
        return sum(len(rows) for rows, _ in self.parts)

    @cached_property
    def suppressed(self) -> int:
        """The rows that found no group."""
        return sum(int(left.sizes[left.kind == Kind.SUPPRESSED].sum()) for _, left in self.parts)

    @cached_property
    def left_out(self) -> int:
        """The rows that `once_per` left out."""
        return sum(int(left.sizes[left.kind == Kind.LEFT_OUT].sum()) for _, left in self.parts)

    @cached_property
    def loss(self) -> float:
        """The average over all rows that were not left out. A suppressed row counts 1."""
        boxed = [~np.isin(left.kind, (Kind.SAMPLED_OUT, Kind.LEFT_OUT)) for _, left in self.parts]
        lost = [(left.loss * left.sizes)[is_boxed] for (_, left), is_boxed in zip(self.parts, boxed, strict=True)]
        return float(sum(part.sum() for part in lost)) / max(self.rows - self.left_out, 1)

    @cached_property
    def waited(self) -> Floats:
        """How long each published row waited: in microseconds of event time if there is a delay, else in rows."""
        waits = []
        for rows, left in self.parts:
            out = left.per_row(np.isin(left.kind, _PUBLISHED))
            if self.policy.delay is not None:
                wait = np.repeat(left.moment, left.sizes) - rows.time[left.rows]
            else:
                wait = np.repeat(left.arrivals, left.sizes) - 1 - left.rows
            waits.append(np.maximum(wait[out], 0))
        return np.concatenate(waits).astype(np.float64)

    @cached_property
    def points(self) -> Rows:
        """All rows that were tried, in the order of the shards."""
        parts = [rows for rows, _ in self.parts]
        return Rows(
            np.concatenate([rows.qi for rows in parts]),
            np.concatenate([rows.person for rows in parts]),
            np.concatenate([rows.sensitive for rows in parts]),
            np.concatenate([rows.time for rows in parts]),
        )

    @cached_property
    def published(self) -> tuple[Ints, Floats, Floats]:
        """The places of the published rows among `points`, and the ends of their boxes."""
        places, lo, hi, first = [], [], [], 0
        for rows, left in self.parts:
            out = left.per_row(np.isin(left.kind, _PUBLISHED)).astype(bool)
            places.append(left.rows[out] + first)
            lo.append(left.per_row(left.lo)[out])
            hi.append(left.per_row(left.hi)[out])
            first += len(rows)
        return np.concatenate(places), np.concatenate(lo), np.concatenate(hi)


_PUBLISHED = (Kind.CLUSTER, Kind.REUSE)


def tried(policy: Policy, shards: Shards, tick: Callable[[str], None]) -> Trial:
    """Run the engine on the rows of the shards.

    Args:
        policy: The policy.
        shards: From `shards_of`.
        tick: Called with the progress, such as `512 of 20,000 rows`.
    """
    parts, pushed, ended = [], 0, True
    rows = sum(len(part) for _, part in shards)
    for shard, part in shards:
        engine = create_engine(policy, secret=_SECRET, shard=str(shard).encode())
        releases = []
        for start in range(0, len(part), _ROWS):
            tick(f"{pushed:,} of {count(rows, 'row')}")
            some = part.slice(start, min(start + _ROWS, len(part)))
            releases.append(as_roots(policy, engine.push(some)))
            pushed += len(some)
            ended &= bool((releases[-1].kind == Kind.LEFT_OUT).all())
        parts.append((part, Releases.concat([*releases, as_roots(policy, engine.flush())])))
    return Trial(policy, parts, ended)


def shards_of(policy: Policy, encoded: Encoded, table: Any, most: int | None = None) -> Shards:
    """Choose consecutive rows of the sample, and split them into shards as a run does.

    Args:
        policy: The policy.
        encoded: The sample's rows.
        table: The sample as it was read, an Arrow table.
        most: The most rows; `MOST_ROWS` by default.
    """
    stretch = _stretch(policy, encoded.rows, MOST_ROWS if most is None else most)
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
    # What is published beside boxes does not matter here, and the keys of pseudonyms need not be on this machine.
    policy = replace(policy, publish=(), treat=FrozenDict())
    return [(pack.shard, pack.rows) for pack in Packer(policy, _SECRET).pack_arrow(part, time).packs]


def deadline_of(policy: Policy) -> str:
    """Write a policy's deadline in words."""
    delay = None if policy.delay is None else format_duration(policy.delay)
    rows = None if policy.delay_rows is None else count(policy.delay_rows, "row")
    return " or ".join(filter(None, (delay, rows)))


def _stretch(policy: Policy, rows: Rows, most: int) -> Ints:
    """Choose consecutive rows from the middle, in the order in which `crenel run` takes them."""
    timeless = policy.event_time is None
    order = np.arange(len(rows)) if timeless else np.argsort(rows.time, kind="stable")
    start = max(len(rows) - most, 0) // 2
    return order[start : start + most].astype(np.int64)
