"""`rows | Anonymize(policy)`."""

from __future__ import annotations

import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, Optional, Union

import apache_beam as beam
import pyarrow as pa
from apache_beam import pvalue, typehints
from apache_beam.transforms.trigger import AccumulationMode
from apache_beam.transforms.window import GlobalWindows, SlidingWindows
from apache_beam.typehints.row_type import RowTypeConstraint

from crenel.policy import Policy, PolicyError
from crenel.policy.parameters import takes_holes
from crenel.policy.secret import secret_of
from crenel.transforms._hold.hold_step import Hold
from crenel.transforms._hold.local_runners import is_run_here, keep_keys_whole, warn_of_stale_state
from crenel.transforms._pack.pack_step import OVERLAPPING, REJECTED_FIELDS, Pack, PackBounded
from crenel.transforms._pack.perturb import published_as_floats
from crenel.transforms._publish.emitter import COUNTS, PUBLISHED, REJECTED, RELEASES, SUPPRESSED, TRACE
from crenel.transforms._publish.publisher import RELEASE_FIELDS, Publisher

__all__ = ["Anonymize", "Anonymized"]

_DICT = typehints.Dict[str, Any]


class Anonymized(NamedTuple):
    """The outputs of `Anonymize`. A further step (`rows | Anonymize(policy) | step`) takes the published rows."""

    #: The rows to publish.
    published: pvalue.PCollection
    #: The rows that no group of k persons was found for, with their exact values. For the owner alone.
    suppressed: pvalue.PCollection
    #: The rows that could not be encoded: `row` (the whole row as JSON text), `field`, `reason`. For the owner alone.
    rejected: pvalue.PCollection
    #: One record per release, for the owner: `shard`, `kind`, `rows`, `persons`, `loss`, `moment` (the engine's clock,
    #: a Beam Timestamp: event time, or Beam's timestamp where the policy names no event time; None where rows have
    #: neither), `arrivals` (rows of the shard that had arrived by then) and `group` (the number, in its shard, of the
    #: release whose generalization this is).
    releases: pvalue.PCollection
    #: One record per row, for the owner; empty unless it is asked for.
    trace: pvalue.PCollection
    #: Records that count rows, rejections and releases, without values: one per bundle, step and window. They may be
    #: summed in any order: `crenel.transforms.Counts.of`.
    counts: pvalue.PCollection

    def __or__(self, step: Any) -> Any:
        """Continue with the published rows."""
        return self.published | step


