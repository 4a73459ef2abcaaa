"""Compiles files of Protobuf: text by protoc, and the descriptors that some clients register instead of text."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.registry.column_kinds import RefusedSchema
from crenel.pipelines.kafka.registry.registry_client import Schema

__all__ = ["messages_of"]

#: Seconds that protoc may take.
_PATIENCE = 60
#: The name of the schema's own file, which no other has.
_MAIN = "crenel-main.proto"
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
_BROKEN = "is not a file of Protobuf that can be compiled"


def messages_of(schema: Schema) -> list[Any]:
    """The descriptors of a file's messages.

    Raises:
        RefusedSchema: it cannot be compiled.
        CommandError: there is no compiler.
    """
    files = _decoded(schema) if _BASE64.fullmatch(schema.text) else _compiled(schema)
    # Schemas of different ids define messages of the same name: each has a pool of its own.
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.Add(file)
        found = pool.FindFileByName(files[-1].name).message_types_by_name
    except (TypeError, KeyError):
        raise RefusedSchema(_BROKEN) from None
    return [found[message.name] for message in files[-1].message_type]


def _decoded(schema: Schema) -> list[Any]:
    """The files that are kept as descriptors."""
    try:
        files = [_descriptor(text, name) for name, text in schema.references]
        files.append(_descriptor(schema.text, _MAIN))
    except (ValueError, DecodeError):  # also the errors of base64
        raise RefusedSchema(_BROKEN) from None
    known = {file.name for file in files}
    googles = [name for file in files for name in file.dependency if name not in known]
    return [*_of_google(googles), *files]


def _descriptor(text: str, name: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
    file.name = name
    return file


def _of_google(names: Iterable[str]) -> list[Any]:
    """The files that come with Protobuf."""
    from google.protobuf import timestamp_pb2, wrappers_pb2

    offered = {one.DESCRIPTOR.name: one.DESCRIPTOR for one in (timestamp_pb2, wrappers_pb2)}
    found = []
    for name in dict.fromkeys(names):
        if name not in offered:
            msg = f"imports {name}, which the registry does not have"
            raise RefusedSchema(msg)
        file = descriptor_pb2.FileDescriptorProto()
        offered[name].CopyToProto(file)
        found.append(file)
    return found


def _compiled(schema: Schema) -> list[Any]:
    """The files that are kept as text, compiled in a process of their own: what protoc says is not for our streams."""
    with tempfile.TemporaryDirectory(prefix="crenel-proto-") as folder:
        for name, text in (*schema.references, (_MAIN, schema.text)):
            _write(Path(folder), name, text)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{_googles_folder()}"]
        command += ["--include_imports", f"--descriptor_set_out={folder}/set", _MAIN]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_PATIENCE, check=False)
        if done.returncode != 0:
            raise RefusedSchema(_BROKEN)
        files = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / "set").read_bytes()).file
    return list(files)


def _write(folder: Path, name: str, text: str) -> None:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts:
        raise RefusedSchema(_BROKEN)
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _googles_folder() -> str:
    try:
        import grpc_tools
    except ImportError:
        msg = "schemas of Protobuf need protoc: pip install 'crenel[registry]'."
        raise CommandError(msg) from None
    return os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
