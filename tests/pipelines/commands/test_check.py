"""`crenel check`: its report on a policy, and on a sample of the data."""

from __future__ import annotations

import csv
import datetime as dt
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from crenel import Policy
from crenel.pipelines.checking.explain import example
from crenel.pipelines.checking.sample import Sample
from crenel.pipelines.cli import main
from crenel.pipelines.console.sections import count, listed, percent, spoken
from crenel.pipelines.drafting import sample_measures
from crenel.pipelines.files.file_rows import read_for
from crenel.policy import methods
from crenel.policy.geometry import Radix
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Datetime, Numeric, Prefix, QuasiIdentifier

GOOD: dict[str, Any] = {
    "person": "who",
    "event_time": "at",
    "quasi_identifiers": {
        "age": {"type": "numeric", "domain": [0, 100]},
        "zip": {"type": "prefix", "length": 5},
        "job": {"type": "categorical", "hierarchy": {"Care": ["nurse", "doctor"], "IT": ["dev"]}},
    },
    "sensitive": ["diagnosis"],
    "publish": ["ward"],
    "k": 5,
    "l": 2,
    "delay": "1h",
    "delay_rows": 1000,
}

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Run the command on the good policy with these changes, and return the exit code and the text on one line."""

    def run(rows: list[dict[str, Any]] | None = None, **changes: Any) -> tuple[int, str]:
        policy = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy, sort_keys=False))
        argv = ["check", str(tmp_path / "policy.yaml")]
        if rows is not None:
            write(tmp_path / "data.csv", rows)
            argv += ["--data", str(tmp_path / "data.csv")]
        code = main(argv)
        said = capsys.readouterr()
        assert said.err == ""
        assert max(map(len, said.out.splitlines())) <= 100
        return code, " ".join(said.out.split())

    return run


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def rows(number: int = 200, persons: int = 50, seed: int = 1) -> list[dict[str, Any]]:
    """Make rows a minute apart, in order. Their values are easy to recognize in any text."""
    draw = random.Random(seed)
    start = dt.datetime(2024, 3, 1, 8, 17, 43, tzinfo=dt.timezone.utc)
    return [
        {
            "who": f"P{1000 + i % persons}X",
            "at": (start + dt.timedelta(minutes=i)).isoformat(),
            "age": draw.randrange(20, 80) + 0.125,
            "zip": f"9{draw.randrange(1000, 9999)}",
            "job": draw.choice(["nurse", "doctor", "dev"]),
            "diagnosis": draw.choice(["flu", "gout", "cold"]),
            "ward": draw.choice("AB"),
            "note": f"N{draw.randrange(10**6)}N",
        }
        for i in range(number)
    ]


# The policy alone


def test_the_policy_is_explained(check: Check) -> None:
    code, said = check()
    assert code == 0
    for sentence in (
        "age quasi-identifier: generalized, such as 44 -> [40, 50] -> [0, 100]",
        "53706 -> 5370* -> 537** -> ... -> *****",
        "(3 values, 2 levels above them), such as nurse -> Care -> *",
        "diagnosis sensitive: as it is",
        "ward other column: as it is; crenel checks nothing about it",
        "who the person: used only to count persons",
        "at the event time: used only for the deadline",
        "a column that the policy does not name is never published",
        "Each row is released together with others: a release has rows of at least 5 persons (k), one row each, under "
        "one generalization, at one moment, in a secret random order.",
        "Each group has at least 2 different values of diagnosis (l).",
        "1 hour after its event time (delay), or when 1,000 later rows of its shard have come "
        "(delay_rows), whichever is earlier",
        "At most 1,000 rows of each shard.",
        "method bastion: Holds each row until its deadline",
        "max_reusable 4,000 generalizations: no effect with reuse: off",
        "search 8,192 rows: the most rows that a group is chosen among",
        "not published (on_suppress: drop)",
        "note: Each pipeline draws a secret of its own.",
    ):
        assert sentence in said
    assert said.endswith("No problems, no warnings.")


@pytest.mark.parametrize("method", methods.names())
def test_every_parameter_is_explained_by_its_own_method(check: Check, method: str) -> None:
    """Two methods have a parameter mu, with a different meaning in each."""
    declared = methods.find(method)
    parameters = {"cover": "quasi_identifiers"} if method == "sdgs" else {}
    _, said = check(method=method, parameters=parameters, l=GOOD["l"] if declared.keeps_l else None)
    assert f"method {method}: {declared.summary}" in said
    for name, about in declared.fields.items():
        if about.default != {} and not about.used_with:
            assert f": {about.sentence[0].lower()}{about.sentence[1:].rstrip('.')}" in said, name


def test_a_policy_without_a_crowd_is_explained(check: Check) -> None:
    _, said = check(parameters={"reuse": "weighted"}, on_suppress="star")
    for sentence in (
        "published so far under the same generalization belong to at least 5 different persons (k)",
        "A crowd at one moment is not promised: reuse: weighted may publish a row alone, under an earlier "
        "generalization; on_suppress: star publishes a row that finds no group alone, as *.",
        "At most 1,000 rows of each shard, and 4,000 reusable generalizations",
        "at its widest (on_suppress: star)",
    ):
        assert sentence in said
    assert "in a secret random order" not in said


#: Settings that give up the crowd: the reason, and what to set instead.
UNCROWDED: dict[str, tuple[dict[str, Any], str, str]] = {
    "reuse": ({"parameters": {"reuse": "weighted"}}, "reuse: weighted may publish a row alone", "Set reuse: off."),
    "stars": ({"on_suppress": "star"}, "on_suppress: star publishes", "Set on_suppress: drop."),
    "order": ({"delay": None, "parameters": {"reorder": True}}, "reorder: true publishes", "Set reorder: false."),
    "a method that reuses": ({"method": "castle"}, "castle may publish a row alone", "Set method: bastion."),
    "a method that does not": ({"method": "mondrian"}, "mondrian does not promise it", "Set method: bastion."),
    "all": (
        {"delay": None, "parameters": {"reuse": "weighted", "reorder": True}, "on_suppress": "star"},
        "A crowd at one moment is not promised: reuse: weighted",
        "Set reuse: off, reorder: false and on_suppress: drop.",
    ),
}


@pytest.mark.parametrize("case", UNCROWDED)
def test_a_policy_without_a_crowd_is_warned_about(check: Check, case: str) -> None:
    changes, why, setting = UNCROWDED[case]
    code, said = check(**changes)
    assert "warning: A crowd at one moment is not promised:" in said
    assert said.count(why) == 2  # once as a promise, and once as a warning
    assert setting in said
    assert code == 0


WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "a learned domain": (
        {"quasi_identifiers": {"age": {"type": "numeric"}}},
        "age: no domain is declared, so the engine learns it",
    ),
    "star without a domain": (
        {"quasi_identifiers": {"age": {"type": "numeric"}}, "on_suppress": "star"},
        "published as [null, null]",
    ),
    "many quasi-identifiers": (
        {"quasi_identifiers": {f"q{i}": {"type": "prefix", "length": 3} for i in range(9)}},
        "9 quasi-identifiers are many",
    ),
    "a flat hierarchy": (
        {"quasi_identifiers": {"job": {"type": "categorical", "hierarchy": ["a", "b", "c"]}}},
        "job: the hierarchy has a single level",
    ),
    "an identifier under publish": (
        {"publish": ["customer_email"]},
        "customer_email is published as it is, but its name (email) suggests that it identifies a person.",
    ),
    "an id under publish": ({"publish": ["OrderID"]}, "its name (id) suggests that it identifies a person"),
    "an identifier under sensitive": ({"sensitive": ["phone"]}, "its name (phone) suggests that it identifies"),
    "a quasi-identifier under publish": (
        {"publish": ["gender"]},
        "its name (gender) suggests that an attacker may know it",
    ),
    "sensitive without l or t": ({"l": None}, "diagnosis: neither l nor t is set"),
    "l close to k": ({"l": 4}, "l (4) is close to k (5)"),
    "few rows": ({"delay_rows": 9}, "delay_rows (9) is less than twice k (5)"),
    "memory by the rate": ({"delay_rows": None}, "Only delay is set, so memory grows with the rate"),
    "order": (
        {"delay": None, "parameters": {"reorder": True}},
        "An attacker who knows the order in which persons came finds each row by counting.",
    ),
    "the best of those published": (
        {"method": "adaptive-window", "parameters": {"reuse": "best"}},
        "which reveals that no narrower one does",
    ),
    "disorder beyond the delay": ({"disorder": "2h"}, "disorder is not less than delay"),
    "no reuse of castle": ({"method": "castle", "parameters": {"reuse": "off"}}, "reuse is off"),
    "a seed": (
        {"seed": 7},
        "seed: an attacker who guesses the seed can undo the order of the rows and every random draw. "
        "Leave it out, or name a secret: env:NAME.",
    ),
    "a secret that is not here": (
        {"secret": "env:CRENEL_NOT_SET"},
        "On this machine, a run would fail: policy.secret names the environment variable CRENEL_NOT_SET, which is not",
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_warnings_are_given_and_are_not_problems(check: Check, case: str) -> None:
    changes, expected = WARNINGS[case]
    code, said = check(**changes)
    assert expected in said
    assert "warning:" in said
    assert "0 problems, " in said
    assert code == 0


NOTES: dict[str, tuple[dict[str, Any], str]] = {
    "no seed": ({}, "Each pipeline draws a secret of its own."),
    "a secret": ({"secret": "env:CRENEL_SECRET"}, "The secret is read from env:CRENEL_SECRET."),
    "Beam's timestamps": ({"event_time": None}, "event_time is not set, so Beam's timestamps"),
    "small k": ({"k": 4}, "k (4) is small"),
    "small t": ({"t": 0.05}, "t (0.05) is small"),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes_are_not_warnings(check: Check, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRENEL_SECRET", bytes(range(32)).hex())
    changes, expected = NOTES[case]
    code, said = check(**changes)
    assert bytes(range(32)).hex() not in said
    assert expected in said
    assert said.endswith("No problems, no warnings.")
    assert code == 0


@pytest.mark.parametrize(
    ("qi", "expected"),
    [
        (Numeric(), ""),
        (Numeric(domain=(17, 90)), "47 -> [45, 50] -> [17, 90]"),
        (Numeric(domain=(-0.002, 0.001)), "-0.00072 -> [-0.0008, -0.0006] -> [-0.002, 0.001]"),
        (Numeric(domain=(17, 90), step=5), "[35, 40] -> [17, 90]"),
        (Numeric(domain=(0, 1), step=0.001), "[0.4, 0.401] -> [0.4, 0.5] -> [0, 1]"),
        (Prefix(length=2), "53 -> 5* -> **"),
        (Prefix(length=3, alphabet="ab"), "bbb -> bb* -> b** -> ***"),
        (Categorical(hierarchy=Hierarchy.flat(["x"])), "x"),
        (
            Datetime(domain=("2020-01-01", "2020-01-11")),
            "2020-01-05T00:00:00Z -> [2020-01-05T00:00:00Z, 2020-01-06T00:00:00Z] -> "
            "[2020-01-01T00:00:00Z, 2020-01-11T00:00:00Z]",
        ),
    ],
)
def test_an_example_shows_what_the_type_publishes(qi: QuasiIdentifier, expected: str) -> None:
    assert example(qi) == expected


def test_an_example_of_a_type_that_is_not_built_in() -> None:
    class Network(Numeric):
        @property
        def geometry(self) -> Any:
            return Radix(2, 3)

        def publish(self, lo: float, hi: float) -> Any:
            return f"{int(lo)}..{int(hi)}"

    assert example(Network()) == "7..7 -> 6..7 -> 4..7 -> 0..7"


# With data


def test_a_good_sample_has_no_problems(check: Check) -> None:
    code, said = check(rows())
    assert code == 0
    for sentence in (
        "200 rows of 8 columns.",
        "Not published: who, at and note.",
        "Rows that would be rejected None.",
        "200 rows of 50 persons; k is 5.",
        "In the data as they are, 50 persons (100%) can be singled out",
        "job 3 of the 3 values of the hierarchy occur",
        "diagnosis 3 values, the most frequent in",
        "ward 2 different values",
        "Event times lie between 2024-03-01 and 2024-03-02. The rows are in the order of their event times.",
        "One shard with all these rows would hold about 60 rows, and at most 60.",
        "Half of the rows see 5 persons within 4 later rows, nine of ten within 4",
        "Half of the rows see 5 persons within 5 minutes, nine of ten within 5 minutes",
        "No problems, no warnings.",
    ):
        assert sentence in said


def test_missing_columns_are_problems_with_a_guess(check: Check) -> None:
    data = [{("Zip" if key == "zip" else key): row[key] for key in row} for row in rows(20)]
    code, said = check(data, publish=["nothing_like_it"])
    assert code == 1
    assert "The data have no column 'zip', which the policy names. Did you mean 'Zip'?" in said
    assert "The data have no column 'nothing_like_it', which the policy names." in said
    assert "2 problems" in said


def test_rejected_rows_are_counted_by_field_and_reason(check: Check) -> None:
    data = rows()
    for row in data[:4]:
        row["age"] = "SECRET"
    for row in data[4:6]:
        row["job"] = "SECRET"
    data[6]["who"] = ""
    code, said = check(data)
    assert code == 0
    assert "7 of 200 rows (4%)" in said
    assert "age not a number: 4 rows job unknown value: 2 rows who missing: 1 row" in said
    assert "7 rows (4%) would be rejected. Add the values that occur to job, or set unknown: root" in said
    assert "Look at how age is written, or say it, as in --decimal ','" in said
    assert "Correct who in the data" in said
    assert "SECRET" not in said
    for row in data[6:40]:
        row["zip"] = "1"
    code, said = check(data)
    assert code == 1
    assert "zip wrong length: 33 rows" in said


@pytest.mark.parametrize("odd", ["", "NA", "old", "e5", "+44", "1e999", "01", "0x10", " 44", "4,4", "44."])
def test_check_rejects_what_run_rejects(
    check: Check, odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each column in turn holds an odd value; both commands must count the same rejections for the same reasons."""
    odd_rows = rows(60)
    for place, name in enumerate(("age", "at", "zip", "job", "who")):
        odd_rows[10 * place][name] = odd
    _, said = check(odd_rows)
    files = ["--input", str(tmp_path / "data.csv"), "--output", str(tmp_path / "out.csv")]
    assert main(["run", str(tmp_path / "policy.yaml"), *files, "--json", "--most-rejected", "100%"]) in (0, 3)
    result = json.loads(capsys.readouterr().out)
    assert result["rejected"] >= 2
    assert f"{result['rejected']} of 60 rows" in said
    for one in result["rejected_by"]:
        assert f"{one['field']} {one['reason']}: {count(one['rows'], 'row')}" in said


