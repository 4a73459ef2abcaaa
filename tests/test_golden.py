"""State that an earlier version wrote can be loaded, and leads to the same releases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crenel.engine import create_engine
from crenel.policy import Policy
from crenel.transforms._deal.stored_trees import read_sample, read_trees, read_watch
from crenel.transforms._pack.row_pack import Packer, RowPack
from tests import golden
from tests.transforms import cells

ENGINES = sorted((golden.TESTS / "core" / "engine" / "golden").glob("*.json"))
_TRANSFORMS = golden.TESTS / "transforms" / "golden"
SHARDS = sorted(_TRANSFORMS.glob("shards.*.json"))
HELD = sorted(_TRANSFORMS.glob("held.*.json"))
#: The kinds of releases of methods that do not reuse, or that sample.
_EVERYTHING = {"castleguard": {0, 1, 2, 3}, "rtree": {0, 2}, "sdgs": {0, 2, 3}, "together": {0, 2}, "z_anonymity": {0}}
PACKS = sorted(_TRANSFORMS.glob("pack.*.json"))


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    cells.forget()
    yield
    cells.forget()


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_schema_has_its_golden_file() -> None:
    missing = [name for name, path in golden.files().items() if not path.exists()]
    assert missing == [], "run python -m tests.golden"
    on_disk = {path for folder in golden.FOLDERS.values() for path in folder.iterdir()}
    assert on_disk == set(golden.files().values())


@pytest.mark.parametrize("path", ENGINES, ids=lambda path: path.stem)
def test_an_engine_goes_on_from_a_golden_snapshot(path: Path) -> None:
    record = load(path)
    engine = create_engine(Policy.from_dict(record["policy"]))
    engine.restore(golden.as_bytes(record["snapshot"]))
    found = golden.continued(engine, golden.rows_of(record))
    assert found == record["releases"]


@pytest.mark.parametrize("path", ENGINES, ids=lambda path: path.stem)
def test_an_engine_without_a_snapshot_releases_the_same(path: Path) -> None:
    """This shows that the rows in the file are those that were pushed before the snapshot."""
    record = load(path)
    engine = create_engine(Policy.from_dict(record["policy"]))
    rows = golden.rows_of(record)
    engine.push(rows.slice(0, record["pushed"]))
    assert golden.continued(engine, rows) == record["releases"]


@pytest.mark.parametrize("path", ENGINES, ids=lambda path: path.stem)
def test_a_golden_snapshot_has_something_of_everything(path: Path) -> None:
    record = load(path)
    engine = create_engine(Policy.from_dict(record["policy"]))
    engine.restore(golden.as_bytes(record["snapshot"]))
    assert engine.held > 10 or record["policy"]["method"] == "z-anonymity"  # which holds none
    kinds = {kind for releases in record["releases"] for kind in releases["kind"]}
    assert (_EVERYTHING.get(path.stem.split(".")[0]) or {0, 1, 2}) <= kinds


@pytest.mark.parametrize("path", HELD, ids=lambda path: path.stem)
def test_a_shard_goes_on_from_golden_state(path: Path) -> None:
    record = load(path)
    assert golden.held_on(record) == record["published"]
    assert len(record["published"]) > 60


@pytest.mark.parametrize("path", SHARDS, ids=lambda path: path.stem)
def test_a_step_goes_on_from_golden_state(path: Path) -> None:
    record = load(path)
    by_number = itemgetter("number")  # rows released at one moment are in random order
    assert sorted(golden.gone_on(record), key=by_number) == sorted(record["published"], key=by_number)
    assert len(record["published"]) > 60


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.stem)
def test_a_golden_pack_is_read(path: Path) -> None:
    record = load(path)
    pack = RowPack.from_bytes(golden.as_bytes(record["pack"]))
    (today,) = Packer(Policy.from_dict(record["policy"]), b"secret").pack_dicts(record["given"], None).packs
    for name in ("qi", "person", "sensitive", "time"):
        assert np.array_equal(getattr(pack.rows, name), getattr(today.rows, name))
    assert (pack.form, pack.persons, pack.space) == (today.form, today.persons, today.space)
    assert list(pack.payload.rows()) == list(today.payload.rows())


def test_golden_trees_are_read() -> None:
    record = load(_TRANSFORMS / "trees.1.json")
    found = read_trees(golden.as_bytes(record["stored"]))
    assert found.to_list() == record["trees"]
    assert [tree.shards for tree in found.trees] == [1, 4]
    found.check(golden.learning_policy().quasi_identifiers)


def test_a_golden_watch_is_read() -> None:
    record = load(_TRANSFORMS / "watch.1.json")
    found = read_watch(golden.as_bytes(record["stored"]))
    assert asdict(found) == record["watch"]
    assert found.period == 2 and found.rows == 2_088


def test_a_golden_sample_is_read() -> None:
    record = load(_TRANSFORMS / "sample.1.json")
    found, expected = read_sample(golden.as_bytes(record["stored"])), golden.engine_rows(record["rows"])
    for name in ("qi", "person", "time"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
