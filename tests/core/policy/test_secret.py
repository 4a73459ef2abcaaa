"""The secret of a pipeline: from a seed, from a reference in the policy, or drawn."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from crenel.encoding.rows import Rows
from crenel.engine import create_engine
from crenel.errors import INCURABLE, PolicyError, SecretError
from crenel.policy import Policy
from crenel.policy.secret import Secret, _secret_manager, as_secret, secret_of, without_secret

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
        f"policy.secret names the file {absent}, which cannot be read where the pipeline is built: no such file or "
        "directory."
    )
    assert "cannot be read: is a directory (where the pipeline is built)." in problem(policy(secret=f"file:{tmp_path}"))


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
    """A caller that has the secret need not have the environment variable."""
    monkeypatch.delenv(NAME, raising=False)
    assert releases(policy(secret=f"env:{NAME}"), secret=SECRET) == releases(policy(), secret=SECRET)
    with pytest.raises(PolicyError, match="is not set"):
        create_engine(policy(secret=f"env:{NAME}"))


def test_a_seed_wins_over_a_secret() -> None:
    assert releases(policy(seed=7), secret=SECRET) == releases(policy(seed=7))


# --- On the way to workers ---


def sent(secret: Secret) -> Secret:
    """Send a secret to a worker."""
    return pickle.loads(pickle.dumps(secret))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["env", "file"])
def test_a_named_secret_travels_as_its_reference(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, SECRET.hex())
    of = policy(secret=f"env:{NAME}" if kind == "env" else file_of(tmp_path / "key", SECRET.hex().encode()))
    secret = Secret.of(of)
    assert sent(secret).root == Secret.given(SECRET).root
    assert not secret.is_drawn
    for shown in (pickle.dumps(secret), repr(secret).encode()):
        assert SECRET not in shown and SECRET.hex().encode() not in shown and secret.root not in shown


def test_a_worker_with_another_secret_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, SECRET.hex())
    secret = sent(Secret.of(policy(secret=f"env:{NAME}")))
    monkeypatch.setenv(NAME, OTHER.hex())
    with pytest.raises(SecretError) as caught:
        _ = secret.root
    assert str(caught.value) == (
        f"policy.secret: a worker finds another secret under env:{NAME} than there was where the pipeline was built. "
        f"Give all of them the same one. {INCURABLE}"
    )


def test_a_worker_without_the_secret_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, SECRET.hex())
    secret = sent(Secret.of(policy(secret=f"env:{NAME}")))
    monkeypatch.delenv(NAME)
    with pytest.raises(SecretError, match=f"names the environment variable {NAME}, which is not set on a worker"):
        _ = secret.root


def test_a_secret_that_only_workers_have_need_not_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    of = policy(secret=f"env:{NAME}")
    with pytest.raises(PolicyError, match="is not set where the pipeline is built"):
        Secret.of(of)
    secret = Secret.of(of, is_here=False)
    monkeypatch.setenv(NAME, SECRET.hex())
    assert sent(secret).root == Secret.given(SECRET).root


def test_a_drawn_secret_travels_itself() -> None:
    secret = Secret.of(policy())
    assert secret.is_drawn and sent(secret).root == secret.root
    assert sent(secret).is_drawn
    assert secret.root.hex() not in repr(secret)


def test_a_seed_does_not_travel_but_what_follows_from_it() -> None:
    of = policy(seed=987654321987)
    secret = Secret.of(of)
    assert not secret.is_drawn and sent(secret).root == Secret.of(of).root
    for shown in (pickle.dumps(secret), repr(secret).encode(), pickle.dumps(without_secret(of))):
        assert b"987654321987" not in shown and (987654321987).to_bytes(5, "little") not in shown
    assert without_secret(of) == policy() == without_secret(policy(secret=f"env:{NAME}"))
    assert releases(without_secret(of), secret=secret) == releases(of)


def test_bytes_are_drawn_unless_the_policy_names_a_secret() -> None:
    assert as_secret(SECRET, policy()).is_drawn
    assert not as_secret(SECRET, policy(secret=f"env:{NAME}")).is_drawn
    assert not as_secret(SECRET, policy(seed=7)).is_drawn
    given = Secret.given(SECRET)
    assert as_secret(given, policy()) is given


def test_keys_of_different_purposes_differ() -> None:
    secret = Secret.given(SECRET)
    assert len({secret.key(b"one"), secret.key(b"two"), Secret.given(OTHER).key(b"one"), secret.root}) == 4


VERSION = "projects/p/secrets/s/versions/3"


class SecretManager:
    """Stands for Google's Secret Manager, which tests cannot reach."""

    asked: ClassVar[list[str]] = []

    def access_secret_version(self, *, name: str) -> Any:
        self.asked.append(name)
        if name != VERSION:
            raise PermissionError(f"what is behind {name} is private")
        return SimpleNamespace(payload=SimpleNamespace(data=SECRET.hex().encode()))


@pytest.fixture
def secret_manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[SecretManager]]:
    cloud = ModuleType("google.cloud")
    cloud.secretmanager = SimpleNamespace(SecretManagerServiceClient=SecretManager)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.cloud", cloud)
    _secret_manager.cache_clear()
    SecretManager.asked.clear()
    yield SecretManager
    _secret_manager.cache_clear()


def test_a_secret_is_read_from_the_secret_manager(secret_manager: type[SecretManager]) -> None:
    secret = Secret.of(policy(secret=f"gcp:{VERSION}"))
    assert sent(secret).root == sent(secret).root == Secret.given(SECRET).root
    assert secret_manager.asked == [VERSION] * 2  # once where the pipeline is built, and once on a worker


def test_a_secret_that_the_manager_does_not_give_is_named(secret_manager: type[SecretManager]) -> None:
    other = VERSION.replace("/3", "/4")
    assert problem(policy(secret=f"gcp:{other}")) == (
        f"policy.secret names {other} in Google's Secret Manager, which cannot be read where the pipeline is built "
        "(PermissionError)."
    )


def test_without_the_library_of_the_manager_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _secret_manager.cache_clear()
    monkeypatch.setitem(sys.modules, "google.cloud", ModuleType("google.cloud"))
    assert "whose library is missing where the pipeline is built: pip install 'crenel[dataflow]'" in problem(
        policy(secret=f"gcp:{VERSION}")
    )


@pytest.mark.parametrize("reference", ["gcp:projects/p/secrets/s/versions/latest", "gcp:s", "gcp:projects/p/secrets/s"])
def test_a_version_that_changes_is_refused(reference: str) -> None:
    with pytest.raises(PolicyError, match="gcp:projects/P/secrets/S/versions/N"):
        policy(secret=reference)
