"""Encodes columns of values as the arrays that an engine takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crenel.encoding.keyed_hash import siphash
from crenel.encoding.rows import Rows
from crenel.errors import Rejected
from crenel.policy import Policy, columns
from crenel.policy.columns import Ints, Reasons
from crenel.policy.quasi_identifiers import Missing, QuasiIdentifier

__all__ = ["Encoded", "Encoder", "Rejection"]

#: The decimal text of a 64-bit integer.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
_INT64 = range(-(2**63), 2**63)
#: Integers of fewer digits are certainly of 64 bits.
_DIGITS = 19

#: One in this many values of a text column is tried first: whether it is an integer.
_PART_TRIED = 1000


class Rejection(NamedTuple):
    """A row that could not be encoded. It never holds the value."""

    #: The position of the row in the input.
    index: int  # type: ignore[assignment]

    #: The first column that did not fit, in this order: person, event time, quasi-identifiers, sensitive columns,
    #: those of `within`.
    field: str

    #: The reason, a short constant.
    reason: str


@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoded batch: every input row is either kept or rejected."""

    #: The rows that were encoded, in the input's order.
    rows: Rows

    #: Their positions in the input.
    kept: NDArray[np.int64]

    #: The rejected rows, by position.
    rejected: tuple[Rejection, ...]

    def without(self, refused: Iterable[Rejection], *, first: bool = False) -> Encoded:
        """Reject more rows. One that is rejected already keeps its reason, unless these come `first`."""
        more = {rejection.index: rejection for rejection in refused}
        found = {rejection.index: rejection for rejection in self.rejected}
        stays = np.flatnonzero(~np.isin(self.kept, list(more)))
        rejected = tuple(sorted(({**found, **more} if first else {**more, **found}).values()))
        return Encoded(self.rows.take(stays), self.kept[stays], rejected)


