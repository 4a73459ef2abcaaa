"""The options of `Anonymize` that concern all of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from crenel.encoding.text_format import TextFormat


class Clock(Enum):
    """What moves the clock of a shard, by which rows are due."""

    #: The latest row, less the policy's `disorder`, and the watermark.
    ROWS = "rows"
    #: The watermark alone: several sources may run ahead of each other by any time.
    WATERMARK = "watermark"

    @classmethod
    def of(cls, given: Clock | str) -> Clock:
        """Return the clock of this name.

        Raises:
            ValueError: there is no such clock.
        """
        try:
            return cls(given)
        except ValueError:
            msg = f"Anonymize: clock must be 'rows' or 'watermark', not {given!r}."
            raise ValueError(msg) from None


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
    clock: Clock = Clock.ROWS

    def __post_init__(self) -> None:
        """Refuse options of other types: they come from users."""
        for name in ("row_number", "order_column"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                msg = f"Anonymize: {name} must be the name of a column, not {value!r}."
                raise ValueError(msg)
        if not isinstance(self.parse_text, (bool, TextFormat)):
            msg = f"Anonymize: parse_text must be true, false or a TextFormat, not {self.parse_text!r}."
            raise ValueError(msg)
        if not isinstance(self.trace, bool):
            msg = f"Anonymize: trace must be true or false, not {self.trace!r}."
            raise ValueError(msg)

    @property
    def carried(self) -> tuple[str, ...]:
        """The columns that held rows keep and that are never published."""
        is_needed = self.trace or (self.refuses and self.order_column is not None)
        return (self.row_number,) if is_needed and self.row_number is not None else ()

    @property
    def tie_breaker(self) -> str | None:
        """The column that orders bounded rows which are equal in everything else, if packs carry it."""
        return self.row_number if self.carried else None
