"""The methods, one folder each: its declaration, engine, kernel and snapshot schema."""

from __future__ import annotations
