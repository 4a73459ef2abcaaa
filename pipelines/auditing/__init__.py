"""What `crenel audit` is made of: published files are read, and the report is written as a page."""

from __future__ import annotations
