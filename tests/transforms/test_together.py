"""`together` end to end: in pipelines, tables, on the command line, and across snapshots and replays."""

from __future__ import annotations

import csv
import datetime as dt
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
import pytest
from apache_beam.transforms.window import FixedWindows

import crenel
from crenel.errors import SnapshotError
from crenel.pipelines.cli import main
from crenel.policy import Policy, PolicyError
from crenel.transforms import Anonymize, AnonymizeBounded
from tests.transforms import cells
from tests.transforms.streams import run

K = 4


@cache
def rows(count: int = 1200) -> tuple[dict[str, Any], ...]:
    """Two hours of rows, of persons who come six times on average, with the same age and weight."""
    draw = random.Random(4)
    values = [(float(draw.randrange(17, 91)), float(draw.randrange(40, 120))) for _ in range(count // 6)]
    who = [draw.randrange(count // 6) for _ in range(count)]
    return tuple(
        {
            "id": f"p{person}",
            "at": 1_700_000_000.0 + 6 * number,
            "age": values[person][0],
            "weight": values[person][1],
            "number": number,
        }
        for number, person in enumerate(who)
    )


def policy(**changes: Any) -> Policy:
    columns = {"age": {"type": "numeric", "domain": [17, 90]}, "weight": {"type": "numeric", "domain": [40, 120]}}
    given: dict[str, Any] = {
        "person": "id",
        "event_time": "at",
        "quasi_identifiers": columns,
        "publish": ["number"],
        "k": K,
        "delay": "10m",
        "together": True,
        "seed": 3,
    }
    return Policy.from_dict({name: value for name, value in (given | changes).items() if value is not None})


def fewest_left(published: Iterable[dict[str, Any]]) -> int:
    """Attack: link the published rows of each person, and count the persons who fit all of them."""
    boxes = defaultdict(list)
    for row in published:
        boxes[rows()[row["number"]]["id"]].append((row["age"], row["weight"]))
    everyone = {row["id"]: (row["age"], row["weight"]) for row in rows()}
    return min(
        sum(
            all(lo <= value <= hi for box in found for value, (lo, hi) in zip(values, map(ends, box), strict=True))
            for values in everyone.values()
        )
        for found in boxes.values()
    )


def ends(value: Any) -> tuple[float, float]:
    return (value["lo"], value["hi"]) if isinstance(value, dict) else (value.lo, value.hi)


def test_a_persons_boxes_leave_k_persons() -> None:
    table = pa.Table.from_pylist(list(rows()))
    weak, found = (crenel.anonymize(table, policy(together=together)) for together in (None, True))
    assert fewest_left(weak.published.to_pylist()) == 1
    assert fewest_left(found.published.to_pylist()) >= K
    assert found.summary.published == weak.summary.published
    assert found.summary.alone == 0


@pytest.mark.parametrize("transform", [Anonymize, AnonymizeBounded])
def test_pipelines_publish_what_a_table_does(transform: Any) -> None:
    of = policy(shards=3)
    out = run(list(rows()), transform(of, row_number=None))
    published = [left.value for left in out.published]
    assert len(published) > 1000
    assert fewest_left(published) >= K
    if transform is AnonymizeBounded:  # the end of a stream is told by its watermark, and not by the last row
        table = crenel.anonymize(pa.Table.from_pylist(list(rows())), of)
        same = {row["number"]: (ends(row["age"]), ends(row["weight"])) for row in published}
        assert same == {row["number"]: (ends(row["age"]), ends(row["weight"])) for row in table.published.to_pylist()}


def work(of: Policy, *, crashes: bool) -> list[Any]:
    out = cells.worked(of, list(rows()), crashes=crashes)
    return cells.published(out)


@pytest.mark.parametrize("together", [True, "30m"])
def test_nobody_is_forgotten_by_a_crash(together: Any) -> None:
    published = work(policy(together=together), crashes=False)
    assert work(policy(together=together), crashes=True) == published
    if together is True:
        assert fewest_left(published) >= K


@pytest.mark.parametrize("later", [None, "30m", True])
def test_state_of_another_together_is_refused(later: Any) -> None:
    cells.forget()
    state = cells.State()
    of = policy(together="1h")
    first, second = cells.packs(of, list(rows()[:120]), 60)
    cells.Worker(of).push(state, first)
    cells.forget()
    with pytest.raises(SnapshotError, match="Drain the pipeline before you change together"):
        cells.Worker(policy(together=later)).push(state, second)


def test_persons_hashed_under_another_secret_are_refused() -> None:
    cells.forget()
    state = cells.State()
    of = policy(seed=None)
    (first,), (second,) = (cells.packs(of, list(rows()[:60]), 60, secret=secret) for secret in (b"one", b"two"))
    worker = cells.Worker(of)
    worker.push(state, first)
    with pytest.raises(SnapshotError, match=r"as policy\.together needs"):
        worker.push(state, second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"together": "soon"}, r"together must be true, or a duration"),
        ({"together": "0s"}, r"together must be true, or a duration .* at least 1 microsecond"),
        ({"together": 5}, r"together must be true, or a duration"),
        ({"together": [True]}, r"together must be true, or a duration"),
        ({"shards": 2, "shard_by": "locality"}, r"together needs shard_by: person, or a single shard"),
        ({"within": ["number"]}, r"together must not be given with within"),
        ({"person": {"each": "row"}}, r"together needs a person column: where each row is a person"),
        ({"method": "castle"}, r"together needs releases of whole groups.*: take the default method"),
        ({"parameters": {"reuse": "weighted"}}, r"together needs releases.*: set reuse: off and reorder: false"),
        ({"parameters": {"reorder": True}}, r"together needs releases.*: set reuse: off and reorder: false"),
        ({"method": "fads"}, r"together needs releases.*: set reuse: off"),
        ({"method": "partition"}, r"together must not be given with 'partition', where rows may lack"),
        ({"method": "castleguard"}, r"together must not be given with 'castleguard', where ranges are of changed"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(**changes)


def test_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="together needs global windows"):
        beam.Pipeline() | beam.Create(list(rows()[:2])) | beam.WindowInto(FixedWindows(60)) | Anonymize(policy())


def test_a_table_without_event_times_takes_no_duration() -> None:
    table = pa.Table.from_pylist(list(rows()))
    timeless = {"event_time": None, "delay": None, "delay_rows": 100}
    with pytest.raises(PolicyError, match=r"since policy\.together is event time"):
        crenel.anonymize(table, policy(**timeless, together="1h"))
    assert fewest_left(crenel.anonymize(table, policy(**timeless)).published.to_pylist()) >= K


def test_a_policy_is_written_and_read_again() -> None:
    for together, written in ((True, "together: true"), ("90m", "together: 90m")):
        assert Policy.from_dict(policy(together=together).to_dict()) == policy(together=together)
        assert written in policy(together=together).to_yaml()
    assert policy(together=False) == policy(together=None)


# -- the command line --------------------------------------------------------------------------------


def files(folder: Path, of: Policy) -> list[str]:
    pa.csv.write_csv(pa.Table.from_pylist(list(rows())), folder / "in.csv")
    (folder / "policy.yaml").write_text(of.to_yaml())
    return [str(folder / "policy.yaml"), "--input", str(folder / "in.csv"), "--trace", str(folder / "trace.csv")]


def test_run_and_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every, output = files(tmp_path, policy(seed=None)), str(tmp_path / "out.parquet")
    assert main(["run", *every, "--output", output, "--most-suppressed", "10%"]) == 0
    capsys.readouterr()
    assert main(["audit", *every, "--published", output, "--most-suppressed", "10%"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no person's boxes leave fewer" in said
    without = [text for text in every if "trace" not in text]
    main(["audit", *without, "--published", output, "--most-suppressed", "10%"])
    assert "to know whose rows were published" in " ".join(capsys.readouterr().out.split())


def test_the_audit_finds_persons_without_company(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every, output = files(tmp_path, policy(together=None)), str(tmp_path / "out.parquet")
    assert main(["run", *every, "--output", output]) == 0
    (tmp_path / "policy.yaml").write_text(policy().to_yaml())
    capsys.readouterr()
    assert main(["audit", *every, "--published", output, "--json"]) == 1
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["promises"]}
    assert found["together"]["state"] == "broken"
    assert found["together"]["value"] > 50


def test_a_trace_that_stretches_the_time_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under a duration, long breaks between releases would excuse every box; but then no row was on time."""
    every, output = files(tmp_path, policy(together=None)), str(tmp_path / "out.parquet")
    assert main(["run", *every, "--output", output]) == 0
    (tmp_path / "policy.yaml").write_text(policy(together="1h").to_yaml())
    with open(tmp_path / "trace.csv", newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    for record in records:
        moment = dt.datetime.fromisoformat(record["moment"].rstrip("Z")) + dt.timedelta(days=int(record["release"]))
        record["moment"] = moment.isoformat(" ") + "Z"
    with open(tmp_path / "trace.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    capsys.readouterr()
    assert main(["audit", *every, "--published", output, "--json"]) == 1
    states = {one["name"]: one["state"] for one in json.loads(capsys.readouterr().out)["promises"]}
    assert states["deadline"] == "broken"


def test_check_says_what_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files(tmp_path, policy(seed=None, together="1d"))
    main(["check", str(tmp_path / "policy.yaml"), "--data", str(tmp_path / "in.csv")])
    said = " ".join(capsys.readouterr().out.split())
    assert "All rows of a person that are published less than 1 day apart have generalizations that fit" in said
    assert "together needs the same secret" in said


def test_explore_keeps_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files(tmp_path, policy(seed=None))
    data = str(tmp_path / "in.csv")
    assert main(["explore", str(tmp_path / "policy.yaml"), "--data", data, "--k", "4,8", "--delay", "10m"]) == 0
