"""`crenel audit`: honest outputs of every format and method pass, and forged outputs do not."""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import json
import math
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crenel.pipelines.auditing import evidence_files
from crenel.pipelines.cli import main
from crenel.pipelines.commands import audit

Row = dict[str, str]
Document = dict[str, Any]

BASE = """\
person: who
event_time: at
quasi_identifiers:
  age: {type: numeric, domain: [0, 100]}
  zip: {type: prefix, length: 5}
  job: {type: categorical, hierarchy: {Office: [clerk, boss], Field: [farmer, miner]}}
  joined: {type: datetime, domain: [2020-01-01, 2022-01-01]}
sensitive: [ill]
publish: [note]
k: 4
l: 2
delay: 10m
disorder: 1m
"""
#: The settings that promise a crowd at one moment.
CROWD = "parameters: {reuse: off}\non_suppress: drop\n"


def policy_of(method: str = "bastion", parameters: str = "", on_suppress: str = "star", base: str = BASE) -> str:
    """Write a policy that promises no crowd."""
    parameters = parameters or ("{reuse: weighted}" if method == "bastion" else "{}")
    return f"{base}seed: 7\nmethod: {method}\nparameters: {parameters}\non_suppress: {on_suppress}\n"


POLICY = policy_of()


def make_rows(count: int = 400, persons: int = 60) -> list[dict[str, Any]]:
    draw = random.Random(1)
    rows = []
    for i in range(count):
        at = 1_600_000_000 + i * 7 + draw.randrange(-30, 30)
        rows.append(
            {
                "who": f"P{draw.randrange(persons)}",
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
                "age": draw.randrange(0, 100) if i % 97 else None,
                "zip": f"{draw.randrange(20):05}",
                "job": draw.choice(["clerk", "boss", "farmer", "miner"]),
                "joined": f"2021-0{draw.randrange(1, 10)}-11",
                "ill": draw.choice(["flu", "cold", "gout"]),
                "note": draw.choice(["a", "b", None]),
                "secret": f"SECRET{i}",
            }
        )
    return rows


@dataclass(frozen=True)
class Files:
    """The files of a run that an audit reads."""

    folder: Path

    def __getattr__(self, name: str) -> Path:
        return self.folder / f"{name}.csv"

    def run(self, policy: str = POLICY, rows: list[dict[str, Any]] | None = None, form: str = "csv") -> None:
        (self.folder / "policy.yaml").write_text(policy)
        write(self.input, [{k: v if v is None else str(v) for k, v in row.items()} for row in rows or make_rows()])
        owners = [x for name in ("suppressed", "trace", "releases") for x in (f"--{name}", f"{name}.{form}")]
        argv = [
            "run",
            "policy.yaml",
            "--input",
            "input.csv",
            "--output",
            f"published.{form}",
            *owners,
            "--most-suppressed",
            "100%",
            "--most-rejected",
            "100%",
        ]
        assert main(argv) == 0

    def copy(self, made: Path) -> None:
        """Copy the files of a finished run."""
        shutil.copytree(made, self.folder, dirs_exist_ok=True)

    def change(self, name: str, how: Callable[[list[Row]], list[Row] | None]) -> None:
        """Rewrite the rows of a file."""
        path = self.folder / f"{name}.csv"
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        write(path, how(rows) or rows)


