"""What a run says while it goes on: lines that stay, and on a terminal one line that changes."""

from __future__ import annotations

import sys

__all__ = ["say", "show"]

#: Go back to the start of the line, and erase it.
_ERASE = "\r\x1b[K"


def say(line: str) -> None:
    """Say a line, on standard error."""
    erase = _ERASE if sys.stderr.isatty() else ""
    sys.stderr.write(f"{erase}crenel: {line}\n")
    sys.stderr.flush()


def show(line: str) -> None:
    """Show a line in place of the last one. Only for a terminal."""
    sys.stderr.write(f"{_ERASE}{line}")
    sys.stderr.flush()
