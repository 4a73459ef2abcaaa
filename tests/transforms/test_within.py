"""`within` keeps groups apart by the values of columns, exactly, and the audit checks it."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import crenel
from crenel.errors import SnapshotError
from crenel.pipelines.cli import main
from crenel.policy import Policy, PolicyError
from crenel.transforms._hold.shard_holder import ShardHolder
from crenel.transforms._pack.row_pack import Packer, RowPack
from tests.transforms.streams import run

TENANTS = "abcdefgh"
SECRET = bytes(32)


@cache
def rows(count: int = 800) -> tuple[dict[str, Any], ...]:
    draw = random.Random(2)
    return tuple(
        {
            "id": f"p{draw.randrange(count // 4)}",
            "at": 1_700_000_000.0 + 5 * number,
            "age": float(draw.randrange(17, 91)),
            "tenant": draw.choice(TENANTS),
            "number": number,
        }
        for number in range(count)
    )


def policy(**changes: Any) -> Policy:
    given: dict[str, Any] = {
        "person": "id",
        "event_time": "at",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [17, 90]}},
        "publish": ["number"],
        "k": 4,
        "delay": "30m",
        "seed": 3,
    }
    return Policy.from_dict(given | changes)


def small_crowds(result: Any, k: int) -> int:
    """Attack: count the published rows whose tenant's crowd, the rows of that tenant in the release, is below k."""
    found: dict[Any, set[str]] = defaultdict(set)
    of: dict[Any, int] = defaultdict(int)
    for record in result.trace.to_pylist():
        if record["kind"] == "cluster":
            row = rows()[record["row"]]
            place = (record["shard"], record["release"], row["tenant"])
            found[place].add(row["id"])
            of[place] += 1
    return sum(of[place] for place, persons in found.items() if len(persons) < k)


def test_shards_by_a_hash_of_tenants_leave_small_crowds_and_within_leaves_none() -> None:
    table = pa.Table.from_pylist(list(rows()))
    weak = crenel.anonymize(table, policy(shard_by=["tenant"], shards=4), trace=True)
    assert small_crowds(weak, 4) > 300  # eight tenants share four shards: the attack succeeds
    for changes in ({}, {"shards": 3}, {"shards": 2, "shard_by": ["number"]}, {"method": "castle"}):
        result = crenel.anonymize(table, policy(within=["tenant"], **changes), trace=True)
        assert small_crowds(result, 4 if "method" not in changes else 1) == 0
        assert result.summary.published + result.summary.suppressed == len(rows())
        assert result.published.column_names == ["age", "number"]


def test_a_published_tenant_has_k_rows_of_its_own_under_each_generalization() -> None:
    table = pa.Table.from_pylist(list(rows()))
    result = crenel.anonymize(table, policy(within=["tenant"], publish=["tenant"]))
    sizes: dict[str, int] = defaultdict(int)
    for row in result.published.to_pylist():
        sizes[str(row)] += 1
    assert min(sizes.values()) >= 4


def test_rows_without_a_value_are_rejected_and_the_same_value_in_other_types_is_one() -> None:
    given = [dict(row, tenant=[None, "", float("nan"), 7, 7.0, "7"][row["number"] % 6]) for row in rows()[:120]]
    result = run(given, crenel.Anonymize(policy(within=["tenant"])))
    assert len(result.rejected) == 60
    assert {(left.value["field"], left.value["reason"]) for left in result.rejected} == {("tenant", "missing")}
    assert len({left.value["shard"] for left in result.releases}) == 1
    absent = [{name: value for name, value in row.items() if name != "tenant"} for row in rows()[:20]]
    assert len(run(absent, crenel.Anonymize(policy(within=["tenant"]))).rejected) == 20


def test_two_values_with_one_number_are_refused_and_never_share_a_group() -> None:
    one = policy(within=["tenant"])
    packs = {pack.payload.column("tenant")[0]: pack for pack in _packs(one)}
    holder = ShardHolder(one, SECRET, b"0")
    holder.push(packs["a"])
    with pytest.raises(SnapshotError, match=r"differ in the columns of policy\.within"):
        holder.push(packs["b"])
    mixed = Packer(one, SECRET).pack_dicts(list(rows()[:40]), None).pack
    with pytest.raises(SnapshotError, match=r"policy\.within"):
        ShardHolder(one, SECRET, b"0").push(mixed)


