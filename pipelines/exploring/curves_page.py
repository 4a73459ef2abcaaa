"""The page of `crenel explore`: a curve for each k, over the deadlines. It needs nothing but itself.

It has no script and asks the network for nothing, and its content security policy forbids both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from crenel.pipelines.command_errors import CommandError

__all__ = ["render"]

#: The plots: the figure of a setting, and its heading. Their order is that of the page.
PLOTS = {
    "suppressed": "Rows that find no group in time",
    "loss": "Loss",
    "error": "Error of queries",
    "wait": "Mean wait of a row",
}


def render(document: Mapping[str, Any]) -> str:
    """Make the page of what was explored. The same document always gives the same text.

    Raises:
        CommandError: a package that the page needs is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup

        from crenel.pipelines.auditing.page.words import clean, number, percent
        from crenel.pipelines.exploring.curves import draw
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"jinja2", "markupsafe", "matplotlib"}:
            raise
        msg = f"The page needs the package {error.name}. Run: pip install 'crenel[report]'"
        raise CommandError(msg) from None
    from crenel.policy.durations import span_of_seconds

    def wait(value: float | None) -> str:
        if value is None:
            return ""
        return span_of_seconds(value) if document["unit"] == "seconds" else f"{number(value)} rows"

    pages = Environment(
        loader=PackageLoader("crenel.pipelines", "exploring"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "printable": clean,
        "percent": lambda value: "" if value is None else percent(value),
        "wait": wait,
    }
    pages.filters |= filters
    plots = {name: Markup(svg) for name, svg in draw(document, PLOTS).items()}
    return pages.get_template("curves.html").render(document=document, plots=plots, headings=PLOTS)
