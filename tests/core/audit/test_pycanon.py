"""An outside judge: pyCANON finds the same k and l as the audit in the published Adult data set."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pycanon import anonymity

from crenel.pipelines.cli import main
from crenel.policy import OnSuppress, Policy

ROWS = 30_162
CATEGORIES = ("education", "marital_status")
SAID: dict[str, Any] = {
    "version": 1,
    "person": "person",
    "quasi_identifiers": {
        "age": {"type": "numeric", "domain": [17, 90]},
        "hours_per_week": {"type": "numeric", "domain": [1, 99]},
    },
    "sensitive": ["occupation"],
    "k": 10,
    "l": 3,
    "delay_rows": 1000,
    "on_suppress": "star",
    "seed": 5,
}
#: The promises of each method.
PARAMETERS = {"castle": {"reuse": "uniform"}, "bastion": {"reuse": "weighted"}}


def adult(data_dir: Path) -> pa.Table:
    """Load Adult with one person per row."""
    table = pq.read_table(data_dir / "adult_30162.parquet")
    return table.append_column("person", pa.array(np.arange(table.num_rows)))


def run(table: pa.Table, method: str, data_dir: Path, folder: Path) -> tuple[Policy, pa.Table, pa.Table]:
    """Return the policy, the published rows, and the trace in the same order."""
    said = copy.deepcopy(SAID) | {"method": method, "parameters": PARAMETERS[method]}
    for name in CATEGORIES:
        file = data_dir / "hierarchies" / "adult_arx" / f"{name}.csv"
        said["quasi_identifiers"][name] = {"type": "categorical", "hierarchy": os.fspath(file)}
    (folder / "policy.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    pq.write_table(table, folder / "in.parquet")
    files = ("--input", "in.parquet", "--output", "out.parquet", "--trace", "trace.parquet")
    argv = [name if name.startswith("--") else str(folder / name) for name in ("policy.yaml", *files)]
    assert main(["run", *argv, "--allow-outside-files"]) == 0
    return (
        Policy.from_yaml(folder / "policy.yaml", allow_outside_files=True),
        pq.read_table(folder / "out.parquet"),
        pq.read_table(folder / "trace.parquet"),
    )


def shown(policy: Policy, out: pa.Table, trace: pa.Table) -> pd.DataFrame:
    """Return what an attacker sees of the grouped rows, as text."""
    grouped = trace["kind"].to_numpy(zero_copy_only=False) != "suppressed"
    if policy.on_suppress is OnSuppress.DROP:
        grouped = grouped[grouped]
    columns = [*policy.quasi_identifiers, *policy.sensitive]
    text = pd.DataFrame({name: [str(value) for value in out[name].to_pylist()] for name in columns})
    return text[grouped].reset_index(drop=True)  # pyCANON takes labels for positions


def ours(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Return the least number of persons, and of values, that the audit finds in a group."""
    capsys.readouterr()
    files = ("--input", "in.parquet", "--published", "out.parquet", "--trace", "trace.parquet")
    argv = [name if name.startswith("--") else str(folder / name) for name in ("policy.yaml", *files)]
    assert main(["audit", *argv, "--allow-outside-files", "--json", "--queries", "0"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "no crowd"
    values = {promise["name"]: promise["value"] for promise in document["promises"]}
    return values["k"], values["l:occupation"]


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_k_and_l_agree(method: str, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = adult(data_dir)
    policy, out, trace = run(table, method, data_dir, tmp_path)
    judged = shown(policy, out, trace)
    assert len(judged) > 0.9 * ROWS
    names = list(policy.quasi_identifiers)
    k = anonymity.k_anonymity(judged, names)
    l = anonymity.l_diversity(judged, names, ["occupation"])
    assert (k, l) == ours(tmp_path, capsys)
    assert k >= policy.k
    assert l >= policy.l
