"""`rows | Anonymize(policy)`: the transform for streams, and for bounded rows where a runner has timers."""

from __future__ import annotations

import types
import typing
import uuid
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, Optional, Union

import apache_beam as beam
import pyarrow as pa
from apache_beam import pvalue, typehints
from apache_beam.transforms.trigger import AccumulationMode
from apache_beam.transforms.window import GlobalWindows, SlidingWindows
from apache_beam.typehints.row_type import RowTypeConstraint

from crenel.encoding.text_format import TextFormat
from crenel.policy import Policy, PolicyError, ShardBy
from crenel.policy.checks import suggestion
from crenel.policy.quasi_identifiers import Missing
from crenel.policy.secret import Secret, without_secret
from crenel.transforms._deal.learn_step import LearnRows
from crenel.transforms._hold.hold_step import HoldRows
from crenel.transforms._hold.local_runners import held_apart, is_run_here, keep_keys_whole, warn_of_stale_state
from crenel.transforms._pack.element_coders import RECORD
from crenel.transforms._pack.nested_fields import colliding, plain_name
from crenel.transforms._pack.pack_step import OVERLAPPING, REJECTED_FIELDS, PackBoundedRows, PackRows
from crenel.transforms._pack.perturb import published_as_floats, published_as_text
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms._pack.row_options import Clock, RowOptions
from crenel.transforms._publish.emitter import COUNTS, PUBLISHED, REJECTED, RELEASES, SUPPRESSED, TRACE
from crenel.transforms._publish.owner_records import RELEASE_FIELDS, TRACE_FIELDS
from crenel.transforms._publish.publisher import Publisher
from crenel.transforms._publish.range_form import InForm, RangeForm, Ranges

__all__ = ["Anonymize", "Anonymized"]

_DICT = typehints.Dict[str, Any]
_ARROW = (pa.RecordBatch, pa.Table)


class Anonymized(NamedTuple):
    """The outputs of `Anonymize`. A further step (`rows | Anonymize(policy) | step`) takes the published rows."""

    #: The rows to publish.
    published: pvalue.PCollection
    #: The rows that no group of k persons was found for, with their exact values. For the owner alone.
    suppressed: pvalue.PCollection
    #: The rows that could not be encoded: `row` (the whole row as JSON text), `field`, `reason`. And those that are too
    #: far ahead of the clock; their `row` has the columns that the policy names, but for the person. For the owner.
    rejected: pvalue.PCollection
    #: One record per release, for the owner: `shard`, `kind`, `rows`, `persons`, `loss`, `moment` (the engine's clock,
    #: a Beam Timestamp: event time, or Beam's timestamp where the policy names no event time; None where rows have
    #: neither), `arrivals` (rows of the shard that had arrived by then) and `group` (the number, in its shard, of the
    #: release whose generalization this is). RecordBatches of these columns for rows that come as Arrow.
    releases: pvalue.PCollection
    #: One record per row, for the owner, if `trace` is set: `shard`, `release` (its number in the shard), `kind`, `row`
    #: (the row number), `arrival` (the row's number in the shard), `moment`, `arrivals`, `group`. RecordBatches for
    #: rows that come as Arrow, else dicts.
    trace: pvalue.PCollection
    #: Records that count rows, rejections and releases, without values: one per bundle, step and window. They may be
    #: summed in any order: `crenel.transforms.Counts.of`.
    counts: pvalue.PCollection

    def __or__(self, step: Any) -> Any:
        """Continue with the published rows."""
        return self.published | step


