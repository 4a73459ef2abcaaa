"""Sampling and a grid that does not depend on the data: differential privacy."""

from __future__ import annotations
