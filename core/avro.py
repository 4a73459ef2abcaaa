"""State is stored as Avro, in its single-object encoding: a marker, the fingerprint of the schema, the record.

A record is read only after its digest was checked (`seal`). What costs little is checked here all the same: above all
sizes, since a kernel checks nothing that it is given.

The fingerprint says which schema a record was written with. A later release that stores something else adds a schema
(`castle.2.avsc`) and keeps the earlier ones, so that a savepoint survives the upgrade.
"""

from __future__ import annotations

import io
import json
import math
from functools import cached_property
from importlib import resources
from typing import Any

import fastavro
import numpy as np
from fastavro.schema import fingerprint, to_parsing_canonical_form
from numpy.typing import NDArray

from crenel.errors import SnapshotError

__all__ = ["Schemas", "expect", "packed", "unpacked"]

_MARKER = b"\xc3\x01"
_HEADER = len(_MARKER) + 8


class Schemas:
    """The schemas of one kind of record: the current one, and those of earlier releases.

    Args:
        package: The package that has the schema files.
        names: The names of the files, the current one first.
    """

    def __init__(self, package: str, names: tuple[str, ...]) -> None:
        self._package = package
        self._names = names

    @cached_property
    def _known(self) -> dict[bytes, Any]:
        """The schemas by the bytes that their records begin with; the current one first."""
        known = {}
        for name in self._names:
            text = resources.files(self._package).joinpath(name).read_text(encoding="utf-8")
            schema = fastavro.parse_schema(json.loads(text))
            digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
            known[_MARKER + bytes.fromhex(digest)] = schema
        return known

    def wrote(self, data: bytes) -> bool:
        """Return whether a record is of this kind."""
        return data[:_HEADER] in self._known

    def encode(self, record: dict[str, Any]) -> bytes:
        """Write a record with the current schema."""
        header, schema = next(iter(self._known.items()))
        body = io.BytesIO()
        body.write(header)
        fastavro.schemaless_writer(body, schema, record)
        return body.getvalue()

    def decode(self, data: bytes) -> dict[str, Any]:
        """Read a record that was written with one of the schemas.

        Raises:
            SnapshotError: The record was written with another schema, or is damaged.
        """
        schema = self._known.get(data[:_HEADER])
        if schema is None:
            message = f"The state was not written with the schema {self._names[0]}."
            raise SnapshotError(message)
        stream = io.BytesIO(data[_HEADER:])
        try:
            record = fastavro.schemaless_reader(stream, schema, next(iter(self._known.values())))
        except (EOFError, ValueError, IndexError, MemoryError):
            record = None
        if not isinstance(record, dict) or stream.read(1):
            message = f"The state is damaged: it does not follow the schema {self._names[0]}."
            raise SnapshotError(message)
        return record


def packed(array: NDArray[Any]) -> bytes:
    """Return the array as little-endian bytes."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def unpacked(data: bytes, dtype: str = "<f8", shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Return the array that `packed` wrote, in the machine's byte order. It can be written to.

    Args:
        data: The bytes.
        dtype: The type of its elements.
        shape: Its shape; without one it has one dimension, of any length.

    Raises:
        SnapshotError: There are more or fewer elements.
    """
    size = np.dtype(dtype).itemsize
    expect(len(data) % size == 0 if shape is None else len(data) == size * math.prod(shape))
    stored = np.frombuffer(data, dtype)
    return stored.astype(stored.dtype.newbyteorder("=")).reshape(shape or -1)


def expect(is_met: bool) -> None:
    """Refuse state that cannot be right.

    Raises:
        SnapshotError: The condition is not met.
    """
    if not is_met:
        message = "The state is damaged: its parts do not fit each other."
        raise SnapshotError(message)
