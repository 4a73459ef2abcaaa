"""Every method makes the same releases as before, from the same rows and the same seed."""

from __future__ import annotations

import json

import pytest

from crenel.policy.methods import names
from tests.core.engine import digests

GOLDEN: dict[str, str] = json.loads(digests.FILE.read_text("utf-8"))


@pytest.mark.parametrize("name", digests.STREAMS)
def test_a_method_makes_the_same_releases_as_before(name: str) -> None:
    assert digests.digest(name) == GOLDEN[name]


def test_every_method_has_a_stream() -> None:
    assert {said["method"] for said in digests.STREAMS.values()} == set(names())


def test_no_two_streams_release_the_same() -> None:
    assert len(set(GOLDEN.values())) == len(GOLDEN)


def test_uniform_reuse_is_weighted_reuse_without_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    uniform = digests.STREAMS["bastion, uniform reuse"]
    level = {**uniform, "parameters": {"reuse": "weighted", "eta": 0.0}}
    monkeypatch.setitem(digests.STREAMS, "bastion, uniform reuse", level)
    assert digests.digest("bastion, uniform reuse") == GOLDEN["bastion, uniform reuse"]
