"""Packs: the rows of one shard in one element, so that Beam's cost per element is paid once for many rows."""

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
from crenel.encoding.encoder import Encoded, Encoder
from crenel.encoding.rows import Rows
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Datetime
from crenel.transforms._pack import payloads
from crenel.transforms._pack.fingerprints import persons_mark, space_mark
from crenel.transforms._pack.payloads import Batch, Form, Objects, Payload, shared
from crenel.transforms._pack.perturb import Perturber
from crenel.transforms._pack.sharding import Sharder

_SCHEMAS = avro.Schemas("crenel.transforms._pack", ("pack.2.avsc", "pack.1.avsc"))

#: The shard of a pack that does not say it: those of an earlier release, of which the key was the shard.
UNSAID = -1


@dataclass(frozen=True, eq=False)
class Pack:
    """Encoded rows of one shard, and what leaves of them as it is."""

    rows: Rows
    form: Form
    payload: Payload
    #: What the hashes of persons, and what the coordinates and codes, can be compared with; empty: with any.
    persons: bytes = b""
    space: bytes = b""
    shard: int = UNSAID

    def take(self, indices: NDArray[np.int64]) -> Pack:
        """Choose rows, in this order."""
        return replace(self, rows=self.rows.take(indices), payload=self.payload.take(indices))

    def slice(self, start: int, stop: int) -> Pack:
        """The rows from `start` up to, not including, `stop`; they share memory with these."""
        return replace(self, rows=self.rows.slice(start, stop), payload=self.payload.slice(start, stop))

    def to_bytes(self) -> bytes:
        """Write the pack as one element of a pipeline, or of the log."""
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
    def from_bytes(cls, data: bytes) -> Pack:
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


_HANDED = threading.local()


@contextmanager
def written(pack: Pack) -> Iterator[bytes]:
    """The pack as bytes. Who is given these very bytes meanwhile need not read them: see `handed`.

    Where no coder is between two steps, the second takes an element while the first emits it.
    """
    data = pack.to_bytes()
    _HANDED.now = (data, pack) if pack.payload.can_be_kept else None
    try:
        yield data
    finally:
        _HANDED.now = None


def handed(data: bytes) -> Pack | None:
    """The pack that is written as these bytes, if it was not sent but handed over."""
    now = getattr(_HANDED, "now", None)
    return now[1] if now is not None and now[0] is data else None


