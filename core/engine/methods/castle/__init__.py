"""CASTLE: clusters that grow with the stream."""

from __future__ import annotations
