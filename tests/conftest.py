"""What all tests share: the example data, and how much Hypothesis tries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# Compiling a kernel takes seconds, once: a deadline per example would only measure that.
settings.register_profile("dev", deadline=None, print_blob=True)
# The same examples in every run: a change is judged by what it changed.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public data sets: $CRENEL_DATA, or shared/data beside the repository."""
    named = os.environ.get("CRENEL_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if folder.is_dir():
        return folder
    if named:
        pytest.fail(f"CRENEL_DATA must be a folder, and {named} is none.")
    pytest.skip("no data sets: neither $CRENEL_DATA nor ../shared/data is there")
