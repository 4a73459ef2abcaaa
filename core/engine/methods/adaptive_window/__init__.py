"""Adaptive windows: buffers that grow and shrink with the stream."""

from __future__ import annotations
