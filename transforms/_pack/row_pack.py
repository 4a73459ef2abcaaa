"""Packs: many rows of one shard in one element, so that Beam's cost per element is paid once for all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from numpy.typing import NDArray

from crenel import avro
from crenel.encoding.encoder import Encoded, Encoder, Rejection
from crenel.encoding.rows import Rows
from crenel.encoding.text_format import TextFormat
from crenel.encoding.treated_values import Treated, TreatedValues
from crenel.policy import Policy
from crenel.policy.columns import EACH_ROW, MISSING, MISSING_QUASI_IDENTIFIER, NO_COLUMN
from crenel.policy.quasi_identifiers import Datetime
from crenel.policy.secret import Secret, as_secret, pseudonym_keys
from crenel.seal import Seal
from crenel.transforms._pack import nested_fields, payloads
from crenel.transforms._pack.carried_values import PLAIN, refusal
from crenel.transforms._pack.fingerprints import persons_mark, space_mark
from crenel.transforms._pack.payloads import Batch, Form, Objects, Payload, shared
from crenel.transforms._pack.perturb import Perturber, published_as_floats
from crenel.transforms._pack.row_options import RowOptions
from crenel.transforms._pack.sharding import ShardRouter
from crenel.transforms._pack.text_columns import TextColumns, cut_moments, named_columns

#: What a pack is, to its seal.
KIND = "crenel.pack"
_SCHEMAS = avro.Schemas("crenel.transforms._pack", ("pack.1.avsc",))


@dataclass(frozen=True, eq=False)
class RowPack:
    """Encoded rows of one shard, and their columns that are published unchanged."""

    rows: Rows
    form: Form
    payload: Payload
    #: Marks (see `fingerprints`). Hashes of persons, or coordinates and codes, are comparable only if theirs are equal.
    persons: bytes
    space: bytes
    shard: int

    def take(self, indices: NDArray[np.int64]) -> RowPack:
        """Choose rows, in this order."""
        return replace(self, rows=self.rows.take(indices), payload=self.payload.take(indices))

    def slice(self, start: int, stop: int) -> RowPack:
        """Slice rows; they share memory with these."""
        return replace(self, rows=self.rows.slice(start, stop), payload=self.payload.slice(start, stop))

    def to_bytes(self) -> bytes:
        """Write the pack as one element of a pipeline, or of a log."""
        rows = self.rows
        return _SCHEMAS.encode(
            {
                "shard": self.shard,
                "qi": avro.packed(rows.qi),
                "person": avro.packed(rows.person),
                "sensitive": avro.packed(rows.sensitive),
                "time": avro.packed(rows.time),
                "form": self.form.value,
                "payload": self.payload.to_bytes(),
                "persons": self.persons,
                "space": self.space,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> RowPack:
        """Read what `to_bytes` wrote."""
        record = _SCHEMAS.decode(data)
        person = avro.unpacked(record["person"], "<i8")
        count = len(person)
        rows = Rows(
            qi=_matrix(avro.unpacked(record["qi"]), count),
            person=person,
            sensitive=_matrix(avro.unpacked(record["sensitive"], "<i8"), count),
            time=avro.unpacked(record["time"], "<i8"),
        )
        form = Form(record["form"])
        payload = payloads.from_bytes(form, record["payload"])
        return cls(rows, form, payload, record["persons"], record["space"], record["shard"])


def opened(data: bytes, seal: Seal, place: bytes) -> RowPack:
    """Read a pack that was sent to a place: a shard, and a window.

    Raises:
        SnapshotError: it was damaged or changed on its way, or was sent to another place or under another secret.
    """
    handed, pack = getattr(_HANDED, "now", _NOTHING)
    if handed is not data:
        return RowPack.from_bytes(seal.open(KIND, data, place))
    # This thread is handing over these very bytes right now (`hand_over`), so nobody can have changed them.
    return pack or RowPack.from_bytes(data[seal.size :])


_HANDED = threading.local()
_NOTHING = (None, None)


@contextmanager
def hand_over(pack: RowPack, seal: Seal, place: bytes) -> Iterator[bytes]:
    """Write the pack as sealed bytes, which only `opened` reads.

    Where there is no coder between two steps, the second takes an element while the first emits it. So a step that is
    given these very bytes meanwhile need not check them, and if nobody can change the rows, it is given the pack.
    """
    data = seal.close(KIND, pack.to_bytes(), place)
    _HANDED.now = (data, pack if pack.payload.can_be_kept else None)
    try:
        yield data
    finally:
        _HANDED.now = _NOTHING


def _matrix(flat: NDArray[Any], rows: int) -> NDArray[Any]:
    return flat.reshape(rows, len(flat) // rows if rows else 0)


@dataclass(frozen=True, eq=False)
class Packed:
    """A batch of rows after encoding: the rows that were encoded, and those that were rejected."""

    #: The encoded rows of all shards; `shard` is not set yet.
    pack: RowPack
    #: The shard of each encoded row.
    shard: NDArray[np.int64]
    #: For each rejected row its place in the batch, the field and the reason.
    rejected: Sequence[tuple[int, str, str]]

    @property
    def packs(self) -> list[RowPack]:
        """The encoded rows by shard."""
        return list(by_shard(self.pack, self.shard))


def deal(parts: Sequence[Packed]) -> list[RowPack]:
    """Deal the encoded rows of several batches of one form out to their shards."""
    pack = joined([part.pack for part in parts])
    return list(by_shard(pack, np.concatenate([part.shard for part in parts])))


def joined(packs: Sequence[RowPack]) -> RowPack:
    """Join packs of one form and one meaning."""
    first, *others = packs
    if not others:
        return first
    rows = [pack.rows for pack in packs]
    whole = Rows(
        np.concatenate([part.qi for part in rows]),
        np.concatenate([part.person for part in rows]),
        np.concatenate([part.sensitive for part in rows]),
        np.concatenate([part.time for part in rows]),
    )
    return replace(first, rows=whole, payload=first.payload.join([pack.payload for pack in others]))


class Packer:
    """Encodes rows, and decides their shards.

    Args:
        policy: Which columns, and how.
        secret: Keys the hashes of persons and of shards, the noise on sensitive columns, and the seal of packs.
        options: How rows are read and identified.
    """

    def __init__(
        self,
        policy: Policy,
        secret: bytes | Secret,
        options: RowOptions = RowOptions(),  # noqa: B008 - frozen
    ) -> None:
        secret = as_secret(secret, policy)
        self.seal = secret.seal
        root = secret.root
        self._encoder = Encoder(policy, secret=root)
        self._persons = persons_mark(policy, root)
        self._space = space_mark(policy)
        self._perturber = Perturber(policy, root, by_time=policy.event_time is not None)
        self._router = ShardRouter(policy, root)
        self._treatments = TreatedValues(policy, pseudonym_keys(policy))
        self._floats = published_as_floats(policy)
        written = options.parse_text if isinstance(options.parse_text, TextFormat) else TextFormat()
        self._text = TextColumns(policy, written) if options.parse_text else None
        self._clock = options.row_number if options.by_number else None
        #: The column of row numbers, if they are the persons.
        self._each_row = options.row_number if policy.each_row else None
        #: The columns that are published unchanged, in the order of a payload's tuples.
        self._published = (*policy.sensitive, *policy.publish)
        #: The columns that held rows keep.
        self._kept = tuple(dict.fromkeys((*self._published, *policy.within, *options.carried)))
        numbered = tuple(name for name in (self._clock, self._each_row) if name)
        self._columns = tuple(dict.fromkeys((*named_columns(policy), *options.carried, *numbered)))
        #: Those that may lie within objects.
        self._paths = tuple(filter(nested_fields.is_path, self._columns))
        self._moments = {name for name, qi in policy.quasi_identifiers.items() if isinstance(qi, Datetime)}
        self._moments |= cut_moments(policy)
        if policy.event_time is not None:
            self._moments.add(policy.event_time)

    def pack_dicts(
        self, rows: Sequence[Mapping[str, Any]], time: NDArray[np.int64] | None, form: Form = Form.DICT
    ) -> Packed:
        """Pack rows that are mappings; a column that a row lacks is missing in it."""
        found, wrong = self._columns_of(rows)
        columns = {name: self._plain(name, column) for name, column in found.items()}
        packed = self._pack(columns, time, form, wrong)
        if not packed.rejected:
            return packed
        return replace(packed, rejected=[_as_misspelled(one, rows[one[0]]) for one in packed.rejected])

    def _columns_of(self, rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Sequence[Any]], list[Rejection]]:
        # Usually all columns are there, and not checking is much faster. A subclass of dict may make up missing ones.
        if set(map(type, rows)) == {dict}:
            try:
                # Column by column: with a tuple for each row, Python's garbage collector would look at them all.
                return {name: list(map(itemgetter(name), rows)) for name in self._columns}, []
            except KeyError:
                pass
        return self._with_paths(rows, {name: [row.get(name) for row in rows] for name in self._columns})

    def _with_paths(
        self, rows: Sequence[Any], columns: dict[str, Sequence[Any]]
    ) -> tuple[dict[str, Sequence[Any]], list[Rejection]]:
        """Fill in the columns that lie within objects; also return the rows whose objects are not as a path says."""
        wrong: list[Rejection] = []
        for path in self._paths:
            columns[path], refused = nested_fields.column_of(rows, path)
            wrong += refused
        return columns, wrong

    def pack_objects(self, rows: Sequence[Any], time: NDArray[np.int64] | None) -> Packed:
        """Pack rows that have the columns as attributes: NamedTuples and `beam.Row`."""
        found, wrong = self._with_paths(rows, {n: [getattr(row, n, None) for row in rows] for n in self._columns})
        columns = {name: self._plain(name, column) for name, column in found.items()}
        return self._pack(columns, time, Form.ROW, wrong)

    def pack_arrow(
        self, batch: pa.RecordBatch | pa.Table, time: NDArray[np.int64] | None, form: Form = Form.ARROW
    ) -> Packed:
        """Pack Arrow's columns; no row becomes a Python object."""
        flat, wrong = nested_fields.flat(batch, self._columns)
        columns = self._arrow_columns(flat)
        encoded = self._encoded(columns, time)
        if wrong:
            encoded = encoded.without(reversed(wrong), first=True)
        kept = {name: columns[name] for name in self._kept if name in columns}
        treated, refused = self._treated(kept, encoded, batch.num_rows)
        for name, found in treated.items():
            kind = pa.float64() if name in self._floats else pa.string()
            kept[name] = pa.array(found.values, kind).take(pa.array(found.codes))
        table = pa.table(kept) if kept else _no_columns(batch)
        return self._deal(encoded.without(refused) if refused else encoded, columns, form, Batch(table))

    def _treated(
        self, kept: Mapping[str, Any], encoded: Encoded, count: int
    ) -> tuple[dict[str, Treated], list[Rejection]]:
        """Treat the columns that are not published as they are; return the rows whose values do not fit, too."""
        if not self._treatments.columns:
            return {}, []
        time = np.zeros(count, dtype=np.int64)
        time[encoded.kept] = encoded.rows.time
        there = [name for name in self._treatments.columns if name in kept]
        treated = {name: self._treatments.of(name, kept[name], time) for name in there}
        return treated, [one for name in reversed(there) for one in treated[name].refused(name)]

    def _arrow_columns(self, batch: pa.RecordBatch | pa.Table) -> dict[str, Any]:
        if self._text is None:
            there = set(batch.schema.names)
            return {name: batch.column(name) for name in self._columns if name in there}
        return self._text.arrays(batch, self._columns)

    def _pack(
        self, columns: dict[str, Any], time: NDArray[np.int64] | None, form: Form, wrong: Sequence[Rejection] = ()
    ) -> Packed:
        encoded = self._encoded(columns, time)
        if wrong:
            encoded = encoded.without(reversed(wrong), first=True)
        count = len(encoded.kept) + len(encoded.rejected)
        given = {name: columns[name] for name in self._kept}
        treated, refused = self._treated(given, encoded, count)
        given |= {name: list(map(found.values.__getitem__, found.codes.tolist())) for name, found in treated.items()}
        kinds = {name: set(map(type, given[name])) for name in self._kept}
        # The first column that is refused counts.
        odd = [name for name in reversed(self._kept) if not kinds[name] <= PLAIN]
        refused += [rejection for name in odd for rejection in _refused(name, given[name])]
        if refused:
            encoded = encoded.without(refused)
        kept = tuple(shared(given[name], kinds[name]) for name in self._kept)
        return self._deal(encoded, columns, form, Objects(kept, self._kept, count))

    def _encoded(self, columns: Mapping[str, Any], time: NDArray[np.int64] | None) -> Encoded:
        """Encode rows. Their numbers may be the clock, the persons, or both."""
        if self._clock is not None:
            time = _numbers(columns, self._clock)
        if self._each_row is not None:
            columns = {**columns, EACH_ROW: _numbers(columns, self._each_row)}
        return self._encoder.encode(columns, time)

    def _plain(self, name: str, column: Sequence[Any]) -> Any:
        """Parse text if it is to be, and make numpy's moments of Beam's, which rows with a schema have."""
        if self._text is not None:
            column = self._text.values(name, column)
        if name not in self._moments:
            return column
        kinds = set(map(type, column))
        if kinds == {Timestamp}:
            return np.array([value.micros for value in column], dtype="datetime64[us]")
        if Timestamp in kinds:
            return [np.datetime64(v.micros, "us") if isinstance(v, Timestamp) else v for v in column]
        return column

    def _deal(self, encoded: Encoded, columns: Mapping[str, Any], form: Form, payload: Payload) -> Packed:
        if encoded.rejected:
            payload = payload.take(encoded.kept)
        rows = encoded.rows
        if self._perturber and len(rows):
            rows, payload = self._perturber.apply(rows, payload)
        whole = RowPack(rows, form, payload, self._persons, self._space, shard=0)
        shard = self._router.shards(encoded.rows, columns, encoded.kept)
        return Packed(whole, shard, encoded.rejected)


