"""Rows from files and to files: formats, readers, writers."""

from __future__ import annotations
