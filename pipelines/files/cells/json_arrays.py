"""Cuts a JSON file that is one array into lines, one for each of its elements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

__all__ = ["ArrayError", "is_array", "lines_of"]

#: A text, a bracket, or the begin of a text that the block cuts off.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]|"', re.DOTALL)

_BLANK = b" \t\r\n"


class ArrayError(ValueError):
    """What is wrong with the array: the rest of a sentence that begins with the file's name."""


def is_array(start: bytes) -> bool:
    """Tell by its first bytes whether a file is an array; lines of objects begin with a brace."""
    return start.lstrip(_BLANK).startswith(b"[")


def lines_of(start: bytes, stream: IO[bytes], block: int) -> Iterator[bytes]:
    """Yield blocks of whole lines, each line an element of the array.

    Args:
        start: The bytes that were read already: the first of the file.
        stream: The rest of the file.
        block: The bytes to read at once. An element cannot be longer.

    Raises:
        ArrayError: the array has no end, or something follows it.
    """
    data = start.lstrip(_BLANK)[1:]
    while True:
        elements, used, is_over = _split(data)
        yield b"\n".join(elements)
        data = data[used:]
        if is_over:
            break
        more = stream.read(block)
        if not more:
            msg = "is cut off: the array has no end"
            raise ArrayError(msg)
        if len(data) > block:
            msg = f"has a row of more than {block >> 20} MB"
            raise ArrayError(msg)
        data += more
    if data.strip(_BLANK) or stream.read(block).strip(_BLANK):
        msg = "must hold one array, and nothing after it"
        raise ArrayError(msg)


def _split(data: bytes) -> tuple[list[bytes], int, bool]:
    """Cut whole elements off; return them, the bytes that were used, and whether the array is over."""
    found: list[bytes] = []
    depth = used = 0
    for token in _TOKEN.finditer(data):
        sign = token[0]
        if sign == b'"':
            break
        if sign in (b"{", b"["):
            depth += 1
        elif sign in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                found += _element(data[used : token.start()])
                return found, token.end(), True
            if depth == 0:
                found += _element(data[used : token.end()])
                used = token.end()
    return found, used, False


def _element(data: bytes) -> list[bytes]:
    """Make a line of an element and the comma before it. Within a text of JSON there are no line breaks."""
    line = data.strip(_BLANK + b",").replace(b"\n", b" ").replace(b"\r", b" ")
    return [line] if line else []
