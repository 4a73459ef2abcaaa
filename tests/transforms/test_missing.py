"""Missing values as a category and unknown ones as the root, by every method: true, and hidden among k persons."""

from __future__ import annotations

import csv
import random
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

import crenel
from crenel.pipelines.cli import main
from crenel.policy import Policy, methods

COLUMNS = ("age", "zip", "job", "since")
HEALTH, LAW = ["nurse", "vet"], ["judge", "clerk"]
#: Methods that add noise take no missing values.
METHODS = [name for name in methods.names() if not methods.find(name).perturbs]


@cache
def table(count: int = 300) -> pa.Table:
    """Rows that lack values, and of which some have a job that no hierarchy knows."""
    draw = random.Random(3)
    rows = []
    for number in range(count):
        row: dict[str, Any] = {
            "id": f"p{draw.randrange(count // 2)}",
            "at": 1_700_000_000 + 10 * number,
            "age": float(draw.randrange(17, 91)),
            "zip": f"{draw.randrange(100):05d}",
            "job": draw.choice([*HEALTH, *LAW, "astronaut", "diver"]),
            "since": f"20{draw.randrange(10, 24)}-0{draw.randrange(1, 10)}-01",
            "number": number,
        }
        rows.append(row | {name: None for name in COLUMNS if draw.random() < 0.15})
    return pa.Table.from_pylist(rows)


def policy(method: str, **changes: Any) -> Policy:
    declaration = methods.find(method)
    job = {"type": "categorical", "hierarchy": {"Any": {"Health": HEALTH, "Law": LAW}}}
    columns: dict[str, Any] = {
        "age": {"type": "numeric", "domain": [17, 90]},
        "zip": {"type": "prefix", "length": 5},
        "job": job if declaration.takes_holes else job | {"unknown": "root"},
        "since": {"type": "datetime", "domain": ["2010-01-01", "2024-01-01"], "step": "30d"},
    }
    given = {
        "person": "id",
        "event_time": "at",
        "quasi_identifiers": {name: qi | {"missing": "category"} for name, qi in columns.items()},
        "publish": ["number"],
        "k": 3,
        "delay": "20m",
        "delay_rows": 100,
        "method": method,
        "seed": 5,
    }
    if declaration.samples:  # a grid so coarse that cells fill
        fine = {"grid": {"age": 1, "zip": 0, "job": 1, "since": 1}, "cover": "quasi_identifiers", "beta_sample": 0.9}
        given |= {"parameters": fine}
    return Policy.from_dict(given | changes)


def contains(name: str, published: Any, value: Any) -> bool:
    """Tell whether what was published includes the row's own value. Written from docs/quasi-identifiers.md alone."""
    if published is None:
        return value is None
    if name == "zip":
        return set(published) == {"*"} if value is None else str(value).startswith(published.rstrip("*"))
    if name == "job":
        known = {"Health": HEALTH, "Law": LAW} | {job: [job] for job in HEALTH + LAW}
        return published == "Any" or value in known[published]
    if value is None:
        return published["hi"] is None
    value = value + "T00:00:00Z" if name == "since" else value
    return published["lo"] <= value and (published["hi"] is None or value <= published["hi"])