class Anonymize(beam.PTransform):
    """Publishes rows so that each is indistinguishable from those of at least k persons, before its deadline.

    Rows are dicts, `beam.Row`, NamedTuples or Arrow RecordBatches, and are published as the same (a NamedTuple as
    `beam.Row`). A column that the policy does not name is never published. The result is an `Anonymized`: a named tuple
    of PCollections, of which a further step takes the published rows.

    With `shard_by: locality`, all rows pass through one key, which learns a tree of shards from the first of them and
    follows the stream (docs/scale.md).

    Args:
        policy: A `Policy`, the path of a YAML file, or the content of such a file.
        overlapping_windows: Whether to take rows that lie in several windows. Each is then published once for each
            window, and an attacker who can tell that these are one row can intersect its generalizations.
        parse_text: Whether to parse text in the columns that the policy declares as numbers or moments, as files
            without types have them. A column that an Arrow batch lacks then counts as missing in its rows. A
            `TextFormat` says that numbers have a decimal comma, or how dates are written.
        row_number: The name of a column that numbers the rows of the input, with integers. It is never published, and
            identifies rows in the trace.
        trace: Whether to emit `trace`. It needs `row_number`.
        ranges: What a published range of numbers or moments is: `struct`, two ends under one name; `columns`, two
            columns (`age_lo`, `age_hi`), which most sinks take as they are; or `text` (`[30, 39]`). In columns, moments
            are moments, and whole numbers stay whole if the rows' schema says that they are. Suppressed rows have the
            same form.
        clock: What moves the clock by which rows are due: `rows`, the latest row less the policy's `disorder`, and the
            watermark; or `watermark` alone, for sources with a watermark to trust that run ahead of each other.
        order_column: The name of a column to add, by which a writer sorts: a keyed hash on published, suppressed and
            traced rows, so that their order tells nothing of times, shards and releases, and the row number on
            rejected rows. The writer must remove it.

    Raises:
        PolicyError: the policy is wrong, does not fit the rows' schema, or names a secret that is not there.
        ValueError: the rows are in windows that merge, that overlap, or whose panes accumulate; or an option is wrong.
    """

    def __init__(
        self,
        policy: Policy | str | PathLike[str] | Mapping[str, Any],
        *,
        overlapping_windows: bool = False,
        parse_text: bool | TextFormat = False,
        row_number: str | None = None,
        trace: bool = False,
        order_column: str | None = None,
        ranges: Ranges | str = Ranges.STRUCT,
        clock: Clock | str = Clock.ROWS,
    ) -> None:
        super().__init__()
        self._policy = Policy.of(policy)
        self._ranges = Ranges.of(ranges)
        RangeForm(self._policy, self._ranges)  # refuses names that are there already
        if not isinstance(overlapping_windows, bool):
            message = f"Anonymize: overlapping_windows must be true or false, not {overlapping_windows!r}."
            raise ValueError(message)
        self._overlapping = overlapping_windows
        self._options = self._row_options(
            parse_text=parse_text, row_number=row_number, trace=trace, order_column=order_column, clock=Clock.of(clock)
        )
        _check_options(self._policy, self._options)
        self._error_handler: Any = None

    def with_error_handler(self, handler: Any) -> Anonymize:
        """Send rejected rows to one of Beam's error handlers, as other transforms do.

            with error_handling.ErrorHandler(WriteToJson("rejected")) as handler:
                rows | Anonymize(policy).with_error_handler(handler)

        Args:
            handler: An `apache_beam.transforms.error_handling.ErrorHandler`, or None for none.
        """
        self._error_handler = handler
        return self

    def with_exception_handling(self, main_tag: str = "good", dead_letter_tag: str = "bad") -> beam.PTransform:
        """Return published and rejected rows under the names that other transforms of Beam give them.

            good, bad = rows | Anonymize(policy).with_exception_handling()

        A row in `bad` is a record of `row`, `field` and `reason`. Suppressed rows fit the policy, and are in neither.

        Args:
            main_tag: The name of published rows.
            dead_letter_tag: The name of rejected rows.
        """
        return _GoodAndBad(self, main_tag, dead_letter_tag)

    def expand(self, rows: pvalue.PCollection) -> Anonymized:
        """Pack, hold, publish."""
        # Drawn here, so that an object that is applied twice draws two: no two engines share a sequence.
        self._secret = Secret.of(self._policy, is_here=is_run_here(rows))
        #: What workers are told: neither the seed, nor where the secret is.
        self._told = without_secret(self._policy)
        self._uid = uuid.uuid4().hex
        self._one_key = self._has_one_key(rows)
        self._check_windows(rows.windowing)
        fields = _check_schema(self._policy, rows.element_type)
        #: Makes records of rejected rows and of releases: with a schema, if the rows have one.
        self._record: Callable[..., Any] = dict if fields is None else beam.Row
        packed = rows | "Pack" >> with_outputs(self._pack(rows), REJECTED, COUNTS, main="packs")
        packs = packed.packs
        packs.element_type = typehints.Tuple[int, bytes]
        held = self._hold(self._assigned(packs))
        for counts in (packed[COUNTS], held[COUNTS]):
            counts.element_type = RECORD
        for rejected in (packed[REJECTED], held[REJECTED]):
            rejected.element_type = RECORD if fields is None else self._rejected_type(fields)
        form = RangeForm(self._policy, self._ranges, _whole_numbers(fields))
        result = Anonymized(
            published=self._formed(held[PUBLISHED], "Ranges", form, rows.element_type, fields),
            suppressed=self._formed(held[SUPPRESSED], "Suppressed ranges", form, rows.element_type, fields),
            rejected=(packed[REJECTED], held[REJECTED]) | "Rejected" >> beam.Flatten(),
            releases=held[RELEASES],
            trace=held[TRACE],
            counts=(packed[COUNTS], held[COUNTS]) | "Counts" >> beam.Flatten(),
        )
        self._set_types(result, rows.element_type, fields, form)
        if self._error_handler is not None:
            self._error_handler.add_error_pcollection(result.rejected)
        return result

    def _formed(
        self, made: pvalue.PCollection, label: str, form: RangeForm, element_type: Any, fields: dict[str, Any] | None
    ) -> pvalue.PCollection:
        """Turn published ranges into the form that was asked for."""
        if form.form is Ranges.STRUCT:
            return made
        made.element_type = _published_type(self._policy, element_type, fields, self._placed)
        return made | label >> beam.ParDo(InForm(form))

    @property
    def _placed(self) -> list[tuple[str, type]]:
        order = self._options.order_column
        return [] if order is None else [(order, int)]

    def _row_options(self, **given: Any) -> RowOptions:
        return RowOptions(**given, refuses=self._policy.most_ahead is not None)

    def _set_types(self, result: Anonymized, element_type: Any, fields: dict[str, Any] | None, form: RangeForm) -> None:
        published = _published_type(self._policy, element_type, fields, self._placed, form)
        result.published.element_type = result.suppressed.element_type = published
        result.rejected.element_type = self._rejected_type(fields)
        traced = _record_type([*TRACE_FIELDS, *self._placed], fields)
        result.trace.element_type = _like_rows(element_type, fields, traced)
        result.releases.element_type = _like_rows(element_type, fields, _record_type(RELEASE_FIELDS, fields))
        result.counts.element_type = RECORD

    def _rejected_type(self, fields: dict[str, Any] | None) -> Any:
        order = self._options.order_column
        numbered = [] if order is None or self._options.row_number is None else [(order, int)]
        return _record_type([*REJECTED_FIELDS, *numbered], fields)

    def _check_windows(self, windowing: Any) -> None:
        """Refuse windows in which groups cannot be formed, or which publish a row again."""
        windows = windowing.windowfn
        if windows.is_merging():
            message = (
                f"Anonymize: windows must not merge (state is per window), not {windows}. Use global or fixed windows."
            )
            raise ValueError(message)
        lasting = self._policy.remembers_persons
        if lasting and not isinstance(windows, GlobalWindows):
            message = (
                f"Anonymize: policy.{lasting[0]} needs global windows, since each window is anonymized by itself, and "
                "a person could have a row in each."
            )
            raise ValueError(message)
        if isinstance(windows, SlidingWindows) and windows.size > windows.period and not self._overlapping:
            raise ValueError(OVERLAPPING)
        if windowing.accumulation_mode == AccumulationMode.ACCUMULATING:
            message = (
                "Anonymize: panes must not accumulate, because a row that is in several would be published in each and "
                "its generalizations could be intersected. Use AccumulationMode.DISCARDING before this step."
            )
            raise ValueError(message)

    def _assigned(self, packs: pvalue.PCollection) -> pvalue.PCollection:
        """Assign rows to the shards of a tree that is learned from the rows: here while they stream by."""
        if self._told.shard_by is not ShardBy.LOCALITY or self._told.shards == 1:
            return packs
        learn = LearnRows(self._told, self._secret, one_key=self._one_key)
        dealt = packs | "Learn" >> beam.ParDo(learn)
        dealt.element_type = packs.element_type
        return dealt

    def _hold(self, packs: pvalue.PCollection) -> Any:
        warn_of_stale_state(packs.pipeline)
        keep_keys_whole(packs.pipeline)
        hold = HoldRows(self._told, self._secret, self._uid, self._record, self._options)
        return held_apart(packs) | "Hold" >> hold_outputs(hold)

    def _pack(self, rows: pvalue.PCollection) -> PackRows:
        has_time = self._policy.event_time is not None or self._options.by_number
        is_global = isinstance(rows.windowing.windowfn, GlobalWindows)
        pack = PackBoundedRows if rows.is_bounded and is_global and has_time else PackRows
        return pack(
            self._told, self._secret, self._record, self._options, one_key=self._one_key, overlapping=self._overlapping
        )

    def _has_one_key(self, rows: pvalue.PCollection) -> bool:
        """Whether to hold all shards under one key: keys cost, and here no two are ever worked on at once."""
        return is_run_here(rows)


