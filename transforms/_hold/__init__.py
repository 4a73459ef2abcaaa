"""HOLD: one engine a shard, with state and timers."""

from __future__ import annotations