def write(path: Path, rows: list[Any]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.chdir(tmp_path)
    return Files(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Files(folder).run()
    return folder


@pytest.fixture
def honest(files: Files, made: Path) -> Files:
    """Return the unchanged files of a run."""
    files.copy(made)
    return files


LEVELS: dict[str, list[str]] = {
    "published": [],
    "input": ["--input", "input.csv", "--suppressed", "suppressed.csv"],
    "trace": ["--input", "input.csv", "--suppressed", "suppressed.csv", "--trace", "trace.csv"],
}


def judge(capsys: pytest.CaptureFixture[str], level: str, *more: str, published: str = "published.csv") -> Document:
    """Audit the files and return the document. The exit code must match the verdict."""
    capsys.readouterr()
    code = main(["audit", "policy.yaml", "--published", published, *LEVELS[level], "--json", "--queries", "20", *more])
    said = capsys.readouterr()
    assert said.err == ""
    (line,) = said.out.splitlines()
    document: Document = json.loads(line)
    assert code == (1 if document["verdict"] == "broken" else 0)
    assert_silent(line)
    # When, and which files: that differs between runs that are to be compared.
    del document["subject"]
    return document


def assert_silent(text: str) -> None:
    """Assert that a text contains no value of a row."""
    for word in ("SECRET", "P1", "00019", "gout", "farmer", "Office"):
        assert word not in text


def states(document: Document) -> dict[str, str]:
    return {promise["name"]: promise["state"] for promise in document["promises"]}


def promise(document: Document, name: str) -> Document:
    return next(promise for promise in document["promises"] if promise["name"] == name)


def broken(document: Document) -> set[str]:
    return {name for name, state in states(document).items() if state == "broken"}


# -- honest outputs --------------------------------------------------------------------------------


def test_more_evidence_decides_more_promises(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    alone, with_input, traced = (judge(capsys, level) for level in LEVELS)
    assert states(alone) == {
        "crowd": "not promised",
        "k": "unknown",
        "l:ill": "kept",
        "deadline": "unknown",
        "nothing lost": "unknown",
        "contained": "unknown",
        "columns": "kept",
        "boxes": "kept",
    }
    assert (alone["verdict"], with_input["verdict"], traced["verdict"]) == ("not proven", "not proven", "no crowd")
    assert [d["knowledge"] for d in (alone, with_input, traced)] == list(LEVELS)
    assert states(with_input)["nothing lost"] == "kept"
    assert alone["rows"]["input"] is None
    assert with_input["rows"]["rejected"] == traced["rows"]["rejected"] == 5
    assert with_input["rows"]["lost"] == traced["rows"]["lost"] == 0
    assert traced["rows"]["input"] == 400
    assert sum(traced["rows"][name] for name in ("rejected", "published", "suppressed")) == 400
    assert promise(traced, "k")["value"] >= 4
    assert promise(with_input, "k")["value"] <= promise(traced, "k")["value"]
    # Measures of the published rows alone are the same with any evidence.
    for name in ("loss", "rows"):
        for key in ("overall", "per_attribute", "discernibility", "published", "suppressed", "groups"):
            if key in alone[name]:
                assert alone[name][key] == with_input[name][key] == traced[name][key]
    assert alone["delay"] is alone["utility"] is None
    assert traced["delay"]["largest"] <= traced["delay"]["deadline"] == 600
    assert sum(part["rows"] for part in traced["delay"]["histogram"]) == 395
    assert sum(part["published"] + part["suppressed"] for part in traced["over_time"]["bins"]) == 395
    assert sum(part["published"] + part["suppressed"] for part in alone["over_time"]["bins"]) == 395
    assert sum(part["groups"] for part in traced["groups"]["histogram"]) == traced["rows"]["groups"]
    assert traced["utility"]["windows"] == 1
    assert [attack["name"] for attack in with_input["attacks"]] == ["linkage", "homogeneity:ill"]
    assert {attack["name"] for attack in traced["attacks"]} >= {"linkage", "homogeneity:ill", "boundary", "order"}
    assert all(attack["state"] in ("kept", "information") for attack in traced["attacks"])
    assert next(attack for attack in traced["attacks"] if attack["name"] == "linkage")["success"] <= 1 / 4
    assert alone["notes"]
    assert traced["notes"] == []


def test_the_loss_is_the_one_that_the_run_printed(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["run", "policy.yaml", "--input", "input.csv", "--output", "again.csv", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    document = judge(capsys, "trace", "--releases", "releases.csv")
    assert document["loss"]["overall"] == pytest.approx(told["loss"], abs=1e-5)
    assert document["rows"]["suppressed"] == told["suppressed"]
    assert document["loss"]["suppression_rate"] == pytest.approx(told["suppressed"] / 395, rel=1e-5)
    assert states(document)["reported figures"] == "kept"


@pytest.mark.parametrize("form", ["tsv", "csv.gz", "csv.zst", "jsonl", "jsonl.gz", "parquet", "avro"])
def test_every_format_gives_the_same_document(files: Files, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    files.run()
    expected = judge(capsys, "trace", "--releases", "releases.csv")
    files.run(form=form)
    own = [x for name in ("suppressed", "trace", "releases") for x in (f"--{name}", f"{name}.{form}")]
    assert judge(capsys, "trace", *own, published=f"published.{form}") == expected


def test_rows_may_be_split_into_files(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {level: judge(capsys, level) for level in LEVELS}
    for name in ("input", "published"):
        lines = (honest.folder / f"{name}.csv").read_text().splitlines()
        for part, cut in enumerate((lines[1:100], lines[100:])):
            (honest.folder / f"{name}-{part}.csv").write_text("\n".join([lines[0], *cut]) + "\n")
    for level, document in expected.items():
        given = ["--input", "input-*.csv"] if level != "published" else []
        assert judge(capsys, level, *given, published="published-*.csv") == document


def test_columns_published_as_they_are_compare_equal_in_every_format() -> None:
    same: list[list[Any]] = [
        [1, 1.0, "1", "1.0", Decimal(1)],
        [None, "", math.nan],
        [0.1, "0.1", float(np.float32(0.1))],
        [
            dt.datetime(2020, 1, 2, 3, tzinfo=dt.timezone.utc),
            "2020-01-02T03:00:00",
            "2020-01-02 03:00:00",
            "2020-01-02T03:00:00Z",
        ],
        [True, "true", "True"],
        [1e300, "1e300", "1e+300"],
        [["a", 1], '["a", 1]'],
        ["flu"],
        ["Flu"],
        ["{not JSON"],
    ]
    texts = [{evidence_files._canonical(value) for value in values} for values in same]
    assert all(len(found) == 1 for found in texts)
    assert len(set.union(*texts)) == len(same)


STEPPED = POLICY.replace("[0, 100]}", "[0, 100], step: 7}").replace("2022-01-01]}", "2022-01-01], step: 50d}")

METHODS = {
    "bastion": POLICY,
    "sharded": POLICY + "shards: 3\n",
    "dropped": policy_of("castle", on_suppress="drop").replace("k: 4", "k: 12").replace("seed: 7", "seed: 6"),
    "mondrian": policy_of("mondrian"),
    "rows": POLICY.replace("event_time: at\n", "").replace("delay: 10m\ndisorder: 1m\n", "delay_rows: 60\n"),
    "learned": POLICY.replace(", domain: [0, 100]", "").replace(", domain: [2020-01-01, 2022-01-01]", ""),
    "stepped": STEPPED,
    "stepped and learned": STEPPED.replace("domain: [0, 100], ", "").replace("domain: [2020-01-01, 2022-01-01], ", ""),
    "stepped, with holes": STEPPED.replace("method: bastion\nparameters: {reuse: weighted}", "method: partition"),
    "t": POLICY + "t: 0.4\n",
    "partition": policy_of("partition"),
    "filled": policy_of("partition", "{fill_missing: true}"),
    "in order": policy_of(parameters="{reuse: weighted, reorder: true}"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_run_keeps_its_promises(files: Files, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_rows()
    if name in ("partition", "filled", "stepped, with holes"):
        for i, row in enumerate(rows):
            row |= {hole: None for j, hole in enumerate(("age", "zip", "joined")) if (i >> j) % 5 == 0}
    files.run(METHODS[name], rows)
    for level in LEVELS:
        more = ["--releases", "releases.csv"] if level == "trace" else []
        document = judge(capsys, level, *more)
        assert document["knowledge"] == level
        assert not broken(document)
        assert "unknown" not in states(document).values() or level != "trace"
        assert level == "published" or document["rows"]["lost"] == 0
    assert document["verdict"] == "no crowd"
    capsys.readouterr()
    assert main(["run", "policy.yaml", "--input", "input.csv", "--output", "again.csv", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert document["rows"]["suppressed"] == told["suppressed"]
    if name not in (
        "dropped",
        "learned",
        "stepped and learned",
    ):  # the run also counts rows that it did not publish, and measures by the domains as they grew
        assert document["loss"]["overall"] == pytest.approx(told["loss"], abs=1e-5)


def test_a_method_that_perturbs_and_samples(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    base = BASE.replace("sensitive: [ill]", "sensitive: {ill: {values: [flu, cold, gout]}}")
    noise = "{beta_sample: 0.7, phi: 30, perturb_sensitive: {ill: 1.0}}"
    files.run(policy_of("castleguard", noise, "drop", base), make_rows(600))
    for level in LEVELS:
        document = judge(capsys, level)
        assert not broken(document)
        assert "contained" not in states(document)
        # Its paper's claim is refuted, so the audit states no differential privacy.
        assert "epsilon" not in states(document)
        assert document["differential"] is None
    assert document["rows"]["sampled_out"] > 0
    assert document["rows"]["lost"] == 0
    assert states(document)["k"] == "kept"
    assert document["verdict"] == "no crowd"


def test_a_method_that_is_differentially_private(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    base = "person: who\nevent_time: at\nquasi_identifiers: {age: {type: numeric, domain: [0, 100]}}\n"
    base += "sensitive: [ill]\nk: 4\ndelay: 30m\n"
    files.run(policy_of("sdgs", "{beta_sample: 0.7, grid: {age: 2}}", "drop", base), make_rows(600))
    document = judge(capsys, "trace")
    assert states(document)["epsilon"] == "unknown"
    assert document["differential"]["epsilon"] > 0
    assert document["verdict"] == "not proven"


def test_one_row_a_person_needs_no_trace_for_k(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run(rows=[{**row, "who": f"P{i}"} for i, row in enumerate(make_rows())])
    found, exact = judge(capsys, "input"), judge(capsys, "trace")
    assert states(found)["k"] == "kept"
    assert promise(found, "k")["value"] == promise(exact, "k")["value"]


# -- the crowd -------------------------------------------------------------------------------------


def left_alone(files: Files, k: int = 4) -> int:
    """Count the rows in releases of fewer than k persons, from the files alone."""
    with open(files.input, newline="") as file:
        persons = [row["who"] for row in csv.DictReader(file)]
    releases: dict[tuple[str, str], list[str]] = {}
    with open(files.trace, newline="") as file:
        for row in csv.DictReader(file):
            releases.setdefault((row["shard"], row["release"]), []).append(persons[int(row["row"])])
    return sum(len(of) for of in releases.values() if len(set(of)) < k)


def one_row_each() -> list[dict[str, Any]]:
    return [{**row, "who": f"P{i}"} for i, row in enumerate(make_rows())]


def test_a_crowd_that_is_not_promised_is_never_called_kept(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run(POLICY.replace("k: 4", "k: 24").replace("delay: 10m", "delay: 2m"))
    expected = left_alone(files, k=24)
    assert expected > 30
    alone, with_input, traced = (judge(capsys, level) for level in LEVELS)
    crowd = traced["crowd"]
    assert (crowd["alone"], crowd["rows"], crowd["k"], crowd["exact"]) == (expected, 395, 24, True)
    assert (crowd["promised"], crowd["state"]) == (False, "not promised")
    said = f"{expected} of 395 rows left with fewer than 24 persons at one moment"
    assert crowd["text"].startswith(f"A crowd at one moment is not promised: {said}")
    assert "an attacker who knows when a row arrived can single these rows out" in crowd["text"]
    # Without the trace, the audit knows only that stars left alone.
    for document in (alone, with_input):
        assert document["crowd"]["exact"] is False
        assert document["crowd"]["alone"] == traced["rows"]["suppressed"] > 0
        assert "at least" in document["crowd"]["text"]
    # The number of rows that left alone is the first figure.
    assert list(traced)[:2] == ["crenel", "crowd"]
    assert next(iter(crowd)) == "alone"
    capsys.readouterr()
    assert main(["audit", "policy.yaml", "--published", "published.csv", *LEVELS["trace"]]) == 0
    text = capsys.readouterr().out
    assert "KEPT:" not in text
    assert f" A crowd at one moment is not promised: {said}" in " ".join(text.split("\n\n")[0].split())


def test_the_document_tells_which_files_it_judges(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    main(["audit", "policy.yaml", "--published", "published.csv", *LEVELS["trace"], "--json"])
    subject = json.loads(capsys.readouterr().out)["subject"]
    assert dt.datetime.fromisoformat(subject["judged"]).utcoffset() == dt.timedelta(0)
    found = {(one["role"], one["name"]): one["sha256"] for one in subject["files"]}
    assert set(found) == {
        ("policy", "policy.yaml"),
        ("published", "published.csv"),
        ("input", "input.csv"),
        ("suppressed", "suppressed.csv"),
        ("trace", "trace.csv"),
    }
    for (_, name), digest in found.items():
        assert digest == hashlib.sha256(Path(name).read_bytes()).hexdigest()
    capsys.readouterr()
    main(["audit", "policy.yaml", "--published", "published.csv", "--html", "page.html"])
    assert f"published.csv, {Path('published.csv').stat().st_size:,} bytes" in capsys.readouterr().out
    assert found[("published", "published.csv")] in Path("page.html").read_text()


def test_the_three_questions_of_regulators(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run(BASE + CROWD, one_row_each())
    alone, _, traced = (judge(capsys, level) for level in LEVELS)
    by_name = {risk["name"]: risk for risk in traced["risks"]}
    assert list(by_name) == ["singling out", "linkability", "inference"]
    assert by_name["singling out"]["state"] == "kept"
    assert {"crowd", "k", "posterior", "linkage"} <= set(by_name["singling out"]["evidence"])
    # Nothing is promised about several rows of one person, whatever was measured.
    assert by_name["linkability"]["state"] == "not promised"
    known = {one["name"] for one in (*traced["promises"], *traced["attacks"])}
    assert all(set(risk["evidence"]) <= known for risk in by_name.values())
    # Without evidence, nothing is called kept.
    assert alone["risks"][0]["state"] == "unknown"


def test_a_broken_promise_is_a_broken_answer(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    document = judge(capsys, "trace")
    worst = {"singling out": ("crowd", "k"), "inference": ("l:", "t:")}
    for risk in document["risks"]:
        names = worst.get(risk["name"], ())
        if any(one["state"] == "broken" for one in document["promises"] if one["name"].startswith(names)):
            assert risk["state"] == "broken"
    # An answer never sounds better than the worst of its evidence.
    weights = ["kept", "not promised", "unknown", "broken"]
    every = {one["name"]: one["state"] for one in (*document["promises"], *document["attacks"])}
    for risk in document["risks"]:
        states_of = [weights.index(every[name]) for name in risk["evidence"] if every[name] in weights]
        assert weights.index(risk["state"]) >= max(states_of, default=0)


def test_a_crowd_is_kept(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run(BASE + CROWD, one_row_each())
    alone, with_input, traced = (judge(capsys, level) for level in LEVELS)
    assert (traced["verdict"], traced["crowd"]["state"]) == ("kept", "kept")
    assert (traced["crowd"]["alone"], traced["crowd"]["repeated"], traced["crowd"]["seed"]) == (0, 0, None)
    for document in (alone, with_input):
        assert states(document)["crowd"] == "unknown"
        assert document["crowd"]["alone"] is None
        assert "it is unknown how many of" in document["crowd"]["text"]
        assert document["verdict"] == "not proven"


def test_a_seed_keeps_no_secret(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run(BASE + CROWD + "seed: 7\n", one_row_each())
    document = judge(capsys, "trace")
    assert document["verdict"] == "not proven"
    assert states(document)["crowd"] == "unknown"
    assert set(states(document).values()) - {"kept"} == {"unknown"}
    assert "whoever guesses it can recompute the order" in document["crowd"]["seed"]
    capsys.readouterr()
    assert main(["audit", "policy.yaml", "--published", "published.csv", *LEVELS["trace"]]) == 0
    assert "whoever guesses it" in "\n".join(capsys.readouterr().out.splitlines()[:4])


def test_rows_that_leave_alone_break_a_promised_crowd(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that lets rows leave alone, judged by a policy that forbids it."""
    files.run(policy_of(on_suppress="drop"), one_row_each())
    (files.folder / "policy.yaml").write_text(BASE + CROWD)
    document = judge(capsys, "trace")
    assert broken(document) == {"crowd"}
    assert document["verdict"] == "broken"
    assert promise(document, "crowd")["rows"] == document["crowd"]["alone"] > 5


def test_a_crowd_is_broken_without_a_trace_if_groups_are_too_small(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.run(BASE + CROWD, one_row_each())
    files.change("published", lambda rows: [row for i, row in enumerate(rows) if i not in group_of(rows)[3:]])
    for level in ("published", "input"):
        document = judge(capsys, level)
        assert {"crowd", "k"} <= broken(document)
        assert (document["crowd"]["alone"], document["crowd"]["exact"]) == (3, False)
        assert "at least 3 of" in document["crowd"]["text"]


def test_a_person_twice_in_a_release_breaks_a_crowd(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run(BASE.replace("k: 4", "k: 6") + CROWD, one_row_each())
    (files.folder / "policy.yaml").write_text(BASE + CROWD)
    with open(files.trace, newline="") as file:
        first = [int(row["row"]) for row in csv.DictReader(file) if row["release"] == "0"]

    def same(rows: list[Row]) -> None:
        rows[first[0]]["who"] = rows[first[1]]["who"]

    files.change("input", same)
    document = judge(capsys, "trace")
    assert broken(document) == {"crowd"}
    assert (document["crowd"]["alone"], document["crowd"]["repeated"]) == (0, len(first))
    assert "a person is more than once" in document["crowd"]["text"]


def test_rows_may_lie_anywhere_in_the_file(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of a release need not be neighbours: the trace says which rows belong together."""
    files.run(BASE + CROWD, one_row_each())
    expected = judge(capsys, "trace")
    with open(files.trace, newline="") as file:
        kinds = [row["kind"] for row in csv.DictReader(file)]
    leaves = [place for place, kind in enumerate(kinds) if kind != "suppressed"]
    order = random.Random(3).sample(range(len(leaves)), len(leaves))
    hidden = [place for place, kind in enumerate(kinds) if kind == "suppressed"]
    files.change("published", lambda rows: [rows[i] for i in order])
    files.change("trace", lambda rows: [rows[leaves[i]] for i in order] + [rows[i] for i in hidden])
    found = judge(capsys, "trace")
    assert found["crowd"] == expected["crowd"]
    assert states(found) == states(expected)


# -- forged outputs --------------------------------------------------------------------------------


def group_of(rows: list[Row]) -> list[int]:
    """Return the places of the rows of the smallest group. Among equally small groups, the box decides."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault((row["age"], row["zip"], row["job"], row["joined"]), []).append(place)
    return min((len(places), box, places) for box, places in groups.items() if box[0] != "[0, 100]")[2]


def test_a_group_of_too_few_rows(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:

    def shrink(rows: list[Row]) -> list[Row]:
        gone = group_of(rows)[3:]
        return [row for place, row in enumerate(rows) if place not in gone]

    honest.change("published", shrink)
    found = promise(judge(capsys, "published"), "k")
    assert (found["state"], found["groups"], found["rows"]) == ("broken", 1, 3)
    for level in ("input", "trace"):
        document = judge(capsys, level)
        assert {"k", "nothing lost"} <= broken(document)
        assert document["rows"]["lost"] > 0


def test_a_group_of_one_person(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """A group has enough rows, but all belong to one person. Only the input shows that."""
    with open(honest.input, newline="") as file:
        rows = list(csv.DictReader(file))
    with open(honest.published, newline="") as file:
        members = group_of(list(csv.DictReader(file)))
    with open(honest.trace, newline="") as file:
        came = {int(row["row"]) for place, row in enumerate(csv.DictReader(file)) if place in members}
    write(honest.input, [{**row, "who": "P1"} if place in came else row for place, row in enumerate(rows)])
    document = judge(capsys, "trace")
    assert broken(document) == {"k"}
    assert promise(document, "k")["value"] < 4
    assert states(judge(capsys, "published"))["k"] == "unknown"


def test_all_rows_of_one_person(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    honest.change("input", lambda rows: [{**row, "who": "P1"} for row in rows])
    found = promise(judge(capsys, "input"), "k")
    assert (found["state"], found["value"]) == ("broken", 1)


def test_too_few_sensitive_values(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:

    def same(rows: list[Row]) -> None:
        for place in group_of(rows):
            rows[place]["ill"] = "flu"

    honest.change("published", same)
    assert broken(judge(capsys, "published")) == {"l:ill"}
    assert {"l:ill", "nothing lost"} <= broken(judge(capsys, "input"))
    assert {"l:ill", "contained"} <= broken(judge(capsys, "trace"))


@pytest.mark.parametrize("column", ["who", "secret", "extra"])
def test_a_column_that_must_not_be_published(honest: Files, column: str, capsys: pytest.CaptureFixture[str]) -> None:
    honest.change("published", lambda rows: [{**row, column: "P1"} for row in rows])
    for level in LEVELS:
        document = judge(capsys, level)
        assert broken(document) == {"columns"}
        assert ("person" in promise(document, "columns")["note"]) is (column == "who")


def test_a_column_in_some_lines_of_json(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run(form="jsonl")
    path = files.folder / "published.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([*others, first[:-1] + ', "who": "P1"}']) + "\n")
    assert broken(judge(capsys, "published", published="published.jsonl")) == {"columns"}


def test_the_person_under_the_name_of_another_column(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    honest.change("published", lambda rows: [{**row, "note": f"P{i}"} for i, row in enumerate(rows)])
    assert "nothing lost" in broken(judge(capsys, "input"))
    assert "contained" in broken(judge(capsys, "trace"))


def test_a_row_that_was_removed(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    honest.change("published", lambda rows: rows[:5] + rows[6:])
    document = judge(capsys, "input")
    assert broken(document) == {"nothing lost", "k"}  # its group had just k persons
    assert document["rows"]["lost"] == 1
    document = judge(capsys, "trace")
    assert broken(document) == {"nothing lost", "k"}
    assert document["knowledge"] == "input"
    assert document["rows"]["lost"] == 1


def test_a_row_that_left_twice(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    honest.change("published", lambda rows: [*rows[:6], rows[5], *rows[6:]])
    for level in ("input", "trace"):
        assert "nothing lost" in broken(judge(capsys, level))


def test_a_row_that_replaces_another(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy of one row replaces another row. The numbers of rows and classes stay the same."""

    def swap(rows: list[Row]) -> None:
        one = rows[group_of(rows)[0]]
        other = next(r for r in rows if (r["ill"], r["note"]) == (one["ill"], one["note"]) and r["job"] != one["job"])
        other |= one

    honest.change("published", swap)
    assert {"contained"} <= broken(judge(capsys, "trace"))
    assert states(judge(capsys, "input"))["nothing lost"] == "kept"


def test_rows_in_another_order(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """If the trace does not match the output, it cannot prove that a promise is kept."""
    honest.change("published", lambda rows: random.Random(0).sample(rows, len(rows)))
    assert "contained" in broken(judge(capsys, "trace"))
    assert not broken(judge(capsys, "input"))


@pytest.mark.parametrize(("column", "value"), [("age", "[0, 0]"), ("zip", "99999"), ("job", "boss")])
def test_a_box_that_does_not_hold_its_rows(
    honest: Files, column: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:

    def narrow(rows: list[Row]) -> None:
        for place in group_of(rows):
            rows[place][column] = value

    honest.change("published", narrow)
    assert "contained" in broken(judge(capsys, "trace"))
    found = promise(judge(capsys, "input"), "contained")
    assert found["state"] == "broken"
    assert found["groups"] == 1


def test_suppressed_rows_must_be_in_the_input(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of suppressed rows that were never in the input does not account for lost rows."""
    files.run(METHODS["dropped"])
    assert not broken(judge(capsys, "input"))
    files.change("suppressed", lambda rows: [{**row, "age": "[1.5, 1.5]"} for row in rows])
    for level in ("input", "trace"):
        assert broken(judge(capsys, level)) == {"nothing lost"}


def test_dropped_rows_must_be_given(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run(METHODS["dropped"])
    capsys.readouterr()
    argv = ["audit", "policy.yaml", "--input", "input.csv", "--published", "published.csv", "--json"]
    assert main(argv) == 0
    document = json.loads(capsys.readouterr().out)
    assert states(document)["nothing lost"] == "unknown"
    assert document["rows"]["suppressed"] is None
    assert any("--suppressed" in note for note in document["notes"])


def test_stars_where_rows_are_dropped(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """The policy drops suppressed rows. If one is published as a star instead, it is a group of too few persons."""
    files.run(METHODS["dropped"])
    star = {"age": "[0, 100]", "zip": "*****", "job": "*", "joined": "[2020-01-01T00:00:00Z, 2022-01-01T00:00:00Z]"}
    files.change("published", lambda rows: [*rows, {**rows[0], **star}])
    assert "k" in broken(judge(capsys, "published"))


def test_a_trace_of_another_run(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run()
    published = files.published.read_bytes()
    files.run(POLICY.replace("seed: 7", "seed: 8"))
    files.published.write_bytes(published)
    assert "contained" in broken(judge(capsys, "trace"))


def test_a_trace_that_calls_a_small_group_suppressed(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    with open(honest.published, newline="") as file:
        members = group_of(list(csv.DictReader(file)))

    def hide(rows: list[Row]) -> None:
        for place in members:
            rows[place]["kind"] = "suppressed"

    honest.change("trace", hide)
    assert "boxes" in broken(judge(capsys, "trace"))


def test_a_trace_that_merges_groups(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """Promises about each group, such as t, would then be judged over all groups at once."""
    honest.change("trace", lambda rows: [{**row, "group": "1"} for row in rows])
    assert broken(judge(capsys, "trace")) == {"boxes"}


def test_a_trace_that_calls_rows_sampled_out(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """Castle does not sample, so these rows are lost."""
    honest.change("published", lambda rows: rows[1:])
    honest.change("trace", lambda rows: [{**rows[0], "kind": "sampled_out"}, *rows[1:]])
    assert "nothing lost" in broken(judge(capsys, "trace"))


@pytest.mark.parametrize(
    ("how", "found"),
    [
        (lambda row: {**row, "row": "0"}, "nothing lost"),
        (lambda row: {**row, "row": "99999"}, "nothing lost"),
        (lambda row: {**row, "moment": "2030-01-01T00:00:00Z"}, "deadline"),
        (lambda row: {**row, "arrivals": "400"}, "deadline"),
        (lambda row: {**row, "arrivals": "0"}, "deadline"),
    ],
)
def test_an_impossible_trace(
    honest: Files, how: Callable[[Row], Row], found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    honest.change("trace", lambda rows: [how(row) if row["arrival"] == "50" else row for row in rows])
    assert found in broken(judge(capsys, "trace"))


def test_a_trace_of_rows_that_never_came(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    honest.change("trace", lambda rows: [{**row, "row": "99999"} for row in rows])
    assert "nothing lost" in broken(judge(capsys, "trace"))


def test_arrivals_that_are_not_in_the_order_of_time(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:

    def late(rows: list[Row]) -> None:
        by_arrival = sorted(rows, key=lambda row: int(row["arrival"]))
        by_arrival[3]["arrival"], by_arrival[300]["arrival"] = "300", "3"

    honest.change("trace", late)
    assert "deadline" in broken(judge(capsys, "trace"))


def test_releases_that_are_misreported(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    reported = honest.releases.read_bytes()
    cheats: list[Callable[[list[Row]], list[Row]]] = [
        lambda rows: rows[:-1],
        lambda rows: [{**rows[0], "loss": "0.5"}, *rows[1:]],
        lambda rows: [{**rows[0], "rows": "77"}, *rows[1:]],
        lambda rows: [*rows[:5], {**rows[5], "persons": "77"}, *rows[6:]],
    ]
    for cheat in cheats:
        honest.releases.write_bytes(reported)
        honest.change("releases", cheat)
        assert broken(judge(capsys, "trace", "--releases", "releases.csv")) == {"reported figures"}


# -- mistakes --------------------------------------------------------------------------------------


def mistake(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main(["audit", "policy.yaml", *argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert_silent(line)
    return line.removeprefix("crenel: ")


def test_a_mistake_is_a_sentence(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake(capsys, "--published", "none.csv") == "none.csv: there is no such file."
    assert mistake(capsys, "--published", "-") == "an audit reads files, not standard input (-)."
    assert mistake(capsys, "--published", "published.csv", "--trace", "trace.csv").startswith("--trace needs --input")
    given = ["--published", "published.csv", "--input", "input.csv"]
    assert mistake(capsys, *given, "--releases", "releases.csv").startswith("--releases needs --trace")
    assert mistake(capsys, *given, "--theta", "2").startswith("--theta must be a number above 0")
    assert mistake(capsys, *given, "--queries", "-1").startswith("--queries must be")
    lacking = "'release', 'row', 'arrival', which it must have."
    assert mistake(capsys, *given, "--trace", "releases.csv") == f"releases.csv has no column {lacking}"
    assert mistake(capsys, "--published", "trace.csv").startswith("trace.csv has no column 'age', 'zip',")
    (honest.folder / "policy.yaml").write_text("k: 0\n")
    assert main(["audit", "policy.yaml", *given]) == 2


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("age", "[1, 2"),
        ("age", "[1, 2.0]"),
        ("age", "[1,2]"),
        ("age", "[1, 2] P1"),
        ("age", "[5, 2]"),
        ("age", "[P1, 2]"),
        ("zip", "0*0**"),
        ("zip", "0000*P1"),
        ("job", "Nowhere"),
        ("joined", "[2020-01-01, yesterday]"),
        ("joined", "[2020-01-01, 2021-01-01T00:00:00Z]"),
    ],
)
def test_a_value_that_cannot_be_read_back(
    honest: Files, column: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    honest.change("published", lambda rows: [{**rows[0], column: value}, *rows[1:]])
    said = mistake(capsys, "--published", "published.csv")
    assert said == f"published.csv has a value in column {column!r} that the policy cannot have published."


def test_more_than_two_ends_cannot_be_read_back(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.run(form="parquet")
    table = pq.read_table("published.parquet")
    ages = table["age"].combine_chunks()
    wrong = pa.StructArray.from_arrays(
        [ages.field(0), ages.field(1), pa.array(["P1"] * len(ages))], ["lo", "hi", "who"]
    )
    pq.write_table(table.set_column(0, "age", wrong), "published.parquet")
    assert "'age'" in mistake(capsys, "--published", "published.parquet")


def test_a_trace_whose_arrivals_have_gaps(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    honest.change("trace", lambda rows: [{**rows[0], "arrival": "100000"}, *rows[1:]])
    argv = ["--published", "published.csv", *LEVELS["trace"]]
    assert (
        mistake(capsys, *argv)
        == "the trace was not written by crenel run: the arrivals of each shard must count from 0."
    )


def test_files_without_rows(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("published", "suppressed", "trace", "input", "releases"):
        path = honest.folder / f"{name}.csv"
        path.write_text(path.read_text().splitlines()[0] + "\n")
    for level, given in LEVELS.items():
        document = judge(capsys, level)
        assert not broken(document)
        assert document["rows"]["published"] == 0
        assert document["groups"]["smallest"] is document["loss"]["overall"] is None
        capsys.readouterr()
        assert main(["audit", "policy.yaml", "--published", "published.csv", *given]) == 0
    honest.published.write_text("")
    assert mistake(capsys, "--published", "published.csv") == "published.csv is empty: it must have at least a header."


def test_nothing_published_of_an_input(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    honest.published.write_text(honest.published.read_text().splitlines()[0] + "\n")
    document = judge(capsys, "input", "--suppressed", "suppressed.csv")
    assert document["rows"]["lost"] == 395


def test_a_bug_shows_no_rows(
    honest: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("SECRET")

    monkeypatch.setattr(audit, "judged", fail)
    assert main(["audit", "policy.yaml", "--published", str(honest.published)]) == 70
    said = capsys.readouterr()
    assert said.out == ""
    assert "the audit failed (ValueError)" in said.err
    assert "SECRET" not in said.err


# -- the report ------------------------------------------------------------------------------------


def test_the_text_says_the_verdict_first(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    for level, verdict in (("published", "NOT PROVEN"), ("input", "NOT PROVEN"), ("trace", "NO CROWD")):
        capsys.readouterr()
        assert main(["audit", "policy.yaml", "--published", "published.csv", *LEVELS[level]]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{verdict}: ")
        assert_silent(said)
        assert max(map(len, said.splitlines())) <= 100
    honest.change("published", lambda rows: [{**row, "who": "P1"} for row in rows])
    assert main(["audit", "policy.yaml", "--published", "published.csv"]) == 1
    assert capsys.readouterr().out.startswith("BROKEN: ")


def test_rows_that_were_not_published_are_in_the_verdict(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """Promises may hold because few rows were published, so the verdict says how many were not, if that is known."""
    rows = make_rows(200)
    for i, row in enumerate(rows[:40]):
        row["at"] = f"2021-0{1 + i // 20}-{1 + i % 20:02}T00:00:00Z"
    for row in rows[40:60]:
        row["age"] = 1000
    files.run(policy_of("mondrian", on_suppress="drop") + "max_ahead: 300000d\n", rows)
    for level in ("input", "trace"):
        document = judge(capsys, level)
        found = {one["what"]: one for one in document["too_many"]}
        assert set(found) == {"suppressed", "rejected"}
        assert (found["suppressed"]["rows"], found["rejected"]["rows"]) == (
            document["rows"]["suppressed"],
            document["rows"]["rejected"],
        )
        assert found["suppressed"]["rows"] >= 39  # one of the 40 is rejected
        assert "more than --most-rejected 5% allows." in found["rejected"]["text"]
    assert judge(capsys, "published")["too_many"] == []
    assert judge(capsys, "trace", "--most-suppressed", "50%", "--most-rejected", "0.5")["too_many"] == []
    argv = ["audit", "policy.yaml", "--published", "published.csv", *LEVELS["trace"], "--html", "page.html"]
    assert main(argv) == 0
    said = capsys.readouterr().out
    # The excess counts follow the verdict. Only the figures of the crowd come between.
    first = [said.splitlines()[0], document["crowd"]["text"], document["crowd"]["seed"]]
    first += [f"TOO MANY: {one['text']}" for one in document["too_many"]]
    assert len(first) == 5
    assert " ".join(said.split()).startswith(" ".join(first))
    assert '<div class="verdict kept">' not in (files.folder / "page.html").read_text()


def test_a_seed_draws_the_same_queries(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (judge(capsys, "trace", "--seed", seed)["utility"] for seed in ("5", "5", "6"))
    assert first == again != {**other, "seed": 5}
    assert judge(capsys, "trace", "--queries", "0")["utility"] is None


def test_a_page_is_written(honest: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the page needs the extra `report`")
    assert main(["audit", "policy.yaml", "--published", "published.csv", "--html", "page.html", "--json"]) == 0
    line = capsys.readouterr().out.strip()
    assert json.loads(line)["verdict"] == "not proven"
    page = (honest.folder / "page.html").read_text()
    assert "at least 4 persons in each group" in page
    assert_silent(page)
    assert "cannot be written" in mistake(capsys, "--published", "published.csv", "--html", "none/page.html")
    monkeypatch.setattr(audit, "find_spec", lambda name: None)
    assert "pip install 'crenel[report]'" in mistake(capsys, "--published", "published.csv", "--html", "page.html")


# -- the trace -------------------------------------------------------------------------------------


def test_only_the_owner_can_read_a_trace_and_it_changes_nothing(honest: Files) -> None:
    assert honest.trace.stat().st_mode & 0o777 == 0o600
    argv = ["run", "policy.yaml", "--input", "input.csv", "--output", "untraced.csv"]
    assert main(argv) == 0
    assert (honest.folder / "untraced.csv").read_bytes() == honest.published.read_bytes()


def test_a_trace_counts_rows_through_all_files(honest: Files) -> None:
    with open(honest.input, newline="") as file:
        rows = list(csv.DictReader(file))
    write(honest.folder / "a.csv", rows[:150])
    write(honest.folder / "b.csv", rows[150:])
    argv = ["run", "policy.yaml", "--input", "a.csv", "b.csv", "--output", "again.csv", "--trace", "again-trace.csv"]
    assert main(argv) == 0
    assert (honest.folder / "again-trace.csv").read_bytes() == honest.trace.read_bytes()
    with open(honest.trace, newline="") as file, open(honest.published, newline="") as published:
        for traced, row in zip(csv.DictReader(file), csv.DictReader(published), strict=True):
            assert rows[int(traced["row"])]["ill"] == row["ill"]


def test_streams_have_no_trace(honest: Files, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("kafka://broker:9092/rows", "pubsub://projects/p/topics/t"):
        assert main(["run", "policy.yaml", "--input", place, "--output", place, "--trace", "t.csv"]) == 2
        assert "--trace is for files" in capsys.readouterr().err
