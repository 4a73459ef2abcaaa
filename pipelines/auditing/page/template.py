"""Fills the page's template with a document's figures."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from crenel.pipelines.auditing.page.words import FORMATS, clean, title

__all__ = ["fill"]

_UNKNOWN = "not known"


def fill(document: Mapping[str, Any], plots: Mapping[str, str]) -> str:
    """Fill the template with the document's figures and plots."""
    # ASCII, so that the embedded document is the same in whatever encoding the page is read.
    embedded = json.dumps(document, ensure_ascii=True, allow_nan=False)
    return _template().render(
        document=document,
        figure=_Figures(document),
        plots={name: Markup(svg) for name, svg in plots.items()},
        by_state=lambda state: [promise for promise in document["promises"] if promise["state"] == state],
        extremes=_extremes,
        # HTML does not unescape a script's content, so characters that could end it are escaped as in JSON.
        embedded=Markup(embedded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")),
        # A signature under a printed page is for the file with this fingerprint.
        fingerprint=hashlib.sha256(embedded.encode()).hexdigest(),
        download=quote(embedded, safe=""),
        readable=json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False),
    )


@functools.cache
def _template() -> Template:
    pages = Environment(
        loader=PackageLoader("crenel.pipelines.auditing", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["named"] = title
    pages.filters["printable"] = _printable
    return pages.get_template("page.html")


class _Figures:
    """Writes figures of the document as HTML; each carries its place in the document and its exact value."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def __call__(self, path: Sequence[str | int], say: str = "number") -> Markup:
        """Write the figure at a place: as a share in percent, a span of time, or a number."""
        value = self.value(path)
        where = json.dumps(path)
        if value is None:
            return Markup('<span class="unknown" data-at="{}">{}</span>').format(where, _UNKNOWN)
        if isinstance(value, str):
            return Markup('<span data-at="{}">{}</span>').format(where, clean(value))
        return Markup('<data data-at="{}" value="{}">{}</data>').format(where, json.dumps(value), FORMATS[say](value))

    def waited(self, path: Sequence[str | int]) -> Markup:
        """Write a delay, in the unit in which the document counts delays."""
        unit = self._document["delay"]["unit"]
        said = self(path, "duration" if unit == "seconds" else "number")
        return said if unit == "seconds" or self.value(path) is None else said + Markup(" rows")

    def value(self, path: Sequence[str | int]) -> Any:
        """Look the figure up; None if it, or a part that holds it, was not measured."""
        found: Any = self._document
        for step in path:
            found = found.get(step) if isinstance(found, dict) else found[step]
            if found is None:
                return None
        return found


def _extremes(values: Mapping[Any, float | None] | Sequence[float | None]) -> tuple[Any, Any] | None:
    """Find the places of the least and the greatest known value; None if no value is known."""
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
    known = [(value, place) for place, value in pairs if value is not None]
    if not known:
        return None
    least = min(known, key=lambda pair: pair[0])
    greatest = max(known, key=lambda pair: pair[0])
    return least[1], greatest[1]


def _printable(text: str) -> str:
    """Replace control characters, which HTML cannot hold."""
    return "\n".join(map(clean, text.split("\n")))
