"""What is said about the settings of a cluster that keeps too few checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from crenel.runners.flink.cluster import SETTINGS, Rest, advice
from tests.runners.harness import Flink

INCREMENTAL = {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"}


class Told(Rest):
    """A cluster that answers with some settings."""

    def __init__(self, settings: Any) -> None:
        super().__init__("nowhere:1")
        self._settings = settings

    def get(self, path: str) -> Any:
        assert path == "/jobmanager/config"
        if isinstance(self._settings, Exception):
            raise self._settings
        return [{"key": key, "value": value} for key, value in self._settings.items()]


@pytest.mark.parametrize(
    "settings",
    [
        INCREMENTAL,
        {**INCREMENTAL, "execution.checkpointing.num-retained": "1"},
        {"state.backend": "rocksdb", "state.backend.incremental": "true", "state.checkpoints.num-retained": "1"},
    ],
)
def test_one_retained_checkpoint_is_too_few_for_incremental_ones(settings: dict[str, str]) -> None:
    said = advice(Told(settings))
    assert said is not None
    assert "Set execution.checkpointing.num-retained: 3 on the cluster." in said


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {**INCREMENTAL, "execution.checkpointing.num-retained": "2"},
        {**INCREMENTAL, "state.checkpoints.num-retained": "3"},
        {**INCREMENTAL, "state.backend.type": "hashmap"},
        {**INCREMENTAL, "execution.checkpointing.incremental": "false"},
        SETTINGS,
        {**INCREMENTAL, "execution.checkpointing.num-retained": "many"},
        OSError(),
    ],
)
def test_nothing_is_said_of_other_clusters_and_of_those_that_do_not_answer(settings: Any) -> None:
    assert advice(Told(settings)) is None


@pytest.mark.flink
def test_a_cluster_of_ours_says_that_it_keeps_enough(flink: Flink) -> None:
    found = {one["key"]: one["value"] for one in flink.cluster.rest.get("/jobmanager/config")}
    assert int(found["execution.checkpointing.num-retained"]) >= 2
    assert advice(flink.cluster.rest) is None
