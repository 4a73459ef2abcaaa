"""How elements are written between steps of ours, and types that say so.

Beam's coder for elements of any type falls back on pickles, and reads one wherever it finds it. A runner keeps elements
in checkpoints and on disks, so none of ours is written by it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from apache_beam import typehints
from apache_beam.coders import Coder, coders, registry

from crenel.transforms._pack import carried_values

__all__ = ["RECORD", "BatchCoder", "Carried", "CarriedCoder", "PlainCoder", "unpickles", "use_for_batches"]

#: Beam's coders that read pickles: those that do nothing else, and the one for any value.
_PICKLERS = (coders.PickleCoder, coders.DillCoder, coders.CloudpickleCoder, coders.FastPrimitivesCoder)


class Carried:
    """Any value that can be carried, as a type hint: Beam then writes such elements by `CarriedCoder`."""


class PlainCoder(Coder):
    """A coder without settings."""

    def is_deterministic(self) -> bool:
        """Whether equal values are written the same. None of these is for keys."""
        return False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class CarriedCoder(PlainCoder):
    """Writes values as `carried_values` does."""

    def encode(self, value: Any) -> bytes:
        """Write a value."""
        return carried_values.pack(value)

    def decode(self, encoded: bytes) -> Any:
        """Read a value."""
        return carried_values.unpack(encoded)

    def to_type_hint(self) -> type:
        """Return the type that has this coder."""
        return Carried


class BatchCoder(PlainCoder):
    """Writes a RecordBatch as an Arrow IPC stream."""

    def encode(self, value: pa.RecordBatch) -> bytes:
        """Write a batch."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return bytes(sink.getvalue())

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        """Read a batch."""
        return pa.ipc.open_stream(encoded).read_next_batch()

    def to_type_hint(self) -> type:
        """Return the type that has this coder."""
        return pa.RecordBatch  # type: ignore[no-any-return]


def unpickles(coder: Coder) -> bool:
    """Tell whether a coder, or one that it is made of, may read a pickle."""
    inner = [one for value in vars(coder).values() for one in (value if isinstance(value, (list, tuple)) else [value])]
    return isinstance(coder, _PICKLERS) or any(unpickles(one) for one in inner if isinstance(one, Coder))


def use_for_batches() -> None:
    """Write all elements that are RecordBatches as Arrow, in all pipelines of this process."""
    registry.register_coder(pa.RecordBatch, BatchCoder)


registry.register_coder(Carried, CarriedCoder)

#: The type of dicts between steps of ours.
RECORD = typehints.Dict[str, Carried]
