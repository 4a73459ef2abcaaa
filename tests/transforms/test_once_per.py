"""`once_per` end to end: in pipelines, tables, on the command line, and across snapshots and replays."""

from __future__ import annotations

import csv
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from apache_beam.transforms.window import FixedWindows

import crenel
from crenel.errors import SnapshotError
from crenel.pipelines.cli import main
from crenel.policy import Policy, PolicyError
from crenel.transforms import Anonymize, AnonymizeBounded
from tests.transforms import cells
from tests.transforms.streams import run

HOUR = 3600.0


@cache
def rows(count: int = 1200) -> tuple[dict[str, Any], ...]:
    """Two hours of rows, of persons who come six times on average."""
    draw = random.Random(4)
    return tuple(
        {
            "id": f"p{draw.randrange(count // 6)}",
            "at": 1_700_000_000.0 + 6 * number,
            "age": float(draw.randrange(17, 91)),
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
        "delay": "10m",
        "once_per": "1h",
        "seed": 3,
    }
    return Policy.from_dict({name: value for name, value in (given | changes).items() if value is not None})


def nearest(numbers: Iterable[int]) -> float:
    """Attack: link the published rows of each person, and return the least time between two of them."""
    times = defaultdict(list)
    for number in sorted(numbers):
        times[rows()[number]["id"]].append(rows()[number]["at"])
    return min(b - a for found in times.values() for a, b in itertools.pairwise(found))


def test_a_person_is_published_once_in_the_period() -> None:
    table = pa.Table.from_pylist(list(rows()))
    weak = crenel.anonymize(table, policy(once_per=None))
    assert nearest(weak.published["number"].to_pylist()) < 60.0
    found = crenel.anonymize(table, policy(), trace=True)
    assert nearest(found.published["number"].to_pylist()) >= HOUR
    counts = found.summary
    assert counts.left_out > 500
    assert counts.published + counts.suppressed + counts.left_out == len(rows())
    assert len(found.suppressed) == counts.suppressed + counts.left_out
    kinds = [record["kind"] for record in found.trace.to_pylist()]
    assert kinds.count("left_out") == counts.left_out
    assert sum(found.releases["rows"].to_pylist()) == counts.published + counts.suppressed
    every = {*found.published["number"].to_pylist(), *found.suppressed["number"].to_pylist()}
    assert every == set(range(len(rows())))
    assert counts.alone == 0


@pytest.mark.parametrize("transform", [Anonymize, AnonymizeBounded])
@pytest.mark.parametrize("form", ["dicts", "batches"])
def test_pipelines_publish_what_a_table_does(transform: Any, form: str) -> None:
    of = policy(shards=3)
    given = list(rows()) if form == "dicts" else [pa.RecordBatch.from_pylist(list(rows()))]
    out = run(given, transform(of, row_number=None))
    parts = [out.published, out.suppressed]
    published, suppressed = (
        [row for left in part for row in (left.value.to_pylist() if form == "batches" else [left.value])]
        for part in parts
    )
    assert len(published) + len(suppressed) == len(rows())
    assert nearest(row["number"] for row in published) >= HOUR
    assert 500 < out.counter("left_out") == len(suppressed) - out.counter("suppressed")
    if transform is AnonymizeBounded:  # the end of a stream is told by its watermark, and not by the last row
        table = crenel.anonymize(pa.Table.from_pylist(list(rows())), of)
        assert {row["number"] for row in published} == set(table.published["number"].to_pylist())
        assert out.counter("left_out") == table.summary.left_out


def work(of: Policy, *, crashes: bool) -> tuple[list[Any], list[Any]]:
    out = cells.worked(of, list(rows()), crashes=crashes)
    return cells.published(out), cells.tagged(out, "suppressed")


@pytest.mark.parametrize("method", ["bastion", "castle"])
def test_nobody_is_forgotten_by_a_crash(method: str) -> None:
    published, suppressed = work(policy(method=method), crashes=False)
    assert work(policy(method=method), crashes=True) == (published, suppressed)
    assert nearest(row["number"] for row in published) >= HOUR
    assert len(published) + len(suppressed) == len(rows())


@pytest.mark.parametrize("later", [None, "30m", "2h"])
def test_state_of_another_once_per_is_refused(later: str | None) -> None:
    cells.forget()
    state = cells.State()
    first, second = cells.packs(policy(), list(rows()[:120]), 60)
    cells.Worker(policy()).push(state, first)
    cells.forget()
    with pytest.raises(SnapshotError, match="Drain the pipeline before you change once_per"):
        cells.Worker(policy(once_per=later)).push(state, second)


def test_persons_hashed_under_another_secret_are_refused() -> None:
    cells.forget()
    state = cells.State()
    of = policy(seed=None)
    (first,), (second,) = (cells.packs(of, list(rows()[:60]), 60, secret=secret) for secret in (b"one", b"two"))
    worker = cells.Worker(of)
    worker.push(state, first)
    with pytest.raises(SnapshotError, match="whose rows were published"):
        worker.push(state, second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"once_per": "soon"}, r"once_per must be a duration"),
        ({"once_per": "0s"}, r"once_per must be a duration .* at least 1 microsecond"),
        ({"once_per": 5}, r"once_per must be a duration"),
        ({"shards": 2, "shard_by": "locality"}, r"once_per needs shard_by: person, or a single shard"),
        ({"shards": 2, "shard_by": ["number"]}, r"once_per needs shard_by: person"),
        ({"within": ["number"]}, r"once_per must not be given with within"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(**changes)


def test_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="once_per needs global windows"):
        beam.Pipeline() | beam.Create(list(rows()[:2])) | beam.WindowInto(FixedWindows(60)) | Anonymize(policy())