def hold_outputs(step: beam.DoFn) -> beam.PTransform:
    """HOLD with its outputs."""
    return with_outputs(step, SUPPRESSED, REJECTED, RELEASES, TRACE, COUNTS, main=PUBLISHED)


def with_outputs(step: beam.DoFn, *tags: str, main: str) -> beam.PTransform:
    """Make a step of several outputs whose label does not tell its class: labels stay when classes are renamed."""
    transform = beam.ParDo(step)
    transform.label = "ParDo"
    return transform.with_outputs(*tags, main=main)


class _GoodAndBad(beam.PTransform):
    """Names the outputs of `Anonymize` as `ParDo.with_exception_handling` does."""

    def __init__(self, anonymize: Anonymize, main_tag: str, dead_letter_tag: str) -> None:
        super().__init__(anonymize.label)
        if not main_tag.isidentifier() or not dead_letter_tag.isidentifier() or main_tag == dead_letter_tag:
            message = (
                "Anonymize: main_tag and dead_letter_tag must be two different names, not "
                f"{main_tag!r} and {dead_letter_tag!r}."
            )
            raise ValueError(message)
        self._anonymize = anonymize
        self._tags = (main_tag, dead_letter_tag)

    def expand(self, rows: pvalue.PCollection) -> Any:
        """Return two of the outputs, which can be unpacked, or taken by name."""
        result = rows | "Anonymize" >> self._anonymize
        return _pair(self._tags)(result.published, result.rejected)


