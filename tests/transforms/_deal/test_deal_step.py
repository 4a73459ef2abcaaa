"""`shard_by: locality` for bounded rows: the tree is learned from the rows, and is the same wherever they come from."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from apache_beam.transforms.window import FixedWindows

from crenel.transforms import AnonymizeBounded
from tests.transforms.streams import Stamped, as_dicts, check, policy, rows, run

GIVEN = rows(1_500, every=1.0)
OF = policy(shards=4, shard_by="locality", method="bastion", on_suppress="drop", delay="5m")


def shuffled(seed: int) -> list[dict[str, Any]]:
    mixed = list(GIVEN)
    random.Random(seed).shuffle(mixed)
    return mixed


def published(outcome: Any) -> list[str]:
    return sorted(repr(left.value) for left in outcome.published)


def test_the_order_and_the_form_of_the_input_do_not_matter() -> None:
    first = run(shuffled(1), AnonymizeBounded(OF))
    check(OF, GIVEN, first.published, first.suppressed)
    assert {left.value["shard"] for left in first.releases} == {0, 1, 2, 3}
    again = run(shuffled(2), AnonymizeBounded(OF))
    assert published(again) == published(first)
    batches = [pa.RecordBatch.from_pylist(shuffled(3)[i : i + 170]) for i in range(0, len(GIVEN), 170)]
    as_arrow = run(batches, AnonymizeBounded(OF))
    assert sorted(map(repr, as_dicts(as_arrow.published))) == published(first)


def test_there_are_no_more_shards_than_the_rows_feed() -> None:
    """With 300 rows inside the deadline and k = 4, a shard that sees 8 times k persons is one of at most 9."""
    outcome = run(GIVEN, AnonymizeBounded(policy(**{**OF.to_dict(), "shards": 64})))
    assert 5 <= len({left.value["shard"] for left in outcome.releases}) <= 9
    auto = run(GIVEN, AnonymizeBounded(policy(**{**OF.to_dict(), "shards": "auto"})))
    assert {left.value["shard"] for left in auto.releases} == {0}  # one core holds 300 rows


def test_no_rows_make_no_tree() -> None:
    assert run([], AnonymizeBounded(OF)).published == []


def test_windows_learn_apart() -> None:
    outcome = run(Stamped(GIVEN), AnonymizeBounded(OF), window=FixedWindows(600))
    assert len(outcome.published) + len(outcome.suppressed) == len(GIVEN)
