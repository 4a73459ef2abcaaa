"""What `crenel check` and `crenel plan` need: they judge a policy, with or without data."""

from __future__ import annotations
