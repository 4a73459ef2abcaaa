"""Privacy end to end: `crenel run` publishes public data in every format, and the audit judges the output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

from crenel.pipelines.cli import main
from crenel.policy import Policy

FORMATS = ("csv", "jsonl", "avro", "parquet")

#: Two hours of half the taxis are a thin stream for k = 10, in which many rows are suppressed.
THIN = ("--most-suppressed", "100%")
#: The hierarchies lie among the data, and not below the policy.
OUTSIDE = "--allow-outside-files"


@dataclass(frozen=True)
class Case:
    """A table and a policy for it. Each row has a person, and a number that is published."""

    file: str
    rows: int
    policy: dict[str, Any]
    #: The folder of the hierarchies, and the columns that have a hierarchy there.
    hierarchies: str
    categories: Sequence[str]
    #: For each column whose hierarchy has another name than the column: the name of its file.
    shared: dict[str, str]


def categories(*names: str) -> dict[str, Any]:
    return {name: {"type": "categorical"} for name in names}


CASES = {
    "adult": Case(
        "adult_45222.parquet",
        45_222,
        {
            "quasi_identifiers": {
                "age": {"type": "numeric", "domain": [17, 90]},
                "hours_per_week": {"type": "numeric", "domain": [1, 99]},
                "capital_gain": {"type": "numeric"},
                **categories("education", "occupation", "native_country"),
            },
            "sensitive": ["income"],
            "k": 50,
            "l": 2,
            "delay_rows": 5000,
            "shards": 2,
        },
        "adult_arx",
        ("education", "occupation", "native_country"),
        {},
    ),
    "census": Case(
        "census_acs2018_gov.parquet",
        30_000,
        {
            "quasi_identifiers": {
                "age": {"type": "numeric", "domain": [16, 99]},
                **categories("education_level", "marital", "occupation", "race"),
            },
            "sensitive": {"salary": {"domain": [0, 1_000_000], "bins": 20, "ordered": True}},
            "k": 20,
            "delay_rows": 3000,
        },
        "census",
        ("education_level", "marital", "occupation", "race"),
        {},
    ),
    "taxi": Case(
        "taxi_yellow_2019.parquet",
        20_000,
        {
            "event_time": "pickup_datetime",
            "quasi_identifiers": {
                "trip_distance": {"type": "numeric", "domain": [0, 60]},
                "fare_amount": {"type": "numeric", "domain": [0, 300]},
                "dropoff_datetime": {"type": "datetime"},
                **categories("pickup_location_id", "dropoff_location_id"),
            },
            "sensitive": ["payment_type", "congestion_surcharge"],
            "k": 10,
            "delay": "2h",
            "shards": 2,
            "shard_by": "person",
        },
        "taxi",
        ("pickup_location_id", "dropoff_location_id"),
        {"pickup_location_id": "location_id", "dropoff_location_id": "location_id"},
    ),
}


def table_of(case: Case, data_dir: Path) -> pa.Table:
    table = pq.read_table(data_dir / case.file).slice(0, case.rows)
    numbers = pa.array(np.arange(table.num_rows))
    return table.append_column("number", numbers).append_column("person", numbers)


def write_policy(case: Case, data_dir: Path, path: Path) -> Policy:
    said = {"person": "person", "publish": ["number"], "seed": 3, **case.policy}
    for name in case.categories:
        file = data_dir / "hierarchies" / case.hierarchies / f"{case.shared.get(name, name)}.csv"
        said["quasi_identifiers"][name]["hierarchy"] = str(file)
    path.write_text(yaml.safe_dump(said, sort_keys=False))
    return Policy.from_yaml(path, allow_outside_files=True)


def write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, default=lambda v: v.isoformat()) + "\n" for row in table.to_pylist()))
    else:
        fields = [{"name": field.name, "type": ["null", avro_type(field.type)]} for field in table.schema]
        with open(path, "wb") as file:
            fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, table.to_pylist())


def avro_type(kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "local-timestamp-millis"}
    return "long" if pa.types.is_integer(kind) else "double" if pa.types.is_floating(kind) else "string"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_format_publishes_the_same_and_keeps_every_promise(
    name: str, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    table = table_of(case, data_dir)
    policy = write_policy(case, data_dir, tmp_path / "policy.yaml")
    outputs, releases = set(), set()
    for form in FORMATS:
        write(table, tmp_path / f"in.{form}")
        argv = ["run", tmp_path / "policy.yaml", "--input", tmp_path / f"in.{form}", "--output", tmp_path / "out.csv"]
        assert main([*map(str, argv), *THIN, OUTSIDE, "--releases", str(tmp_path / "releases.csv")]) == 0
        outputs.add((tmp_path / "out.csv").read_bytes())
        releases.add((tmp_path / "releases.csv").read_bytes())
    assert len(releases) == 1
    assert len(outputs) == 1
    argv = ["run", tmp_path / "policy.yaml", "--input", tmp_path / "in.parquet", "--output", tmp_path / "out.parquet"]
    owners = ["--releases", "--rejected", "--trace"]
    owners = [part for flag in owners for part in (flag, tmp_path / f"{flag[2:]}.parquet")]
    assert main([*map(str, [*argv, *THIN, OUTSIDE, *owners])]) == 0
    judge(policy, table, tmp_path, capsys)


def judge(policy: Policy, table: pa.Table, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, trace, rejected = (pq.read_table(folder / f"{name}.parquet") for name in ("out", "trace", "rejected"))
    numbers = out["number"].to_numpy()
    turned_away = [json.loads(row)["number"] for row in rejected["row"].to_pylist()]
    # Every row is accounted for exactly once, and the trace says what happened to each.
    traced, kinds = trace["row"].to_pylist(), trace["kind"].to_pylist()
    assert sorted([*traced, *turned_away]) == list(range(table.num_rows))
    left = [row for row, kind in zip(traced, kinds, strict=True) if kind != "suppressed"]
    assert left == numbers.tolist()
    assert len(set(trace["shard"].to_pylist())) == policy.shards

    argv = ["audit", folder / "policy.yaml", "--input", folder / "in.parquet", "--published", folder / "out.parquet"]
    owners = ["--trace", folder / "trace.parquet", "--releases", folder / "releases.parquet", "--queries", "20"]
    capsys.readouterr()
    assert main([*map(str, [*argv, *owners]), OUTSIDE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    states = {promise["name"]: promise["state"] for promise in document["promises"]}
    assert states.pop("crowd") != "broken"
    assert set(states.values()) == {"kept"}, document["promises"]
    assert document["rows"]["rejected"] == len(turned_away)
    assert document["rows"]["published"] > 0.9 * table.num_rows
