"""Values with an envelope around each row. What may hold the row before a change is shown to nobody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from crenel.pipelines.debezium import Envelopes, Ignored, Refused, withheld
from crenel.pipelines.kafka.messages.owner_text import shortened
from crenel.pipelines.kafka.messages.values import NoRow, Unreadable, Values

__all__ = ["EnvelopeValues", "RefusedEnvelope", "row_of"]


class RefusedEnvelope(Unreadable):
    """An envelope that is no row, with the owner's text of it; None if that is withheld."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.reason)
        self._text = refused.text

    def shown(self, value: bytes | None) -> str:
        """The owner's text, which does not hold the row before the change."""
        return withheld(value or b"") if self._text is None else shortened(self._text)


def row_of(envelopes: Envelopes, message: Any) -> dict[str, Any]:
    """Take the row out of an envelope.

    Raises:
        NoRow: it has none, and nobody asked for it.
        RefusedEnvelope: it has none, or it is no envelope.
    """
    found = envelopes.opened(message)
    if isinstance(found, Ignored):
        raise NoRow
    if isinstance(found, Refused):
        raise RefusedEnvelope(found)
    return found


class EnvelopeValues(Values):
    """Reads rows out of envelopes.

    Args:
        messages: Reads the envelopes.
        envelopes: Opens them.
        opens: Whether to open the envelopes; otherwise `messages` has already done so.
    """

    def __init__(self, messages: Values, envelopes: Envelopes, *, opens: bool = True) -> None:
        self._messages = messages
        self._envelopes = envelopes
        self._opens = opens

    def read(self, value: bytes) -> dict[str, Any]:
        """Read the row of an envelope."""
        return self._row(self._messages.read(value))

    def read_many(self, values: Iterable[bytes]) -> list[dict[str, Any] | Unreadable]:
        """Read the rows of envelopes."""
        return [self._opened(message) for message in self._messages.read_many(values)]

    def _opened(self, message: dict[str, Any] | Unreadable) -> dict[str, Any] | Unreadable:
        if isinstance(message, (NoRow, RefusedEnvelope)):
            return message
        if isinstance(message, Unreadable):
            return RefusedEnvelope(Refused(None, str(message)))
        try:
            return self._row(message)
        except Unreadable as why:
            return why

    def _row(self, message: dict[str, Any]) -> dict[str, Any]:
        return row_of(self._envelopes, message) if self._opens else message

    def of_nothing(self) -> Unreadable:
        """What a record without a value (a tombstone) counts as."""
        found = self._envelopes.opened(None)
        return RefusedEnvelope(found) if isinstance(found, Refused) else NoRow()

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Not for the input."""
        raise NotImplementedError
