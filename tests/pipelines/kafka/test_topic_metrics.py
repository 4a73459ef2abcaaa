"""`crenel run --metrics` on an endless topic: a real broker, a real Prometheus, and every query of the dashboard."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker
from tests.pipelines.metrics import prometheus_server
from tests.pipelines.metrics.dashboard import FLINK_ONLY, queries
from tests.pipelines.metrics.prometheus_server import Prometheus

pytestmark = pytest.mark.kafka


def _feed(kafka: Broker, topic: str, over: threading.Event) -> None:
    """Send rows until it is over, two event seconds for each second, some of them outside of the domain."""
    rows = made.make(5_000, persons=400)
    for place, row in enumerate(rows):
        row["at"] = made.BEGAN + place * 0.2
        row["age"] = 200 if place % 9 == 0 else row["age"]
    for start in range(0, len(rows), 50):
        kafka.produce(topic, made.as_json(rows[start : start + 50]))
        if over.wait(0.4):
            return


def test_every_panel_of_the_dashboard_has_data(kafka: Broker, tmp_path: Path) -> None:
    missing = prometheus_server.missing()
    if missing is not None:
        if os.environ.get("CRENEL_REQUIRE_KAFKA"):
            pytest.fail(missing)
        pytest.skip(missing)
    source, published = (f"m-{uuid4().hex[:8]}" for _ in range(2))
    kafka.create(source, published)
    (tmp_path / "policy.yaml").write_text(made.POLICY.replace("delay: 60s", "delay: 10s"))
    command = [sys.executable, "-m", "crenel", "run", str(tmp_path / "policy.yaml"), "--json", "--metrics", ":0"]
    command += ["--input", kafka.url(source), "--output", kafka.url(published), "--most-rejected", "100%"]
    command += ["--most-suppressed", "100%"]
    # Tests that run in the background may ignore Ctrl-C, and so would their child processes.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    over = threading.Event()
    feeding = threading.Thread(target=_feed, args=(kafka, source, over), daemon=True)
    feeding.start()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=heard)  # noqa: PLW1509
    try:
        address = _address(tmp_path / "log", process)
        with Prometheus(tmp_path / "prometheus", address) as prometheus:
            prometheus.await_data("rate(crenel_delay_seconds_sum[20s]) > 0", 120)
            for title, query in queries():
                if not any(name in query for name in FLINK_ONLY):
                    assert prometheus.await_data(query), title
            (alone,) = prometheus.query("crenel_rows_alone_total")
            assert float(alone["value"][1]) >= 0
            (info,) = prometheus.query("crenel_run_info")
            assert info["metric"]["runner"] == "local"
            # No value of a row is in any label.
            everything = json.dumps(prometheus.query('{job="crenel"}'))
            assert not any(word in everything for word in ("SECRET", "flu", "cold", "00003"))
        os.kill(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        over.set()
        process.kill()
        feeding.join()
    assert process.returncode == 0, (tmp_path / "log").read_text()
    assert json.loads(said)["rows"] > 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=5)


def _address(log: Path, process: subprocess.Popen[str]) -> str:
    until = time.monotonic() + 60
    while not (found := re.search(r"metrics are at http://(\S+)/metrics", log.read_text())):
        assert process.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    return found[1]
