"""FAANST: clusters of a fixed buffer, passive and proactive."""

from __future__ import annotations
