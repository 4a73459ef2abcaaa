"""Draws the pictures of the architecture page: `python docs/diagrams/draw.py` writes them beside this file.

Each box is a stop of a row: the name of the file where it happens, and what happens there. The tests compare the
pictures with what this program draws, and every name with the tree.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
WIDTH, BOX, GAP, TOP, MARGIN = 216, 56, 14, 84, 16


class Stop(NamedTuple):
    """A box: a file, and what it does to a row."""

    file: str
    does: str


class Band(NamedTuple):
    """A column of boxes: a step of the pipeline, and the folder of its files."""

    step: str
    folder: str
    stops: tuple[Stop, ...]


PACK = Band(
    "PACK",
    "transforms/_pack",
    (
        Stop("pack_step.py", "gathers the rows of a bundle"),
        Stop("text_columns.py", "parses text, where asked to"),
        Stop("encoder.py", "turns values into numbers"),
        Stop("sharding.py", "chooses the row's shard"),
        Stop("row_pack.py", "is one element for many rows"),
    ),
)
HOLD = Band(
    "HOLD",
    "transforms/_hold",
    (
        Stop("hold_step.py", "takes packs, one engine a shard"),
        Stop("shard_holder.py", "keeps what is published as it is"),
        Stop("<method>_engine.py", "decides which rows leave together"),
    ),
)
PUBLISH = Band(
    "PUBLISH",
    "transforms/_publish",
    (
        Stop("publisher.py", "writes the generalization"),
        Stop("emitter.py", "orders in secret, stamps, counts"),
    ),
)
FILES = (
    Band("READ", "pipelines/files", (Stop("readers.py", "reads a file as batches"),)),
    PACK,
    HOLD,
    PUBLISH,
    Band(
        "WRITE",
        "pipelines/files",
        (
            Stop("scratch.py", "keeps parts in a private folder"),
            Stop("secret_order.py", "puts all rows in a secret order"),
            Stop("writers.py", "formats, then renames into place"),
        ),
    ),
)
TOPICS = (
    Band("READ", "pipelines/kafka", (Stop("source.py", "reads a partition, tells the time"),)),
    PACK,
    HOLD,
    PUBLISH,
    Band(
        "WRITE",
        "pipelines/kafka",
        (
            Stop("values.py", "encodes as JSON or Avro"),
            Stop("durable.py", "waits for checkpoints, shuffles"),
            Stop("sink.py", "sends to the topic"),
        ),
    ),
)

_STYLE = """
    .page { fill: #ffffff; } .band { fill: #eef1f8; } .stop { fill: #ffffff; stroke: #5a6bad; }
    .step { font: bold 15px sans-serif; fill: #27336b; } .folder { font: 12px monospace; fill: #55607f; }
    .file { font: bold 13px monospace; fill: #1b2240; } .does { font: 12px sans-serif; fill: #333a55; }
    .way { stroke: #5a6bad; stroke-width: 1.6; fill: none; marker-end: url(#head); }
"""


def picture(bands: tuple[Band, ...], title: str) -> str:
    """The way of a row through the bands, as SVG."""
    most = max(len(band.stops) for band in bands)
    width = MARGIN + len(bands) * (WIDTH + MARGIN)
    height = TOP + most * (BOX + GAP) + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"  <title>{escape(title)}</title>",
        f"  <style>{_STYLE}  </style>",
        '  <defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">',
        '    <path d="M0 0 L8 4 L0 8 z" fill="#5a6bad"/></marker></defs>',
        f'  <rect class="page" width="{width}" height="{height}"/>',
    ]
    ends: list[tuple[int, int]] = []
    for column, band in enumerate(bands):
        left = MARGIN + column * (WIDTH + MARGIN)
        lines += _band(band, left, height)
        for row in range(len(band.stops)):
            ends.append((left, TOP + row * (BOX + GAP)))
    lines += [_way(start, end) for start, end in pairwise(ends)]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _band(band: Band, left: int, height: int) -> list[str]:
    lines = [
        f'  <rect class="band" x="{left}" y="{MARGIN}" width="{WIDTH}" height="{height - 2 * MARGIN}" rx="8"/>',
        f'  <text class="step" x="{left + 12}" y="{MARGIN + 24}">{escape(band.step)}</text>',
        f'  <text class="folder" x="{left + 12}" y="{MARGIN + 44}">{escape(band.folder)}</text>',
    ]
    for row, stop in enumerate(band.stops):
        top = TOP + row * (BOX + GAP)
        lines += [
            f'  <rect class="stop" x="{left + 10}" y="{top}" width="{WIDTH - 20}" height="{BOX}" rx="5"/>',
            f'  <text class="file" x="{left + 18}" y="{top + 22}">{escape(stop.file)}</text>',
            f'  <text class="does" x="{left + 18}" y="{top + 42}">{escape(stop.does)}</text>',
        ]
    return lines


def _way(start: tuple[int, int], end: tuple[int, int]) -> str:
    """An arrow down to the next box, or over to the top of the next band."""
    (x, y), (to_x, to_y) = start, end
    if x == to_x:
        middle = x + WIDTH // 2
        return f'  <path class="way" d="M{middle} {y + BOX} V{to_y}"/>'
    turn = to_x - MARGIN // 2
    return f'  <path class="way" d="M{x + WIDTH - 10} {y + BOX // 2} H{turn} V{to_y + BOX // 2} H{to_x + 10}"/>'


PICTURES = {
    "files.svg": picture(FILES, "The way of a row from a file to a file"),
    "topics.svg": picture(TOPICS, "The way of a row from a topic to a topic"),
}


def main() -> None:
    """Write the pictures."""
    for name, text in PICTURES.items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