def _numbers(columns: Mapping[str, Any], name: str) -> NDArray[np.int64]:
    numbers = np.asarray(columns.get(name))
    if numbers.dtype.kind not in "iu":
        message = "Anonymize: row_number must name a column of integers, of which every row has one."
        raise ValueError(message)
    return numbers.astype(np.int64)


def _as_misspelled(rejection: tuple[int, str, str], row: Mapping[str, Any]) -> tuple[int, str, str]:
    """Report a missing column instead of a missing value if the row lacks the column: its name may be misspelled."""
    place, name, reason = rejection
    # Where an object lacks a field, a value is missing: rows of one stream may have different objects.
    lacks = not {name, name.partition(".")[0]} & row.keys() and reason in (MISSING, MISSING_QUASI_IDENTIFIER)
    return (place, name, NO_COLUMN) if lacks else rejection


def _refused(name: str, column: Sequence[Any]) -> Iterator[Rejection]:
    """Reject the rows whose values in a column cannot be carried, or are objects, whose fields nobody declared."""
    for place, value in enumerate(column):
        reason = None if type(value) in PLAIN else refusal(value)
        if reason is None and type(value) not in PLAIN and nested_fields.is_or_has_object(value):
            reason = nested_fields.WHOLE_OBJECT
        if reason is not None:
            yield Rejection(place, name, reason)


def by_shard(pack: RowPack, shard: NDArray[np.int64]) -> Iterator[RowPack]:
    """Split a pack by the shards of its rows."""
    if len(shard) == 0:
        return
    if shard.min() == shard.max():
        yield replace(pack, shard=int(shard[0]))
        return
    # Small numbers are sorted by their digits.
    shard = shard.astype(np.min_scalar_type(int(shard.max())))
    order = np.argsort(shard, kind="stable")
    shard = shard[order]
    ends = [0, *(np.flatnonzero(np.diff(shard)) + 1).tolist(), len(shard)]
    # Arrow's `take` costs by the call. Objects may be held as they are, and must not keep other shards' rows alive.
    whole = pack.take(order) if pack.form.is_arrow else None
    for start, stop in pairwise(ends):
        part = pack.take(order[start:stop]) if whole is None else whole.slice(start, stop)
        yield replace(part, shard=int(shard[start]))


def _no_columns(batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """Make a table that has as many rows as the batch, and nothing in them."""
    return pa.table({"": pa.nulls(batch.num_rows)})
