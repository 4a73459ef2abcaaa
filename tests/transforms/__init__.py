"""Tests of `crenel.transforms`."""

from __future__ import annotations
