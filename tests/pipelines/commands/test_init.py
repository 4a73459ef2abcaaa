"""`crenel init`: the draft loads, gives its reasons, and reveals no more than it must."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from crenel import Policy, PolicyError
from crenel.pipelines.cli import main
from crenel.pipelines.drafting import column_names, sample_measures
from crenel.pipelines.drafting.draft import draft
from crenel.pipelines.drafting.profiles import Kind, profile
from crenel.pipelines.drafting.roles import choose
from crenel.policy.kinds.coordinates import Coordinates
from crenel.policy.quasi_identifiers import Categorical, Datetime, Missing, Numeric, Prefix

NUMBER_OF_ROWS = 300
WHO = "the column that tells persons apart, or {each: row} if each row is about another person"


def columns(seed: int = 1) -> dict[str, list[Any]]:
    draw = random.Random(seed)
    n = NUMBER_OF_ROWS
    start = dt.datetime(2024, 3, 1, 8, 17, 43)  # noqa: DTZ001 - as a file without zones has it
    return {
        "visit_id": [70_001 + i for i in range(n)],
        "patient_id": [f"P{draw.randrange(80):04d}X" for _ in range(n)],
        "created": [start + dt.timedelta(minutes=i) for i in range(n)],
        "paid": [start + dt.timedelta(days=draw.randrange(30)) for i in range(n)],
        "full_name": [f"Name{draw.randrange(90)}" for _ in range(n)],
        "age": [draw.randrange(18, 93) for _ in range(n)],
        "sex": [draw.choice(["no", "yes"]) for _ in range(n)],
        "zip": [f"0{draw.randrange(1000, 9999)}" for _ in range(n)],
        "birth_date": [dt.date(1930 + draw.randrange(70), 3, 17) for _ in range(n)],
        "city": [draw.choice(["Ulm", "Bern", "Graz, old town", "#1: *x*"]) for _ in range(n)],
        "diagnosis": [draw.choice(["flu", "gout", "cold"]) for _ in range(n)],
        "salary": [draw.randrange(20_011, 98_987) for _ in range(n)],
        "glucose": [draw.random() * 100 for _ in range(n)],
        "comment": [f"C{draw.randrange(10**7)}C" for _ in range(n)],
        "flag": [draw.random() < 0.5 for _ in range(n)],
        "gone": [None] * n,
        "same": [1] * n,
        "tags": [[1, 2]] * n,
    }


def drafted(data: dict[str, list[Any]]) -> str:
    profiles = [profile(name, pa.array(values)) for name, values in data.items()]
    rows = len(profiles[0].codes)
    return draft(choose(profiles), "data.parquet", rows, rows)


def loaded(text: str, folder: Path) -> Policy:
    (folder / "draft.yaml").write_text(text, encoding="utf-8")
    return Policy.from_yaml(folder / "draft.yaml")


def test_the_roles_of_a_usual_table(tmp_path: Path) -> None:
    text = drafted(columns())
    policy = loaded(text, tmp_path)
    assert policy.person == "patient_id"
    assert policy.event_time == "created"
    kinds = {name: type(qi) for name, qi in policy.quasi_identifiers.items()}
    assert kinds == {
        "age": Numeric,
        "sex": Categorical,
        "zip": Prefix,
        "birth_date": Datetime,
        "city": Categorical,
    }
    assert list(policy.sensitive) == ["diagnosis", "salary"]
    assert policy.publish == ()
    assert (policy.k, policy.l) == (3, 2)
    assert policy.delay is not None
    assert policy.delay_rows == 1000
    assert policy.crowd
    assert (policy.seed, policy.secret) == (None, None)
    assert "\non_suppress: drop\n" in text


def test_every_column_is_there_with_a_reason() -> None:
    data = columns()
    text = drafted(data)
    assert all(name in text for name in data)
    for reason in (
        "# patient_id: suggested by its name (patient);",
        "# created: dates, in order.",
        "# suggested by its name (zip);",
        "# suggested by its name (diagnosis); 3 values",
        "# its name (name) suggests that it names a person",
        "# no values",
        "# one value only",
        "# nested or mixed values",
        "nearly every row has a value of its own: it may identify a person",
        "rounded outward",
        "Group what belongs",
    ):
        assert reason in text, reason


def test_a_step_is_drafted_where_values_mostly_occur_once(tmp_path: Path) -> None:
    data, draw = columns(), random.Random(2)
    start = dt.datetime(1950, 3, 1)  # noqa: DTZ001 - as a file without zones has it
    data["birth_weight"] = [draw.randrange(2_001, 4_998) for _ in range(NUMBER_OF_ROWS)]
    data["birth"] = [start + dt.timedelta(seconds=draw.randrange(10**9)) for _ in range(NUMBER_OF_ROWS)]
    data["birthday"] = [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(NUMBER_OF_ROWS)]
    text = drafted(data)
    kinds = loaded(text, tmp_path).quasi_identifiers
    found = {name: getattr(qi, "step", None) for name, qi in kinds.items()}
    assert found["birth_weight"] == 50
    assert found["birth"] == "120d"
    assert re.search(r"# birthday: .* step: 7d}", text), "days, which a step of some hours would not round"
    assert (found["age"], found["zip"]) == (None, None)
    assert found["birth_date"] == "270d", "dates always get a step"
    assert "values occur only once. With the step, a range ends at multiples of it" in " ".join(
        text.replace("#", "").split()
    )


def test_a_column_that_numbers_the_rows_is_neither_a_person_nor_a_quasi_identifier(tmp_path: Path) -> None:
    numbers = {"rownames": list(range(1, NUMBER_OF_ROWS + 1)), "age_rank": list(range(NUMBER_OF_ROWS))}
    text = drafted({**numbers, **columns()})
    policy = loaded(text, tmp_path)
    assert not set(numbers) & {policy.person, *policy.quasi_identifiers, *policy.publish}
    assert text.count("it only numbers the rows") == 2


def test_ids_that_repeat_are_found_by_what_they_keep(tmp_path: Path) -> None:
    data, draw = columns(), random.Random(4)
    del data["patient_id"]
    people = [(draw.choice("mf"), draw.randrange(1940, 2010)) for _ in range(100)]
    who = [draw.randrange(100) for _ in range(NUMBER_OF_ROWS)]
    data |= {"nr": [1000 + 7 * one for one in who], "ticket": [draw.randrange(150) for _ in who]}
    data |= {"sex": [people[one][0] for one in who], "birth_date": [f"{people[one][1]}-01-01" for one in who]}
    text = drafted(data)
    assert loaded(text, tmp_path).person == "nr"
    assert "# nr: each of its values has one sex and birth_date;" in text


@pytest.mark.parametrize("name", ["clinic_id", "patient_clinic_id", "store no"])
def test_a_clinic_is_not_a_person(name: str) -> None:
    data = columns()
    data[name] = data.pop("patient_id")
    assert f"person: {name}" not in drafted(data)


def test_an_id_with_very_many_rows_each_is_left_to_the_user(tmp_path: Path) -> None:
    data = {"id": [n % 4 for n in range(800)], "age": [n % 80 for n in range(800)]}
    assert "it may be a place or a group" in " ".join(drafted(data).replace("#", "").split())
    assert "person:  # <- the column's name" in drafted(data)


def test_many_categories_are_grouped_by_the_alphabet_and_by_frequency(tmp_path: Path) -> None:
    data, draw = columns(), random.Random(6)
    states = [f"{chr(65 + n // 2)}{'ab'[n % 2]}-state" for n in range(50)]
    data["state"] = [draw.choice([*states, *["Aa-state"] * 40]) for _ in range(NUMBER_OF_ROWS)]
    tree = loaded(drafted(data), tmp_path).quasi_identifiers["state"].hierarchy
    assert set(tree.leaves) == set(data["state"])
    # The most frequent value stands alone, and the others are in groups of neighbours.
    assert tree.label_of_span(0, 0) == "Aa-state"
    assert tree.depth == 2
    sizes = Counter(tree.parents[tree.tree.leaf].tolist())
    assert max(sizes.values()) < 25


def test_too_many_categories_for_the_policy_go_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data, draw = columns(), random.Random(7)
    towns = [f"{draw.choice('ABCDEFG')}town {n}" for n in range(130)]
    for name in list(data):
        data[name] = data[name] * 4
    data["city"] = [towns[n % 130] for n in range(len(data["age"]))]
    parquet.write_table(pa.table(data), "data.parquet")
    assert main(["init", "data.parquet", "--output", "policy.yaml"]) == 0
    said = capsys.readouterr().out
    assert "Wrote policy.yaml and city.csv, with values of the data; and policy.schema.json, by which" in said
    text = Path("policy.yaml").read_text()
    assert "town" not in text
    hierarchy = Policy.from_yaml("policy.yaml").quasi_identifiers["city"].hierarchy
    assert set(hierarchy.leaves) == set(towns)
    assert hierarchy.depth == 3
    assert main(["init", "data.parquet", "--output", "another.yaml"]) == 2
    assert "city.csv would be written beside the policy, and is there already." in capsys.readouterr().err
    # Printed, there is no place for the file, so the column waits for the user.
    assert main(["init", "data.parquet"]) == 0
    assert "with --output, a hierarchy is drafted" in " ".join(capsys.readouterr().out.replace("#", "").split())


def test_domains_are_rounded_outward(tmp_path: Path) -> None:
    data = columns()
    policy = loaded(drafted(data), tmp_path)
    age, birth = policy.quasi_identifiers["age"], policy.quasi_identifiers["birth_date"]
    assert isinstance(age, Numeric) and age.domain == (0, 100)
    assert isinstance(birth, Datetime) and birth.domain is not None
    assert [str(end)[4:10] for end in birth.domain] == ["-01-01", "-01-01"]
    assert policy.sensitive["salary"].domain == (20_000, 100_000)


@pytest.mark.parametrize(
    ("lo", "hi", "domain"),
    [
        (99999999999999999.0, 100000000000000075.0, (1e17, 1.000000000000002e17)),
        (2.0**63, 2.0**63, (8e18, 1e19)),
        (1e9, 1e9 + 2e-5, (1e9, 1000000000.000025)),
        (1.25e23, 4.7e23, (1e23, 5e23)),
        (0.11, 0.29, (0.1, 0.3)),
    ],
)
def test_the_ends_of_a_domain_differ_however_near_large_numbers_are(
    lo: float, hi: float, domain: tuple[float, float]
) -> None:
    assert sample_measures.outward(lo, hi) == domain


def test_values_that_yaml_would_misread_come_through(tmp_path: Path) -> None:
    data = columns()
    policy = loaded(drafted(data), tmp_path)
    for name in ("sex", "city"):
        qi = policy.quasi_identifiers[name]
        assert isinstance(qi, Categorical)
        assert set(qi.hierarchy.leaves) == set(data[name])
        assert qi.hierarchy.root_label == "*"


@pytest.mark.parametrize(
    "name", ["a: b", "# x", "yes", "2020-01-01", "line\nbreak", "größe", "\x07", '"', "-", "3", "😀"]
)
def test_any_name_can_be_drafted(tmp_path: Path, name: str) -> None:
    n = NUMBER_OF_ROWS
    data: dict[str, list[Any]] = {
        "user_id": [i % 50 for i in range(n)],
        name: [i % 7 / 2 for i in range(n)],
        name + " age": [i % 70 for i in range(n)],
        name + " diagnosis": [f"{name}{i % 3}" for i in range(n)],
        name + " city": [f"{name}{i % 3}" for i in range(n)],
    }
    policy = loaded(drafted(data), tmp_path)
    assert list(policy.quasi_identifiers) == [name + " age", name + " city"]
    assert list(policy.sensitive) == [name + " diagnosis"]


def test_a_root_that_is_a_value_gets_another_name(tmp_path: Path) -> None:
    data = {"user": [i % 50 for i in range(300)], "city": [("*", "Ulm")[i % 2] for i in range(300)]}
    qi = loaded(drafted(data), tmp_path).quasi_identifiers["city"]
    assert isinstance(qi, Categorical)
    assert (qi.hierarchy.root_label, set(qi.hierarchy.leaves)) == ("(any)", {"*", "Ulm"})


def test_without_a_person_the_draft_says_so_and_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = columns()
    del data["patient_id"]
    text = drafted(data)
    assert "IT DOES NOT LOAD YET. No column seems to tell persons apart" in text
    with pytest.raises(PolicyError) as caught:
        loaded(text, tmp_path)
    assert [str(one) for one in caught.value.problems] == [f"policy.person must be {WHO}, not None."]
    assert main(["check", str(tmp_path / "draft.yaml")]) == 2
    assert f"policy.person must be {WHO}" in capsys.readouterr().err


def test_without_a_known_quasi_identifier_the_first_that_fits_is_taken(tmp_path: Path) -> None:
    data = {"user": [i % 50 for i in range(300)], "x": [i % 9 for i in range(300)]}
    text = drafted(data)
    assert list(loaded(text, tmp_path).quasi_identifiers) == ["x"]
    assert "only because a policy needs one" in text
    text = drafted({"user": data["user"]})
    assert "IT DOES NOT LOAD YET. No column can be generalized" in text


def test_gaps_and_new_categories_reject_no_row(tmp_path: Path) -> None:
    data = columns()
    for name in ("age", "sex", "zip", "birth_date"):
        data[name] = [None if number % 7 == 0 else value for number, value in enumerate(data[name])]
    said = yaml.safe_load(drafted(data))["quasi_identifiers"]
    assert loaded(drafted(data), tmp_path)
    gaps = {name for name, kind in said.items() if kind.get("missing") == "category"}
    assert gaps == {"age", "sex", "zip", "birth_date"}
    assert {name for name, kind in said.items() if kind.get("unknown") == "root"} == {"sex", "city"}


def test_unsuitable_quasi_identifiers_are_not_taken() -> None:
    n = NUMBER_OF_ROWS
    data: dict[str, list[Any]] = {
        "user": [i % 50 for i in range(n)],
        "age": [i % 60 for i in range(n)],
        "age_code": [f"c{i % 60}" for i in range(n)],
        "height": [None if i % 2 else i for i in range(n)],
        "station_id": [i % 150 for i in range(n)],
    }
    text = drafted(data)
    taken = text.partition("# Not taken:")[0]
    assert "\n  age: " in taken
    assert not any(f"\n  {name}:" in text for name in ("age_code", "height", "station_id"))
    assert "tells the same as age" in text
    said = " ".join(text.replace("\n  #", "").split())
    assert "missing in 50% of the rows; missing too often" in said
    assert "so it needs a hierarchy of your own" in said


def test_numbers_of_seconds_are_moments_and_milliseconds_are_named() -> None:
    seconds = [1_700_000_000 + i for i in range(50)]
    assert profile("created_at", pa.array(seconds)).kind is Kind.MOMENT
    assert profile("amount", pa.array(seconds)).kind is Kind.NUMBER
    data = {"user": [i % 9 for i in range(50)], "ts": [1000 * s for s in seconds]}
    profiles = [profile(name, pa.array(values)) for name, values in data.items()]
    roles = choose([*profiles, profile("age", pa.array([i % 20 for i in range(50)]))])
    assert [choice.column.name for choice in roles.rest] == ["ts"]
    assert "milliseconds" in roles.rest[0].reason


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("x", [1.5, float("nan"), 2.5], Kind.NUMBER),
        ("x", [float("inf"), float("-inf")], Kind.OTHER),
        ("x", ["2020-01-31", "2020-02-01T10:00:00Z"], Kind.MOMENT),
        ("x", [True, False], Kind.CATEGORY),
        ("flag", [0, 1], Kind.CATEGORY),
        ("zip", [53706, 53707, 53708], Kind.CODE),
        ("zip", [2139, 53707, 53708], Kind.NUMBER),
        ("postcode", ["K1A0B1", "M5V3L9"], Kind.CODE),
        ("x", ["", None], Kind.EMPTY),
        ("x", ["a", "", None], Kind.CONSTANT),
        ("x", ["a", "b"] * 3, Kind.CATEGORY),
        ("x", ["a", "b", "c"], Kind.TEXT),
        ("first_name", ["a", "b"] * 50, Kind.TEXT),  # a direct identifier, even with few distinct values
        ("x", [b"a", b"b"], Kind.OTHER),
        ("x", [{"a": 1}, {"a": 2}], Kind.OTHER),
    ],
)
def test_kinds(name: str, values: list[Any], kind: Kind) -> None:
    assert profile(name, pa.array(values)).kind is kind


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("user_id", "user"),
        ("CustomerID", "customer"),
        ("patientid", "patientid"),
        ("account_number", "account"),
        ("pid", "pid"),
        ("id", "id"),
        ("passenger_count", None),
        ("session_id", None),
        ("user_agent", None),
    ],
)
def test_names_of_persons(name: str, word: str | None) -> None:
    assert column_names.person(name) == word


def test_names_are_cut_into_words() -> None:
    assert column_names.words("PickupLocationID") == ("pickup", "location", "id")
    assert column_names.words("HTTPServer-name_2 zip5") == ("http", "server", "name", "2", "zip")
    assert column_names.words("") == ()


def test_a_plain_id_is_a_person_only_if_nothing_better_is_there() -> None:
    data = {"id": list(range(100)), "customer": [i % 30 for i in range(100)]}
    persons = choose([profile(name, pa.array(values)) for name, values in data.items()]).persons
    assert [(choice.column.name, choice.taken) for choice in persons] == [
        ("customer", True),
        ("id", False),
    ]
    (alone,) = choose([profile("id", pa.array(data["id"]))]).persons
    assert alone.taken and "which may also number the rows" in alone.reason


def test_a_column_with_many_values_reveals_none() -> None:
    data = columns()
    text = drafted(data)
    for name in ("visit_id", "patient_id", "full_name", "zip", "salary", "glucose", "comment"):
        assert not any(str(value) in text for value in data[name]), name
    for name in ("created", "paid"):
        assert not any(str(value)[11:] in text for value in data[name])
    assert not any(value.isoformat() in text for value in data["birth_date"])


def save(folder: Path) -> Path:
    parquet.write_table(pa.table(columns()), folder / "data.parquet")
    return folder / "data.parquet"


def test_the_draft_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, output = str(save(tmp_path)), tmp_path / "policy.yaml"
    assert main(["init", data]) == 0
    text = capsys.readouterr().out
    assert main(["init", data, "--output", str(output)]) == 0
    assert output.read_text("utf-8") == f"# yaml-language-server: $schema=policy.schema.json\n{text}"
    assert "crenel check" in capsys.readouterr().out
    assert main(["check", str(output), "--data", data]) == 0
    assert "0 problems" in capsys.readouterr().out


@pytest.mark.parametrize("least", [99999999999999999, 10**22])
def test_ids_of_many_digits_stay_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str], least: int) -> None:
    rows = (f"{least + i % 50},{least + i % 77},{20 + i % 60},{'UB'[i % 2]}\n" for i in range(400))
    data, output = tmp_path / "data.csv", tmp_path / "policy.yaml"
    data.write_text("user_id,balance,age,diagnosis\n" + "".join(rows))
    assert main(["init", str(data), "--output", str(output)]) == 0
    text = output.read_text("utf-8")
    assert "50 persons" in text
    assert str(least + 3) not in text.partition("balance")[0]
    assert Policy.from_yaml(output).person == "user_id"
    capsys.readouterr()
    assert main(["check", str(output), "--data", str(data)]) == 0
    assert "0 problems" in capsys.readouterr().out


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, output = str(save(tmp_path)), tmp_path / "policy.yaml"
    output.write_text("mine")
    assert main(["init", data, "--output", str(output)]) == 2
    assert "exists already. Use --force to overwrite it." in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert main(["init", data, "--output", str(output), "--force"]) == 0
    assert "# Drafted by crenel init" in output.read_text("utf-8")


def test_a_file_that_cannot_be_written_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.yaml").mkdir()
    assert main(["init", str(save(tmp_path)), "--output", str(tmp_path / "p.yaml"), "--force"]) == 2
    assert capsys.readouterr().err == f"crenel: {tmp_path / 'p.yaml'} cannot be written: is a directory.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.parquet", "p.yaml"]


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", str(save(tmp_path)), "--output", "no/such/p.yaml"]) == 2
    assert capsys.readouterr().err == "crenel: no/such/p.yaml: there is no folder no/such to write it to.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["data.parquet"]


def test_the_schema_that_is_written_is_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", str(save(tmp_path)), "--output", "policy.yaml"]) == 0
    said = "Wrote policy.yaml; and policy.schema.json, by which an editor completes the policy. Read it, then run: "
    assert capsys.readouterr().out.startswith(said)
    (tmp_path / "policy.schema.json").write_text("{}")
    assert main(["init", str(save(tmp_path)), "--output", "other.yaml"]) == 0
    assert capsys.readouterr().out.startswith("Wrote other.yaml. Read it, then run: ")


@pytest.mark.parametrize(
    ("name", "person"),
    [
        ("ev_charging.parquet", "user_id"),
        ("castleguard_taxi_example.csv", "pid"),
        ("adult_30162.parquet", None),
        ("taxi_yellow_2019.parquet", None),
        ("pima_diabetes.csv", None),
    ],
)
def test_real_data(
    data_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    person: str | None,
) -> None:
    policy, data = str(tmp_path / "policy.yaml"), str(data_dir / name)
    assert main(["init", data, "--output", policy]) == 0
    code = main(["check", policy, "--data", data])
    if person is None:
        assert code == 2
        assert capsys.readouterr().err.count("policy.") == 1
    else:
        assert code == 0
        assert Policy.from_yaml(policy).person == person


WITHOUT_PERSONS = ",age,city\n" + "".join(f"{n},{n % 60 + 18},{'UB'[n % 2]}\n" for n in range(1, 301))


def test_rows_without_persons_need_a_word_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text(WITHOUT_PERSONS)
    assert main(["init", "people.csv", "--output", "policy.yaml"]) == 0
    told = capsys.readouterr().out
    assert "It does not load yet: No column seems to tell persons apart." in told
    assert "draft it again with --each-row" in told
    with pytest.raises(PolicyError, match=r"policy\.person"):
        Policy.from_yaml("policy.yaml")
    assert main(["init", "people.csv", "--output", "policy.yaml", "--each-row", "--force"]) == 0
    assert "crenel check policy.yaml --data people.csv" in capsys.readouterr().out
    policy = Policy.from_yaml("policy.yaml")
    assert policy.each_row
    assert set(policy.quasi_identifiers) == {"age", "city"}
    assert "it has no name" in Path("policy.yaml").read_text()


def test_the_user_names_the_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text(WITHOUT_PERSONS.replace(",age", "badge,age", 1))
    assert main(["init", "people.csv", "--output", "policy.yaml", "--person", "badge"]) == 0
    assert Policy.from_yaml("policy.yaml").person == "badge"
    capsys.readouterr()
    assert main(["init", "people.csv", "--person", "bagde"]) == 2
    assert "--person: the data have no column 'bagde'. Did you mean 'badge'?" in capsys.readouterr().err


def test_a_time_is_generalized_where_there_is_nothing_else(tmp_path: Path) -> None:
    start = dt.datetime(2024, 3, 1)  # noqa: DTZ001 - as a file without zones has it
    who = [f"c{n % 40}" for n in range(NUMBER_OF_ROWS)]
    policy = loaded(
        drafted({"customer": who, "at": [start + dt.timedelta(hours=n) for n in range(len(who))]}), tmp_path
    )
    assert policy.event_time == "at"
    assert list(policy.quasi_identifiers) == ["at"]


def test_a_latitude_and_a_longitude_are_one_place(tmp_path: Path) -> None:
    data, draw = columns(), random.Random(6)
    for end in ("pickup", "dropoff"):
        data[f"{end}_latitude"] = [round(draw.gauss(40.75, 0.03), 5) for _ in range(NUMBER_OF_ROWS)]
        data[f"{end}_longitude"] = [round(draw.gauss(-73.98, 0.03), 5) for _ in range(NUMBER_OF_ROWS)]
    data["pickup_latitude"][7] = None
    data["lat"] = [draw.randrange(5) for _ in range(NUMBER_OF_ROWS)]
    policy = loaded(drafted(data), tmp_path)
    places = {name: qi for name, qi in policy.quasi_identifiers.items() if isinstance(qi, Coordinates)}
    assert {name: qi.columns for name, qi in places.items()} == {
        f"{end}_place": (f"{end}_latitude", f"{end}_longitude") for end in ("pickup", "dropoff")
    }
    assert places["pickup_place"].missing is Missing.CATEGORY
    for name, qi in places.items():
        south, west, north, east = qi.bounds
        at = [data[one] for one in qi.columns]
        assert south <= min(filter(None, at[0])) <= max(filter(None, at[0])) <= north
        assert west <= min(at[1]) <= max(at[1]) <= east
        assert (north - south) < 3 * (max(filter(None, at[0])) - min(filter(None, at[0]))), name
    assert "lat" in policy.quasi_identifiers, "alone, it is a number"
    assert "pickup_latitude" not in policy.quasi_identifiers


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lat", ("latitude", "")),
        ("Longitude", ("longitude", "")),
        ("pickupLat", ("latitude", "pickup")),
        ("dropoff_lng", ("longitude", "dropoff")),
        ("home.lat", ("latitude", "home.")),
        ("platform", None),
        ("flat", None),
    ],
)
def test_names_of_coordinates(name: str, found: tuple[str, str] | None) -> None:
    assert column_names.coordinate(name) == found
