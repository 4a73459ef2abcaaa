"""Draft a policy from data: types, domains, and a guess at each column's role.

The data are CSV with a header, JSON lines (both may be .gz or .zst), Parquet or Avro. The draft
gives its reasons as comments. A column that it is not sure about is commented out, and so is never
published. The draft holds the values of columns that have only a few, and rounded domains: keep it
as you keep the data until you have read it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.commands._input_options import add_dialect, add_sample, dialect_of
from crenel.pipelines.commands.run import quiet

if TYPE_CHECKING:
    from crenel.pipelines.files.formats import Dialect

__all__ = ["EXAMPLE", "add_arguments", "run"]

EXAMPLE = "  crenel init visits.csv --output policy.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("data", help="a sample of the rows")
    parser.add_argument("--output", metavar="FILE", help="the file to write; without it, the draft is printed")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    add_dialect(parser)
    add_sample(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the draft, or write it to a file."""
    output = None if arguments.output is None else Path(arguments.output)
    if output is not None and output.exists() and not arguments.force:
        msg = f"{output} exists already. Use --force to overwrite it."
        raise CommandError(msg)
    text = _draft(arguments.data, dialect_of(arguments), arguments.sample)
    if output is None:
        sys.stdout.write(text)
        return 0
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{output} cannot be written: {(error.strerror or 'failed').lower()}."
        raise CommandError(msg) from None
    print(f"Wrote {output}. Read it, then run: crenel check {output} --data {arguments.data}")
    return 0


def _draft(path: str, dialect: Dialect, most: int | None) -> str:
    from crenel.pipelines.drafting.draft import draft
    from crenel.pipelines.drafting.profiles import profile
    from crenel.pipelines.drafting.roles import choose

    with quiet():  # loads Beam
        from crenel.pipelines.files.file_rows import read
    rows = read(path, dialect, most)
    profiles = [profile(name, rows.table[name]) for name in rows.table.column_names]
    return draft(choose(profiles), Path(path).name, rows.table.num_rows, rows.total)
