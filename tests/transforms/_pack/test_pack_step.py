"""The rows of a bundle become packs, and a failed bundle leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow, IntervalWindow
from apache_beam.utils.windowed_value import WindowedValue

from crenel.policy.secret import as_secret
from crenel.transforms._pack import pack_step
from crenel.transforms._pack.payloads import Objects, shared
from crenel.transforms._pack.row_pack import RowPack, opened
from crenel.transforms._pack.sharding import shard_name
from crenel.transforms._publish.counts import Counts
from tests.transforms.streams import anonymize, policy, rows, run

GIVEN = rows(100)
GLOBAL = (GlobalWindow(),)
WINDOWS = ([IntervalWindow(0, 10)], [IntervalWindow(10, 20)], [IntervalWindow(0, 10), IntervalWindow(5, 15)])


def made(*, overlapping: bool = False, **changes: Any) -> pack_step.PackRows:
    step = pack_step.PackRows(policy(**changes), b"secret", overlapping=overlapping)
    step.setup()
    step.start_bundle()
    return step


def value(row: Any, time: int = 5, windows: Any = GLOBAL) -> WindowedValue:
    return WindowedValue(row, time, windows)


def only_packs(elements: Iterable[Any]) -> Iterator[Any]:
    """Return the packs that a step emitted, without rejected rows and counts."""
    return (element for element in elements if not isinstance(element, TaggedOutput))


def read(element: Any) -> RowPack:
    """Read a pack as HOLD does: sealed for its key and window."""
    (window,) = element.windows
    key, data = element.value
    return opened(data, as_secret(b"secret", policy()).seal, shard_name(key, window))


def numbers(elements: list[Any]) -> list[int]:
    found = [read(element).payload for element in only_packs(elements)]
    return sorted(row[-1] for payload in found for row in payload.rows())


def test_a_bundle_leaves_nothing_for_the_next() -> None:
    step = made()
    for row in GIVEN[:10]:
        assert list(step.process(row, value(row))) == []
    # This bundle fails without being finished, and another begins.
    step.start_bundle()
    for row in GIVEN[10:20]:
        step.process(row, value(row))
    assert numbers(list(step.finish_bundle())) == list(range(10, 20))
    assert list(step.finish_bundle()) == []


def test_rows_of_different_windows_are_packed_apart() -> None:
    step = made(overlapping=True)
    for i, row in enumerate(GIVEN):
        step.process(row, value(row, i, WINDOWS[i % 3]))
    out = list(only_packs(step.finish_bundle()))
    # Each window has its own pack, which is sealed for it.
    assert [list(element.windows) for element in out] == [*WINDOWS[:2], *([window] for window in WINDOWS[2])]
    assert [element.timestamp.micros for element in out] == [0, 10**6, 2 * 10**6, 2 * 10**6]
    assert numbers(out[:1]) == list(range(0, 100, 3))
    assert numbers(out[2:3]) == numbers(out[3:]) == list(range(2, 100, 3))
    assert numbers(out[:3]) == list(range(100))


def test_a_bundle_ends_with_its_counts() -> None:
    step = made()
    for row in [*GIVEN, GIVEN[0] | {"age": "old"}]:
        step.process(row, value(row))
    *_, last = step.finish_bundle()
    assert (last.tag, last.value.timestamp) == ("counts", GlobalWindow().max_timestamp())
    counts = Counts.of([last.value.value])
    assert (counts.rows, dict(counts.rejected)) == (len(GIVEN) + 1, {("age", "not a number"): 1})


def test_a_row_that_holds_itself_is_rejected() -> None:
    """Beam itself crashes on such a row wherever it needs its coder; here none is needed."""
    itself: list[Any] = []
    itself.append(itself)
    step = made()
    for i, row in enumerate(GIVEN):
        step.process(row | ({"number": itself} if i == 7 else {}), value(row))
    out = list(step.finish_bundle())
    (rejected,) = [element.value.value for element in out if getattr(element, "tag", "") == "rejected"]
    assert (rejected["field"], rejected["reason"]) == ("number", "nested too deeply")
    assert numbers(out) == [i for i in range(100) if i != 7]


def test_a_pack_comes_back_from_bytes() -> None:
    step = made(shards=3)
    for row in GIVEN:
        step.process(row, value(row))
    out = list(only_packs(step.finish_bundle()))
    assert sorted({element.value[0] for element in out}) == [0, 1, 2]
    for element in out:
        one = read(element)
        two = RowPack.from_bytes(one.to_bytes())
        assert np.array_equal(one.rows.qi, two.rows.qi)
        assert (one.persons, one.space, one.form) == (two.persons, two.space, two.form)
    assert numbers(out) == list(range(100))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_pack_is_handed_over_only_while_it_is_emitted(shards: int) -> None:
    step = made(shards=shards)
    for row in GIVEN:
        step.process(row, value(row))
    emitted = []
    for element in only_packs(step.finish_bundle()):
        key, data = element.value
        # Equal bytes, but a copy, as after a transfer.
        one, two = read(element), read(element.with_value((key, bytes(bytearray(data)))))
        assert one is read(element) is not two
        assert np.array_equal(one.rows.qi, two.rows.qi)
        assert np.array_equal(one.rows.person, two.rows.person)
        assert list(one.payload.rows()) == list(two.payload.rows())
        # The pack will be held. A view would keep the rows of other shards in memory too.
        assert len(one.rows.qi) == len(one.rows.qi if one.rows.qi.base is None else one.rows.qi.base)
        emitted.append(element)
    assert len(emitted) == shards
    assert not any(read(element) is read(element) for element in emitted)


def test_rows_with_mutable_values_are_not_handed_over() -> None:
    """The step that made a row may still change a list in it, so the held row must be a copy."""
    step = made()
    for row in GIVEN:
        step.process(row | {"number": [row["number"]]}, value(row))
    (pack,) = [read(element) for element in only_packs(step.finish_bundle()) if read(element) is not read(element)]
    assert len(pack.payload) == len(GIVEN)


@pytest.mark.parametrize("sizes", [(1, 1), (7, 7), (7, 30), (30, 7)])
def test_sizes_of_packs_change_nothing(sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [pa.RecordBatch.from_pylist(GIVEN[:64]), pa.RecordBatch.from_pylist(GIVEN[64:])]
    expected = [left.value for left in run(GIVEN, anonymize(shards=2)).published]
    monkeypatch.setattr(pack_step, "_ROWS", sizes[0])
    monkeypatch.setattr(pack_step, "_MOST_ROWS", sizes[1])
    key = "number"
    for given in (GIVEN, batches):
        found = [left.value for left in run(given, anonymize(shards=2)).published]
        listed = [row for some in found for row in (some.to_pylist() if isinstance(some, pa.RecordBatch) else [some])]
        assert sorted(listed, key=lambda row: row[key]) == sorted(expected, key=lambda row: row[key])


def test_equal_texts_are_one_object() -> None:
    given = ["".join(("flu", str(i % 3))) for i in range(200)]
    found = shared(given, {str})
    assert found == given
    assert len(set(map(id, found))) == 3 < len(set(map(id, given)))
    # So they are after they have been written and read.
    again = Objects.from_bytes(Objects((given,), ("ill",), 200).to_bytes()).columns[0]
    assert again == given and len(set(map(id, again))) == 3


@pytest.mark.parametrize(
    "given",
    [
        [],
        [f"{i}" for i in range(200)],
        [True, 1, 1.0] * 50,
        ["1", None] * 50,
        [0.0, -0.0] * 50,
        [[1], [1]] * 50,
    ],
)
def test_other_columns_stay_as_they_are(given: list[Any]) -> None:
    """Equal values are not always interchangeable: True == 1."""
    assert shared(given, set(map(type, given))) is given
    again = Objects.from_bytes(Objects((given,), ("some",), len(given)).to_bytes()).columns[0]
    assert repr(again) == repr(given)


def test_many_texts_that_looked_like_few() -> None:
    given = [f"{i % 10 if i < 100 else i}" for i in range(1000)]
    assert Objects.from_bytes(Objects((given,), ("some",), 1000).to_bytes()).columns[0] == given
