"""The tests of `crenel.audit`."""

from __future__ import annotations
