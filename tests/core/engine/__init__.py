"""The tests: one folder for each folder of code."""

from __future__ import annotations