def _matrix(flat: NDArray[Any], rows: int) -> NDArray[Any]:
    return flat.reshape(rows, len(flat) // rows if rows else 0)


@dataclass(frozen=True, eq=False)
class Packed:
    """What became of a batch of rows: those that were encoded, and what was rejected."""

    pack: Pack
    #: Which shard each of the encoded rows goes to.
    shard: NDArray[np.int64]
    #: For each rejected row its place in the batch, the field and the reason.
    rejected: Sequence[tuple[int, str, str]]

    @property
    def packs(self) -> list[Pack]:
        """The encoded rows by shard."""
        return list(_by_shard(self.pack, self.shard))


def deal(parts: Sequence[Packed]) -> list[Pack]:
    """The encoded rows of several batches of one form, by shard."""
    pack = joined([part.pack for part in parts])
    return list(_by_shard(pack, np.concatenate([part.shard for part in parts])))


def joined(packs: Sequence[Pack]) -> Pack:
    """The rows of packs of one form and one meaning, as one."""
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
    """Encodes rows and deals them out to the shards.

    Args:
        policy: Which columns, and how.
        secret: What keys the hashes of persons and of what says the shard, and the noise on sensitive columns.
        own_times: Whether the column of event times, if there is one, is the rows' own: not their place in a file.
        carried: Columns of Arrow rows that stay with them and never leave: how an owner traces them.
    """

    def __init__(self, policy: Policy, secret: bytes, *, own_times: bool = True, carried: tuple[str, ...] = ()) -> None:
        self._encoder = Encoder(policy, secret=secret)
        self._persons = persons_mark(policy, secret)
        self._space = space_mark(policy)
        self._perturber = Perturber(policy, secret, by_time=own_times and policy.event_time is not None)
        self._sharder = Sharder(policy, secret)
        #: The columns that leave as they are, in the order of a payload's tuples.
        self._kept = (*policy.sensitive, *policy.publish)
        # Last: rows are put in order by what leaves of them first.
        self._carried = carried
        named = (policy.person, policy.event_time, *policy.quasi_identifiers, *self._kept)
        self._columns = tuple(dict.fromkeys(n for n in (*named, *self._sharder.fields) if n))
        self._moments = {name for name, qi in policy.quasi_identifiers.items() if isinstance(qi, Datetime)}
        if policy.event_time is not None:
            self._moments.add(policy.event_time)

    def pack_dicts(self, rows: Sequence[Mapping[str, Any]], time: NDArray[np.int64] | None) -> Packed:
        """Pack rows that are mappings; a column that a row does not have is missing in it."""
        columns = {name: self._plain(name, column) for name, column in self._columns_of(rows).items()}
        return self._pack(columns, time, Form.DICT)

    def _columns_of(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
        # Mostly all columns are there, and not to ask is much faster. A subclass may make up what is not.
        if set(map(type, rows)) == {dict}:
            try:
                # Column by column: with a tuple for each row, Python's garbage collector would look at them all.
                return {name: list(map(itemgetter(name), rows)) for name in self._columns}
            except KeyError:
                pass
        return {name: [row.get(name) for row in rows] for name in self._columns}

    def pack_objects(self, rows: Sequence[Any], time: NDArray[np.int64] | None) -> Packed:
        """Pack rows that have the columns as attributes: NamedTuples and `beam.Row`."""
        columns = {name: self._plain(name, [getattr(row, name, None) for row in rows]) for name in self._columns}
        return self._pack(columns, time, Form.ROW)

    def pack_arrow(self, batch: pa.RecordBatch | pa.Table, time: NDArray[np.int64] | None) -> Packed:
        """Pack Arrow's columns; no row becomes a Python object."""
        there = set(batch.schema.names)
        columns = {name: batch.column(name) for name in self._columns if name in there}
        encoded = self._encoder.encode(columns, time)
        kept = [name for name in (*self._kept, *self._carried) if name in there]
        table = pa.table({name: batch.column(name) for name in kept}) if kept else _no_columns(batch)
        return self._deal(encoded, columns, Form.ARROW, Batch(table))

    def _pack(self, columns: dict[str, Any], time: NDArray[np.int64] | None, form: Form) -> Packed:
        encoded = self._encoder.encode(columns, time)
        count = len(encoded.kept) + len(encoded.rejected)
        kept = tuple(shared(columns[name]) for name in self._kept)
        return self._deal(encoded, columns, form, Objects(kept, self._kept, count))

    def _plain(self, name: str, column: Sequence[Any]) -> Any:
        """Beam's own timestamps, as rows with a schema have them, in a column of moments: as numpy's."""
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
        whole = Pack(rows, form, payload, self._persons, self._space)
        shard = self._sharder.shards(encoded.rows, columns, encoded.kept)
        return Packed(whole, shard, encoded.rejected)


def _by_shard(pack: Pack, shard: NDArray[np.int64]) -> Iterator[Pack]:
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
    # To take from Arrow costs by the call. What may be held as it is must not keep other shards' rows alive.
    whole = pack.take(order) if pack.form is Form.ARROW else None
    for start, stop in pairwise(ends):
        part = pack.take(order[start:stop]) if whole is None else whole.slice(start, stop)
        yield replace(part, shard=int(shard[start]))


def _no_columns(batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """A table that has as many rows as the batch, and nothing in them."""
    return pa.table({"": pa.nulls(batch.num_rows)})
