"""What `crenel init` is made of: a policy is drafted from data."""

from __future__ import annotations
