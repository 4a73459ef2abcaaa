"""The diagrams of the architecture match the tree."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs" / "diagrams" / "draw.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stops(way: str) -> list[str]:
    return [stop.file for band in getattr(drawing(), way) for stop in band.stops]


def test_the_pictures_are_drawn_anew() -> None:
    for name, text in drawing().PICTURES.items():
        assert (ROOT / "docs" / "diagrams" / name).read_text("utf-8") == text, "run python docs/diagrams/draw.py"


def test_a_row_makes_at_most_fifteen_stops_and_none_twice() -> None:
    for way in ("FILES", "TOPICS"):
        assert len(stops(way)) == len(set(stops(way))) <= 15


def test_the_ways_differ_in_reader_and_writer_only() -> None:
    between = [[band for band in getattr(drawing(), way)[1:-1]] for way in ("FILES", "TOPICS")]
    assert between[0] == between[1]


def test_every_box_is_a_file_of_the_tree() -> None:
    files = {path.name for folder in ("core", "transforms", "pipelines") for path in (ROOT / folder).rglob("*.py")}
    for way in ("FILES", "TOPICS"):
        for file in stops(way):
            assert file.replace("<method>", "bastion") in files, file
            assert f"`{file}`" in PAGE, file


def test_every_folder_of_the_page_is_there() -> None:
    for folder in re.findall(r"\| `((?:core|transforms|pipelines)[\w/]*)`", PAGE):
        assert (ROOT / folder).is_dir(), folder
