"""Base class for engines that pass rows on to another one."""

from __future__ import annotations

from crenel.engine.contract import Engine

__all__ = ["Wrapper"]


class Wrapper(Engine):
    """An engine that passes rows on to a method's, and changes what that releases.

    Args:
        method: The engine that forms groups.
    """

    def __init__(self, method: Engine) -> None:
        self._method = method

    def __repr__(self) -> str:
        """Tell how many rows are held, but nothing about them."""
        return f"{type(self).__name__}({self._method!r})"

    @property
    def held(self) -> int:
        """Rows that have arrived and not left."""
        return self._method.held

    @property
    def key(self) -> bytes:
        """The generator's key. Keep it secret."""
        return self._method.key

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` must be called next, or None."""
        return self._method.next_deadline()