class Encoder:
    """Encodes batches of rows by a policy.

    Args:
        policy: The columns, and how to encode them.
        secret: The key for the hash of persons. All encoders of one stream must have the same secret, so that a
            person's hash is the same in every batch, process and run. The encoder never reads the secret that the
            policy refers to, because code that only looks at rows (the audit, `crenel check`) needs none. Pass
            `secret_of(policy)` if hashes are stored.
    """

    def __init__(self, policy: Policy, *, secret: bytes = b"") -> None:
        self.policy = policy
        self._missing = {name: policy.missing(name) for name in policy.quasi_identifiers}
        # Derive one key for each of the two hashes, whatever the length of the secret.
        digest = blake2b(secret, digest_size=48, person=b"crenel.person").digest()
        self._int_key = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
        self._text_key = digest[16:]

    def encode(self, batch: Mapping[str, Any], time: NDArray[np.int64] | None = None) -> Encoded:
        """Encode a batch.

        Args:
            batch: Columns by name, all of one length: sequences, numpy arrays or Arrow arrays. If a column that the
                policy names is absent, all rows are rejected. An absent quasi-identifier counts as missing in all rows
                if the method takes rows with missing values.
            time: Event times in microseconds, if the policy names no column for them. They may be omitted if only
                arrivals count (`delay_rows`).

        Raises:
            ValueError: The columns differ in length, or `time` is needed and not given.
        """
        count = _length(self.policy, batch, time)
        work = _Work(batch, count)
        policy = self.policy
        person = work.column(policy.person, self.persons, np.int64)
        moment = self._time(work, time)
        qi = np.empty((count, len(policy.quasi_identifiers)), dtype=np.float64)
        for place, (name, kind) in enumerate(policy.quasi_identifiers.items()):
            qi[:, place] = self._coordinates(work, name, kind)
        sensitive = np.empty((count, len(policy.sensitive)), dtype=np.int64)
        for place, (name, column) in enumerate(policy.sensitive.items()):
            sensitive[:, place] = work.column(name, column.codes, np.int64)
        for name in policy.within:
            work.column(name, _apart, np.int64)
        rows = Rows(qi, person, sensitive, moment)
        if not work.rejected:
            return Encoded(rows, np.arange(count, dtype=np.int64), ())
        kept = np.flatnonzero(work.good).astype(np.int64)
        return Encoded(rows.take(kept), kept, tuple(sorted(work.rejected)))

    def _coordinates(self, work: _Work, name: str, kind: QuasiIdentifier) -> columns.Floats:
        """Encode a quasi-identifier. A missing value becomes what the policy says."""
        missing = self._missing[name]
        names = kind.inputs(name)
        absent = next((one for one in names if one not in work.batch), None)
        if missing is Missing.HOLE and absent is not None:
            return np.full(work.count, np.nan)

        def encode(values: list[Any]) -> tuple[columns.Floats, Reasons]:
            found, reasons = kind.together(values)
            if reasons is None:
                return found, None
            bad = np.flatnonzero(reasons != None)  # noqa: E711 - elementwise
            holes = np.unique(np.concatenate([columns.holes(column, bad) for column in values]))
            if missing is Missing.REJECT:
                reasons[holes] = columns.MISSING_QUASI_IDENTIFIER
                return found, reasons
            found[holes] = np.nan if missing is Missing.HOLE else kind.missing_at
            reasons[holes] = None
            return found, reasons

        given = None if absent is not None else [work.batch[one] for one in names]
        encoded: columns.Floats = work.values(name if absent is None else absent, given, encode, np.float64)
        return encoded

    def persons(self, values: Any) -> tuple[Ints, Reasons]:
        """Hash each person to 64 bits, under the key.

        1, 1.0 and "1" are one person (see `columns.text_of`). None, NaN and empty text are missing. Booleans and
        fractional numbers cannot identify a person, and are rejected. Whole numbers are hashed by SipHash-2-4, all at
        once. Other text is hashed by BLAKE2b, once for each distinct value.
        """
        whole = _whole_numbers(values)
        if whole is not None:
            return siphash(whole, self._int_key), None
        codes, distinct = columns.factorize(values)
        texts, reasons = _identities(distinct)
        if reasons is None:
            return self._hashes(texts)[codes], None
        every = reasons[codes]
        return self._hashes(texts)[codes], every if any(every) else None

    def _hashes(self, texts: list[str]) -> Ints:
        """Hash texts: whole numbers all at once, and then all others one by one."""
        is_whole = list(map(_is_int64, texts))
        numbers = np.array([int(text) for text in compress(texts, is_whole)], dtype=np.int64)
        # A copy of a keyed hash costs two thirds of a new one.
        keyed = blake2b(digest_size=8, key=self._text_key)
        digests = bytearray()
        for text, whole in zip(texts, is_whole, strict=True):
            if not whole:
                hashing = keyed.copy()
                hashing.update(text.encode("utf-8", "surrogatepass"))
                digests += hashing.digest()
        hashes = np.empty(len(texts), dtype=np.int64)
        chosen = np.array(is_whole, dtype=bool)
        hashes[chosen] = siphash(numbers, self._int_key)
        hashes[~chosen] = np.frombuffer(digests, dtype="<i8")
        return hashes

    def _time(self, work: _Work, time: NDArray[np.int64] | None) -> Ints:
        if self.policy.event_time is not None:
            found: columns.Floats = work.column(self.policy.event_time, columns.moments, np.float64)
            return np.nan_to_num(found).astype(np.int64)
        if time is not None:
            return np.ascontiguousarray(time, dtype=np.int64)
        if self.policy.timed:
            msg = f"encode: time must be given if the policy has {self.policy.timed[0]} and no event_time, not None."
            raise ValueError(msg)
        return np.zeros(work.count, dtype=np.int64)


def _apart(values: Any) -> tuple[Ints, Reasons]:
    """Reject what is no value to keep rows apart by: rows without one would be a group of strangers."""
    codes, distinct = columns.factorize(values)

    def check(value: Any) -> float:
        if columns.is_missing(value):
            raise Rejected(columns.MISSING)
        columns.text_of(value)
        return 0

    found: Ints
    found, reasons = columns.spread(codes, distinct, check, np.int64)
    return found, reasons


