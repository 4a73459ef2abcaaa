"""The page's text, filled with a document's figures."""

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
    """The page: the template, with the document's figures and the plots of them."""
    # ASCII: what is embedded is the same in whatever encoding the page is read.
    embedded = json.dumps(document, ensure_ascii=True, allow_nan=False)
    return _template().render(
        document=document,
        figure=_Figures(document),
        plots={name: Markup(svg) for name, svg in plots.items()},
        by_state=lambda state: [promise for promise in document["promises"] if promise["state"] == state],
        extremes=_extremes,
        # A script's content is not unescaped: what could end it is written as JSON can write it.
        embedded=Markup(embedded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")),
        # Who signs a printed page signs for this file.
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
    """Says figures of the document, each with its place there and its whole value."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def __call__(self, path: Sequence[str | int], say: str = "number") -> Markup:
        """The figure at a place: a share in percent, a span of time, or a number."""
        value = self.value(path)
        where = json.dumps(path)
        if value is None:
            return Markup('<span class="unknown" data-at="{}">{}</span>').format(where, _UNKNOWN)
        if isinstance(value, str):
            return Markup('<span data-at="{}">{}</span>').format(where, clean(value))
        return Markup('<data data-at="{}" value="{}">{}</data>').format(where, json.dumps(value), FORMATS[say](value))

    def waited(self, path: Sequence[str | int]) -> Markup:
        """A delay, in the unit in which delays are counted."""
        unit = self._document["delay"]["unit"]
        said = self(path, "duration" if unit == "seconds" else "number")
        return said if unit == "seconds" or self.value(path) is None else said + Markup(" rows")

    def value(self, path: Sequence[str | int]) -> Any:
        """The figure itself; None where a part was not measured."""
        found: Any = self._document
        for step in path:
            found = found.get(step) if isinstance(found, dict) else found[step]
            if found is None:
                return None
        return found


def _extremes(values: Mapping[Any, float | None] | Sequence[float | None]) -> tuple[Any, Any] | None:
    """Where the least and the greatest of what is known are."""
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
    known = [(value, place) for place, value in pairs if value is not None]
    if not known:
        return None
    least = min(known, key=lambda pair: pair[0])
    greatest = max(known, key=lambda pair: pair[0])
    return least[1], greatest[1]


def _printable(text: str) -> str:
    """A text as HTML can hold it: control characters are none."""
    return "\n".join(map(clean, text.split("\n")))
