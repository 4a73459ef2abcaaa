"""The audit as one HTML page that needs nothing but itself.

The page is made from the audit's JSON document, contains it, and shows nothing that is not in it. It has no script and
asks the network for nothing, and its content security policy forbids both, so it can be mailed, printed and signed.
Column names come from the user, so they are escaped wherever they appear.
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
    """Make the page of an audit's document. The same document always gives the same text.

    Raises:
        CommandError: a package that the page needs is not installed.
        ValueError: the document holds NaN or an infinite number, which JSON cannot.
    """
    try:
        from crenel.pipelines.auditing.page import plots
        from crenel.pipelines.auditing.page.template import fill
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"jinja2", "markupsafe", "matplotlib"}:
            raise
        msg = f"The page needs the package {error.name}. Run: pip install 'crenel[report]'"
        raise CommandError(msg) from None

    # The page shows what it embeds, to the last digit.
    known = json.loads(json.dumps(document, allow_nan=False))
    return fill(known, plots.draw(known))
