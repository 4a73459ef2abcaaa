"""MkDocs hooks: pages from outside docs/, links for GitHub and the site alike, and nothing loaded from another host."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent

#: Files outside docs/ that are pages of the site, and the names of these pages.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
}
_SOURCES = {page: source for source, page in PAGES.items()}

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_LAYOUT = re.compile(r"<(table|tr|td)>")
_LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite links, which are written relative to the tree as GitHub shows it, to be relative to the site."""
    place = page.file.src_uri
    source = _SOURCES.get(place, f"docs/{place}")
    # GitHub renders Markdown inside an HTML table; MkDocs does so only if the table asks for it.
    markdown = _LAYOUT.sub(r'<\1 markdown="block">', markdown)
    return _LINK.sub(lambda link: _on_site(link, source, place), markdown)


def on_post_build(config: Any) -> None:
    """Fail if a page loads something from another host: the site must work offline, and must not track its readers."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        loaded = _LOADED.search(path.read_text("utf-8"))
        if loaded is not None:
            msg = f"{path.name} loads {loaded[1]}: the site must not load anything from another host."
            raise PluginError(msg)


def _on_site(link: re.Match[str], source: str, place: str) -> str:
    """Return the link for the site. A file of the tree that is not a page is named instead of linked."""
    target = link["target"]
    if re.match(r"[a-z]+:", target):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path.startswith("docs/") or path in PAGES:
        inside = PAGES.get(path, path.removeprefix("docs/"))
        relative = posixpath.relpath(inside, posixpath.dirname(place) or ".")
        return f"{link['image']}[{link['text']}]({relative}{link['anchor'] or ''})"
    if not (ROOT / path).exists():
        return link[0]  # MkDocs warns about it, and `make docs` turns the warning into an error
    return link["text"] if path in link["text"] else f"{link['text']} (`{path}`)"
