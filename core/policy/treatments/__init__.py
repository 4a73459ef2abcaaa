"""Treatments: what is done to a column that is published neither generalized nor as it is."""

from __future__ import annotations
