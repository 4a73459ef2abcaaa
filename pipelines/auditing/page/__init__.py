"""The audit as one page: HTML that needs nothing but itself.

The page is made of the audit's JSON document, holds it, and says nothing that is not in it. It has no
script, asks the network for nothing, and its own policy forbids both: it can be mailed, printed,
and signed for. Names of columns are somebody's, and are written as text wherever they appear.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crenel.pipelines.command_errors import CommandError

__all__ = ["render", "write"]


def write(document: Mapping[str, Any], path: str | Path) -> None:
    """Write the page of an audit's document to a file."""
    Path(path).write_text(render(document), "utf-8")


def render(document: Mapping[str, Any]) -> str:
    """The page of an audit's document: the same document, the same text.

    Raises:
        CommandError: what draws and writes the page is not installed.
        ValueError: the document is not JSON, which knows neither NaN nor infinite numbers.
    """
    try:
        from crenel.pipelines.auditing.page import plots
        from crenel.pipelines.auditing.page.template import fill
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"jinja2", "markupsafe", "matplotlib"}:
            raise
        msg = f"The page needs the package {error.name}: pip install 'crenel[report]'."
        raise CommandError(msg) from None

    # What is shown is what is embedded, to the last digit.
    known = json.loads(json.dumps(document, allow_nan=False))
    return fill(known, plots.draw(known))
