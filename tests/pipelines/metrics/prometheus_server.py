"""A real Prometheus on the loopback address, from Debian's package, which is unpacked into the cache if need be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from crenel.runners.flink.ports import free_ports
from crenel.runners.flink.processes import Process

__all__ = ["Prometheus", "missing", "program"]


def _unpacked() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "crenel" / "prometheus"


def missing() -> str | None:
    """The missing requirement, in a sentence; None if nothing is missing."""
    if shutil.which("prometheus") or (_unpacked() / "usr/bin/prometheus").exists():
        return None
    if shutil.which("apt-get") and shutil.which("dpkg"):
        return None
    return "needs prometheus (Debian's package of that name)."


def program() -> str:
    """The program. Debian's package is fetched once, if there is none."""
    found = shutil.which("prometheus") or str(_unpacked() / "usr/bin/prometheus")
    if not os.path.exists(found):
        _unpacked().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_unpacked().parent) as scratch:
            fetch = ["apt-get", "download", "-q", "prometheus"]
            if subprocess.run(fetch, cwd=scratch, check=False, capture_output=True, timeout=300).returncode:
                subprocess.run(["apt-get", "update", "-qq"], check=True, capture_output=True, timeout=300)
                subprocess.run(fetch, cwd=scratch, check=True, capture_output=True, timeout=300)
            (package,) = Path(scratch).glob("*.deb")
            subprocess.run(["dpkg", "-x", str(package), "root"], cwd=scratch, check=True, timeout=300)
            os.replace(Path(scratch) / "root", _unpacked())
    return found


class Prometheus:
    """A server that scrapes one page every second. As a context manager it ends at the end.

    Args:
        folder: The folder of its files.
        target: HOST:PORT of the page.
    """

    def __init__(self, folder: Path, target: str) -> None:
        (port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [{"job_name": "crenel", "static_configs": [{"targets": [target]}]}]
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
        command = [program(), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        self._process = Process([*command, f"--web.listen-address=127.0.0.1:{port}"], folder / "log")
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an expression now."""
        asked = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/query?{asked}", timeout=30) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return list(told["data"]["result"])

    def await_data(self, expression: str, seconds: float = 60) -> list[dict[str, Any]]:
        """Wait until an expression has a value that is a number."""
        until = time.monotonic() + seconds
        while True:
            try:
                found = self.query(expression)
            except (urllib.error.URLError, ConnectionError):
                found = []
            if any(one["value"][1] != "NaN" for one in found):
                return found
            assert time.monotonic() < until, f"no data for {expression}"
            time.sleep(0.5)

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
