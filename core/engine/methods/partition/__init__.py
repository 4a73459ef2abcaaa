"""Partitioning for rows with missing quasi-identifiers."""

from __future__ import annotations