def test_held_rows_of_several_tenants_are_not_taken_over_by_a_policy_that_keeps_them_apart() -> None:
    before = ShardHolder(policy(publish=["tenant"]), SECRET, b"0")
    before.push(Packer(policy(publish=["tenant"]), SECRET).pack_dicts(list(rows()[:40]), None).pack)
    after = ShardHolder(policy(publish=["tenant"], within=["tenant"]), SECRET, b"0")
    with pytest.raises(SnapshotError, match=r"policy\.within"):
        after.restore(before.snapshot())


def _packs(of: Policy) -> list[RowPack]:
    return Packer(of, SECRET).pack_dicts(list(rows()[:80]), None).packs


@pytest.mark.parametrize("publish", [["number"], ["number", "tenant"]])
def test_the_audit_counts_persons_within_each_tenant(publish: list[str], tmp_path: Path) -> None:
    pa.csv.write_csv(pa.Table.from_pylist(list(rows())), tmp_path / "in.csv")
    (tmp_path / "policy.yaml").write_text(policy(within=["tenant"], publish=publish, seed=None).to_yaml())
    files = {name: str(tmp_path / f"{name}.parquet") for name in ("suppressed", "trace", "releases")}
    flags = [text for name, path in files.items() for text in (f"--{name}", path)]
    every = [str(tmp_path / "policy.yaml"), "--input", str(tmp_path / "in.csv"), *flags]
    output = str(tmp_path / "out.parquet")
    assert main(["run", *every, "--output", output]) == 0
    assert main(["audit", *every, "--published", output]) == 0


def test_the_audit_finds_groups_of_two_tenants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa.csv.write_csv(pa.Table.from_pylist(list(rows())), tmp_path / "in.csv")
    weak, strict = policy(publish=["tenant"]), policy(publish=["tenant"], within=["tenant"])
    (tmp_path / "weak.yaml").write_text(weak.to_yaml())
    (tmp_path / "policy.yaml").write_text(strict.to_yaml())
    given, output, trace = (str(tmp_path / name) for name in ("in.csv", "out.parquet", "trace.parquet"))
    assert main(["run", str(tmp_path / "weak.yaml"), "--input", given, "--output", output, "--trace", trace]) == 0
    capsys.readouterr()
    audit = ["audit", str(tmp_path / "policy.yaml"), "--published", output]
    assert main(audit) == 1  # each tenant's rows under a generalization are too few
    assert main([*audit, "--input", given, "--trace", trace]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "within BROKEN. Promised: no group has rows with different values of tenant" in said
    assert "rows in mixed groups; 8 different values" in said
    assert pq.read_table(output).num_rows > 500


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"within": "tenant"}, r"policy\.within must be a list of columns, not 'tenant'"),
        ({"within": ["age"]}, r"within must name columns .* 'age' is under quasi_identifiers"),
        ({"within": ["id"]}, r"within must name columns .* 'id' is under person"),
        ({"within": ["a", "a"]}, r"within must name each column once"),
        ({"within": ["a"], "shards": 2, "shard_by": "locality"}, r"shard_by must not be 'locality' with within"),
        ({"within": ["a"], "method": "sdgs", "publish": []}, r"within must be empty with the method sdgs"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(**changes)


def test_numbers_of_shards_keep_tenants_and_their_shards_apart() -> None:
    packs = Packer(policy(within=["tenant"], shards=3), SECRET).pack_dicts(list(rows()), None).packs
    shards = np.array([pack.shard for pack in packs])
    assert len(shards) == 24
    assert (shards >= 0).all()
    tenants = {pack.shard // 3: set(pack.payload.column("tenant")) for pack in packs}
    assert sorted(map(len, tenants.values())) == [1] * 8
