"""What `crenel audit` needs: it reads published files, and writes a page."""

from __future__ import annotations
