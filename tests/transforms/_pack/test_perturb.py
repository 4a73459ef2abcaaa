"""Noise on sensitive columns: a row has one noisy value, however often it is published."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.testing import test_pipeline as pipelines
from apache_beam.testing.util import assert_that

from crenel.encoding import noise
from crenel.errors import SnapshotError
from crenel.pipelines.cli import main
from crenel.policy import Policy
from crenel.transforms import Anonymize, published_schema
from crenel.transforms._hold.shard_holder import ShardHolder
from crenel.transforms._pack.payloads import Batch, Objects
from crenel.transforms._pack.row_options import RowOptions
from crenel.transforms._pack.row_pack import Packed, Packer, RowPack

VALUES = ["flu", "gout", "mumps", "croup"]


def policy(**changes: Any) -> Policy:
    said: dict[str, Any] = {
        "person": "who",
        "event_time": "at",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}},
        "sensitive": {"disease": {"values": VALUES}, "cost": {"domain": [0, 1000], "bins": 5}},
        "publish": ["number"],
        "k": 2,
        "delay_rows": 50,
        "method": "castleguard",
        "parameters": {"beta_sample": 1.0, "phi": 1000, "perturb_sensitive": {"disease": 1.0, "cost": 2.0}},
        "seed": 7,
    }
    return Policy.from_dict(said | changes)


def rows(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "who": i,
            "at": 1_000_000.0 + i,
            "age": float(i * 7 % 100),
            "disease": VALUES[i % 4],
            "cost": float(100 + i * 13 % 800),
            "number": i,
        }
        | changes
        for i in range(count)
    ]


def packed(given: list[dict[str, Any]], of: Policy | None = None, secret: bytes = b"secret", **how: Any) -> Packed:
    return Packer(of or policy(), secret, **how).pack_dicts(given, None)


def noisy(of: Packed) -> list[tuple[Any, ...]]:
    assert isinstance(of.pack.payload, Objects)
    return list(of.pack.payload.rows())


def test_values_leave_with_noise_and_are_counted_with_it():
    given = rows(400)
    of = packed(given)
    out = noisy(of)
    assert sum(row[0] != was["disease"] for row, was in zip(out, given, strict=True)) > 100
    assert all(row[1] != was["cost"] for row, was in zip(out, given, strict=True))
    assert [row[2] for row in out] == list(range(400))
    # l is counted over the noisy values, since these are published.
    assert of.pack.rows.sensitive[:, 0].tolist() == [VALUES.index(row[0]) for row in out]
    assert of.pack.rows.sensitive[:, 1].tolist() == [min(int(row[1] / 200), 4) for row in out]
    assert all(0 <= row[1] <= 1000 for row in out)


def test_the_same_row_has_the_same_noise_however_it_is_delivered():
    """Otherwise an attacker could average the noise of many copies away."""
    given = rows(100)
    once = noisy(packed(given))
    assert noisy(packed(given)) == once
    assert [noisy(packed([row]))[0] for row in given] == once
    assert noisy(packed(given[::-1]))[::-1] == once
    copies = [noisy(packed([given[3]] * 50))[i][1] for i in range(50)]
    assert len(set(copies)) == 1
    assert abs(np.mean(copies) - given[3]["cost"]) > 1e-6


def test_all_forms_have_the_same_noise():
    given = rows(100)
    once = noisy(packed(given))
    objects = Packer(policy(), b"secret").pack_objects([beam.Row(**row) for row in given], None)
    assert noisy(objects) == once
    batch = Packer(policy(), b"secret").pack_arrow(pa.RecordBatch.from_pylist(given), None)
    assert isinstance(batch.pack.payload, Batch)
    assert [tuple(row.values()) for row in batch.pack.payload.table.to_pylist()] == once


def test_other_secrets_rows_and_values_have_other_noise():
    given = rows(100)
    # The noise is small, so that few values are clipped to the ends of the domain, where they would be equal.
    of = policy(parameters={"perturb_sensitive": {"cost": 40.0}})
    once = noisy(packed(given, of))
    other = noisy(packed(given, of, secret=b"other"))
    assert sum(a[1] == b[1] for a, b in zip(once, other, strict=True)) < 10
    moved = noisy(packed([row | {"cost": row["cost"] + 1} for row in given], of))
    # With the same noise, two rows of one person would reveal the difference of their values.
    assert not any(math.isclose(b[1] - a[1], 1) for a, b in zip(once, moved, strict=True))
    later = noisy(packed([row | {"at": row["at"] + 1} for row in given], of))
    assert sum(a[1] == b[1] for a, b in zip(once, later, strict=True)) < 10


def test_times_given_on_the_way_are_not_in_the_noise():
    """A source may give a redelivered row another timestamp, and a row's place in a file is not part of the row."""
    given = rows(20)
    untimed = policy(event_time=None)
    first = Packer(untimed, b"secret").pack_dicts(given, np.arange(20))
    again = Packer(untimed, b"secret").pack_dicts(given, np.arange(20) + 1000)
    assert noisy(first) == noisy(again)
    numbered = RowOptions(row_number="place", by_number=True)
    one, two = ([row | {"place": first + i} for i, row in enumerate(given)] for first in (0, 1000))
    found = [noisy(Packer(untimed, b"secret", numbered).pack_dicts(some, None)) for some in (one, two)]
    assert found[0] == found[1] == noisy(first)


