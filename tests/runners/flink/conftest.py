"""One Flink cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runners.harness import Flink, need_flink


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """A cluster of two TaskManagers with one slot each."""
    need_flink()
    with Flink(tmp_path_factory.mktemp("flink")) as running:
        yield running