def _pair(names: tuple[str, str]) -> Any:
    return namedtuple("GoodAndBad", names)


def _check_options(policy: Policy, options: RowOptions) -> None:
    if policy.each_row and options.row_number is None:
        message = (
            "must name a column in a pipeline, where rows have no numbers. Name one that tells persons apart, or give "
            "Anonymize row_number, the column that numbers the rows."
        )
        raise PolicyError([("person", message)])
    if options.trace and options.row_number is None:
        message = "Anonymize: trace needs row_number, the column that identifies the rows."
        raise ValueError(message)
    published = {*policy.quasi_identifiers, *policy.sensitive, *policy.publish}
    named = {policy.person, policy.event_time, *policy.measured, *published}
    for option in ("row_number", "order_column"):
        name = getattr(options, option)
        if name is not None and (name in named or options.row_number == options.order_column):
            message = f"Anonymize: {option} must be a column of its own, not {name!r}."
            raise ValueError(message)


def _check_schema(policy: Policy, element_type: Any) -> dict[str, Any] | None:
    """Return the types of the rows' fields, where they are known; the policy's columns must be among them."""
    if element_type is None or element_type in (dict, RowBatch, pa.RecordBatch, pa.Table, Any):
        return None
    rows = _fields(element_type)
    if rows is None:
        return None
    fields = dict(_flat(rows))
    published = [*policy.measured, *policy.sensitive, *policy.publish]
    named = [None if policy.each_row else policy.person, policy.event_time, *published]
    absent = [name for name in named if name is not None and name not in fields]
    if absent:
        listed = ", ".join(fields)
        spare = [name for name in fields if name not in named]
        raise PolicyError(
            [
                (
                    "",
                    f"names the column {name!r}, which the rows do not have; {suggestion(name, spare)}they have: "
                    f"{listed}.",
                )
                for name in absent
            ]
        )
    twice = colliding(published)
    if twice is not None:
        raise PolicyError([("", f"names columns of which rows of Beam cannot have both: {twice}.")])
    return fields


