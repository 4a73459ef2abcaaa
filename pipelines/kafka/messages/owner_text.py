"""Values as text, for the owner's records of what was rejected: never longer than a topic takes."""

from __future__ import annotations

import base64
import hashlib

__all__ = ["MOST", "shortened", "value_as_text"]

#: The most characters of a rejected row. As JSON each may take six bytes, and a topic takes one megabyte by default.
MOST = 100_000
#: Characters that are left for the mark.
_MARK = 200


def value_as_text(value: bytes | None) -> str:
    """A message's value: as text if it is UTF-8, else as base64."""
    if value is None:
        return ""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = "base64:" + base64.b64encode(value[:MOST]).decode("ascii")
    return text if len(text) <= MOST else _marked(text, value)


def shortened(text: str) -> str:
    """Cut a text that is too long, and say so with its length and its digest."""
    return text if len(text) <= MOST else _marked(text, text.encode("utf-8", "surrogatepass"))


def _marked(text: str, whole: bytes) -> str:
    digest = hashlib.sha256(whole).hexdigest()
    return f"{text[: MOST - _MARK]}... [shortened: {len(whole):,} bytes, sha256 {digest}]"