def test_randomized_response_tells_the_truth_as_often_as_it_should():
    given = [row | {"disease": "gout", "who": i} for i, row in enumerate(rows(20_000))]
    told = [row[0] for row in noisy(packed(given))]
    expected = noise.truth_chance(1.0, 4)
    assert expected == pytest.approx(math.e / (math.e + 3))
    # Five standard deviations: a correct sampler fails for one seed in two million, and this seed is fixed.
    assert abs(told.count("gout") / 20_000 - expected) < 5 * math.sqrt(expected * (1 - expected) / 20_000)
    for other in ("flu", "mumps", "croup"):
        share = (1 - expected) / 3
        assert abs(told.count(other) / 20_000 - share) < 5 * math.sqrt(share * (1 - share) / 20_000)


def test_numbers_move_as_laplace_says():
    given = [row | {"cost": 500.0, "who": i} for i, row in enumerate(rows(20_000))]
    of = policy(parameters={"beta_sample": 1.0, "perturb_sensitive": {"cost": 40.0}})
    moved = np.array([row[1] for row in noisy(packed(given, of))]) - 500
    scale = 1000 / 40
    for r in (0.2, 1.0, 3.0):
        expected = 1 - math.exp(-r)
        assert abs(np.mean(np.abs(moved) < r * scale) - expected) < 5 * math.sqrt(expected * (1 - expected) / 20_000)
    assert abs(moved.mean()) < 5 * math.sqrt(2) * scale / math.sqrt(20_000)


@pytest.mark.parametrize(
    ("values", "given", "kinds"),
    [
        ([1, 2, 3], ["1", "2"], {str}),
        (["1", "2", "3"], [1, 2], {int}),
        ([1, 2, 3], [1.0, 2.0], {float}),
        ([True, False], [True, False], {bool}),
        (["a", None], ["a", None], {str, type(None)}),
    ],
)
def test_the_type_does_not_tell_which_values_were_changed(values: list[Any], given: list[Any], kinds: set[type]):
    of = policy(sensitive={"disease": {"values": values}}, parameters={"perturb_sensitive": {"disease": 0.01}})
    many = [row | {"disease": given[i % 2]} for i, row in enumerate(rows(200))]
    told = [row[0] for row in noisy(packed(many, of))]
    assert {type(value) for value in told} == kinds
    table = Packer(of, b"secret").pack_arrow(pa.RecordBatch.from_pylist(many), None).pack.payload
    assert isinstance(table, Batch)
    assert table.table.column("disease").type == pa.array([row["disease"] for row in many]).type


def test_categories_of_arrow_stay_such():
    of = policy(parameters={"perturb_sensitive": {"disease": 0.01}})
    given = pa.RecordBatch.from_pylist(rows(50))
    given = given.set_column(3, "disease", given.column("disease").dictionary_encode())
    table = Packer(of, b"secret").pack_arrow(given, None).pack.payload
    assert isinstance(table, Batch)
    assert pa.types.is_dictionary(table.table.column("disease").type)
    assert set(table.table.column("disease").to_pylist()) == set(VALUES)


def test_numbers_of_any_kind_leave_as_floats():
    for kind in (int, Decimal):
        given = [row | {"cost": kind(int(row["cost"]))} for row in rows(50)]
        assert {type(row[1]) for row in noisy(packed(given))} == {float}
    schema = published_schema(
        policy(), pa.schema([("disease", pa.string()), ("cost", pa.int64()), ("number", pa.int64())])
    )
    assert schema.field("cost").type == pa.float64()


def test_rejected_rows_are_still_rejected():
    given = rows(10)
    given[2]["disease"] = "plague"
    given[5]["cost"] = 5000.0
    of = packed(given)
    assert [place for place, _, _ in of.rejected] == [2, 5]
    assert len(noisy(of)) == 8


