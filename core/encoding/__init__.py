"""Values to numbers: the arrays of rows that an engine takes."""

from __future__ import annotations
