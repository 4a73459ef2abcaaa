"""The broker of the tests of Kafka, for the example that needs one."""

from __future__ import annotations

from tests.pipelines.kafka.conftest import kafka

__all__ = ["kafka"]
