"""PUBLISH: turn releases into published rows and records."""

from __future__ import annotations
