"""Reusable boxes are kept in a ring, and all methods store them in the same form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from crenel.engine import reusable
from crenel.engine.kernels import reusable_boxes

ENGINE = Path(reusable.__file__).parent
NUMBERS = np.dtype([(name, "i8") for name in ("reusable", "reusable_oldest", "arrivals", "clock")])


def ring(size: int, boxes: int) -> tuple[reusable_boxes.ReusableBoxes, np.ndarray]:
    """Make a ring that received the boxes [0, 1], [1, 2], and so on, one per arriving row."""
    made, numbers = reusable.empty_boxes(size, 1), np.zeros(1, dtype=NUMBERS)
    for i in range(boxes):
        numbers["arrivals"] = i
        reusable_boxes.keep_box(made, numbers, np.array([float(i)]), np.array([i + 1.0]), 0.5, 2, i)
    return made, numbers


def groups_with(boxes: reusable_boxes.ReusableBoxes, numbers: np.ndarray, x: float) -> list[int]:
    found = reusable_boxes.find_containing(boxes, numbers, np.array([x]))
    return boxes.table["group"][boxes.candidates[:found]].tolist()


def test_the_oldest_box_makes_way() -> None:
    boxes, numbers = ring(3, 5)
    assert numbers["reusable"][0] == 3
    assert groups_with(boxes, numbers, 0.5) == groups_with(boxes, numbers, 1.5) == []
    assert groups_with(boxes, numbers, 3.0) == [2, 3]  # the older box comes first
    assert groups_with(boxes, numbers, 4.5) == [4]


def test_a_box_that_is_there_is_not_added_again() -> None:
    boxes, numbers = ring(3, 2)
    reusable_boxes.keep_box(boxes, numbers, np.array([0.0]), np.array([1.0]), 0.5, 2, 9)
    assert numbers["reusable"][0] == 2
    assert groups_with(boxes, numbers, 0.5) == [0]


def test_missing_quasi_identifiers_are_part_of_a_box() -> None:
    boxes, numbers = ring(3, 1)
    for _ in range(2):
        reusable_boxes.keep_box(boxes, numbers, np.array([np.nan]), np.array([np.nan]), 0.5, 2, 1)
    assert numbers["reusable"][0] == 2


def test_stored_boxes_are_the_same_in_a_ring_of_any_size() -> None:
    boxes, numbers = ring(3, 5)
    stored = reusable.stored_boxes(boxes, numbers)
    for size, groups in ((2, [3, 4]), (3, [2, 3, 4]), (8, [2, 3, 4])):
        again, restored = reusable.empty_boxes(size, 1), np.zeros(1, dtype=NUMBERS)
        reusable.restore_boxes(again, restored, stored)
        assert again.table["group"][: restored["reusable"][0]].tolist() == groups
        assert again.table["arrivals"][: restored["reusable"][0]].tolist() == groups


def test_a_grown_ring_has_the_same_boxes() -> None:
    boxes, numbers = ring(3, 3)
    grown = reusable.grown_boxes(boxes, 4, 10)
    assert 4 <= len(grown.table) <= 10
    assert groups_with(grown, numbers, 2.0) == [1, 2]
    assert reusable.grown_boxes(boxes, 3, 10) is boxes


def test_all_methods_store_boxes_in_one_form() -> None:
    schemas = [json.loads(path.read_text("utf-8")) for path in ENGINE.rglob("*.avsc")]
    forms = [field["type"] for schema in schemas for field in schema["fields"] if field["name"] == "reusable"]
    assert len(forms) == 4
    assert all(form == forms[0] for form in forms)
