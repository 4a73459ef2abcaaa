"""What commands print: sections, findings, limits, and the summary of a run."""

from __future__ import annotations
