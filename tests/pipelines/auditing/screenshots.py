"""Takes pictures of the audit's page for the documentation: of an example, or of what `crenel audit --json` printed."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from PIL import Image

from crenel.pipelines.auditing.page import write
from tests.conftest import ROOT
from tests.pipelines.auditing import documents
from tests.pipelines.auditing.browser import chromium, resize, screenshot

#: The width of the page, and in how many columns its picture is cut.
SIZES = {"desktop": (1120, 1), "phone": (390, 4)}
_GAP = 30


def columns(picture: Image.Image, count: int) -> Image.Image:
    """Cut a tall picture into columns side by side, in few colours: the page has few."""
    width, height = picture.width, -(-picture.height // count)
    sheet = Image.new("RGB", (count * width + (count - 1) * _GAP, height), "#c9ced6" if count > 1 else "white")
    for place in range(count):
        sheet.paste("white", (place * (width + _GAP), 0, place * (width + _GAP) + width, height))
        part = picture.crop((0, place * height, width, min((place + 1) * height, picture.height)))
        sheet.paste(part, (place * (width + _GAP), 0))
    # Colours are chosen by how much of the colour space they cover, so that the few red dots stay red.
    return sheet.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("document", type=Path, nargs="?", help="a file of the audit's JSON; without it, an example")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="the folder of the pictures")
    said = parser.parse_args()
    document = json.loads(said.document.read_text("utf-8")) if said.document else documents.kept()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page, whole = Path(folder) / "audit.html", Path(folder) / "whole.png"
        write(document, page)
        for name, (width, count) in SIZES.items():
            resize(browser, width)
            browser.get(page.as_uri())
            screenshot(browser, whole)
            path = said.out / f"audit-{name}.png"
            columns(Image.open(whole).convert("RGB"), count).save(path, optimize=True)
            print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
