"""Shared by all tests: the example data, Prism, and the settings of Hypothesis."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# The first example may compile a kernel, which takes seconds, so a deadline per example would fail.
settings.register_profile("dev", deadline=None, print_blob=True)
# Use the same examples in every run, so that a failure is due to the change under test.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prism", action="store_true", help="run the transform's pipelines on Prism; built if need be")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.prism:
        _have_prism()


def _have_prism() -> None:
    """Run pipelines on Prism. pytest's main process builds it, before the other processes look for it."""
    from apache_beam.options.pipeline_options import PipelineOptions

    from crenel.runners import RunnerError, prism
    from tests.transforms import streams

    try:
        streams.ON_PRISM = prism.binary(PipelineOptions([]))
    except RunnerError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("not_on_prism")
        if config.option.prism and mark is not None:
            item.add_marker(pytest.mark.skip(reason=f"not on Prism: {mark.args[0]}"))


def pytest_collection_finish() -> None:
    """Spare the tests the search for garbage among what was imported and collected: it stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


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
