"""Checks for authors: whether a method of your own keeps the promises, and a quasi-identifier its contract.

They need numpy alone, and raise an AssertionError, so that any test framework reports what they find.
"""

from __future__ import annotations

from crenel.testing.engine_suite import check_engine
from crenel.testing.quasi_identifier_checks import check_quasi_identifier

__all__ = ["check_engine", "check_quasi_identifier"]
