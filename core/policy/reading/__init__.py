"""The files of a policy: its own, and those that it names."""

from __future__ import annotations
