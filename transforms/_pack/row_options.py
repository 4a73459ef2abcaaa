"""The options of `Anonymize` that concern all of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from crenel.encoding.text_format import TextFormat


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """How rows are read, identified and ordered. `Anonymize` documents the options."""

    parse_text: bool | TextFormat = False
    row_number: str | None = None
    trace: bool = False
    order_column: str | None = None
    #: Whether row numbers are the clock: rows are bounded, and have no event time.
    by_number: bool = False
    #: Whether rows are emitted at the end of their window: bounded rows that have no times, or whose order a writer
    #: hides.
    at_end: bool = False
    #: Whether rows may be refused after they were packed, because they are too far ahead of the clock.
    refuses: bool = False

    @property
    def carried(self) -> tuple[str, ...]:
        """The columns that held rows keep and that are never published."""
        is_needed = self.trace or (self.refuses and self.order_column is not None)
        return (self.row_number,) if is_needed and self.row_number is not None else ()

    @property
    def tie_breaker(self) -> str | None:
        """The column that orders bounded rows which are equal in everything else, if packs carry it."""
        return self.row_number if self.carried else None
