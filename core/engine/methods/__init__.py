"""The methods, one folder each: engine, kernel and snapshot schema."""

from __future__ import annotations
