"""The commands of `crenel`, one module each."""

from __future__ import annotations
