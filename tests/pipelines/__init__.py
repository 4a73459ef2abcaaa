"""The tests of `crenel.pipelines`."""

from __future__ import annotations
