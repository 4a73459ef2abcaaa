"""What `crenel init` needs: it drafts a policy from data."""

from __future__ import annotations
