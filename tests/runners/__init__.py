"""Tests of the runners."""

from __future__ import annotations
