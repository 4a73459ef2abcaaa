"""Rows that travel in one element: Beam's cost of an element is then paid once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apache_beam.coders import registry

from crenel.transforms._pack import carried_values
from crenel.transforms._pack.element_coders import PlainCoder

__all__ = ["RowBatch"]


@dataclass(slots=True, eq=False, repr=False)
class RowBatch:
    """Rows as dicts, and the timestamp of each in microseconds. The element's own timestamp is the earliest of them."""

    rows: Sequence[dict[str, Any]]
    times: Sequence[int]

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.rows)

    def __repr__(self) -> str:
        """Show the size, never values."""
        return f"RowBatch({len(self)} rows)"


class RowBatchCoder(PlainCoder):
    """Writes a batch as `carried_values` does."""

    def encode(self, value: RowBatch) -> bytes:
        """Write a batch."""
        return carried_values.pack([list(value.rows), list(value.times)])

    def decode(self, encoded: bytes) -> RowBatch:
        """Read a batch."""
        return RowBatch(*carried_values.unpack(encoded))

    def to_type_hint(self) -> type:
        """Return the type that has this coder."""
        return RowBatch


registry.register_coder(RowBatch, RowBatchCoder)
