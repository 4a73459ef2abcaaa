"""Rows that are sorted on disk come in the same packs as rows that are sorted in memory."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.transforms.window import FixedWindows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.errors import SnapshotError
from crenel.seal import Seal
from crenel.transforms import AnonymizeBounded
from crenel.transforms._hold import event_order, sorted_runs
from crenel.transforms._hold.event_order import in_order
from crenel.transforms._hold.sorted_runs import Sealed, SortSpace, rows_in_order, spill
from crenel.transforms._pack.payloads import Batch, Objects
from crenel.transforms._pack.row_options import RowOptions
from crenel.transforms._pack.row_pack import Packer, RowPack
from tests.transforms.streams import Outcome, Stamped, as_dict, policy, rows, run

NUMBER = "place"
SEALED = Sealed(Seal(b"k" * 32, carried=False), b"3")
#: The published values of rows that come as Arrow, by the type of their column, and of rows that come one by one.
VALUES: dict[Any, list[Any]] = {
    "int64": [1, 2, None],
    "float64": [1.0, 1.5],
    "string": ["1", "1.5", "1.50", "two"],
    None: [1, 1.5, "1", "1.50", "two", None],
}


@st.composite
def elements(draw: st.DrawFn) -> list[bytes]:
    """Draw packs of rows: with few times and persons, so that many rows differ in little, or in nothing."""
    packer = Packer(policy(), b"secret", RowOptions(row_number=NUMBER, trace=True))
    known, packs, place = rows(1)[0], [], 0
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(list(VALUES)))
        given = []
        for _ in range(draw(st.integers(1, 12))):
            seen, patient, age = draw(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1)))
            number = draw(st.sampled_from(VALUES[kind]))
            own = {"seen": float(seen), "patient": patient, "age": float(age), "number": number, NUMBER: place}
            given.append({**known, **own})
            place += 1
        if kind is None:
            packed = packer.pack_dicts(given, None)
        else:
            packed = packer.pack_arrow(pa.Table.from_pylist(given), None)
        packs += [SEALED.close_pack(pack) for pack in packed.packs]
    return packs


def contents(packs: Sequence[RowPack]) -> list[Any]:
    """Return everything that packs hold, in their order."""
    found = []
    for pack in packs:
        assert isinstance(pack.payload, (Batch, Objects))
        if isinstance(pack.payload, Batch):
            found += [pack.payload.table.schema, pack.payload.table.to_pylist()]
        else:
            found += [list(pack.payload.rows())]
        found += [pack.form, pack.rows.time.tolist(), pack.rows.person.tolist(), pack.rows.qi.tolist()]
    return found


@given(given=elements(), memory=st.sampled_from([1, 500, 5_000]), number=st.sampled_from([None, NUMBER]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_runs_lead_to_the_same_packs(
    given: list[bytes], memory: int, number: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_order, "ROWS", 7)
    monkeypatch.setattr(sorted_runs, "_MERGED", 2)  # several passes
    known = contents(list(in_order([SEALED.open_pack(data) for data in given], number)))
    space = SortSpace(str(tmp_path), memory)
    assert contents(list(rows_in_order(given, SEALED, number, space))) == known
    before = [reference for _, reference in spill(space, {(0, SEALED): given[:2]}, number)]
    assert contents(list(rows_in_order([*before, *given[2:]], SEALED, number, space))) == known
    assert contents(list(rows_in_order(given, SEALED, number))) == known


def test_few_rows_are_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging reads on only where it needs to, however long the runs are."""
    of = policy()
    packer = Packer(of, b"secret")
    given = rows(3_000)
    parts = [packer.pack_dicts(given[start::10], None) for start in range(10)]
    packs = [SEALED.close_pack(pack) for part in parts for pack in part.packs]
    space = SortSpace(str(tmp_path), memory=100_000)
    monkeypatch.setattr(event_order, "ROWS", 50)
    runs = [reference for data in packs for _, reference in spill(space, {(0, SEALED): [data]}, None)]
    held = 0
    sizes: list[int] = []
    read, take = sorted_runs._Cursor.load, sorted_runs._Cursor.take

    def reading(cursor: Any) -> None:
        nonlocal held
        read(cursor)
        held += len(cursor.packs[-1].rows)
        sizes.append(held)

    def taking(cursor: Any, until: Any) -> Any:
        nonlocal held
        taken = take(cursor, until)
        held -= sum(len(pack.rows) for pack in taken)
        return taken

    monkeypatch.setattr(sorted_runs._Cursor, "load", reading)
    monkeypatch.setattr(sorted_runs._Cursor, "take", taking)
    times = np.concatenate([pack.rows.time for pack in rows_in_order(runs, SEALED, None, space)])
    assert len(times) == 3_000
    assert np.all(np.diff(times) > 0)
    assert max(sizes) < 1_000


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    packs = Packer(policy(), b"secret").pack_dicts(rows(50), None).packs
    assert spill(SortSpace(str(tmp_path), 10), {(0, SEALED): [SEALED.close_pack(pack) for pack in packs]}, None)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