class _Work:
    """The state of one batch: which rows are still good, and why the others are not."""

    def __init__(self, batch: Mapping[str, Any], count: int) -> None:
        self.batch = batch
        self.count = count
        self.good = np.ones(count, dtype=bool)
        self.rejected: list[Rejection] = []

    def column(self, name: str, encode: Any, dtype: Any) -> Any:
        return self.values(name, self.batch.get(name), encode, dtype)

    def values(self, name: str, given: Any, encode: Any, dtype: Any) -> Any:
        if given is None:
            reasons: Reasons = np.full(self.count, columns.NO_COLUMN, dtype=object)
            result = np.zeros(self.count, dtype=dtype)
        else:
            result, reasons = encode(given)
        if reasons is not None:
            bad = np.flatnonzero(self.good & (reasons != None))  # noqa: E711 - elementwise
            self.good[bad] = False
            self.rejected.extend(Rejection(i, name, reasons[i]) for i in bad.tolist())
        return result


def _identity(value: Any) -> str:
    """Return the text that identifies a person."""
    if isinstance(value, (bool, np.bool_)):
        raise Rejected(columns.WRONG_TYPE)
    if isinstance(value, (float, np.floating)) and value % 1 > 0:
        raise Rejected(columns.WRONG_TYPE)
    text = columns.text_of(value)
    if not text:
        raise Rejected(columns.MISSING)
    return text


def _identities(values: list[Any]) -> tuple[list[str], Reasons]:
    """Return the text that identifies each person, and why a value identifies nobody."""
    if set(map(type, values)) == {str} and "" not in values:
        return values, None
    texts = [""] * len(values)
    reasons: Reasons = None
    for place, value in enumerate(values):
        try:
            texts[place] = _identity(value)
        except Rejected as error:
            reasons = np.full(len(values), None, dtype=object) if reasons is None else reasons
            reasons[place] = error.reason
    return texts, reasons


def _is_int64(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and (len(text) < _DIGITS or int(text) in _INT64)


def _whole_numbers(values: Any) -> Ints | None:
    """Return the column as int64 if it holds nothing but such integers, be they written as text."""
    if columns.is_arrow(values):
        values = _arrow_integers(values)
        if values is None:
            return None
        values = values.to_numpy() if hasattr(values, "chunks") else values.to_numpy(False)
    values = columns.as_array(values)
    if not isinstance(values, np.ndarray):
        if set(map(type, values)) != {int}:
            return None
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            return None
    if values.dtype.kind not in "iu" or (values.dtype == np.uint64 and np.any(values >> 63)):
        return None
    return values.astype(np.int64)


def _arrow_integers(column: Any) -> Any:
    """Return an Arrow column of integers; None if it is none, or lacks values."""
    kind = str(column.type)
    if column.null_count or not len(column):
        return None
    if kind not in ("string", "large_string"):
        return column if kind.lstrip("u").startswith("int") else None
    try:
        column[: len(column) // _PART_TRIED + 1].cast("int64")  # to fail on a whole column of text is slow
        numbers = column.cast("int64")
    except ValueError:
        return None
    # "007" and "0x7" are other persons than 7.
    return numbers if numbers.cast(column.type).equals(column) else None


def _length(policy: Policy, batch: Mapping[str, Any], time: Any) -> int:
    named = [policy.person, policy.event_time, *policy.measured, *policy.sensitive, *policy.within]
    lengths = {name: len(batch[name]) for name in named if name is not None and name in batch}
    if policy.event_time is None and time is not None:
        lengths["time"] = len(time)
    if not lengths:
        lengths = {name: len(column) for name, column in batch.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        msg = f"encode: all columns must be of one length, not {listed}."
        raise ValueError(msg)
    return next(iter(lengths.values()), 0)
