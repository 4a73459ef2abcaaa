"""Mondrian: a buffer of rows, cut into groups of at least k persons."""

from __future__ import annotations