def test_all_rows_rejected(check: Check) -> None:
    code, said = check(rows(30), quasi_identifiers={"age": {"type": "numeric", "domain": [0, 1]}})
    assert code == 1
    assert "30 of 30 rows (100%)" in said
    assert "age outside the domain: 30 rows" in said


def test_fewer_persons_than_k(check: Check) -> None:
    code, said = check(rows(persons=4))
    assert code == 1
    assert "The sample has 4 persons, fewer than k (5)" in said


def test_fewer_sensitive_values_than_l(check: Check) -> None:
    data = [{**row, "diagnosis": "flu"} for row in rows()]
    code, said = check(data)
    assert code == 1
    assert "diagnosis has 1 value, fewer than l (2)" in said


def test_a_value_that_nearly_all_have(check: Check) -> None:
    data = [{**row, "diagnosis": "flu" if i > 5 else "gout"} for i, row in enumerate(rows())]
    code, said = check(data)
    assert "diagnosis: 97% of the rows have the same value" in said
    # Therefore hardly any group has two values.
    assert code == 1
    assert "The stream is too thin for k (5) and l (2) within the deadline" in said


def test_published_columns_that_identify(check: Check) -> None:
    code, said = check(rows(), publish=["note"])
    assert code == 0
    assert "note is published as it is, and 100% of the rows have" in said
    assert "a value that only one person has" in said


