"""Missing requirements are reported in one sentence with the fix, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crenel.pipelines.cli import main
from crenel.runners.flink import boot, distribution, download_cache, flink_run, job_server, options, requirements
from crenel.runners.flink.ports import free_ports
from crenel.runners.runner_errors import RunnerError


def program(folder: Path, name: str, says: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine without any of the requirements; return the only folder in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_no_java(path: Path) -> None:
    with pytest.raises(RunnerError, match="there is no java: install Java 17"):
        requirements.java()


@pytest.mark.parametrize(("says", "version"), [('"1.8.0_402"', "Java 8"), ('"25.0.1"', "Java 25"), ("?", "unknown")])
def test_java_of_another_version(path: Path, says: str, version: str) -> None:
    program(path, "java", f"openjdk version {says}")
    with pytest.raises(RunnerError, match=f"{version}.*: put Java 17 first in PATH"):
        requirements.java()


@pytest.mark.parametrize("version", ["11.0.2", "17.0.15", "21"])
def test_java_of_a_supported_version(path: Path, version: str) -> None:
    program(path, "java", f'openjdk version "{version}"')
    assert requirements.java() == str(path / "java")


def test_no_maven(path: Path) -> None:
    program(path, "java", 'openjdk version "17.0.1"')
    with pytest.raises(RunnerError, match="there is no mvn: install the package maven"):
        flink_run.check([])


def test_a_jar_that_cannot_be_downloaded(path: Path) -> None:
    program(path, "mvn", "[ERROR] no route to host")
    with pytest.raises(RunnerError, match="cannot be downloaded with mvn"):
        job_server.jars()
    assert not [entry for entry in download_cache.root().iterdir() if entry.is_dir()], "no incomplete download stays"


def test_a_jar_with_another_checksum(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path.joinpath("mvn").write_text('#!/bin/sh\nfor a; do case $a in -Dout*) echo x > "${a#*=}/a-1.jar";; esac; done\n')
    path.joinpath("mvn").chmod(0o755)
    monkeypatch.setattr(job_server, "_locked", lambda: iter([("g:a:1", "0" * 64)]))
    with pytest.raises(RunnerError, match=r"a-1\.jar is not the file that crenel was tested with"):
        job_server.jars()


def test_no_program_to_start_workers_with(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "java", 'openjdk version "17.0.1"')
    for module, fetches in ((job_server, "jars"), (distribution, "libraries")):
        monkeypatch.setattr(module, fetches, lambda: path)
    monkeypatch.setattr(options, "boot", lambda: "crenel-boot")
    with pytest.raises(RunnerError, match="crenel-boot, and there is none: install crenel with pip"):
        flink_run.check([])
    flink_run.check(["--environment_type=DOCKER"])


def test_a_master_that_does_not_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "java", 'openjdk version "17.0.1"')
    monkeypatch.setattr(job_server, "jars", lambda: path)
    (port,) = free_ports(1)
    with pytest.raises(RunnerError, match=f"answers at localhost:{port}"):
        flink_run.check([f"--flink_master=localhost:{port}"])


def test_the_command_reports_it_before_it_reads_anything(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nperson: p\nquasi_identifiers: {age: {type: numeric, domain: [0, 9]}}\nk: 2\ndelay_rows: 9\n"
    )
    arguments = ["run", str(policy), "--input", "nothing.csv", "--output", str(tmp_path / "out.csv"), "--runner"]
    assert main([*arguments, "flink"]) == 2
    assert capsys.readouterr().err.count("there is no java") == 1
    assert main([*arguments, "local", "--flink-master", "h:1"]) == 2
    assert "--flink-master needs --runner flink" in capsys.readouterr().err


def test_flags_of_the_user_take_precedence() -> None:
    made = options.flags(
        "localhost:1", parallelism=2, logs=None, given=["--parallelism=7", "--max_bundle_size=3"], streaming=True
    )
    assert [flag for flag in made if flag.startswith("--parallelism")] == ["--parallelism=7"]
    assert [flag for flag in made if flag.startswith("--max_bundle_size")] == ["--max_bundle_size=3"]
    assert "--checkpointing_interval=10000" in made


@pytest.mark.parametrize("how", [{"streaming": True}, {"given": ["--streaming"]}])
def test_a_stream_has_checkpoints_and_released_rows_do_not_wait_for_them(how: Any) -> None:
    made = options.flags("localhost:1", parallelism=2, logs=None, **how)
    assert {"--checkpointing_interval=10000", "--finish_bundle_before_checkpointing"} <= set(made)
    assert not any(flag.startswith("--number_of_execution_retries") for flag in made)


def test_all_defaults_are_known_options() -> None:
    beams = {"max_cache_memory_usage_mb"}
    assert set(options.STREAMING) <= options.KNOWN | beams


def beam_provision_info() -> Any:
    from apache_beam.portability.api import beam_provision_api_pb2

    return beam_provision_api_pb2.ProvisionInfo(runner_capabilities=["a", "b"])


def test_a_worker_is_told_what_the_task_manager_says(tmp_path: Path) -> None:
    info = beam_provision_info()
    info.control_endpoint.url = "localhost:1"
    info.pipeline_options.update({"beam:option:job_name:v1": "x"})
    told = boot.environment("1-1", info)
    assert told["WORKER_ID"] == "1-1"
    assert told["CONTROL_API_SERVICE_DESCRIPTOR"] == 'url: "localhost:1"'
    assert "LOGGING_API_SERVICE_DESCRIPTOR" not in told
    assert told["RUNNER_CAPABILITIES"] == "a b"
    assert "job_name" in told["PIPELINE_OPTIONS"]


def test_the_workers_of_a_stream_compile_before_they_take_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled in the middle of a bundle, kernels would hold up a checkpoint for a minute."""
    from apache_beam.runners.worker import sdk_worker_main

    from crenel.engine import precompile

    done: list[Any] = []
    monkeypatch.setenv(boot.COMPILED, "castle")
    monkeypatch.setattr(boot, "_log_to", lambda path: None)
    monkeypatch.setenv(boot.LOGS, str(tmp_path))
    monkeypatch.setattr(precompile, "compile_family", done.append)
    monkeypatch.setattr(boot, "provision", lambda *_: beam_provision_info())
    monkeypatch.setattr(sdk_worker_main, "main", lambda _: done.append("worker"))
    monkeypatch.setattr(boot.os, "environ", dict(boot.os.environ))
    boot.main(["--id=1-1", "--provision_endpoint=localhost:1"])
    assert done == [["castle"], "worker"]


def test_a_method_that_does_not_compile_is_left_to_the_step_that_uses_it() -> None:
    boot.compile_kernels("no such method")


@pytest.mark.parametrize(("streaming", "is_told"), [(True, True), (False, False)])
def test_only_streams_are_told_what_to_compile(streaming: bool, is_told: bool) -> None:
    """A batch has no checkpoints, and may be too small for the compiler to pay."""
    made = options.flags("localhost:1", parallelism=2, logs=None, streaming=streaming, method="castle")
    (config,) = (flag for flag in made if flag.startswith("--environment_config="))
    assert ('"CRENEL_COMPILED_METHOD": "castle"' in config) == is_told
