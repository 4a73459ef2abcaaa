"""`crenel run --metrics` for files, scraped while it runs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from crenel.pipelines.cli import main
from crenel.pipelines.files import file_job
from crenel.pipelines.metrics.exposition import text
from crenel.pipelines.metrics.live_figures import LiveFigures
from crenel.policy import Policy
from crenel.runners import Job, local

POLICY = """
person: who
event_time: at
quasi_identifiers:
  age: {type: numeric, domain: [0, 120], step: 5}
publish: [ill]
k: 3
delay: 10m
seed: 7
"""
SECRET = "SECRET-FLU"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)


def csv(rows: int) -> str:
    made = (f"{n % 50},{1_700_000_000 + n * 5},{n % 90 if n % 10 else 900},{SECRET}" for n in range(rows))
    return "who,at,age,ill\n" + "\n".join(made) + "\n"


def page_of(said: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(said)
        for sample in family.samples
    }


def test_the_page_adds_up_to_the_outcome() -> None:
    Path("in.csv").write_text(csv(600))
    policy = Policy.from_yaml("policy.yaml")
    figures = LiveFigures(policy, "local", timed=True)
    request = file_job.Request(policy=policy, inputs=["in.csv"], published=file_job.Output.of("out.csv"))
    with figures.tapped() as tap:
        outcome = file_job.run(request, lambda build, shards: local.launch(Job(build=build, shards=shards)), None, tap)
    page = page_of(text(figures.families()))
    assert page["crenel_rows_read_total", ""] == outcome.rows == 600
    told = {name: page["crenel_rows_total", name] for name in ("published", "suppressed", "rejected")}
    assert told == {"published": outcome.published, "suppressed": outcome.suppressed, "rejected": 60}
    assert page["crenel_rows_rejected_total", "age,outside the domain"] == 60
    assert page["crenel_held_rows", ""] == 0
    assert outcome.delay is not None
    assert page["crenel_delay_seconds_count", ""] == outcome.delay.count
    assert page["crenel_delay_seconds_sum", ""] == pytest.approx(outcome.delay.total / 1e6)
    assert page["crenel_delay_seconds_bucket", "900"] == outcome.delay.count


def test_it_serves_before_a_row_is_read_and_ends_with_the_run() -> None:
    command = [sys.executable, "-m", "crenel", "run", "policy.yaml", "--input", "-", "--output", "out.csv"]
    command += ["--metrics", ":0", "--json", "--most-rejected", "100%", "--most-suppressed", "100%"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as running:  # type: ignore[call-overload]
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        address = next(line.split()[-1] for line in lines if "metrics are at" in line)
        with urllib.request.urlopen(address, timeout=20) as answer:
            page = page_of(answer.read().decode())
        assert page["crenel_rows_read_total", ""] == 0
        assert page["crenel_run_info", ",".join((_version(), "local", "bastion"))] == 1
        said, rest = running.communicate(csv(300), timeout=120)
    assert running.returncode == 0, rest
    assert json.loads(said)["rows"] == 300
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=5)


def _version() -> str:
    import crenel

    return crenel.__version__


def test_a_busy_port_is_an_error_before_any_row_is_read(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        # There is no such input, which would be the first thing to be read.
        given = ["--input", "none.csv", "--output", "out.csv", "--metrics", f":{port}"]
        assert main(["run", "policy.yaml", *given]) == 2
    assert f"--metrics: 127.0.0.1:{port} cannot be listened on: address already in use." in capfd.readouterr().err


@pytest.mark.parametrize("runner", ["prism", "flink", "dataflow"])
def test_runners_that_could_not_tell(runner: str, capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--input", "none.csv", "--output", "out.csv", "--metrics", ":0", "--runner", runner]
    assert main(["run", "policy.yaml", *given]) == 2
    assert "--metrics is for the local runner, and for topics with --runner flink." in capfd.readouterr().err
