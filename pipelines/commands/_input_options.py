"""How input files on the command line are read: how text is written, and how much of a large file is looked at."""

from __future__ import annotations

import argparse
import codecs
from typing import TYPE_CHECKING

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.debezium import DEBEZIUM, Deletes, Envelopes

if TYPE_CHECKING:
    from crenel.pipelines.files.formats import Dialect

__all__ = ["add_dialect", "add_sample", "check_no_envelope", "dialect_of", "integer", "number"]

#: Rows that are looked at in a larger file.
SAMPLED = 200_000

#: Delimiters that are hard to give to a shell, by their names.
_NAMED = {"tab": "\t", "\\t": "\t"}


def add_dialect(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--delimiter",
        metavar="C",
        type=_delimiter,
        help="what separates the columns of CSV input: one character, or tab; by default what its first line shows",
    )
    parser.add_argument(
        "--encoding",
        metavar="NAME",
        type=_encoding,
        default="utf-8",
        help="the encoding of text input, such as latin-1, cp1252 or utf-16; utf-8 by default",
    )
    _add_values(parser)
    _add_envelope(parser)


def _add_values(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decimal",
        metavar="C",
        choices=(".", ","),
        default=".",
        help="the decimal sign of numbers in text input: a point (the default), or a comma",
    )
    parser.add_argument(
        "--date-format",
        metavar="F",
        type=_date_format,
        help="how dates are written in text input, such as %%d/%%m/%%Y; those with the year first are read in any case",
    )


def _add_envelope(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--envelope",
        metavar="NAME",
        choices=(DEBEZIUM,),
        help="JSON lines with an envelope around each row: debezium reads the row after each change",
    )
    parser.add_argument(
        "--deletes",
        choices=[one.value for one in Deletes],
        help="with --envelope, changes without a row (deletes, truncates, tombstones): ignore (the default), or reject",
    )


def check_no_envelope(arguments: argparse.Namespace) -> None:
    """Refuse the options of envelopes where the input is no file.

    Raises:
        CommandError: they are given.
    """
    if arguments.envelope or arguments.deletes:
        msg = "--envelope and --deletes are for files; of a topic of Kafka, write ?envelope=debezium&deletes=reject."
        raise CommandError(msg)


def add_sample(parser: argparse.ArgumentParser) -> None:
    """Declare how much of a large file is looked at."""
    parser.add_argument(
        "--sample",
        metavar="N",
        type=_rows,
        default=SAMPLED,
        help=f"rows to look at in a larger file, in stretches of consecutive rows ({SAMPLED:,}); 0 for all",
    )


def dialect_of(arguments: argparse.Namespace) -> Dialect:
    """Return what the options say."""
    from crenel.encoding.text_format import TextFormat
    from crenel.pipelines.files.formats import Dialect

    if arguments.deletes and not arguments.envelope:
        msg = "--deletes needs --envelope debezium."
        raise CommandError(msg)
    envelopes = Envelopes(Deletes(arguments.deletes or Deletes.IGNORE)) if arguments.envelope else None
    written = TextFormat(arguments.decimal, arguments.date_format)
    return Dialect(arguments.delimiter, arguments.encoding, written, envelopes)


def integer(text: str) -> int:
    """Read an option that is a whole number."""
    try:
        return int(text)
    except ValueError:
        msg = f"must be a whole number such as 10, not {text!r}"
        raise argparse.ArgumentTypeError(msg) from None


def number(text: str) -> float:
    """Read an option that is a number."""
    try:
        return float(text)
    except ValueError:
        msg = f"must be a number such as 0.1, not {text!r}"
        raise argparse.ArgumentTypeError(msg) from None


def _rows(text: str) -> int | None:
    if not text.isdecimal():
        msg = f"must be a number of rows, or 0 for all, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text) or None


def _date_format(text: str) -> str:
    from crenel.encoding.text_format import TextFormat

    try:
        TextFormat(date_format=text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("date_format ").rstrip(".")) from None
    return text


def _delimiter(text: str) -> str:
    delimiter = _NAMED.get(text, text)
    if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
        msg = f"must be one character, such as ';', or tab, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return delimiter


def _encoding(text: str) -> str:
    try:
        known = codecs.lookup(text)
    except LookupError:
        known = None
    if known is None or not known._is_text_encoding:
        msg = f"must be an encoding that Python knows, such as latin-1, cp1252 or utf-16, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return known.name
