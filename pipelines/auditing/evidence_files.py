"""Reads the files of an audit into arrays of numbers, batch by batch: never all of their text at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import IO, Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel.audit.evidence import Evidence, Input, Output, Reported, Trace
from crenel.audit.exact import leaving
from crenel.encoding.encoder import Encoder
from crenel.encoding.keyed_hash import siphash
from crenel.encoding.rows import Rows
from crenel.encoding.text_format import TextFormat
from crenel.encoding.treated_values import TreatedValues
from crenel.errors import Rejected
from crenel.pipelines.auditing.published_values import Boxes, NotReadableError, Spans
from crenel.pipelines.auditing.range_columns import RangeColumns
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.console.sections import sentence
from crenel.pipelines.files import readers
from crenel.pipelines.files.cells import csv_formulas
from crenel.pipelines.files.formats import FORMATS, USUAL, Dialect
from crenel.pipelines.files.readers import Source
from crenel.pipelines.files.unreadable_rows import IgnoredRows, UnreadableRow
from crenel.pipelines.files.writable_values import WritableValues
from crenel.policy import Policy, columns
from crenel.policy.checks import suggestion
from crenel.policy.columns import EACH_ROW
from crenel.policy.treatments.treatment import Pseudonymize, Treatment
from crenel.transforms._pack.nested_fields import flat, names_of, plain_name
from crenel.transforms._pack.text_columns import TextColumns, named_columns
from crenel.transforms._publish.range_ends import range_ends

__all__ = ["read"]

Ints = NDArray[np.int64]
Tick = Callable[[int], None]

_KINDS = {"cluster": 0, "reuse": 1, "suppressed": 2, "sampled_out": 3, "left_out": 4, "ahead": 5}
_KEY = np.array([0x6372656E656C, 0x6175646974], dtype=np.uint64)
#: Stands for a missing moment: no moment is this far away.
_NEVER = np.iinfo(np.int64).min


def read(
    policy: Policy,
    *,
    published: Sequence[str],
    given: Sequence[str] | None = None,
    suppressed: str | None = None,
    trace: str | None = None,
    releases: str | None = None,
    escaped: bool = False,
    dialect: Dialect = USUAL,
    tick: Tick = lambda rows: None,
) -> Evidence:
    """Read all files.

    Args:
        policy: The policy.
        published: The published files, or patterns of their names.
        given: The input files, in the order in which `crenel run` was given them.
        suppressed: The owner's file of suppressed rows.
        trace: The owner's file of what became of each row.
        releases: The owner's file of releases.
        escaped: Whether the run made text harmless in CSV that a spreadsheet would run as a formula.
        dialect: How the text files of the input are written.
        tick: Called with the number of rows read since the last call.

    Raises:
        CommandError: a file is missing, is broken, lacks a column, or holds a value that the policy cannot have
            published.
    """
    evidence = Evidence(
        published=_output(policy, _find(published), tick, escaped=escaped),
        input=None if given is None else _input(policy, _find(given, dialect), tick),
        suppressed=None
        if suppressed is None
        else _as_points(policy, _output(policy, _find([suppressed]), tick, escaped=escaped)),
        trace=None if trace is None else _trace(_find([trace]), tick),
        reported=None if releases is None else _reported(_find([releases]), tick),
    )
    if evidence.trace is None:
        return evidence
    known, reported = evidence.trace, evidence.reported
    if policy.within:
        known, reported = _with_small_shards(known, reported)
    taken, left = _without_refused(policy, evidence.input, known)
    return _as_released(policy, replace(evidence, input=taken, reported=reported), left)


def _with_small_shards(trace: Trace, reported: Reported | None) -> tuple[Trace, Reported | None]:
    """Number the shards from 0: where rows are kept apart by values, their numbers are hashes of 62 bits."""
    every = trace.shard if reported is None else np.concatenate([trace.shard, reported.shard])
    small = np.unique(every, return_inverse=True)[1].astype(np.int64)
    renamed = None if reported is None else replace(reported, shard=small[len(trace) :])
    return replace(trace, shard=small[: len(trace)]), renamed


def _without_refused(policy: Policy, given: Input | None, trace: Trace) -> tuple[Input | None, Trace]:
    """Count rows among the rejected ones that the run refused because they were too far ahead of the clock.

    The trace is believed only where that can be: no row of the shard that was taken may lie within `max_ahead` before
    such a row. All others count as lost.
    """
    refused, most = trace.kind == _KINDS["ahead"], policy.most_ahead
    left = trace.take(np.flatnonzero(~refused))
    if given is None or most is None or not refused.any():
        return given, left
    time = np.full(given.total, _NEVER)
    time[given.number] = given.rows.time
    known = (trace.row >= 0) & (trace.row < given.total)
    at = np.where(known, time[np.where(known, trace.row, 0)], _NEVER)
    believed: list[int] = []
    for shard in np.unique(trace.shard[refused]):
        here = trace.shard == shard
        taken = np.sort(at[here & ~refused])
        rows, times = trace.row[here & refused], at[here & refused]
        near = np.searchsorted(taken, times, side="right") - np.searchsorted(taken, times - most)
        believed += rows[near == 0].tolist()
    fit = np.flatnonzero(~np.isin(given.number, believed))
    apart = None if given.apart is None else given.apart[fit]
    rows = given.rows.take(fit)
    return replace(given, rows=rows, kept=given.kept[fit], number=given.number[fit], apart=apart), left


def _as_released(policy: Policy, evidence: Evidence, trace: Trace) -> Evidence:
    """Sort the rows by shard and release; rows of one release keep the order of the files.

    The trace is in the order of the output: its n-th published row is the n-th row of the published file, and the same
    holds for suppressed rows. If the numbers of rows differ, the files do not belong together and stay as they are.
    """
    order = np.lexsort([trace.release, trace.shard])
    moved = trace.take(order)
    leave, hidden = leaving(policy, trace), np.isin(trace.kind, [_KINDS["suppressed"], _KINDS["left_out"]])
    return replace(
        evidence,
        trace=moved,
        published=_moved(evidence.published, leave, order),
        suppressed=None if evidence.suppressed is None else _moved(evidence.suppressed, hidden, order),
    )


def _as_points(policy: Policy, rows: Output) -> Output:
    """Take the root of a hierarchy for an unknown category: no other single value is published as the root."""
    lo, hi = rows.lo.copy(), rows.hi.copy()
    for d, qi in enumerate(policy.quasi_identifiers.values()):
        place = getattr(qi, "unknown_at", None)
        if place is not None:
            first, last = qi.geometry.widest()
            unknown = (lo[:, d] == first) & (hi[:, d] == last)
            lo[unknown, d] = hi[unknown, d] = place
    return replace(rows, lo=lo, hi=hi)


def _moved(rows: Output, among: NDArray[np.bool_], order: NDArray[np.intp]) -> Output:
    """Sort the rows of a file as the trace is sorted.

    Args:
        rows: The rows of the file.
        among: Which rows of the trace are in the file.
        order: The order of the trace.
    """
    if np.count_nonzero(among) != len(rows):
        return rows
    place = (np.cumsum(among) - 1)[order][among[order]]
    return replace(rows, box=rows.box[place], sensitive=rows.sensitive[place], kept=rows.kept[place])


def _find(patterns: Iterable[str], dialect: Dialect = USUAL) -> list[Source]:
    if readers.STANDARD in patterns:
        msg = "an audit reads files, not standard input (-)."
        raise CommandError(msg)
    return readers.find(patterns, None, _refuse, dialect)


def _refuse(_: IO[bytes]) -> NoReturn:
    msg = "an audit reads files, not pipes."
    raise CommandError(msg)


def _batches(found: Iterable[Source], tick: Tick) -> Iterator[tuple[Source, pa.RecordBatch]]:
    for source in found:
        for batch in source.batches():
            yield source, batch
            tick(batch.num_rows)


def _check(
    found: Iterable[Source], needed: Iterable[str], named: Callable[[Sequence[str]], Sequence[str]] = list
) -> dict[str, None]:
    """Collect the columns of the files, as far as the files say; raise if one lacks a column that is needed.

    Args:
        found: The files.
        needed: The columns that each must have.
        named: Names the columns of a file as the policy does.
    """
    seen: dict[str, None] = {}
    problems: list[str] = []
    for source in found:
        told = source.columns()
        there = None if told is None else named(told)
        seen |= dict.fromkeys(there or ())
        problems += [] if there is None else _lacking(source.name, there, needed)
    if problems:
        raise CommandError(*problems)
    return seen


def _published_names(there: Iterable[str], needed: Sequence[str]) -> list[str]:
    """Name the columns of published rows as the policy does."""
    known = {f"{name}{end}": name for name in needed for end in ("", ".lo", ".hi")}
    known |= {plain_name(name): name for name in needed}
    known |= {f"{plain_name(name)}{end}": name for name in needed for end in (".lo", ".hi")}
    return list(dict.fromkeys(known.get(name, name) for name in there))


def _lacking(name: str, there: Sequence[str], needed: Iterable[str]) -> Iterator[str]:
    """Yield a sentence if columns are missing."""
    missing = [column for column in needed if column not in there]
    if missing:
        guess = sentence(suggestion(missing[0], list(there))) if len(missing) == 1 else ""
        yield f"{name} has no column {', '.join(map(repr, missing))}, which it must have. {guess}".strip()


# -- the input -------------------------------------------------------------------------------------


def _input(policy: Policy, found: Sequence[Source], tick: Tick) -> Input:
    written = found[0].dialect.values if found else TextFormat()
    text, encoder, kept = TextColumns(policy, written), Encoder(policy), _Kept(policy)
    writable = WritableValues(policy)
    apart, treatments = _Apart(policy), TreatedValues(policy, None)
    _check(found, named_columns(policy))
    parts: list[tuple[Rows, Ints, Ints, Ints]] = []
    total, seen = 0, set[str]()
    for raw in (part for source in found for part in source.parts()):
        if isinstance(raw, UnreadableRow):  # rejected, but numbered as all rows are
            total += 1
            continue
        if isinstance(raw, IgnoredRows):
            continue
        tick(raw.num_rows)
        seen.update(names_of(raw.schema))
        rows, wrong = flat(raw, named_columns(policy))
        misfits = {*writable.misfits(raw), *(one.index for one in wrong)}
        fit = np.delete(np.arange(raw.num_rows), list(misfits))
        table = text.arrays(rows.take(pa.array(fit)) if len(fit) < len(raw) else rows, named_columns(policy))
        if policy.each_row:
            table[EACH_ROW] = pa.array(fit + total)
        encoded = encoder.encode(table, np.zeros(len(fit), dtype=np.int64))
        for name in treatments.columns:
            treated = treatments.of(name, table[name], np.zeros(len(fit), dtype=np.int64))
            table[name] = pa.array(treated.values).take(pa.array(treated.codes))
            encoded = encoded.without(treated.refused(name))
        values = apart.of(table, len(fit))[encoded.kept]
        parts.append((encoded.rows, kept.of(table)[encoded.kept], fit[encoded.kept] + total, values))
        total += raw.num_rows
    if total:  # in JSON lines, a column is missing only if no row has it
        problems = list(_lacking("the input", sorted(seen), named_columns(policy)))
        if problems:
            raise CommandError(*problems)
    d, s = len(policy.quasi_identifiers), len(policy.sensitive)
    rows = [part[0] for part in parts]
    return Input(
        rows=Rows(
            _joined([part.qi for part in rows], np.float64, d),
            _joined([part.person for part in rows]),
            _joined([part.sensitive for part in rows], np.int64, s),
            _joined([part.time for part in rows]),
        ),
        kept=_joined([part[1] for part in parts]),
        number=_joined([part[2] for part in parts]),
        total=total,
        apart=_joined([part[3] for part in parts]) if policy.within else None,
    )


def _joined(parts: Sequence[NDArray[Any]], dtype: Any = np.int64, width: int | None = None) -> NDArray[Any]:
    empty = np.zeros(0 if width is None else (0, width), dtype=dtype)
    return np.concatenate([empty, *parts]).astype(dtype, copy=False)


# -- the published rows ----------------------------------------------------------------------------


def _output(policy: Policy, found: Sequence[Source], tick: Tick, *, escaped: bool) -> Output:
    names = [*policy.quasi_identifiers, *policy.sensitive, *policy.publish]
    ranges = RangeColumns(policy)
    known = [*names, *(end for name in policy.quasi_identifiers for end in range_ends(name))]
    seen = _check(found, names, lambda there: ranges.named(_published_names(there, known)))
    text, kept, apart = TextColumns(policy), _Kept(policy), _Apart(policy)
    # Rows of one generalization that differ in `within` are two groups, as far as the output shows it.
    boxes = Boxes(len(policy.quasi_identifiers) + 1)
    spans = {name: Spans(qi) for name, qi in policy.quasi_identifiers.items()}
    parts: list[tuple[Any, Ints, Ints]] = []
    for source, written in _batches(found, tick):
        raw = csv_formulas.unescaped(written) if escaped and FORMATS[source.extension].untyped else written
        if source.extension == ".avro":  # its names cannot have dots
            paths = {plain_name(name): name for name in known}
            raw = raw.rename_columns([paths.get(name, name) for name in raw.schema.names])
        seen |= dict.fromkeys(ranges.named(raw.schema.names))
        there = set(raw.schema.names)
        table = {name: raw.column(name) if name in there else pa.nulls(raw.num_rows) for name in names}
        ends = [_read_back(source, name, spans[name], ranges, raw, table[name]) for name in spans]
        for name, treatment in policy.treat.items():
            _check_treated(source, name, treatment, table[name])
        value = apart.of(table, raw.num_rows)
        lo, hi = (np.column_stack([*end, value]) for end in zip(*ends, strict=True))
        box = boxes.numbers(lo, hi)
        codes = [_codes(source, policy, text, name, table[name]) for name in policy.sensitive]
        parts.append((box, np.column_stack(codes) if codes else np.zeros((len(box), 0), np.int64), kept.of(table)))
    if parts:
        problems = list(_lacking(found[0].name, list(seen), names))
        if problems:
            raise CommandError(*problems)
    lo, hi = boxes.all()
    return Output(
        lo=lo[:, :-1],
        hi=hi[:, :-1],
        box=_joined([part[0] for part in parts], np.int32),
        sensitive=_joined([part[1] for part in parts], np.int64, len(policy.sensitive)),
        kept=_joined([part[2] for part in parts]),
        columns=tuple(seen),
    )


def _check_treated(source: Source, name: str, treatment: Treatment, column: pa.Array) -> None:
    """Refuse values that the treatment cannot have made: they may be those of the input."""
    for value in columns.factorize(column)[1]:
        is_made = treatment.of_missing is None if columns.is_missing(value) else treatment.could_publish(value)
        if not is_made:
            msg = f"{source.name} has a value in column {name!r} that the policy cannot have published."
            raise CommandError(msg)


def _read_back(
    source: Source, name: str, spans: Spans, ranges: RangeColumns, batch: pa.RecordBatch, column: pa.Array
) -> tuple[Any, Any]:
    try:
        joined = ranges.find(batch, name)
        return spans.of(column if joined is None else joined)
    except NotReadableError:
        msg = f"{source.name} has a value in column {name!r} that the policy cannot have published."
        raise CommandError(msg) from None
    except TypeError as error:
        msg = f"{source.name}, column {name!r}: {error}"
        raise CommandError(msg) from None


def _codes(source: Source, policy: Policy, text: TextColumns, name: str, column: pa.Array) -> Ints:
    codes, reasons = policy.sensitive[name].codes(text.array(name, column))
    if reasons is not None:
        reason = Counter(reason for reason in reasons if reason is not None).most_common(1)[0][0]
        msg = f"{source.name} has a value in column {name!r} that the policy cannot have published: {reason}."
        raise CommandError(msg)
    return codes


class _Apart:
    """Numbers the values of `within`; all rows have one number if the columns are not there."""

    def __init__(self, policy: Policy) -> None:
        self._names = policy.within
        self._known: dict[tuple[str, ...], int] = {}

    def of(self, table: dict[str, pa.Array], count: int) -> Ints:
        """Find the number of each row."""
        if not self._names or not count or not set(self._names) <= set(table):
            return np.zeros(count, dtype=np.int64)
        found = [columns.factorize(table[name]) for name in self._names]
        texts = [[_canonical(value) for value in distinct] for _, distinct in found]
        codes, place = np.unique(np.stack([code for code, _ in found], axis=1), axis=0, return_inverse=True)
        keys = [tuple(texts[d][at] for d, at in enumerate(row)) for row in codes.tolist()]
        numbers = np.array([self._known.setdefault(key, len(self._known)) for key in keys], dtype=np.int64)
        return numbers[place.reshape(-1)]


class _Kept:
    """Hashes the columns that are published as they are, or treated: equal values get equal hashes in every format."""

    def __init__(self, policy: Policy) -> None:
        # Columns with noise are not published as they are, and an audit does not have the keys of pseudonyms.
        noisy = policy.parameter("perturb_sensitive", {})
        hidden = {name for name, one in policy.treat.items() if isinstance(one, Pseudonymize)}
        self._names = [name for name in (*policy.sensitive, *policy.publish) if name not in {*noisy, *hidden}]

    def of(self, table: dict[str, pa.Array]) -> Ints:
        """Compute the hash of each row."""
        number = np.zeros(len(next(iter(table.values()))), dtype=np.int64)
        for name in self._names:
            codes, distinct = columns.factorize(table[name])
            hashes = np.array([_hash(value) for value in distinct], dtype=np.int64)
            number = siphash(number ^ (hashes[codes] if len(codes) else codes), _KEY)
        return number


def _hash(value: Any) -> int:
    digest = blake2b(_canonical(value).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _canonical(value: Any) -> str:
    """Write a value as the same text in every format: 1, 1.0 and "1", or a moment and its ISO-8601 text.

    Different values may get the same text. The audit then proves less, but nothing wrong.
    """
    if columns.is_missing(value):
        return ""
    try:
        text = columns.text_of(value)
    except Rejected:
        return json.dumps(value, sort_keys=True, default=str)
    if text[:1] in ("{", "["):
        try:
            return json.dumps(json.loads(text), sort_keys=True, default=str)
        except ValueError:
            return text
    try:
        return _number(float(text))
    except ValueError:
        pass
    try:
        return f"moment {columns.moment(text):.0f}"
    except Rejected:
        return text.lower() if text in ("True", "False") else text


def _number(number: float) -> str:
    if number.is_integer() and abs(number) < 2**53:
        return str(int(number))
    # A format writes a 32-bit number either as its shortest text or as its value in 64 bits. Both become 32 bits here.
    with np.errstate(over="ignore"):
        return repr(float(np.float32(number)))


# -- the owner's files -----------------------------------------------------------------------------

_TRACE = ("shard", "release", "kind", "row", "arrival", "moment", "arrivals", "group")
_REPORTED = ("shard", "rows", "persons", "loss")


def _trace(found: Sequence[Source], tick: Tick) -> Trace:
    table = _owners(found, _TRACE, tick)
    moment = table.pop("moment")
    return Trace(moment=None if np.any(moment == _NEVER) or not len(moment) else moment, **table)


def _reported(found: Sequence[Source], tick: Tick) -> Reported:
    return Reported(**_owners(found, _REPORTED, tick))


def _owners(found: Sequence[Source], names: Sequence[str], tick: Tick) -> dict[str, Any]:
    """Read columns of a file that `crenel run` wrote for the owner."""
    _check(found, names)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for source, raw in _batches(found, tick):
        problems = list(_lacking(source.name, raw.schema.names, names))
        if problems:
            raise CommandError(*problems)
        for name in names:
            try:
                parts[name].append(_figures(name, raw.column(name)))
            except (ValueError, TypeError, KeyError, pa.ArrowException):
                msg = f"{source.name} has a value in column {name!r} that crenel run does not write."
                raise CommandError(msg) from None
    return {name: _joined(part, np.float64 if name == "loss" else np.int64) for name, part in parts.items()}


def _figures(name: str, column: pa.Array) -> NDArray[Any]:
    if name == "kind":
        codes, distinct = columns.factorize(column)
        return np.array([_KINDS[kind] for kind in distinct], dtype=np.int64)[codes]
    if name == "moment":
        return _moments(column)
    if column.null_count:
        raise ValueError
    return np.asarray(column.cast(pa.float64() if name == "loss" else pa.int64()).to_numpy(zero_copy_only=False))


def _moments(column: pa.Array) -> Ints:
    found, reasons = columns.moments(column)
    null = column.is_null().to_numpy(zero_copy_only=False)
    if reasons is not None and np.any((reasons != None) & ~null):  # noqa: E711 - elementwise
        raise ValueError
    return np.where(null, _NEVER, np.nan_to_num(found)).astype(np.int64)
