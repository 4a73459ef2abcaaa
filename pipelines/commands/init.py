"""Draft a policy from data: types, domains, and a guess at each column's role.

The data are CSV with a header, JSON lines or one JSON array (all may be .gz, .bz2 or .zst), Parquet or Avro. The draft
gives its reasons as comments. A column that it is not sure about is commented out, and so is never
published. The draft holds the values of columns that have only a few, and rounded domains. With --output,
a category of many values gets a hierarchy in a file beside the policy, which holds these values. Keep
both as you keep the data until you have read them. The file policy.schema.json, which is written too,
lets an editor complete the policy.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.commands._input_options import add_dialect, add_sample, dialect_of
from crenel.pipelines.commands.run import quiet
from crenel.pipelines.console.sections import listed

if TYPE_CHECKING:
    from crenel.pipelines.files.formats import Dialect

__all__ = ["EXAMPLE", "add_arguments", "run"]

#: The schema beside the policy, by which an editor completes it; and the name that it gives itself.
SCHEMA, SCHEMA_ID = "policy.schema.json", "urn:crenel:policy:1"

EXAMPLE = "  crenel init visits.csv --output policy.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("data", help="a sample of the rows")
    parser.add_argument("--output", metavar="FILE", help="the file to write; without it, the draft is printed")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--person", metavar="COLUMN", help="the column that tells persons apart, if you know it")
    who.add_argument("--each-row", action="store_true", help="each row is about a person of its own")
    add_dialect(parser)
    add_sample(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the draft, or write it to a file."""
    output = None if arguments.output is None else Path(arguments.output)
    if output is not None:
        _check_place(output, force=arguments.force)
    from crenel.pipelines.drafting.policy_schema import policy_schema

    drafted = _draft(arguments, can_write=output is not None)
    text, files = drafted.text, drafted.files
    if output is None:
        sys.stdout.write(text)
        return 0
    beside = [output.parent / name for name in files]
    known = [str(path) for path in beside if path.exists() and not arguments.force]
    if known:
        msg = f"{listed(known)} would be written beside the policy, and is there already. Use --force to overwrite it."
        raise CommandError(msg)
    contents = {output: text, **dict(zip(beside, files.values(), strict=True))}
    wrote = f"{output} and {listed(map(str, beside))}, with values of the data" if beside else f"{output}"
    schema = output.parent / SCHEMA
    if _may_write_schema(schema):
        contents[output] = f"# yaml-language-server: $schema={SCHEMA}\n{text}"
        contents[schema] = json.dumps(policy_schema(), indent=2) + "\n"
        wrote += f"; and {schema}, by which an editor completes the policy"
    for path, content in contents.items():
        _write(path, content)
    print(f"Wrote {wrote}.", *_next(drafted, arguments))
    return 0


def _check_place(output: Path, *, force: bool) -> None:
    """Refuse to overwrite a file, and to write into a folder that is not there."""
    if output.exists() and not force:
        msg = f"{output} exists already. Use --force to overwrite it."
        raise CommandError(msg)
    if not output.parent.is_dir():
        msg = f"{output}: there is no folder {output.parent} to write it to."
        raise CommandError(msg)


def _next(drafted: _Drafted, arguments: argparse.Namespace) -> list[str]:
    """Say what to do next."""
    if drafted.lacking:
        return ["It does not load yet:", *drafted.lacking]
    command = ["crenel check", arguments.output, "--data", shlex.quote(arguments.data), *drafted.options]
    return ["Read it, then run:", " ".join(command)]


def _may_write_schema(path: Path) -> bool:
    """Whether there is no file of this name, or an earlier schema of ours."""
    return not path.exists() or f'"{SCHEMA_ID}"' in path.read_text("utf-8", "replace")


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        msg = f"{path} cannot be written: {(error.strerror or 'failed').lower()}."
        raise CommandError(msg) from None


class _Drafted(NamedTuple):
    """The draft, the files that it names, and the options that the data need."""

    text: str
    files: dict[str, str]
    options: list[str]
    #: What keeps the draft from being a policy yet.
    lacking: list[str]


def _draft(arguments: argparse.Namespace, *, can_write: bool) -> _Drafted:
    from crenel.pipelines.drafting.draft import draft, hierarchies
    from crenel.pipelines.drafting.profiles import profile
    from crenel.pipelines.drafting.roles import choose

    with quiet():  # loads Beam
        from crenel.pipelines.files.file_rows import read
    dialect = dialect_of(arguments)
    rows = read(arguments.data, dialect, arguments.sample)
    _check_person(arguments.person, rows.table.column_names)
    profiles = [profile(name, rows.table[name]) for name in rows.table.column_names]
    roles = choose(
        profiles,
        can_write=can_write,
        ambiguous=rows.sniffed.ambiguous,
        person=arguments.person,
        each_row=arguments.each_row,
    )
    options = _options(replace(dialect, values=rows.sniffed.written))
    text = draft(roles, Path(arguments.data).name, rows.table.num_rows, rows.total, options)
    return _Drafted(text, hierarchies(roles), options, roles.lacking)


def _check_person(name: str | None, there: list[str]) -> None:
    from crenel.policy.checks import suggestion

    if name is not None and name not in there:
        guess = suggestion(name, there)
        msg = f"--person: the data have no column {name!r}. {guess[:1].upper()}{guess[1:]}".strip()
        raise CommandError(msg)


def _options(dialect: Dialect) -> list[str]:
    """What other commands must be told about the data: what the user said, and what the values show."""
    from crenel.pipelines.files.formats import USUAL

    written, usual = dialect.values, USUAL.values
    told = {
        "--delimiter": dialect.delimiter,
        "--encoding": dialect.encoding if dialect.encoding != USUAL.encoding else None,
        "--decimal": written.decimal if written.decimal != usual.decimal else None,
        "--date-format": written.date_format,
    }
    return [word for name, value in told.items() if value is not None for word in (name, shlex.quote(value))]
