"""Provides the broker of the Kafka tests to the example that needs one."""

from __future__ import annotations

from tests.pipelines.kafka.conftest import kafka

__all__ = ["kafka"]
