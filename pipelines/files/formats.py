"""The formats of files of rows: a file's extensions say which one it has, and how it is compressed."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from crenel.encoding.text_format import TextFormat
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.debezium import Envelopes
from crenel.policy.checks import suggestion

__all__ = [
    "COMPRESSIONS",
    "FORMATS",
    "USUAL",
    "Dialect",
    "FileKind",
    "Format",
    "TableError",
    "detect",
    "format_names",
    "kind_of",
]


class TableError(CommandError):
    """A file cannot be read as rows. The message names the file, and never quotes what a row holds."""


@dataclass(frozen=True)
class Format:
    """How the rows of a file are written."""

    #: Its name, for the user.
    name: str

    #: Whether it is text. A text file may be compressed as a whole.
    text: bool = False

    #: Whether the format has no types: every value is text, and the policy says which columns are numbers.
    untyped: bool = False


class FileKind(NamedTuple):
    """What a file's extensions say about it."""

    format: Format

    #: Arrow's name of the compression of the whole file, or None.
    compression: str | None


@dataclass(frozen=True)
class Dialect:
    """How a text file is written, where its extension and its first line do not tell."""

    #: What separates the columns of CSV; None for what its first line shows.
    delimiter: str | None = None

    #: The encoding of text, by its name in Python.
    encoding: str = "utf-8"

    #: How its numbers and dates are written.
    values: TextFormat = field(default_factory=TextFormat)

    #: What opens the lines of JSON, if each is an envelope of a change.
    envelopes: Envelopes | None = None


#: What is expected of a file of which nobody says more.
USUAL = Dialect()

_JSON_LINES = Format("JSON lines", text=True)

#: The formats by a file's extension. Where several extensions have one format, the first stands for it.
FORMATS: dict[str, Format] = {
    ".csv": Format("CSV", text=True, untyped=True),
    ".tsv": Format("TSV", text=True, untyped=True),
    ".jsonl": _JSON_LINES,
    ".ndjson": _JSON_LINES,
    ".json": _JSON_LINES,
    ".parquet": Format("Parquet"),
    ".avro": Format("Avro"),
}

#: Arrow's names of the compressions, by a file's last extension.
COMPRESSIONS: dict[str, str] = {".bz2": "bz2", ".gz": "gzip", ".zst": "zstd"}


def detect(path: str | PathLike[str]) -> FileKind:
    """Find the format of a file by its extensions, upper or lower case. The file need not exist.

    Raises:
        TableError: no format has this extension.
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    compression = COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    if compression is not None:
        suffixes.pop()
    found = FORMATS.get(suffixes[-1]) if suffixes else None
    if found is None:
        given = suffixes[-1] if suffixes else ""
        msg = (
            f"{Path(path).name}: the extension must be one of {', '.join(FORMATS)}, "
            f"not {given!r}; {suggestion(given, FORMATS)}text may also be compressed "
            f"({', '.join(COMPRESSIONS)})."
        )
        raise TableError(msg)
    if compression is not None and not found.text:
        msg = f"{Path(path).name}: only text may be compressed as a whole, and {found.name} is not text."
        raise TableError(msg)
    return FileKind(found, compression)


def format_names() -> dict[str, str]:
    """Map the name of each format on the command line to the extension that stands for it."""
    return {extension[1:]: extension for extension in FORMATS}


def kind_of(path: Path, named: str | None) -> tuple[str, str | None]:
    """Find the extension that stands for a file's format, and Arrow's name of its compression.

    Args:
        path: The file.
        named: The name of its format, if the user gave one: it overrules the extension.

    Raises:
        TableError: no format is named, and none has the file's extension.
    """
    if named is None:
        kind = detect(path)
        return next(extension for extension, known in FORMATS.items() if known is kind.format), kind.compression
    extension = format_names()[named]
    return extension, COMPRESSIONS.get(path.suffix.lower()) if FORMATS[extension].text else None
