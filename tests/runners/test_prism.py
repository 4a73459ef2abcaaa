"""Prism: built if Go is installed, otherwise refused with a clear message; and correct with slow bundles.

`pytest --prism` also runs the transform's own tests there: see `make prism-test`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions
from apache_beam.transforms.window import SlidingWindows

from crenel.pipelines.cli import main
from crenel.runners import Job, RunnerError, prism
from crenel.transforms._hold import hold_step
from tests.transforms import streams
from tests.transforms.streams import Stamped, anonymize, check, policy, rows, run, stream

POLICY = """\
version: 1
person: who
event_time: at
quasi_identifiers:
  age: {type: numeric, domain: [0, 100]}
  zipcode: {type: prefix, length: 5}
publish: [number]
k: 5
delay: 10m
shards: 3
seed: 3
"""

GIVEN = rows(300)
FIRST = GIVEN[0]["seen"]


@pytest.fixture
def on_prism() -> None:
    """Skip the test unless pipelines run on Prism."""
    if streams.ON_PRISM is None:
        pytest.skip("Prism is built and tried by make prism-test (pytest --prism)")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write a policy, and rows in two files; return their folder."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    draw = random.Random(1)
    for name in ("a", "b"):
        lines = [
            f"{draw.randrange(900)},{1_000_000 + 2 * i},{draw.randrange(101)},{draw.randrange(100_000):05},{name}{i}"
            for i in range(1_500)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["who,at,age,zipcode,number", *lines]) + "\n")
    return tmp_path


# --- Files ---


@pytest.mark.prism
def test_files_are_anonymized_as_on_the_local_runner(on_prism: None, files: Path) -> None:
    given = ["run", str(files / "policy.yaml"), "--input", str(files / "*.csv")]
    for runner in ("local", "prism"):
        out = [f"--output={files / runner}.jsonl", f"--releases={files / runner}.releases.jsonl"]
        assert main([*given, *out, "--runner", runner]) == 0
    for kind in ("jsonl", "releases.jsonl"):
        local, there = ((files / f"{runner}.{kind}").read_text() for runner in ("local", "prism"))
        assert local == there
        assert local.count("\n") > 100


@pytest.mark.prism
def test_a_broken_file_is_reported_in_a_sentence(
    on_prism: None, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "b.csv").write_text("who,at,age,zipcode,number\n1,2,3,4,5\n1,2\n")
    out = files / "out.csv"
    given = ["run", str(files / "policy.yaml"), "--input", str(files / "*.csv"), "--output", str(out)]
    assert main([*given, "--runner", "prism"]) == 2
    *_, said = capsys.readouterr().err.splitlines()
    assert said == "crenel: b.csv is broken at row 3 (the header is row 1): it has 2 values, not 5."
    assert not out.exists()


_HANGS = """\
import sys, time
import apache_beam as beam
from crenel.runners import Job, prism

def hang(_):
    print("working", flush=True)
    time.sleep(600)

prism.launch(Job(build=lambda p: p | beam.Create([0]) | beam.Map(hang), shards=1))
"""


@pytest.mark.prism
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_prism_does_not_outlive_the_run(on_prism: None) -> None:
    with subprocess.Popen([sys.executable, "-c", _HANGS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"working\n"
        started = _descendants(run.pid)
        assert any("prism" in Path(f"/proc/{pid}/cmdline").read_text() for pid in started)
        run.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while any(_alive(pid) for pid in started) and time.monotonic() < until:
        time.sleep(0.2)
    assert [pid for pid in started if _alive(pid)] == []


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# --- State ---


@pytest.mark.prism
def test_slow_bundles_are_not_split(on_prism: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless told otherwise, Prism splits a slow bundle and runs both parts at once on the state of one key."""
    take, slow = hold_step.HoldRows._take, [1.0]

    def slowly(self: Any, *arguments: Any) -> Any:
        time.sleep(slow.pop() if slow else 0.0)  # like compilation of the engine
        return take(self, *arguments)

    monkeypatch.setattr(hold_step.HoldRows, "_take", slowly)
    out = run(Stamped(GIVEN), anonymize(overlapping_windows=True), window=SlidingWindows(1200, 600))
    assert len(out.published) == 2 * len(GIVEN)
    assert sum(left.value["rows"] for left in out.releases) == 2 * len(GIVEN)