class Anonymize(beam.PTransform):
    """Publish rows so that each is indistinguishable from those of at least k persons, before its deadline.

    Rows are dicts, `beam.Row`, NamedTuples or Arrow RecordBatches, and leave as the same (a NamedTuple as `beam.Row`).
    A column that the policy does not name never leaves. The result is an `Anonymized`: a named tuple of PCollections,
    of which a further step takes the published rows.

    Args:
        policy: A `Policy`, the path of a YAML file, or what such a file would hold.
        overlapping_windows: Whether to take rows that lie in several windows. Each is then published once for each
            window, and whoever can tell that these are one row can intersect its generalizations.

    Raises:
        PolicyError: the policy is wrong, does not fit the rows' schema, or names a secret that is not there.
        ValueError: the rows are in windows that merge, that overlap, or whose panes accumulate.
    """

    def __init__(
        self, policy: Policy | str | PathLike[str] | Mapping[str, Any], *, overlapping_windows: bool = False
    ) -> None:
        super().__init__()
        self._policy = _policy(policy)
        self._overlapping = overlapping_windows

    def expand(self, rows: pvalue.PCollection) -> Anonymized:
        """Pack, hold, publish."""
        # Here, so that an object that is applied twice draws two: no two engines share a sequence.
        self._secret = secret_of(self._policy)
        self._uid = uuid.uuid4().hex
        self._check_windows(rows.windowing)
        fields = _check_schema(self._policy, rows.element_type)
        #: What makes records of rejected rows and of releases: such as have a schema, if the rows do.
        self._record: Callable[..., Any] = dict if fields is None else beam.Row
        packed = rows | "Pack" >> with_outputs(self._pack(rows), REJECTED, COUNTS, main="packs")
        packs = packed.packs
        packs.element_type = typehints.Tuple[int, bytes]
        held = self._hold(packs)
        counts = (packed[COUNTS], held[COUNTS]) | "Counts" >> beam.Flatten()
        result = Anonymized(
            held[PUBLISHED], held[SUPPRESSED], packed[REJECTED], held[RELEASES], trace=held[TRACE], counts=counts
        )
        published = _published_type(self._policy, rows.element_type, fields)
        result.published.element_type = result.suppressed.element_type = published
        result.rejected.element_type = _record_type(REJECTED_FIELDS, fields)
        result.releases.element_type = _record_type(RELEASE_FIELDS, fields)
        result.trace.element_type = _trace_type(rows.element_type)
        for records in (packed[COUNTS], held[COUNTS], counts):
            records.element_type = _DICT
        return result

    def _check_windows(self, windowing: Any) -> None:
        """Refuse windows in which groups cannot be formed, or which publish a row again."""
        windows = windowing.windowfn
        if windows.is_merging():
            message = (
                f"Anonymize: windows must not merge (state is per window), not {windows}. Use global or fixed windows."
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

    def _hold(self, packs: pvalue.PCollection) -> Any:
        warn_of_stale_state(packs.pipeline)
        keep_keys_whole(packs.pipeline)
        hold = Hold(self._policy, self._secret, self._uid, self._record)
        return packs | "Hold" >> hold_outputs(hold)

    def _pack(self, rows: pvalue.PCollection) -> Pack:
        has_time = self._policy.event_time is not None
        is_global = isinstance(rows.windowing.windowfn, GlobalWindows)
        pack = PackBounded if rows.is_bounded and is_global and has_time else Pack
        one_key = self._has_one_key(rows)
        return pack(self._policy, self._secret, self._record, one_key=one_key, overlapping=self._overlapping)

    def _has_one_key(self, rows: pvalue.PCollection) -> bool:
        """Whether to hold all shards under one key: keys cost, and here no two are ever worked on at once."""
        return is_run_here(rows)


def hold_outputs(step: beam.DoFn) -> beam.PTransform:
    """HOLD with its outputs."""
    return with_outputs(step, SUPPRESSED, RELEASES, TRACE, COUNTS, main=PUBLISHED)


def with_outputs(step: beam.DoFn, *tags: str, main: str) -> beam.PTransform:
    """A step of several outputs, whose label does not tell its class: labels stay when classes are renamed."""
    transform = beam.ParDo(step)
    transform.label = "ParDo"
    return transform.with_outputs(*tags, main=main)


def _policy(given: Any) -> Policy:
    if isinstance(given, Policy):
        return given
    if isinstance(given, Mapping):
        return Policy.from_dict(given)
    return Policy.from_yaml(given)


def _check_schema(policy: Policy, element_type: Any) -> dict[str, Any] | None:
    """The types of the rows' fields, where they are known; what the policy names must be among them."""
    if element_type is None or element_type in (dict, pa.RecordBatch, pa.Table, Any):
        return None
    fields = _fields(element_type)
    if fields is None:
        return None
    named = [policy.person, policy.event_time, *policy.quasi_identifiers, *policy.sensitive, *policy.publish]
    absent = [name for name in named if name is not None and name not in fields]
    if absent:
        listed = ", ".join(fields)
        raise PolicyError(
            [("", f"names the column {name!r}, which the rows do not have; they have: {listed}.") for name in absent]
        )
    return fields


def _fields(element_type: Any) -> dict[str, Any] | None:
    """The fields of rows with a schema, and their types."""
    if isinstance(element_type, RowTypeConstraint):
        return dict(element_type._fields)
    row = RowTypeConstraint.from_user_type(element_type)
    if row is None:
        return None
    # Under `from __future__ import annotations` a NamedTuple's types are text, and have to be looked up.
    said = typing.get_type_hints(element_type)
    return {name: _old_union(said.get(name, kind)) for name, kind in row._fields}


def _old_union(kind: Any) -> Any:
    """`int | None` as `Union[int, None]`, of which Beam makes a schema."""
    return Union[typing.get_args(kind)] if isinstance(kind, types.UnionType) else kind  # noqa: UP007


def _published_type(policy: Policy, element_type: Any, fields: dict[str, Any] | None) -> Any:
    """The type of published rows: with a schema, if the rows that came had one."""
    if fields is None:
        return _published_type_without_fields(element_type)
    columns = [(name, _beam_type(kind)) for name, kind in Publisher(policy).fields()]
    if takes_holes(policy.parameters):  # a range may be missing as a whole
        columns = [(name, _or_none(kind)) for name, kind in columns]
    floats = dict.fromkeys(published_as_floats(policy), float)
    columns += [(name, floats.get(name, fields[name])) for name in (*policy.sensitive, *policy.publish)]
    return RowTypeConstraint.from_fields(columns)


def _published_type_without_fields(element_type: Any) -> Any:
    if element_type in (pa.RecordBatch, pa.Table):
        return pa.RecordBatch
    is_dict = element_type is dict or isinstance(element_type, type(_DICT))
    return _DICT if is_dict else Any


def _trace_type(element_type: Any) -> Any:
    """The type of traces: batches for batches, dicts for rows."""
    if element_type in (None, Any):
        return Any
    return pa.RecordBatch if element_type in (pa.RecordBatch, pa.Table) else _DICT


def _record_type(fields: Sequence[tuple[str, type]], of_rows: dict[str, Any] | None) -> Any:
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
