"""The folder of a run: what its workers leave there for each other, and for the end.

Workers may be threads or processes, and a part of the input may be worked on twice: each writes
files of its own, whole or not at all. When the folder goes, whoever still works stops.
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

__all__ = ["Cancelled", "Work"]


class Cancelled(Exception):
    """The run was given up."""


@dataclass(frozen=True)
class Work:
    """The folder, for its workers."""

    folder: str

    #: Whether somebody watches the progress.
    watched: bool = False

    @classmethod
    def begin(cls, beside: Path | None, *, watched: bool = False) -> Work:
        """Make a folder that only its owner may look into, beside a file to come or among temporary ones."""
        prefix = ".crenel-" if beside is None else f".{beside.name}.crenel-"
        return cls(tempfile.mkdtemp(prefix=prefix, dir=None if beside is None else beside.parent), watched)

    def end(self) -> None:
        """Remove the folder, and with it whatever was not finished."""
        # First out of sight: workers look for it by its name.
        away = f"{self.folder}.gone"
        try:
            os.rename(self.folder, away)
        except OSError:
            away = self.folder
        shutil.rmtree(away, ignore_errors=True)

    def check(self) -> None:
        """Go on only if the run does."""
        if not os.path.isdir(self.folder):
            raise Cancelled

    def spool(self, stream: IO[bytes]) -> Path:
        """Keep a stream that can be read only once."""
        descriptor, path = tempfile.mkstemp(dir=self.folder, prefix="input-")
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
        return Path(path)

    @contextmanager
    def part(self, name: str, number: int) -> Iterator[PartWriter]:
        """Write batches that are there for others when all are."""
        path = os.path.join(self.folder, f"{name}-{number:08}.arrow")
        descriptor, unfinished = tempfile.mkstemp(dir=self.folder, prefix="unfinished-")
        with os.fdopen(descriptor, "wb") as file:
            writer = PartWriter(file)
            yield writer
            writer.close()
        if writer.batches:
            os.replace(unfinished, path)
        else:
            os.unlink(unfinished)

    def parts(self, name: str) -> list[str]:
        """The parts of a name, by their numbers."""
        found = [file for file in os.listdir(self.folder) if file.startswith(f"{name}-") and file.endswith(".arrow")]
        return [os.path.join(self.folder, file) for file in sorted(found)]

    def note(self, name: str, number: int, record: Any) -> None:
        """Leave a record."""
        descriptor, unfinished = tempfile.mkstemp(dir=self.folder, prefix="unfinished-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(unfinished, os.path.join(self.folder, f"{name}-{number:08}.json"))

    def notes(self, name: str) -> list[Any]:
        """The records of a name, by their numbers."""
        found = [file for file in os.listdir(self.folder) if file.startswith(f"{name}-") and file.endswith(".json")]
        records = []
        for file in sorted(found):
            with open(os.path.join(self.folder, file), encoding="utf-8") as stream:
                records.append(json.load(stream))
        return records

    def tick(self, what: str, rows: int) -> None:
        """Say how far it is, if somebody watches."""
        if not self.watched:
            return
        descriptor = os.open(os.path.join(self.folder, what), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{rows}\n".encode())
        finally:
            os.close(descriptor)

    def ticked(self, what: str) -> int:
        """How far it is."""
        try:
            with open(os.path.join(self.folder, what), encoding="ascii") as file:
                return sum(int(line) for line in file if line.endswith("\n"))
        except OSError:
            return 0


class PartWriter:
    """Writes batches of one schema, which is that of the first."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._writer: Any = None
        self.batches = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, unless it is empty."""
        if not batch.num_rows:
            return
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)
        self.batches += 1

    def close(self) -> None:
        """Finish the part."""
        if self._writer is not None:
            self._writer.close()