def test_a_table_without_event_times_is_refused() -> None:
    table = pa.Table.from_pylist(list(rows()[:5]))
    with pytest.raises(PolicyError, match=r"since policy\.once_per is event time"):
        crenel.anonymize(table, policy(event_time=None, delay=None, delay_rows=100))


def test_a_policy_is_written_and_read_again() -> None:
    assert Policy.from_dict(policy().to_dict()) == policy()
    assert "once_per: 1h" in policy().to_yaml()


def test_one_wrong_date_does_not_leave_out_everybody() -> None:
    """Without a delay the clock decides nothing but this: a row dated far ahead waits, and is rejected."""
    given = [dict(row) for row in rows()[:600]]
    given[100]["at"] += 1e9
    found = crenel.anonymize(pa.Table.from_pylist(given), policy(delay=None, delay_rows=200, once_per="20m"))
    assert found.summary.published > 200
    assert found.rejected.num_rows == 1


# -- the command line --------------------------------------------------------------------------------


def files(folder: Path, of: Policy) -> list[str]:
    pa.csv.write_csv(pa.Table.from_pylist(list(rows())), folder / "in.csv")
    (folder / "policy.yaml").write_text(of.to_yaml())
    named = {name: str(folder / f"{name}.parquet") for name in ("suppressed", "trace", "releases")}
    flags = [text for name, path in named.items() for text in (f"--{name}", path)]
    return [str(folder / "policy.yaml"), "--input", str(folder / "in.csv"), *flags]


def test_run_and_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = files(tmp_path, policy(seed=None))
    output = str(tmp_path / "out.parquet")
    assert main(["run", *every, "--output", output, "--most-suppressed", "10%"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "left out" in said
    assert "another row of the person, within 1h (once_per)" in said
    assert main(["audit", *every, "--published", output, "--most-suppressed", "10%"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no row follows another too soon" in said


def test_the_audit_finds_two_rows_of_a_person_and_invented_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weak, strict = policy(once_per=None), policy()
    pa.csv.write_csv(pa.Table.from_pylist(list(rows())), tmp_path / "in.csv")
    (tmp_path / "weak.yaml").write_text(weak.to_yaml())
    (tmp_path / "policy.yaml").write_text(strict.to_yaml())
    given, output, trace = (str(tmp_path / name) for name in ("in.csv", "out.parquet", "trace.csv"))
    assert main(["run", str(tmp_path / "weak.yaml"), "--input", given, "--output", output, "--trace", trace]) == 0
    audit = ["audit", str(tmp_path / "policy.yaml"), "--input", given, "--published", output, "--trace", trace]
    capsys.readouterr()
    assert main([*audit, "--json"]) == 1
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["promises"]}
    assert found["once per"]["state"] == "broken"
    # A run that leaves out rows without a reason has lost them.
    assert main(["run", str(tmp_path / "policy.yaml"), "--input", given, "--output", output, "--trace", trace]) == 0
    with open(trace, newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    shown = [record["row"] for record in records if record["kind"] == "cluster"]
    gone = set(shown[:3])
    kept = [n for n, row in enumerate(shown) if row not in gone]
    pq.write_table(pq.read_table(output).take(pa.array(kept)), output)
    for record in records:
        if record["row"] in gone:
            record.update(kind="left_out", release="-1", group="-1")
    with open(trace, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    capsys.readouterr()
    assert main([*audit, "--json"]) == 1
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["promises"]}
    assert found["nothing lost"]["state"] == "broken"
    assert found["nothing lost"]["value"] >= 3  # and the later rows of these persons lack a reason, too


def test_check_says_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files(tmp_path, policy(seed=None))
    main(["check", str(tmp_path / "policy.yaml"), "--data", str(tmp_path / "in.csv")])
    said = " ".join(capsys.readouterr().out.split())
    assert "Any two published rows of a person are at least 1 hour of event time apart (once_per)." in said
    assert "once_per leaves out 7" in said
    assert "once_per needs the same secret" in said


def test_explore_keeps_rows_that_are_left_out_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files(tmp_path, policy(seed=None))
    data = str(tmp_path / "in.csv")
    assert main(["explore", str(tmp_path / "policy.yaml"), "--data", data, "--k", "4", "--delay", "10m"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "once_per left out up to 7" in said
