"""Dead letters: for the owner alone, complete, and never silently dropped."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from crenel.pipelines.kafka import dead_letters
from crenel.pipelines.kafka.dead_letters import DeadLetters
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed

TOPIC = Topic(servers="a:1", name="visits", settings=(("sasl.password", "hush"),))


def test_only_the_owner_may_read_them(tmp_path: Path) -> None:
    dead = DeadLetters(str(tmp_path / "a" / "dead"))
    dead.write([])
    assert not dead.path.exists(), "nothing is made for nothing"
    dead.write([dead_letters.line("published", TOPIC, b"\x01\x02", "too large", b"value")])
    dead.write([dead_letters.line("rejected", TOPIC, b"", "too large", b"\xff")])
    assert dead.path.stat().st_mode & 0o777 == 0o600
    assert dead.path.parent.stat().st_mode & 0o777 == 0o700
    first, second = (json.loads(line) for line in dead.path.read_text().splitlines())
    assert first["topic"] == "kafka://a:1/visits"
    assert (first["output"], first["key"], first["reason"]) == ("published", "0102", "too large")
    assert base64.b64decode(second["value"]) == b"\xff"


def test_the_users_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert DeadLetters().path.parent == tmp_path / "crenel" / "dead-letters"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert DeadLetters().path.parent == tmp_path / ".local" / "state" / "crenel" / "dead-letters"


def test_what_cannot_be_kept_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    dead = DeadLetters(str(tmp_path / "file" / "dead"))
    with pytest.raises(
        JobFailed, match=r"1 records .* cannot be kept either: .*Name another folder with --dead-letters"
    ):
        dead.write([b"{}\n"])
