"""`rows | AnonymizeBounded(policy)`: shards go through a GroupByKey, and then through the same engines.

It has no state, so shards run side by side wherever a runner has workers, on Beam's local runner too. All rows of a
shard are there before the first is pushed, so they can be put in order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.transforms.trigger import DefaultTrigger

from crenel.encoding.tree_learning import learned_from
from crenel.policy import Policy, PolicyError, ShardBy
from crenel.transforms._deal.deal_step import DealRows, SampleRows, merged
from crenel.transforms._hold.hold_step import HoldGroupedRows
from crenel.transforms._hold.sorted_runs import SortSpace
from crenel.transforms._hold.spill_step import SpillRows
from crenel.transforms._pack.row_options import RowOptions
from crenel.transforms.anonymize import Anonymize, Anonymized, hold_outputs

__all__ = ["SORT_MEMORY", "AnonymizeBounded"]

#: Bytes of rows that are sorted in memory, by default.
SORT_MEMORY = 512_000_000

#: At most this many copies of the rows are in memory while they are gathered and sorted.
_COPIES = 8


class AnonymizeBounded(Anonymize):
    """`Anonymize` for bounded rows: in the order of their event times, and without state.

    The rows of a shard (and window) are gathered, ordered by event time, and pushed through one engine. Rows of the
    same time are ordered by their contents. So the releases depend on the rows and the secret alone: not on how the
    input was split into files and bundles, nor on which worker was faster. Without `sort_folder`, the rows of a shard
    must fit into the memory of a worker.

    With `shard_by: locality`, a first pass over the rows learns the tree of shards from a sample that depends on the
    rows alone.

    The outputs are those of `Anonymize`. The options too, and two of them do more:

    - `row_number` orders the rows, where the policy names no event time.
    - With `order_column`, or ordered by `row_number`, rows carry the end of their window as Beam's timestamp, since any
      other would tell of their order.

    Args:
        policy: A `Policy`, the path of a YAML file, or the content of such a file.
        sort_folder: A folder in which rows are sorted that take more than `sort_memory`. All workers must see it, and
            only its owner should: it gets files with quasi-identifiers and published columns. Remove it after the run.
        sort_memory: The bytes of rows that a worker keeps in memory to sort them.
        **options: As for `Anonymize`.

    Raises:
        PolicyError: the policy is wrong, does not fit the rows' schema, or has a delay, which row numbers cannot count.
        ValueError: the rows are not bounded, or in windows that merge, that overlap, or that have a trigger; or an
            option is wrong.
    """

    def __init__(
        self,
        policy: Policy | str | PathLike[str] | Mapping[str, Any],
        *,
        sort_folder: str | PathLike[str] | None = None,
        sort_memory: int = SORT_MEMORY,
        **options: Any,
    ) -> None:
        super().__init__(policy, **options)
        if sort_folder is not None and not isinstance(sort_folder, (str, PathLike)):
            message = f"AnonymizeBounded: sort_folder must be the path of a folder, not {sort_folder!r}."
            raise ValueError(message)
        if isinstance(sort_memory, bool) or not isinstance(sort_memory, int) or sort_memory < 1:
            rule = f"a number of bytes, such as {SORT_MEMORY}"
            message = f"AnonymizeBounded: sort_memory must be {rule}, not {sort_memory!r}."
            raise ValueError(message)
        # Sorting copies rows, and so does Beam.
        self._space = None if sort_folder is None else SortSpace(os.fspath(sort_folder), sort_memory // _COPIES)

    def expand(self, rows: pvalue.PCollection) -> Anonymized:
        """Pack, group, hold, publish."""
        if not rows.is_bounded:
            message = "AnonymizeBounded: the rows must be bounded. Use Anonymize for a stream."
            raise ValueError(message)
        if rows.windowing.triggerfn != DefaultTrigger():
            message = (
                "AnonymizeBounded: windows must have no trigger of their own, because all rows of a window have to be "
                "there before the first is released. Set the trigger after this step."
            )
            raise ValueError(message)
        return super().expand(rows)

    def _row_options(self, **given: Any) -> RowOptions:
        options = super()._row_options(**given)
        by_number = options.row_number is not None and self._policy.event_time is None
        timed = self._policy.timed
        if by_number and timed:
            message = (
                f"must name a column, since policy.{timed[0]} is event time, and rows that are ordered by their "
                "numbers have no other. Without one, use policy.delay_rows alone, without times."
            )
            raise PolicyError([("event_time", message)])
        return replace(options, by_number=by_number, at_end=by_number or options.order_column is not None)

    def _has_one_key(self, rows: pvalue.PCollection) -> bool:
        return False  # shards run side by side

    def _assigned(self, packs: pvalue.PCollection) -> pvalue.PCollection:
        if self._told.shard_by is not ShardBy.LOCALITY or self._told.shards == 1:
            return packs
        samples = packs | "Sample" >> beam.ParDo(SampleRows(self._told, self._secret))
        sample = samples | "Merge" >> beam.CombineGlobally(merged).without_defaults()
        tree = sample | "Learn" >> beam.Map(partial(learned_from, self._told))
        dealt = packs | "Deal" >> beam.ParDo(DealRows(self._told, self._secret), pvalue.AsSingleton(tree))
        dealt.element_type = packs.element_type
        return dealt

    def _hold(self, packs: pvalue.PCollection) -> Any:
        if self._space is not None:
            spilled = packs | "Spill" >> beam.ParDo(SpillRows(self._space, self._options.tie_breaker, self._secret))
            spilled.element_type = packs.element_type
            packs = spilled
        grouped = packs | "Group" >> beam.GroupByKey()
        hold = HoldGroupedRows(self._told, self._secret, self._record, self._options, self._space)
        return grouped | "Hold" >> hold_outputs(hold)
