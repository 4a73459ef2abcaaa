"""Seals: what was touched, moved or written under another secret is not opened."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.errors import INCURABLE, PermanentError, SecretError, SnapshotError
from crenel.seal import TAG, Seal

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SEALS = {"named": Seal(KEY, carried=False), "carried": Seal(KEY, carried=True)}

seals = pytest.mark.parametrize("seal", SEALS.values(), ids=SEALS)
bodies = st.binary(max_size=300)


def refused(seal: Seal, data: bytes, kind: str = "kind", place: bytes = b"place") -> str:
    with pytest.raises(SnapshotError) as caught:
        seal.open(kind, data, place)
    return str(caught.value)


@seals
@given(body=bodies, place=st.binary(max_size=20))
def test_what_was_closed_is_opened(seal: Seal, body: bytes, place: bytes) -> None:
    data = seal.close("kind", body, place)
    assert seal.open("kind", data, place) == body
    assert data.endswith(body)
    assert len(data) == seal.size + len(body)


@seals
@given(body=bodies, draw=st.data())
def test_a_damaged_byte_is_found_wherever_it_is(seal: Seal, body: bytes, draw: st.DataObject) -> None:
    data = bytearray(seal.close("kind", body, b"place"))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= draw.draw(st.integers(1, 255))
    refused(seal, bytes(data))


@seals
@given(body=bodies, cut=st.integers(0, 400))
def test_what_was_cut_or_lengthened_is_refused(seal: Seal, body: bytes, cut: int) -> None:
    data = seal.close("kind", body, b"place")
    refused(seal, data[: min(cut, len(data) - 1)])
    refused(seal, data + b"\0")


@seals
def test_another_kind_or_place_is_refused(seal: Seal) -> None:
    data = seal.close("kind", b"body", b"place")
    refused(seal, data, kind="other")
    refused(seal, data, place=b"plac")
    refused(seal, seal.close("kind", b"ebody", b"plac"), place=b"place")


def test_a_named_secret_opens_nothing_of_another() -> None:
    seal = SEALS["named"]
    for other in (Seal(OTHER, carried=False), Seal(OTHER, carried=True), SEALS["carried"]):
        assert refused(seal, other.close("kind", b"body", b"place")) == (
            "Stored state was written under another secret, so it cannot be checked and is not used. Use the secret "
            f"that it was written under, or drain the pipeline before you change the secret. {INCURABLE}"
        )


def test_a_drawn_secret_opens_what_carries_its_key_and_nothing_else() -> None:
    seal, other = SEALS["carried"], Seal(OTHER, carried=True)
    data = other.close("kind", b"body", b"place")
    assert seal.open("kind", data, b"place") == b"body"
    # What is added to it goes on under its own key.
    assert seal.of(data).close("kind", b"body", b"place") == data
    assert "another secret" in refused(seal, Seal(KEY, carried=False).close("kind", b"body", b"place"))


def test_damage_is_told_from_another_secret() -> None:
    seal = SEALS["named"]
    data = bytearray(seal.close("kind", b"body", b"place"))
    data[-1] ^= 1
    assert refused(seal, bytes(data)) == (
        "Stored state does not match its digest, so it was damaged or changed and is not used. Go on from an earlier "
        f"checkpoint or savepoint. {INCURABLE}"
    )


@seals
def test_a_mark_is_of_its_parts(seal: Seal) -> None:
    mark = seal.mark("kind", b"ab", b"c")
    assert len(mark) == TAG
    seal.check("kind", mark, b"ab", b"c")
    for kind, parts in (("kind", (b"a", b"bc")), ("kind", (b"abc",)), ("other", (b"ab", b"c"))):
        with pytest.raises(SnapshotError):
            seal.check(kind, mark, *parts)


@seals
def test_nothing_is_told_about_the_key(seal: Seal) -> None:
    assert KEY.hex() not in repr(seal) and str(KEY) not in repr(seal)


@pytest.mark.parametrize("kind", [SnapshotError, SecretError])
def test_a_permanent_error_says_so_at_its_end(kind: type[PermanentError]) -> None:
    error = kind("The state is gone.")
    assert str(error) == f"The state is gone. {INCURABLE}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert isinstance(error, PermanentError) and isinstance(error, ValueError)