def releases(result: Any) -> dict[int, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Gather the published rows of each release, each with its row of the input."""
    given, found = table().to_pylist(), defaultdict(list)
    published = {row["number"]: row for row in result.published.to_pylist()}
    for record in result.trace.to_pylist():
        if record["row"] in published:
            found[record["release"]].append((published[record["row"]], given[record["row"]]))
    return found


def singled_out(rows: list[dict[str, Any]], k: int) -> int:
    """Attack: count the rows whose published quasi-identifiers fewer than k rows share."""
    shared: dict[str, int] = defaultdict(int)
    for row in rows:
        shared[str([row[name] for name in COLUMNS])] += 1
    return sum(1 for row in rows if shared[str([row[name] for name in COLUMNS])] < k)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_publishes_what_is_true_of_missing_and_unknown_values(method: str) -> None:
    result = crenel.anonymize(table(), policy(method), trace=True)
    fits = {"unknown value"} if methods.find(method).takes_holes else set()
    assert {reason for _, reason in result.summary.rejected} <= fits
    assert result.summary.published > 50
    assert any(row[name] is None for row in result.published.to_pylist() for name in COLUMNS)
    for rows in releases(result).values():
        assert all(contains(name, left[name], own[name]) for left, own in rows for name in COLUMNS)
        assert len({str([left[name] for name in COLUMNS]) for left, _ in rows}) == 1


def test_a_missing_value_singles_nobody_out() -> None:
    result = crenel.anonymize(table(), policy("bastion"), trace=True)
    for rows in releases(result).values():
        assert len({own["id"] for _, own in rows}) >= 3
    published = result.published.to_pylist()
    assert singled_out(published, 3) == 0
    # A weak stream: missing values are left as they are, and all others are generalized. The attack succeeds.
    given = {row["number"]: row for row in table().to_pylist()}
    weak = [{n: v if given[row["number"]].get(n, 0) is not None else None for n, v in row.items()} for row in published]
    assert singled_out(weak, 3) > 50


def test_the_only_missing_value_is_published_in_a_range_with_others() -> None:
    rows = table().to_pylist()
    for number, row in enumerate(rows):
        row["age"] = None if number == 150 else row["age"] or 40.0
    result = crenel.anonymize(pa.Table.from_pylist(rows), policy("bastion"))
    (own,) = [row for row in result.published.to_pylist() if row["number"] == 150]
    assert own["age"]["lo"] is not None
    assert own["age"]["hi"] is None
    assert singled_out(result.published.to_pylist(), 3) == 0


def test_unknown_categories_in_a_group_of_their_own_count_as_lost() -> None:
    only = table().set_column(4, "job", pa.array(["astronaut"] * 300))
    columns = {"job": {"type": "categorical", "hierarchy": ["nurse", "vet"], "unknown": "root"}}
    result = crenel.anonymize(only, policy("bastion", quasi_identifiers=columns))
    assert set(result.published.column("job").to_pylist()) == {"*"}
    assert set(result.releases.column("loss").to_pylist()) == {1.0}


@pytest.mark.parametrize("method", ["bastion", "castle"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_audit_reads_missing_and_unknown_values_back(method: str, kind: str, tmp_path: Path) -> None:
    pa.csv.write_csv(table(), tmp_path / "in.csv")
    (tmp_path / "policy.yaml").write_text(policy(method).to_yaml())
    files = {name: str(tmp_path / f"{name}.{kind}") for name in ("suppressed", "trace", "releases")}
    flags = [text for name, path in files.items() for text in (f"--{name}", path)]
    every = [str(tmp_path / "policy.yaml"), "--input", str(tmp_path / "in.csv"), *flags, "--most-suppressed", "100%"]
    output = str(tmp_path / f"out.{kind}")
    assert main(["run", *every, "--output", output]) == 0
    assert main(["audit", *every, "--published", output, "--html", str(tmp_path / "page.html")]) == 0
    if kind == "csv":
        with Path(output).open() as stream:
            ages = {row["age"] for row in csv.DictReader(stream)}
        assert "" in ages
        assert any(age.endswith(", *]") for age in ages)


def test_a_run_that_rejects_many_rows_says_which_setting_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pa.csv.write_csv(table(), tmp_path / "in.csv")
    columns = {"age": {"type": "numeric"}, "job": {"type": "categorical", "hierarchy": HEALTH + LAW}}
    (tmp_path / "policy.yaml").write_text(policy("bastion", quasi_identifiers=columns).to_yaml())
    output = str(tmp_path / "out.csv")
    assert main(["run", str(tmp_path / "policy.yaml"), "--input", str(tmp_path / "in.csv"), "--output", output]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "a missing value is then published as a value of its own" in said
    assert re.search("Set missing: category for (age and job|job and age): ", said)
    assert "age also needs a domain." in said
    assert "or set unknown: root" in said