def test_ranges_that_end_at_the_value_of_one_person(check: Check) -> None:
    """There is no warning if the column has a step, or if many persons share a value."""
    code, said = check(rows(2000, persons=2000))
    assert (code, "exact values" in said) == (0, False)
    data = [{**row, "age": round(random.Random(i).uniform(0, 100), 6)} for i, row in enumerate(rows(200, persons=200))]
    code, said = check(data)
    assert code == 0
    assert "age: 200 of 200 values belong to one person each, and a published range ends at the exact values" in said
    assert "Set a step, which rounds the ends: step: 1, for instance." in said
    stepped = {**GOOD["quasi_identifiers"], "age": {"type": "numeric", "domain": [0, 100], "step": 1}}
    code, said = check(data, quasi_identifiers=stepped)
    assert (code, "exact values" in said) == (0, False)
    assert "the rows use 100% of the domain" in said
    guarded = check(data, method="castleguard", on_suppress="drop")[1]
    assert "exact values" not in guarded
    moments = {**GOOD["quasi_identifiers"], "at": {"type": "datetime"}}
    assert "at: 200 of 200 values belong to one person each" in check(data, quasi_identifiers=moments)[1]


@pytest.mark.parametrize(
    ("values", "width", "moments", "expected"),
    [
        (np.linspace(0, 1, 1000), 1.0, False, "0.01"),
        (np.linspace(0, 1_470_000, 20_000), 1_500_000.0, False, "20000"),
        (np.arange(50.0), 50.0, False, "2"),
        (np.arange(4.0), 4.0, False, "2"),
        (np.array([0.0, 1.0]), 1.0, False, None),
        (np.arange(60) * 86_400e6, 60 * 86_400e6, True, "2d"),
        (np.arange(10_000) * 3_600e6, 365 * 86_400e6, True, "7d"),
    ],
)
def test_steps_are_round(values: Any, width: float, moments: bool, expected: str | None) -> None:
    assert sample_measures.round_step(values, width, moments=moments) == expected


