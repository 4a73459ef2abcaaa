"""State is Avro, in its single-object encoding: a marker, the schema's fingerprint, the record.

The fingerprint says which schema wrote it. The schemas of all releases stay in the tree (`castle.1.avsc`, ...), so
that a savepoint survives an upgrade.
"""

from __future__ import annotations

import io
import json
from functools import cached_property
from importlib import resources
from typing import Any

import fastavro
import numpy as np
from fastavro.schema import fingerprint, to_parsing_canonical_form
from numpy.typing import NDArray

from crenel.errors import SnapshotError

__all__ = ["Schemas", "packed", "unpacked"]

_MARKER = b"\xc3\x01"
_HEADER = len(_MARKER) + 8


class Schemas:
    """The schemas that one kind of record was and is written with.

    Args:
        package: Where the files are.
        names: Of the files; the first is today's.
    """

    def __init__(self, package: str, names: tuple[str, ...]) -> None:
        self._package = package
        self._names = names

    @cached_property
    def _known(self) -> dict[bytes, Any]:
        """The schemas by what a record that was written with them begins with; today's first."""
        known = {}
        for name in self._names:
            text = resources.files(self._package).joinpath(name).read_text(encoding="utf-8")
            schema = fastavro.parse_schema(json.loads(text))
            mark = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
            known[_MARKER + bytes.fromhex(mark)] = schema
        return known

    def wrote(self, data: bytes) -> bool:
        """Whether a record is of this kind, by how it begins."""
        return data[:_HEADER] in self._known

    def encode(self, record: dict[str, Any]) -> bytes:
        """Write a record with today's schema."""
        header, schema = next(iter(self._known.items()))
        body = io.BytesIO()
        body.write(header)
        fastavro.schemaless_writer(body, schema, record)
        return body.getvalue()

    def decode(self, data: bytes) -> dict[str, Any]:
        """Read a record that was written with any of the schemas.

        Raises:
            SnapshotError: it was written with another, or is damaged.
        """
        schema = self._known.get(data[:_HEADER])
        if schema is None:
            message = f"The state was not written with {self._names[0]}, or an earlier form of it."
            raise SnapshotError(message)
        stream = io.BytesIO(data[_HEADER:])
        try:
            record = fastavro.schemaless_reader(stream, schema, next(iter(self._known.values())))
        except (EOFError, ValueError, IndexError, MemoryError):
            record = None
        if not isinstance(record, dict) or stream.read(1):
            message = f"The state is damaged: it does not follow {self._names[0]}."
            raise SnapshotError(message)
        return record


def packed(array: NDArray[Any]) -> bytes:
    """The array as little-endian bytes."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def unpacked(data: bytes, dtype: str = "<f8") -> NDArray[Any]:
    """The array that `packed` wrote, in the machine's own byte order; it may be written to."""
    stored = np.frombuffer(data, dtype)
    return stored.astype(stored.dtype.newbyteorder("="))
