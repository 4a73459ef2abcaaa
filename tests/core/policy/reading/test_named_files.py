"""Files that a policy names: none elsewhere on the machine, none without an end, and nothing of them in a message."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crenel.errors import PolicyError
from crenel.policy import Policy
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.reading import named_files
from crenel.policy.secret import secret_of

TREE = "a;G;*\nb;G;*\n"
#: Lines of a file that nobody should see, in the form of one.
SHADOW = "root:$6$hash:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n"


def policy(hierarchy: object, folder: Path, **options: Any) -> Policy:
    column = {"type": "categorical", "hierarchy": str(hierarchy)}
    said = {"person": "id", "quasi_identifiers": {"job": column}, "k": 3, "delay_rows": 10}
    return Policy.from_dict(said, folder, **options)


def problem(make: Callable[[], Any]) -> str:
    with pytest.raises(PolicyError) as caught:
        make()
    return str(caught.value)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    inside, outside = tmp_path / "policy", tmp_path / "elsewhere"
    for folder in (inside, outside):
        (folder / "deeper").mkdir(parents=True)
        (folder / "tree.csv").write_text(TREE)
        (folder / "deeper" / "tree.csv").write_text(TREE)
    return inside, outside


def test_files_below_the_policys_folder(folders: tuple[Path, Path]) -> None:
    inside, _ = folders
    (inside / "linked.csv").symlink_to("deeper/tree.csv")
    for name in ("tree.csv", "deeper/tree.csv", "deeper/../tree.csv", inside / "tree.csv", "linked.csv"):
        assert len(policy(name, inside).quasi_identifiers["job"].hierarchy) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["../elsewhere/tree.csv", "ABSOLUTE", "linked.csv", "folder/tree.csv"])
def test_files_elsewhere_are_read_only_if_asked_for(folders: tuple[Path, Path], name: str) -> None:
    inside, outside = folders
    (inside / "linked.csv").symlink_to(outside / "tree.csv")
    (inside / "folder").symlink_to(outside)
    name = str(outside / "tree.csv") if name == "ABSOLUTE" else name
    said = problem(lambda: policy(name, inside))
    assert f"policy.quasi_identifiers.job.hierarchy: {name!r} must be a file below the policy's folder." in said
    assert "--allow-outside-files" in said
    assert policy(name, inside, allow_outside_files=True) == policy("tree.csv", inside)


def test_a_policys_file_says_where_its_folder_is(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = folders
    text = "person: id\nk: 3\ndelay_rows: 10\nquasi_identifiers: {job: {type: categorical, hierarchy: NAME}}\n"
    (inside / "in.yaml").write_text(text.replace("NAME", "tree.csv"))
    (inside / "out.yaml").write_text(text.replace("NAME", "../elsewhere/tree.csv"))
    monkeypatch.chdir(outside)
    assert Policy.from_yaml("../policy/in.yaml") == Policy.from_yaml("../policy/out.yaml", allow_outside_files=True)
    assert "below the policy's folder" in problem(lambda: Policy.from_yaml("../policy/out.yaml"))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero, a file without an end")
def test_a_device_is_refused(tmp_path: Path) -> None:
    assert "must be a regular file" in problem(lambda: policy("/dev/zero", tmp_path, allow_outside_files=True))
    assert "must be a regular file" in problem(lambda: Hierarchy.from_csv("/dev/zero"))
    with_secret = Policy.from_dict(
        {"person": "id", "quasi_identifiers": {"age": {"type": "numeric"}}, "k": 3, "delay_rows": 10}
        | {"secret": "file:/dev/zero"}
    )
    assert "must be a regular file" in problem(lambda: secret_of(with_secret))
    assert "must be smaller than 64 MB" in problem(lambda: Policy.from_yaml("/dev/zero"))


def test_a_pipe_that_nobody_writes_to_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "must be a regular file" in problem(lambda: policy("pipe", tmp_path))
    with_secret = Policy.from_dict(
        {"person": "id", "quasi_identifiers": {"age": {"type": "numeric"}}, "k": 3, "delay_rows": 10}
        | {"secret": f"file:{tmp_path}/pipe"}
    )
    assert "must be a regular file" in problem(lambda: secret_of(with_secret))


def test_a_policy_may_come_from_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"person: id\nk: 3\ndelay_rows: 10\nquasi_identifiers: {age: {type: numeric}}\n")
    os.close(writing)
    try:
        assert Policy.from_yaml(f"/dev/fd/{reading}").k == 3
    finally:
        os.close(reading)


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree.csv").write_text(TREE)
    monkeypatch.setattr(named_files, "MOST_BYTES", len(TREE) - 1)
    assert "must be smaller than" in problem(lambda: policy("tree.csv", tmp_path))
    monkeypatch.setattr(named_files, "MOST_BYTES", len(TREE))
    policy("tree.csv", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        SHADOW,
        SHADOW.replace(":", ";"),
        SHADOW.replace(":", ","),
        "root;$6$hash\nroot;other\n",
        "root;$6$hash;root\n",
        "root;$6$hash\n$6$hash;x\n",
        "root;$6$hash\nx;*\n",
        "root;x;*\n;$6$hash\n",
        "root;$6$hash\nx;$6$hash;y\n",
        'root;"$6$hash\n' * 3,
        "root;$6$hash\0\n",
    ],
)
def test_no_message_quotes_a_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "secrets").write_text(text)
    try:
        policy("secrets", tmp_path)
    except PolicyError as error:
        said = str(error)
        assert not any(word in said for word in ("root", "hash", "daemon", "99999"))


def test_no_message_quotes_a_policys_file(tmp_path: Path) -> None:
    for text, kind in (("$6$hash", "text"), ("- $6$hash\n- root\n", "a list")):
        (tmp_path / "secrets").write_text(text)
        said = problem(lambda: Policy.from_yaml(tmp_path / "secrets"))
        assert said == f"policy must be a mapping of fields, not {kind}."