def test_a_domain_stretched_by_outliers(check: Check) -> None:
    quasi = {"age": {"type": "numeric", "domain": [0, 10_000]}}
    _, said = check(rows(), quasi_identifiers=quasi)
    assert "age: the middle 98% of the rows lie in less than 1% of the domain" in said
    data = rows()
    data[0]["age"] = 10_000
    _, said = check(data, quasi_identifiers={"age": {"type": "numeric"}})
    assert "of the range seen" in said and "Declare a domain." in said


def test_disorder_is_measured_and_suggested(check: Check) -> None:
    data = rows()
    for i in range(0, 200, 2):
        data[i], data[i + 1] = data[i + 1], data[i]
    _, said = check(data)
    assert "50% of the rows are out of order, by less than 1 minute" in said
    assert "disorder (0s) is too small: 50% of the rows are further out of order." in said
    assert "disorder: 1m would cover nearly all rows." in said
    _, said = check(data, disorder="1m")
    assert "further out of order" not in said
    _, said = check(data, delay="30s")
    assert "100 rows would come after the deadline" in said
    _, said = check(list(reversed(rows())))
    assert "The file does not seem to be in the order of the stream." in said


def test_a_deadline_too_short_for_k(check: Check) -> None:
    code, said = check(rows(), delay="2m")
    assert code == 1
    assert "The stream is too thin for k (5) and l (2) within the deadline (2m or 1,000 rows): 100% of the rows" in said
    data = rows()
    for i, row in enumerate(data):
        if i >= 60:
            row["at"] = f"2024-03-{5 + i // 10:02d}T0{i % 10}:00:00Z"
    code, said = check(data, delay="10m")
    assert code == 1
    assert "rows find no group in time" in said


