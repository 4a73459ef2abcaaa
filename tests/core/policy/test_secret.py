"""The secret of a pipeline: from a seed, from a reference in the policy, or drawn."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crenel.encoding.rows import Rows
from crenel.engine import create_engine
from crenel.errors import PolicyError
from crenel.policy import Policy
from crenel.policy.secret import secret_of

SECRET = bytes(range(100, 132))
OTHER = bytes(range(50, 82))
NAME = "CRENEL_TEST_SECRET"


def policy(**changes: Any) -> Policy:
    said = {"person": "id", "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}}, "k": 5}
    return Policy.from_dict({**said, "delay_rows": 40, **changes})


def file_of(path: Path, text: bytes, mode: int = 0o600) -> str:
    path.write_bytes(text)
    path.chmod(mode)
    return f"file:{path}"


def problem(of: Policy) -> str:
    with pytest.raises(PolicyError) as caught:
        secret_of(of)
    return str(caught.value)


WRITTEN = {
    "hex": SECRET.hex().encode(),
    "HEX": SECRET.hex().upper().encode() + b"\n",
    "base64": base64.b64encode(SECRET) + b"\n",
    "base64 for urls, without padding": base64.urlsafe_b64encode(SECRET).rstrip(b"="),
    "lines": SECRET.hex().encode()[:20] + b"\r\n" + SECRET.hex().encode()[20:] + b"\r\n",
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_secret_is_read_from_a_variable_or_a_file(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, text.decode())
    assert secret_of(policy(secret=f"env:{NAME}")) == SECRET
    assert secret_of(policy(secret=file_of(tmp_path / "key", text))) == SECRET


def test_without_a_reference_256_bits_are_drawn() -> None:
    drawn = {secret_of(policy()) for _ in range(5)}
    assert len(drawn) == 5
    assert {len(secret) for secret in drawn} == {32}


def test_a_seed_is_a_secret() -> None:
    assert secret_of(policy(seed=7)) == secret_of(policy(seed=7)) != secret_of(policy(seed=8))


UNFIT = {
    "empty": b"",
    "blank": b" \n",
    "short hex": SECRET[:31].hex().encode(),
    "hex that would be enough as base64": SECRET[:30].hex().encode(),
    "short base64": base64.b64encode(SECRET[:30]),
    "neither hex nor base64": b"correct horse battery staple, and so on and on!",
    "raw": bytes(range(128, 192)),
    "nul": b"\0" * 40,
    "placeholder": b"00" * 32,
    "repeated": b"0123456789abcdef" * 8,
    "long": b"ab" * 40_000,
}


@pytest.mark.parametrize("text", UNFIT.values(), ids=UNFIT)
def test_a_weak_secret_is_refused_and_not_shown(text: bytes, tmp_path: Path) -> None:
    said = problem(policy(secret=file_of(tmp_path / "key", text)))
    assert said.startswith("policy.secret must name a secret")
    assert "openssl rand -hex 32" in said
    shown = text.strip().decode("latin-1")
    assert not shown or shown[:12] not in said


def test_a_missing_secret_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    assert problem(policy(secret=f"env:{NAME}")) == (
        f"policy.secret names the environment variable {NAME}, which is not set where the pipeline is built."
    )
    absent = tmp_path / "absent"
    assert problem(policy(secret=f"file:{absent}")) == (
        f"policy.secret names the file {absent}, which cannot be read: no such file or directory."
    )
    assert "cannot be read: is a directory" in problem(policy(secret=f"file:{tmp_path}"))


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o666])
def test_a_file_that_all_users_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    said = problem(policy(secret=file_of(tmp_path / "key", SECRET.hex().encode(), mode)))
    assert said.endswith("which every user of the machine may read or write: run chmod o-rw on it.")


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o640])
def test_a_group_may_read_it(mode: int, tmp_path: Path) -> None:
    assert secret_of(policy(secret=file_of(tmp_path / "key", SECRET.hex().encode(), mode))) == SECRET


def test_the_policy_holds_the_reference_and_never_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, SECRET.hex())
    of = policy(secret=f"env:{NAME}")
    create_engine(of)
    assert secret_of(of) == SECRET
    assert of.to_dict()["secret"] == f"env:{NAME}"
    assert Policy.from_dict(of.to_dict()) == of == pickle.loads(pickle.dumps(of))
    for held in (repr(of).encode(), str(of.to_dict()).encode(), pickle.dumps(of), str(vars(of)).encode()):
        assert SECRET not in held and SECRET.hex().encode() not in held


def test_a_secret_given_instead_of_its_reference_is_not_repeated() -> None:
    with pytest.raises(PolicyError) as caught:
        policy(secret=SECRET.hex())
    assert SECRET.hex()[:12] not in str(caught.value)


# --- Engines ---


def releases(of: Policy, **said: bytes) -> list[tuple[list[int], list[float]]]:
    n = np.arange(400, dtype=np.int64)
    rows = Rows((n * 37 % 101).astype(np.float64)[:, None], n % 61, np.zeros((400, 0), dtype=np.int64), n)
    engine = create_engine(of, **said)
    return [(one.rows.tolist(), one.lo.tolist()) for one in [*engine.push(rows), *engine.flush()]]


def test_two_engines_with_one_secret_publish_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, SECRET.hex())
    of = policy(secret=f"env:{NAME}")
    first = releases(of)
    assert releases(of) == first
    assert releases(policy(), secret=SECRET) == first
    monkeypatch.setenv(NAME, OTHER.hex())
    assert releases(of) != first


def test_a_given_secret_is_used_without_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is given the pipeline's secret, but does not have the environment variable."""
    monkeypatch.delenv(NAME, raising=False)
    assert releases(policy(secret=f"env:{NAME}"), secret=SECRET) == releases(policy(), secret=SECRET)
    with pytest.raises(PolicyError, match="is not set"):
        create_engine(policy(secret=f"env:{NAME}"))


def test_a_seed_wins_over_a_secret() -> None:
    assert releases(policy(seed=7), secret=SECRET) == releases(policy(seed=7))
