"""`rows | AnonymizeBounded(policy)`: shards go through a GroupByKey, and then through the same engines.

It has no state, so shards run side by side wherever a runner has workers, on Beam's local runner too. All rows of a
shard are there before the first is pushed, so they can be put in order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.transforms.trigger import DefaultTrigger

from crenel.policy import PolicyError
from crenel.transforms._hold.hold_step import HoldGroupedRows
from crenel.transforms._pack.row_options import RowOptions
from crenel.transforms.anonymize import Anonymize, Anonymized, hold_outputs

__all__ = ["AnonymizeBounded"]


class AnonymizeBounded(Anonymize):
    """`Anonymize` for bounded rows: in the order of their event times, and without state.

    The rows of a shard (and window) are gathered, ordered by event time, and pushed through one engine. Rows of the
    same time are ordered by their contents. So the releases depend on the rows and the secret alone: not on how the
    input was split into files and bundles, nor on which worker was faster. The rows of a shard must fit into the memory
    of a worker.

    The outputs are those of `Anonymize`. The options too, and two of them do more:

    - `row_number` orders the rows, where the policy names no event time.
    - With `order_column`, or ordered by `row_number`, rows carry the end of their window as Beam's timestamp, since any
      other would tell of their order.

    Args:
        policy: A `Policy`, the path of a YAML file, or the content of such a file.
        **options: As for `Anonymize`.

    Raises:
        PolicyError: the policy is wrong, does not fit the rows' schema, or has a delay, which row numbers cannot count.
        ValueError: the rows are not bounded, or in windows that merge, that overlap, or that have a trigger; or an
            option is wrong.
    """

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
        options = RowOptions(**given)
        by_number = options.row_number is not None and self._policy.event_time is None
        if by_number and self._policy.delay is not None:
            message = (
                "must name a column, since policy.delay is event time, and rows that are ordered by their numbers have "
                "no other. Without one, use policy.delay_rows alone."
            )
            raise PolicyError([("event_time", message)])
        return replace(options, by_number=by_number, at_end=by_number or options.order_column is not None)

    def _has_one_key(self, rows: pvalue.PCollection) -> bool:
        return False  # shards run side by side

    def _hold(self, packs: pvalue.PCollection) -> Any:
        grouped = packs | "Group" >> beam.GroupByKey()
        hold = HoldGroupedRows(self._told, self._secret, self._record, self._options)
        return grouped | "Hold" >> hold_outputs(hold)