def test_without_event_time_the_delay_is_not_checked(check: Check) -> None:
    code, said = check(rows(), event_time=None)
    assert code == 0
    assert "The policy names no event_time" in said
    code, said = check(rows(), event_time=None, delay=None)
    assert code == 0
    assert "Half of the rows see 5 persons within 4 later rows" in said


def test_no_value_of_a_row_is_printed(check: Check) -> None:
    """This holds for a good sample, and for a sample with rejected rows."""
    data = rows()
    for row in data[:30]:
        row["zip"] = "SECRET"
    for sample in (rows(), data):
        _, said = check(sample, publish=["note"])
        for row in sample:
            for name in ("who", "at", "age", "zip", "diagnosis", "note"):
                assert str(row[name]) not in said
            assert row["at"][11:19] not in said


def test_real_data(data_dir: Path) -> None:
    quasi = {"kwh_total": {"type": "numeric", "domain": [0, 30]}}
    policy = Policy.from_dict(
        {**GOOD, "person": "user_id", "event_time": "created", "quasi_identifiers": quasi}
        | {"sensitive": ["platform"], "publish": ["distance"]}
    )
    sample = Sample(policy, read_for(policy, data_dir / "ev_charging.parquet").table)
    titles = [section.title for section in sample.look()]
    assert titles[-4:] == ["Event times", "Waiting for k persons", "Deadlines", "What each column loses"]
    assert any("further out of order" in finding.text for finding in sample.findings)


