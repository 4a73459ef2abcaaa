"""Rows from Kafka topics and to Kafka topics."""

from __future__ import annotations
