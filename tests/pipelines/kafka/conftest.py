"""A broker and a registry for all tests of this folder. If CRENEL_REQUIRE_KAFKA is set, tests fail without them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.pipelines.kafka import broker, registry_server
from tests.pipelines.kafka.registry_server import Registry


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[broker.Broker]:
    missing = broker.missing()
    if missing is not None:
        if os.environ.get("CRENEL_REQUIRE_KAFKA"):
            pytest.fail(missing)
        pytest.skip(missing)
    with broker.running(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A schema registry for all tests."""
    missing = registry_server.missing()
    if missing is not None:
        if os.environ.get("CRENEL_REQUIRE_KAFKA"):
            pytest.fail(missing)
        pytest.skip(missing)
    running = Registry(tmp_path_factory.mktemp("registry"))
    try:
        running.start()
        yield running
    finally:
        running.stop()