@pytest.mark.prism
def test_a_stream_is_anonymized_as_on_the_local_runner(on_prism: None, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[Any] = []
    for start in range(0, len(GIVEN), 50):
        parts += [GIVEN[start : start + 50], GIVEN[min(start + 50, len(GIVEN) - 1)]["seen"] - 1]
    parts += [FIRST + 90_000]
    there = run(stream(parts), anonymize(shards=3))
    monkeypatch.setattr(streams, "ON_PRISM", None)
    here = run(stream(parts), anonymize(shards=3), runner="BundleBasedDirectRunner")
    assert {left.value["number"]: left.value for left in there.published} == {
        left.value["number"]: left.value for left in here.published
    }
    assert sorted(str(left.value) for left in there.releases) == sorted(str(left.value) for left in here.releases)


@pytest.mark.prism
def test_a_step_that_fails_fails_the_run(on_prism: None) -> None:
    """Prism retries nothing: a failed bundle must not count as done."""

    def fail(_: Any) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        prism.launch(Job(build=lambda p: p | beam.Create([1]) | beam.Map(fail), shards=1))


@pytest.mark.parametrize(("runner", "asked"), [("PrismRunner", True), ("DirectRunner", True), ("FlinkRunner", False)])
def test_prism_is_asked_not_to_split(runner: str, asked: bool) -> None:
    """This includes the DirectRunner, for which Beam may choose Prism."""
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions([]))
    _ = pipeline | beam.Create(GIVEN) | anonymize()
    assert bool(pipeline.options.view_as(DebugOptions).lookup_experiment("prism_disable_sdf_split")) == asked


# --- What is missing ---


def go(folder: Path, script: str) -> Path:
    """Write a fake `go` command that runs a script."""
    folder.mkdir(exist_ok=True)
    path = folder / "go"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine with neither Go nor Prism; return the only folder in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(prism.sysconfig, "get_path", lambda _: str(tmp_path / "scripts"))
    return tmp_path / "bin"


def test_no_go(bare: Path) -> None:
    with pytest.raises(
        RunnerError,
        match=r"Go, which is not installed: install it with pip install 'crenel\[prism\]', or",
    ):
        prism.check([])


def test_missing_go_is_reported_before_anything_starts(
    bare: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = files / "out.csv"
    given = ["run", str(files / "policy.yaml"), "--input", "no-such-file.csv", "--output", str(out)]
    assert main([*given, "--runner", "prism"]) == 2
    warned, line = capsys.readouterr().err.splitlines()
    assert warned.startswith("crenel: warning: seed")
    assert line.startswith("crenel: --runner prism builds Prism with Go, which is not installed")


def test_an_old_go(bare: Path) -> None:
    go(bare, "echo go version go1.19.8 linux/amd64")
    with pytest.raises(RunnerError, match=r"Go 1\.21 or newer, and .* is older"):
        prism.check([])


def test_a_build_that_fails_leaves_nothing(bare: Path) -> None:
    go(bare, '[ "$1" = version ] && echo go version go1.26.0 linux/amd64 || { echo "no network" >&2; exit 1; }')
    with pytest.raises(RunnerError, match=r"could not be built by go install github\.com/.* \(no network\)"):
        prism.check([])
    assert list(prism.cached().parent.iterdir()) == []


@pytest.mark.parametrize("where", ["bin", "scripts"])
def test_it_is_built_once(bare: Path, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = f"""\
PATH={os.defpath}:/usr/bin:/bin
[ "$1" = version ] && echo go version go1.26.0 linux/amd64 && exit
[ "$GOTOOLCHAIN" = auto ] && echo "$*" > "$GOBIN/prism"
"""
    built = go(bare.parent / where, script)
    assert prism.binary(PipelineOptions([])) == str(prism.cached())
    assert "building Prism" in capsys.readouterr().err
    wanted = f"install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam.__version__}\n"
    assert prism.cached().read_text() == wanted
    built.unlink()
    assert prism.binary(PipelineOptions([])) == str(prism.cached())


def test_a_given_location_is_used_unchanged(bare: Path, tmp_path: Path) -> None:
    there = tmp_path / "my-prism"
    with pytest.raises(RunnerError, match=r"--prism_location must be a file or an address, and there is no file"):
        prism.check([f"--prism_location={there}"])
    there.write_text("")
    assert prism.binary(PipelineOptions([f"--prism_location={there}"])) == str(there)
    address = "https://github.com/apache/beam/releases/tag/v2.77.0"
    assert prism.binary(PipelineOptions([f"--prism_location={address}"])) == address


@pytest.mark.prism
def test_every_promise(on_prism: None) -> None:
    out = run(GIVEN, anonymize(delay_rows=100))
    check(policy(delay_rows=100), GIVEN, out.published, out.suppressed)
    assert out.counter("rows") == len(GIVEN)