def _fields(element_type: Any) -> dict[str, Any] | None:
    """Return the fields of rows with a schema, and their types."""
    if isinstance(element_type, RowTypeConstraint):
        return dict(element_type._fields)
    row = RowTypeConstraint.from_user_type(element_type)
    if row is None:
        return None
    # Under `from __future__ import annotations` a NamedTuple's types are text, and have to be looked up.
    said = typing.get_type_hints(element_type)
    return {name: _old_union(said.get(name, kind)) for name, kind in row._fields}


def _flat(fields: dict[str, Any], path: str = "", *, optional: bool = False) -> Iterator[tuple[str, Any]]:
    """List the columns that a policy can name: instead of a row within a row, the paths of its fields."""
    for name, kind in fields.items():
        plain = [one for one in typing.get_args(kind) if one is not type(None)]
        is_optional = type(None) in typing.get_args(kind)
        inner = _fields(plain[0] if is_optional and len(plain) == 1 else kind)
        if inner is None:
            yield f"{path}{name}", _or_none(kind) if optional and not is_optional else kind
        else:
            yield from _flat(inner, f"{path}{name}.", optional=optional or is_optional)


def _whole_numbers(fields: dict[str, Any] | None) -> set[str]:
    """The columns of which a schema says that they hold whole numbers."""
    return {
        name for name, kind in (fields or {}).items() if kind is int or set(typing.get_args(kind)) == {int, type(None)}
    }


def _old_union(kind: Any) -> Any:
    """Make `Union[int, None]` of `int | None`, since Beam makes a schema of it."""
    return Union[typing.get_args(kind)] if isinstance(kind, types.UnionType) else kind  # noqa: UP007


def _published_type(
    policy: Policy,
    element_type: Any,
    fields: dict[str, Any] | None,
    placed: Sequence[tuple[str, type]],
    form: RangeForm | None = None,
) -> Any:
    """The type of published rows: with a schema, if the input rows have one."""
    if fields is None:
        return _like_rows(element_type, fields, _DICT)
    columns = [(name, _beam_type(kind)) for name, kind in Publisher(policy).fields()]
    # A range may be missing as a whole.
    columns = [(n, kind if policy.missing(n) is Missing.REJECT else _or_none(kind)) for n, kind in columns]
    if form is not None and form.form is not Ranges.STRUCT:
        turned = [(name, kind, form.types(name, kind)) for name, kind in columns]
        columns = [(n, k if k is kind else _or_none(k)) for _, kind, ends in turned for n, k in ends]
    made = dict.fromkeys(published_as_floats(policy), float) | dict.fromkeys(published_as_text(policy), str)
    made = {name: _or_none(kind) if name in policy.treat else kind for name, kind in made.items()}
    columns += [(name, made.get(name, fields[name])) for name in (*policy.sensitive, *policy.publish)]
    return RowTypeConstraint.from_fields([(plain_name(name), kind) for name, kind in (*columns, *placed)])


def _like_rows(element_type: Any, fields: dict[str, Any] | None, of_rows: Any) -> Any:
    """The type of an output that holds batches if the rows come in batches, and records if they come one by one."""
    if element_type in _ARROW:
        return element_type
    if element_type is RowBatch:
        return RowBatch
    comes_one_by_one = fields is not None or element_type is dict or isinstance(element_type, type(_DICT))
    return of_rows if comes_one_by_one else Any


def _record_type(fields: Sequence[tuple[str, Any]], of_rows: dict[str, Any] | None) -> Any:
    if of_rows is not None:
        return RowTypeConstraint.from_fields(list(fields))
    return _DICT


def _beam_type(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        inner = [(field.name, _beam_type(field.type)) for field in kind]
        return RowTypeConstraint.from_fields(inner)
    known = float if pa.types.is_floating(kind) else int if pa.types.is_integer(kind) else str
    return _or_none(known)


def _or_none(kind: Any) -> Any:
    return Optional[kind]  # noqa: UP045 - Beam makes no schema of `kind | None`
