"""PACK: encode rows, choose their shards, and gather them into packs."""

from __future__ import annotations
