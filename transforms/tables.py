"""`anonymize(table, policy)`: a whole table in one call, without a pipeline.

It takes the same way as a row of a pipeline: PACK encodes, the engines of HOLD decide, PUBLISH decodes. So it publishes
what `AnonymizeBounded`, and `crenel run` on a file, publish of the same rows under the same secret.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP

from crenel.encoding.row_sample import RowSample
from crenel.encoding.text_format import TextFormat
from crenel.encoding.tree_learning import learned_from
from crenel.policy import Policy, PolicyError, ShardBy
from crenel.policy.secret import Secret, without_secret
from crenel.transforms._hold.ahead import Refusal
from crenel.transforms._hold.event_order import cut, in_order
from crenel.transforms._hold.refused_rows import RefusedRows
from crenel.transforms._hold.shard_holder import Departure, ShardHolder
from crenel.transforms._pack.arrow_tables import concat
from crenel.transforms._pack.frames import Frame, frame_of
from crenel.transforms._pack.nested_fields import names_of
from crenel.transforms._pack.row_options import RowOptions
from crenel.transforms._pack.row_pack import Packed, Packer, RowPack, by_shard, deal
from crenel.transforms._pack.sharding import shard_name
from crenel.transforms._pack.text_columns import lacking, named_columns
from crenel.transforms._publish.counts import Counts
from crenel.transforms._publish.emitter import COUNTS, PUBLISHED, REJECTED, RELEASES, SUPPRESSED, TRACE, Emitter
from crenel.transforms._publish.owner_records import TRACE_SCHEMA, OwnerRecords
from crenel.transforms._publish.range_form import RangeForm, Ranges
from crenel.transforms._publish.row_order import RowOrder, order_of
from crenel.transforms._publish.whole_table import WholeTable

__all__ = ["AnonymizedTable", "anonymize"]

#: Columns that number the rows, and that hide their order. The results have neither.
_ROW, _ORDER = "crenel: row", "crenel: order"
#: Rows encoded at once.
_ROWS = 131_072
#: A rejected row: its place in the given table, the first column that did not fit, and why.
_REJECTED_SCHEMA = pa.schema([("row", pa.int64()), ("field", pa.string()), ("reason", pa.string())])
_WINDOW = GlobalWindow()


@dataclass(frozen=True, kw_only=True)
class AnonymizedTable:
    """The result of `anonymize`. Tables are of the kind that was given: Arrow, pandas or polars."""

    #: The rows to publish, in an order drawn in secret.
    published: Any = field(repr=False)
    #: The rows that no group of k persons was found for, with their exact values. For the owner alone.
    suppressed: Any = field(repr=False)
    #: The rows that do not fit the policy: `row` (the place in the given table, from 0), `field` and `reason`.
    rejected: Any = field(repr=False)
    #: One record per release, for the owner: the columns of `Anonymized.releases`.
    releases: Any = field(repr=False)
    #: One record per row, for the owner, if `trace` was asked for: the columns of `Anonymized.trace`. `row` is the
    #: place in the given table, and the n-th record of a published row belongs to the n-th published row.
    trace: Any = field(repr=False)
    #: What became of the rows, in numbers.
    summary: Counts


def anonymize(
    table: Any,
    policy: Policy | str | PathLike[str] | Mapping[str, Any],
    *,
    parse_text: bool | TextFormat = False,
    trace: bool = False,
    ranges: Ranges | str = Ranges.STRUCT,
) -> AnonymizedTable:
    """Anonymize a whole table.

    Rows are taken in the order of their event times; if the policy names none, in the order of the table.

    Args:
        table: A pyarrow Table or RecordBatch, or a pandas or polars DataFrame.
        policy: A `Policy`, the path of a YAML file, or the content of such a file.
        parse_text: Whether to parse text in columns that the policy declares as numbers or moments; or a `TextFormat`,
            which says that numbers have a decimal comma, or how dates are written.
        trace: Whether to tell what became of each row.
        ranges: What a published range is: `struct`, two ends under one name (in pandas, an interval of numbers);
            `columns`, two columns (`age_lo`, `age_hi`) of the input's type; or `text` (`[30, 39]`).

    Raises:
        PolicyError: The policy is wrong, its secret is not there, or it has a delay but names no event time.
        TypeError: The table is of another kind.
        ValueError: The table lacks a column that the policy names, has it twice, or has one that Arrow cannot hold.
    """
    policy, form = Policy.of(policy), Ranges.of(ranges)
    frame = frame_of(table)
    given = _given(policy, frame)
    found = _Run(policy, parse_text=parse_text, trace=trace).tables(given)
    made = {name: frame.from_arrow(found[name]) for name in (REJECTED, RELEASES)}
    if form is Ranges.STRUCT:
        made |= {name: frame.from_shared(found[name]) for name in (PUBLISHED, SUPPRESSED)}
    else:
        whole = [field.name for field in given.schema if pa.types.is_integer(field.type)]
        formed = RangeForm(policy, form, whole)
        made |= {name: frame.from_arrow(formed.batch(found[name].table())) for name in (PUBLISHED, SUPPRESSED)}
    traced = frame.from_arrow(found[TRACE]) if trace else None
    return AnonymizedTable(**made, trace=traced, summary=Counts.of(found[COUNTS]))


def _given(policy: Policy, frame: Frame) -> pa.Table:
    """Take the columns that the policy names, and the objects that paths lead into, out of a table."""
    there = list(frame.names)
    named = named_columns(policy)
    # Only Arrow's types tell which columns are objects.
    needed = dict.fromkeys(name if name in there else name.partition(".")[0] for name in named)
    found = [name for name in needed if name in there]
    twice = [name for name in found if there.count(name) > 1]
    given = pa.table({}) if twice else frame.to_arrow(found)
    columns = there if twice else [*names_of(given.schema), *(name for name in there if name not in found)]
    wrong = [*lacking(policy, columns), *(_once(there, name) for name in twice)]
    if wrong:
        msg = "\n".join(f"anonymize: the table {sentence}" for sentence in wrong)
        raise ValueError(msg)
    return given


def _once(names: Sequence[str], twice: str) -> str:
    """Complain about a name that is there twice, by its places: the rest of a sentence."""
    places = [str(place) for place, name in enumerate(names, 1) if name == twice]
    return f"must have each column once: columns {', '.join(places[:-1])} and {places[-1]} have the same name."


class _Run:
    """The steps of a pipeline, one after the other, on all rows of a table.

    Args:
        policy: The policy.
        parse_text: As for `anonymize`.
        trace: As for `anonymize`.
    """

    def __init__(self, policy: Policy, *, parse_text: bool | TextFormat, trace: bool) -> None:
        by_number = policy.event_time is None
        timed = policy.timed
        if by_number and timed:
            message = (
                f"must name a column, since policy.{timed[0]} is event time, and the rows of a table have no other. "
                "Without one, use policy.delay_rows alone, without times."
            )
            raise PolicyError([("event_time", message)])
        self._secret = Secret.of(policy)
        self._policy = without_secret(policy)
        self._options = RowOptions(
            parse_text=parse_text,
            row_number=_ROW,
            trace=trace,
            order_column=_ORDER,
            by_number=by_number,
            at_end=True,
            refuses=policy.most_ahead is not None,
        )
        self._emitter = Emitter(self._policy, self._secret.root, options=self._options)
        self._refused = RefusedRows(self._policy, self._emitter, dict, self._options)
        self._order = RowOrder(self._secret.root)
        self._owners = OwnerRecords(_ROW, timed=not by_number)
        self._whole = WholeTable(self._policy, self._order, self._owners, _WINDOW)
        #: What the steps emit beside it, by output.
        self._found: defaultdict[str, list[Any]] = defaultdict(list)

    def tables(self, given: pa.Table) -> dict[str, Any]:
        """Push all rows; return a table for each output, and the records of counts."""
        for shard, parts in self._shards(self._packed(given)):
            holder = ShardHolder(self._policy, self._secret, shard_name(shard, _WINDOW))
            for part in parts:
                self._take(holder.push(part), shard)
                self._whole.hold(holder.held)
            self._take(holder.flush(), shard)
        self._gather(self._emitter.finish_bundle())
        return {
            PUBLISHED: self._whole.published(given.schema),
            SUPPRESSED: self._whole.suppressed(given.schema),
            TRACE: _in_secret_order(self._found[TRACE], TRACE_SCHEMA),
            RELEASES: self._whole.releases(),
            REJECTED: pa.Table.from_pylist(self._rejected(), _REJECTED_SCHEMA),
            COUNTS: [*self._found[COUNTS], *(counts.as_dict() for counts in self._whole.counts)],
        }

    def _packed(self, rows: pa.Table) -> Iterator[Packed]:
        packer, counts = Packer(self._policy, self._secret, self._options), Counts()
        for start in range(0, max(rows.num_rows, 1), _ROWS):
            part = rows.slice(start, _ROWS)
            numbers = pa.array(np.arange(start, start + part.num_rows, dtype=np.int64))
            packed = packer.pack_arrow(part.append_column(_ROW, numbers).combine_chunks(), None)
            counts.arrive(part.num_rows, [(name, reason) for _, name, reason in packed.rejected])
            self._found[REJECTED] += [{_ORDER: start + at, "field": f, "reason": w} for at, f, w in packed.rejected]
            yield packed
        self._found[COUNTS].append(counts.as_dict())

    def _shards(self, packed: Iterator[Packed]) -> Iterator[tuple[int, Iterable[RowPack]]]:
        """The rows of each shard, in the order in which its engine takes them."""
        if self._options.by_number and self._policy.most_shards == 1 and not self._policy.within:
            # Rows already come in this order. They are encoded only as the engine takes them, so memory is reused.
            yield 0, cut(one.pack for one in packed)
            return
        for pack in self._assigned(deal(list(packed))):
            yield pack.shard, in_order([pack], self._options.tie_breaker)

    def _assigned(self, packs: list[RowPack]) -> Iterable[RowPack]:
        """Assign rows to the leaves of a tree of shards, where one is to be learned from them."""
        if self._policy.shard_by is not ShardBy.LOCALITY or self._policy.shards == 1:
            return packs
        sample = RowSample()
        for pack in packs:
            sample.add(pack.rows)
        tree = learned_from(self._policy, sample)
        return chain.from_iterable(by_shard(pack, tree.find(pack.rows.qi)) for pack in packs)

    def _take(self, left: Iterable[Departure | Refusal], shard: int) -> None:
        """Gather what a shard has released, and refused."""
        for one in left:
            if isinstance(one, Refusal):
                self._gather(self._refused.emit(one, shard, _WINDOW, MIN_TIMESTAMP.micros))
                continue
            self._whole.add(one, shard)
            if self._options.trace:
                hashes = self._order.hashes(shard, one.number[one.releases.rows], _WINDOW)
                traced = self._owners.trace_batch(one, shard)
                self._found[TRACE].append(traced.append_column(_ORDER, pa.array(hashes)))

    def _gather(self, elements: Iterable[TaggedOutput]) -> None:
        for element in elements:
            self._found[element.tag].append(element.value.value)

    def _rejected(self) -> list[dict[str, Any]]:
        """The records of rejected rows, in the order of the table. They hold no values."""
        found = sorted(self._found[REJECTED], key=lambda record: record[_ORDER])
        return [{"row": one[_ORDER], "field": one["field"], "reason": one["reason"]} for one in found]


def _in_secret_order(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Join batches, and sort their rows by the hashes that only the secret knows."""
    if not batches:
        return schema.empty_table()
    rows = concat([pa.Table.from_batches([batch]) for batch in batches]).combine_chunks()
    order = np.asarray(rows.column(_ORDER), dtype=np.uint64)
    return rows.drop_columns([_ORDER]).take(pa.array(order_of(order)))
