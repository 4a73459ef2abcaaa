"""A broker for all tests of this folder. If CRENEL_REQUIRE_KAFKA is set, tests fail without a broker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.pipelines.kafka import broker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[broker.Broker]:
    missing = broker.missing()
    if missing is not None:
        if os.environ.get("CRENEL_REQUIRE_KAFKA"):
            pytest.fail(missing)
        pytest.skip(missing)
    with broker.running(tmp_path_factory.mktemp("kafka")) as running:
        yield running