# --- In a pipeline ---


def left(outcome: Outcome) -> list[Any]:
    return sorted(repr((as_dict(one.value), one.timestamp, one.window)) for one in outcome.published)


@pytest.mark.parametrize("window", [None, FixedWindows(600)])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.not_on_prism("its bundles are small")
def test_a_pipeline_publishes_the_same_rows(window: Any, shards: int, tmp_path: Path) -> None:
    of, given = policy(shards=shards), rows(400)
    steps = AnonymizeBounded(of), AnonymizeBounded(of, sort_folder=tmp_path, sort_memory=10_000)
    known, found = (run(Stamped(given) if window else given, step, window=window) for step in steps)
    assert list(tmp_path.iterdir())
    assert left(found) == left(known)
    records = [sorted(repr(one.value) for one in outcome.releases) for outcome in (known, found)]
    assert records[0] == records[1]


def test_rows_that_fit_into_memory_are_not_written(tmp_path: Path) -> None:
    of, given = policy(), rows(200)
    known = run(given, AnonymizeBounded(of))
    assert left(run(given, AnonymizeBounded(of, sort_folder=tmp_path))) == left(known)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.not_on_prism("it does no bundle twice")
def test_bundles_that_are_replayed_count_once(tmp_path: Path) -> None:
    of, given = policy(), rows(200)
    known = run(given, AnonymizeBounded(of))
    step = AnonymizeBounded(of, sort_folder=tmp_path, sort_memory=10_000)
    assert left(run(given, step, options={"direct_runner_bundle_repeat": 1})) == left(known)


def test_the_step_that_sorts_on_disk_has_a_label_of_its_own(tmp_path: Path) -> None:
    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create(rows(5)) | AnonymizeBounded(policy(), sort_folder=tmp_path)
    labels: list[str] = []

    class Visitor(beam.pipeline.PipelineVisitor):
        def visit_transform(self, transform_node: Any) -> None:
            labels.append(transform_node.full_label)

    pipeline.visit(Visitor())
    assert "AnonymizeBounded/Spill" in labels


@pytest.mark.parametrize("what", ["reference", "file", "another shard"])
def test_a_run_that_was_changed_is_not_read(what: str, tmp_path: Path) -> None:
    packer = Packer(policy(), b"secret", RowOptions())
    packs = [SEALED.close_pack(pack) for pack in packer.pack_dicts(rows(30), None).packs]
    space = SortSpace(str(tmp_path), 10)
    ((_, reference),) = spill(space, {(0, SEALED): packs}, None)
    sealed = SEALED
    if what == "reference":
        reference = reference.replace(b"rows-", b"rovs-")
    elif what == "file":
        (file,) = tmp_path.iterdir()
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        sealed = Sealed(SEALED.seal, b"4")
    with pytest.raises(SnapshotError):
        list(rows_in_order([reference], sealed, None, space))