# Measures


def brute_rows_until(persons: list[int], k: int) -> list[int]:
    found = []
    for start in range(len(persons)):
        ends = [end for end in range(start, len(persons)) if len(set(persons[start : end + 1])) >= k]
        found.append(ends[0] - start if ends else -1)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_measures_agree_with_counting(seed: int) -> None:
    draw = np.random.default_rng(seed)
    persons = draw.integers(0, 6, 40)
    k = int(draw.integers(2, 6))
    assert sample_measures.rows_until(persons, k).tolist() == brute_rows_until(persons.tolist(), k)

    qi = draw.integers(0, 3, (40, 3)).astype(np.float64)
    boxes: dict[tuple[float, ...], set[int]] = {}
    for box, person in zip(map(tuple, qi.tolist()), persons.tolist(), strict=True):
        boxes.setdefault(box, set()).add(person)
    alone = {min(who) for who in boxes.values() if len(who) == 1}
    assert sample_measures.unique_persons(qi, sample_measures.places(persons)) == len(alone)

    time = draw.integers(0, 100, 40)
    window = int(draw.integers(1, 50))
    expected = [sum(t - window < u <= t for u in time) for t in sorted(time)]
    held = sample_measures.held(time, window).tolist()
    # If several rows share a moment, only the last of them counts all of them.
    assert max(held) == max(expected)
    assert all(found <= wanted for found, wanted in zip(held, expected, strict=True))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((17, 90), (0, 100)),
        ((13_769, 1_484_705), (0, 1_500_000)),
        ((0, 23.68), (0, 25)),
        ((-0.0013, 0.0007), (-0.0015, 0.001)),
        ((5, 5), (5, 6)),
        ((0, 0), (0, 0.2)),
        ((0.1, 0.3), (0.1, 0.3)),
    ],
)
def test_ranges_are_rounded_outward(given: tuple[float, float], expected: tuple[float, float]) -> None:
    lo, hi = sample_measures.outward(*given)
    assert (lo, hi) == expected
    assert lo <= given[0] and given[1] <= hi and lo < hi