def test_rows_held_without_noise_are_never_published_under_a_policy_with_noise():
    """An updated pipeline fails rather than publish the exact values that its policy now hides."""
    plain = policy(parameters={"beta_sample": 1.0})
    before = packed(rows(20), plain).pack
    with pytest.raises(SnapshotError, match="Drain"):
        ShardHolder(policy(), b"secret", b"0").push(before)
    holder = ShardHolder(plain, b"secret", b"0")
    holder.push(before)
    with pytest.raises(SnapshotError, match="perturb_sensitive has changed"):
        ShardHolder(policy(), b"secret", b"0").restore(holder.snapshot())


def test_a_replay_of_the_state_publishes_the_same_values():
    packs = [packed(rows(60)[start : start + 10]).pack.to_bytes() for start in range(0, 60, 10)]
    holder = ShardHolder(policy(), b"secret", b"0")
    for pack in packs[:3]:
        holder.push(RowPack.from_bytes(pack))
    stored = holder.snapshot()
    tries = []
    for _ in range(2):
        again = ShardHolder(policy(), b"secret", b"0")
        again.restore(stored)
        left = [d for pack in packs[3:] for d in again.push(RowPack.from_bytes(pack))] + again.flush()
        tries.append([(d.releases.lo.tolist(), list(d.payload.take(d.releases.rows).rows())) for d in left])
    assert tries[0] == tries[1]
    assert tries[0]


def test_the_transform_publishes_noise_alone():
    given = rows(60)
    known = {row["number"]: row for row in given}

    def judge(published: list[dict[str, Any]]) -> None:
        assert len(published) == 60
        assert all(row["cost"] != known[row["number"]]["cost"] for row in published)
        assert sum(row["disease"] != known[row["number"]]["disease"] for row in published) > 10
        once = {row[2]: row[:2] for row in noisy(packed(given, secret=b"seed 7"))}
        assert all(once[row["number"]] == (row["disease"], row["cost"]) for row in published)

    with pipelines.TestPipeline() as pipeline:
        anonymized = pipeline | beam.Create(given) | Anonymize(policy(on_suppress="star"))
        assert_that(anonymized.published, judge)


def test_rows_with_a_schema_have_floats_too():
    given = [beam.Row(**(row | {"cost": int(row["cost"])})) for row in rows(20)]
    with pipelines.TestPipeline() as pipeline:
        anonymized = pipeline | beam.Create(given) | Anonymize(policy())
        assert dict(anonymized.published.element_type._fields)["cost"] is float


def test_the_command_line_publishes_noise_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import csv

    import yaml

    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy(event_time=None).to_dict()))
    given = rows(60)
    names = list(given[0])
    for name, part in {"all.csv": given, "a.csv": given[:20], "b.csv": given[20:]}.items():
        with open(tmp_path / name, "w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(part)
    outputs = []
    for number, inputs in enumerate((["all.csv"], ["a.csv", "b.csv"])):
        out = tmp_path / f"out{number}.csv"
        args = ["run", str(tmp_path / "policy.yaml"), "--input", *(str(tmp_path / name) for name in inputs)]
        assert main([*args, "--output", str(out)]) == 0, capsys.readouterr().err
        with open(out, newline="") as file:
            outputs.append({int(row["number"]): (row["disease"], row["cost"]) for row in csv.DictReader(file)})
    # The noise does not depend on how the rows are split into files.
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 60
    assert not any(float(outputs[0][row["number"]][1]) == row["cost"] for row in given)


def test_policies_say_what_is_wrong():
    for changes, said in (
        ({"perturb_sensitive": {"cots": 1}}, "must name a sensitive column; did you mean 'cost'?"),
        ({"perturb_sensitive": {"cost": 0}}, "perturb_sensitive.cost must be a number above 0, not 0"),
        ({"perturb_sensitive": 3}, "must be a mapping of sensitive columns to their budgets, not 3"),
    ):
        with pytest.raises(ValueError, match=said.replace("?", r"\?")):
            policy(parameters=changes)
    with pytest.raises(ValueError, match=r"needs the values or the domain of sensitive\.disease"):
        policy(sensitive=["disease"], parameters={"perturb_sensitive": {"disease": 1}})
    with pytest.raises(ValueError, match=r"shard_by must not name 'disease'"):
        policy(shards=2, shard_by=["disease"])
    assert Policy.from_dict(policy().to_dict()) == policy()
    assert hash(policy()) == hash(dataclasses.replace(policy()))
