"""A real schema registry on the loopback address: Apicurio, from Maven Central, by its interface like Confluent's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from crenel.runners.flink.ports import free_ports
from crenel.runners.flink.processes import Process

#: The last release that runs on Java 17.
VERSION = "3.0.9"
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_PATH = "/apis/ccompat/v7"


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "crenel" / f"apicurio-{VERSION}"


def missing() -> str | None:
    """The missing requirement, in a sentence; None if nothing is missing."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None and (tool == "java" or not (_folder() / "complete").exists()):
            return f"needs {tool}, to start a schema registry."
    for module in ("confluent_kafka.schema_registry", "grpc_tools"):
        try:
            __import__(module)
        except ImportError:
            return "needs a registry's client: pip install 'crenel[registry]'."
    return None


def program() -> Path:
    """The folder of the registry, which is downloaded once. Maven verifies its checksum."""
    folder = _folder()
    if not (folder / "complete").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            command = ["mvn", "-q", "-B", "-C", "dependency:copy", f"-Dartifact={_ARTIFACT}"]
            subprocess.run([*command, f"-DoutputDirectory={scratch}"], cwd=scratch, check=True, timeout=600)
            with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as packed:
                packed.extractall(Path(scratch) / "program", filter="data")
            (Path(scratch) / "program" / "complete").touch()
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(Path(scratch) / "program", folder)
    return folder


class Registry:
    """A registry, which can be stopped and started again; it forgets everything then. Its address stays.

    Args:
        folder: The folder of its log.
    """

    def __init__(self, folder: Path) -> None:
        (self._port,) = free_ports(1)
        self._log = folder / "registry.log"
        self._process: Process | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """Its address, for clients of Confluent's interface."""
        return f"http://localhost:{self._port}{_PATH}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        jar = next(program().glob("*-runner.jar"))
        java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        http = [f"-Dquarkus.http.port={self._port}", "-Dquarkus.http.host=127.0.0.1"]
        self._process = Process([*java, *http, "-jar", str(jar)], self._log)
        until = time.monotonic() + 180
        while time.monotonic() < until and self._process.alive:
            try:
                self.ask("GET", "/subjects")
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise RuntimeError(f"the registry did not start; {self._log} says why")

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, as its interface wants it."""
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def register(self, subject: str, schema: Any, form: str = "AVRO", references: Any = ()) -> int:
        """Register a schema, and return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": form, "references": list(references)}
        return int(self.ask("POST", f"/subjects/{subject}/versions", body)["id"])

    def demand(self, subject: str, level: str) -> None:
        """Set the compatibility that versions of a subject must have."""
        self.ask("PUT", f"/config/{subject}", {"compatibility": level})

    def latest(self, subject: str) -> Any:
        """The latest version of a subject."""
        return self.ask("GET", f"/subjects/{subject}/versions/latest")