def test_words() -> None:
    assert [count(n, "row") for n in (0, 1, 1000)] == ["0 rows", "1 row", "1,000 rows"]
    assert listed("abc") == "a, b and c"
    assert [percent(share) for share in (0, 0.004, 0.5, 0.999, 1)] == [
        "0%",
        "less than 1%",
        "50%",
        "more than 99%",
        "100%",
    ]
    assert spoken(600_000_000) == "10 minutes"
    assert spoken(1_500) == "1,500 microseconds"
    assert [sample_measures.round_duration(x * 1e6) for x in (0.5, 61, 86_401 * 30)] == [
        1_000_000,
        120_000_000,
        60 * 86_400 * 1_000_000,
    ]


# --- Missing values ---


def holed(number: int, every: int) -> list[dict[str, Any]]:
    return [{**row, "age": None if i % every == 0 else row["age"]} for i, row in enumerate(rows(number))]


def test_missing_values_are_reported(check: Check) -> None:
    code, said = check(holed(200, 2), method="partition")
    assert code == 0
    assert (
        "Missing values 50% of the rows lack a quasi-identifier. There are 2 combinations of quasi-identifiers that a "
        "row has."
    ) in said
    assert "of the rows meet 5 persons with the same combination before their deadline" in said
    assert "missing in 50% of the rows" in said
    assert "Rows that would be rejected None." in said


def test_missing_values_that_few_rows_share(check: Check) -> None:
    code, said = check(holed(200, 50), method="partition", delay_rows=20, delay=None, k=5)
    assert code == 0
    # All rows except the 4 with missing values and the last 4 of the others.
    assert "96% of the rows meet 5 persons with the same combination" in said
    _, said = check(holed(60, 7), method="partition", delay_rows=10, delay=None, k=10)
    assert "of the rows meet 10 persons who have the same quasi-identifiers" in said


def test_a_column_that_is_always_missing(check: Check) -> None:
    _, said = check(holed(100, 1), method="partition")
    assert "age is missing in all rows. Leave it out, or take a larger sample." in said


def test_other_methods_name_the_one_that_takes_missing_values(check: Check) -> None:
    code, said = check(holed(200, 2))
    assert code == 1
    assert "age missing (missing: category takes it): 100 rows" in said
    assert "Set missing: category for age: a missing value is then published as a value of its own" in said
    assert "Widen" not in said
    assert "Missing values" not in said


def test_missing_values_as_a_category_are_explained_and_not_rejected(check: Check) -> None:
    columns = {"age": {"type": "numeric", "domain": [0, 100], "missing": "category"}}
    code, said = check(holed(200, 2), quasi_identifiers=columns)
    assert code == 0
    assert "a missing value is a value of its own, published as null" in said
    assert "missing in 50% of the rows" in said
    assert "Rows that would be rejected None." in said


def test_rows_that_are_kept_apart_are_explained_and_counted(check: Check) -> None:
    data = [{**row, "site": "small" if place < 2 else "large"} for place, row in enumerate(rows(200))]
    code, said = check(data, within=["site"])
    assert code == 0
    assert "Rows with different values of site are kept apart (within)" in said
    assert "site used only to keep rows apart (within)" in said
    assert "2 different values of site, with 2 to" in said
    assert "1 of 2 values of site have fewer than k (5) persons: their 2 rows would be suppressed." in said


def test_unknown_categories_are_explained_and_counted(check: Check) -> None:
    columns = {"job": {"type": "categorical", "hierarchy": {"Any": {"A": ["x"], "B": ["z"]}}, "unknown": "root"}}
    code, said = check([{**row, "job": "y"} for row in rows(200)], quasi_identifiers=columns)
    assert code == 0
    assert "a value that the hierarchy does not have is published as Any" in said
    assert "0 of the 2 values of the hierarchy occur; 100% of the rows have others, published as the root" in said


def test_settings_that_weaken_partition_are_warned_about(check: Check) -> None:
    _, said = check(method="partition", parameters={"fill_missing": True, "reuse": "best"})
    assert "that range may cover the values of fewer than k persons" in said
    assert "reuse is best" in said
