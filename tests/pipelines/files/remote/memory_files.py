"""A file system of Beam's that keeps files in memory, and fails when it is told to."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, ClassVar

from apache_beam.io.filesystem import BeamIOError, FileMetadata, FileSystem


class MemoryFiles(FileSystem):
    """Files under `crenelmem://`."""

    files: ClassVar[dict[str, bytes]] = {}
    #: Every name that ever was there.
    seen: ClassVar[list[str]] = []
    #: The operation that fails, by the end of the name of its file.
    failing: ClassVar[dict[str, str]] = {}

    @classmethod
    def reset(cls) -> None:
        cls.files.clear()
        cls.seen.clear()
        cls.failing.clear()

    @classmethod
    def scheme(cls) -> str:
        return "crenelmem"

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath, *paths])

    def split(self, path: str) -> tuple[str, str]:
        folder, _, name = path.rpartition("/")
        return folder, name

    def mkdirs(self, path: str) -> None:
        raise NotImplementedError

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        self._check("list", dir_or_prefix)
        return (FileMetadata(name, len(data)) for name, data in self.files.items() if name.startswith(dir_or_prefix))

    def _check(self, what: str, path: str) -> None:
        for end, failing in self.failing.items():
            if failing == what and (path.endswith(end) or f"{end}.crenel-" in path):
                msg = f"{what} is denied\nand more"
                raise BeamIOError("it failed", {path: PermissionError(msg)})

    def create(self, path: str, mime_type: Any = None, compression_type: Any = None) -> Any:
        self._check("create", path)
        files, seen = self.files, self.seen

        class Writer(io.BytesIO):
            def close(self) -> None:
                files[path] = self.getvalue()
                seen.append(path)
                super().close()

        return Writer()

    def open(self, path: str, mime_type: Any = None, compression_type: Any = None) -> Any:
        self._check("open", path)
        return io.BytesIO(self.files[path])

    def copy(self, source_file_names: Any, destination_file_names: Any) -> None:
        raise NotImplementedError

    def rename(self, source_file_names: Any, destination_file_names: Any) -> None:
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            self._check("rename", destination)
            self.files[destination] = self.files.pop(source)

    def exists(self, path: str) -> bool:
        return path in self.files

    def size(self, path: str) -> int:
        return len(self.files[path])

    def last_updated(self, path: str) -> float:
        raise NotImplementedError

    def checksum(self, path: str) -> str:
        raise NotImplementedError

    def metadata(self, path: str) -> FileMetadata:
        return FileMetadata(path, self.size(path))

    def delete(self, paths: Any) -> None:
        for path in paths:
            self.files.pop(path, None)
