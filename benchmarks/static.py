"""The loss of Mondrian on Adult, with all rows at once, and in windows.

python -m benchmarks.static             the table of docs/mondrian.md
python -m benchmarks.static --quick     a tenth of the rows, as a smoke test
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.castle_paper import REFERENCES
from benchmarks.datasets import Stream
from benchmarks.tables import finish, rounded, table
from crenel.engine.methods.mondrian.mondrian_engine import groups_of, partition
from crenel.engine.space import space_of


def loss(stream: Stream, k: int, window: int) -> float:
    """Return the mean loss of the rows in windows of `window` rows. A row without a group loses everything."""
    space = space_of(stream.policy(k=k, delay_rows=window))
    total = 0.0
    for start in range(0, len(stream.rows), window):
        rows = stream.rows.slice(start, min(start + window, len(stream.rows)))
        group = partition(space, rows, k)
        found = groups_of(space, rows, group)
        total += float(found.loss @ np.diff(found.offsets)) + float((group < 0).sum())
    return total / len(stream.rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.static", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows; figures mean nothing")
    quick = parser.parse_args(arguments).quick
    figures: dict[str, Any] = {"quick": quick, "static": []}
    lines = []
    for case in REFERENCES:
        stream = datasets.adult(case.quasi_identifiers)
        stream = stream.first(len(stream.rows) // 10) if quick else stream
        loss(stream.first(1_000), case.k, 1_000)  # compile first
        begun = time.process_time()
        whole = loss(stream, case.k, len(stream.rows))
        took = 1_000 * (time.process_time() - begun)
        windowed = loss(stream, case.k, case.delay_rows)
        lines.append([case.name, case.k, whole, took, case.delay_rows, windowed])
        figures["static"].append(
            {"k": case.k, "window": case.delay_rows, "all": rounded(whole), "windows": rounded(windowed)}
        )
    print(table(["UCI-Adult", "k", "all at once", "ms", "windows of", "loss"], lines) + "\n")
    finish(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
