"""The command line: usage, exit codes, and how it ends when something fails."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

import crenel
from crenel.pipelines.cli import COMMANDS, main
from crenel.pipelines.commands import check

POLICY = """\
person: who
quasi_identifiers: {age: {type: numeric, domain: [0, 100]}}
k: 2
delay_rows: 10
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def exit_code(*argv: str) -> int:
    try:
        return main(argv)
    except SystemExit as left:
        return int(left.code or 0)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    out = capsys.readouterr().out
    assert all(f"  {name}" in out and command.summary in out for name, command in COMMANDS.items())
    assert "example:" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(name, "--help") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: crenel {name} ")
    assert f"example:\n  crenel {name} " in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"crenel {crenel.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["chek"], ["check"], ["check", "a", "b"], ["init", "--wrong"], ["--wrong"]])
def test_wrong_usage_exits_with_2_and_is_reported_on_standard_error(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*argv) == 2
    said = capsys.readouterr()
    assert "usage: crenel" in said.err
    assert said.out == ""


def test_a_good_policy_exits_with_0(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", str(policy)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "a release has rows of at least 2 persons (k)" in " ".join(said.out.split())


def test_every_mistake_of_a_policy_is_a_sentence_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("person: 3\nquasi_identifiers: {age: {type: number}}\nk: one\ndelai: 1m\n")
    assert exit_code("check", str(path)) == 2
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert said.out == ""
    assert all(line.startswith("crenel: policy") and line.endswith(".") for line in lines)
    for field in ("policy.person", "policy.quasi_identifiers.age.type", "policy.k", "policy.delai"):
        assert sum(f"crenel: {field} " in line for line in lines) == 1


@pytest.mark.parametrize("content", ["", "k: [", "- a\n- b\n", "\x00\x01", "just text"])
def test_a_file_that_is_not_a_policy_exits_with_2(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(content)
    assert exit_code("check", str(path)) == 2
    err = capsys.readouterr().err
    assert err.startswith("crenel: policy")
    assert "Traceback" not in err


def test_missing_files_exit_with_2(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none = str(tmp_path / "none.csv")
    for argv in (["check", none], ["check", str(policy), "--data", none], ["init", none]):
        assert exit_code(*argv) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "there is no" in line


@pytest.mark.parametrize("content", [b"", bytes(range(256)), b"who,age\n1\n"])
def test_a_broken_sample_exits_with_2(
    policy: Path, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.csv"
    data.write_bytes(content)
    for argv in (["check", str(policy), "--data", str(data)], ["init", str(data)]):
        assert exit_code(*argv) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("crenel: data.csv ")
        assert said.err.count("\n") == 1


def test_an_interrupt_exits_with_130(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "run", interrupted)
    assert exit_code("check", str(policy)) == 130
    assert capsys.readouterr().err == ""


#: What each command must be given to run.
ARGUMENTS = {
    "check": ["p.yaml"],
    "init": ["rows.csv"],
    "explore": ["p.yaml", "--data", "rows.csv"],
    "run": ["p.yaml", "--input", "in.csv", "--output", "out.csv"],
    "audit": ["p.yaml", "--published", "out.csv"],
    "watch": ["p.yaml", "--published", "kafka://here:9092/out"],
    "plan": ["p.yaml", "--rate", "1000"],
    "guarantee": ["--k", "5", "--beta", "0.1"],
    "schema": [],
    "compile": [],
    "demo": [],
}


def raise_bug(*_: object) -> int:
    raise OverflowError("of the row: SECRET")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unexpected_error_of_any_command_is_one_sentence_without_its_message(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CRENEL_DEBUG", raising=False)
    monkeypatch.setattr(f"{COMMANDS[name].module}.run", raise_bug)
    assert exit_code(name, *ARGUMENTS[name]) == 70
    said = capsys.readouterr()
    sentence = f"{name} failed (OverflowError). Set CRENEL_DEBUG=1 to see the error, which may contain rows."
    assert (said.out, said.err) == ("", f"crenel: {sentence}\n")


def test_an_unexpected_error_is_shown_to_who_asks_for_it(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CRENEL_DEBUG", "1")
    monkeypatch.setattr(check, "run", raise_bug)
    assert exit_code("check", str(policy)) == 70
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("OverflowError: of the row: SECRET\n")


def script(*argv: str) -> list[str]:
    return [str(Path(sysconfig.get_path("scripts")) / "crenel"), *argv]


def test_the_installed_script_runs(policy: Path) -> None:
    done = subprocess.run(script("check", str(policy)), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Published columns\n")


def test_a_closed_pipe_is_no_error(policy: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            script("check", str(policy)),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_letters_that_the_terminal_lacks_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace("age", "größe"), encoding="utf-8")
    done = subprocess.run(
        script("check", str(path)),
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"gr\\xf6\\xdfe" in done.stdout


@pytest.mark.parametrize("command", [["init", "{data}"], ["check", "{policy}", "--data", "{data}"]])
def test_warnings_of_packages_are_not_printed(command: list[str], policy: Path, tmp_path: Path) -> None:
    """A command may load Beam, which logs warnings about packages that are not installed."""
    data = tmp_path / "data.csv"
    data.write_text("id,age\n" + "".join(f"{i},{20 + i}\n" for i in range(40)))
    argv = [part.format(policy=policy, data=data) for part in command]
    done = subprocess.run(script(*argv), capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout
    assert done.stderr == ""
