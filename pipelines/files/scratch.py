"""The private folder of a run, in which its workers leave parts of the outputs.

Workers may be threads or processes, and a bundle may run twice. So each part is a file of its own, and counts only if
the manifest names it (see `file_job`). When the folder disappears, workers that are still busy stop.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from crenel.pipelines.files.private_folder import PrivateFolder
from crenel.pipelines.files.write_errors import cannot_write, explained

__all__ = ["Cancelled", "PartWriter", "Scratch"]


class Cancelled(Exception):
    """The run was given up."""


@dataclass(frozen=True)
class Scratch:
    """The folder, as its workers see it."""

    folder: str

    #: Whether somebody watches the progress.
    watched: bool = False

    @classmethod
    @contextmanager
    def begin(cls, beside: Path | None, *, watched: bool = False) -> Iterator[Scratch]:
        """Make a private folder, beside an output or among temporary files, and remove it at the end.

        Raises:
            CommandError: the folder cannot be made, or not be written to.
        """
        try:
            folder = PrivateFolder.begin(beside)
        except OSError as error:
            place = f"the folder {tempfile.gettempdir() if beside is None else beside.parent}"
            raise cannot_write(place, error.errno) from None
        with folder, explained(folder.path):
            yield cls(folder.path, watched)

    def check(self) -> None:
        """Stop if the run was given up.

        Raises:
            Cancelled: the folder is gone.
        """
        if not os.path.isdir(self.folder):
            raise Cancelled

    def spool(self, stream: IO[bytes]) -> Path:
        """Copy a stream that can be read only once into a file."""
        descriptor, path = tempfile.mkstemp(dir=self.folder, prefix="input-")
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
        return Path(path)

    def part(self, output: str) -> PartWriter:
        """Begin a part of an output, under a name that no other part has."""
        descriptor, path = tempfile.mkstemp(dir=self.folder, prefix=f"{output}-", suffix=".arrow")
        return PartWriter(os.fdopen(descriptor, "wb"), os.path.basename(path))

    def path(self, part: str) -> str:
        """The path of a part."""
        return os.path.join(self.folder, part)

    def sorted_folder(self) -> str:
        """The folder for rows that are sorted on disk; it is made if it is not there."""
        folder = self.path("sorted")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return folder

    def clear_sorted(self) -> None:
        """Remove rows that were sorted on disk, to make room for what is made of them."""
        shutil.rmtree(self.path("sorted"), ignore_errors=True)

    def note(self, name: str, number: int, record: Any) -> None:
        """Leave a record of plain values: all of it, or none."""
        descriptor, unfinished = tempfile.mkstemp(dir=self.folder, prefix="unfinished-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(unfinished, os.path.join(self.folder, f"{name}-{number:08}.json"))

    def notes(self, name: str) -> list[Any]:
        """Read the records of a name, in the order of their numbers."""
        found = [file for file in os.listdir(self.folder) if file.startswith(f"{name}-") and file.endswith(".json")]
        records = []
        for file in sorted(found):
            with open(os.path.join(self.folder, file), encoding="utf-8") as stream:
                records.append(json.load(stream))
        return records

    def tick(self, what: str, rows: int) -> None:
        """Report progress, if somebody watches."""
        if not self.watched:
            return
        descriptor = os.open(os.path.join(self.folder, what), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{rows}\n".encode())
        finally:
            os.close(descriptor)

    def ticked(self, what: str) -> int:
        """Sum up the progress."""
        try:
            with open(os.path.join(self.folder, what), encoding="ascii") as file:
                return sum(int(line) for line in file if line.endswith("\n"))
        except OSError:
            return 0


class PartWriter:
    """Writes batches of one schema, that of the first, into a file."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._writer: Any = None
        self.name = name

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()
        self._file.close()
