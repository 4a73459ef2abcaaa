"""The tests of `crenel.engine`, with one folder for each folder of its code."""

from __future__ import annotations
