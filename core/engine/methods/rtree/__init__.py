"""Continuous publishing with R-trees: min-delay, rtree, rtree-density, rtree-full."""

from __future__ import annotations
