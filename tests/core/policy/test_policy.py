from __future__ import annotations

import dataclasses
import datetime as dt
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import crenel
from crenel.engine.methods.bastion import BastionParameters
from crenel.engine.methods.castle import CastleParameters
from crenel.errors import PolicyError, Rejected
from crenel.policy import (
    FrozenDict,
    OnSuppress,
    Policy,
    Reuse,
    Sensitive,
)
from crenel.policy.durations import format_duration, parse_duration
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Datetime, Numeric, Prefix

DOCS = Path(__file__).parents[3] / "docs"

FULL = """\
version: 1
person: customer_id
event_time: created
quasi_identifiers:
  age:       {type: numeric, domain: [17, 90]}
  zipcode:   {type: prefix, length: 5}
  education: {type: categorical, hierarchy: education.csv}
  joined:    {type: datetime, domain: [2020-01-01, 2030-01-01]}
  income:    {type: numeric, domain: [0, 200000], weight: 2.0}
sensitive: [diagnosis]
publish: [visit_kind]
k: 50
l: 2
t: 0.3
delay: 10m
delay_rows: 10000
method: castle
parameters: {beta: 50, mu: 100, reuse: uniform, max_reusable: 1000}
on_suppress: star
seed: 7
"""

SMALL = {"person": "id", "quasi_identifiers": {"age": {"type": "numeric"}}, "k": 5, "delay": "10m"}


WHO = "the column that tells persons apart, or {each: row} if each row is about another person"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "education.csv").write_text("9th;School;*\n10th;School;*\nBSc;Higher;*\n")
    return tmp_path


def read(folder, text):
    (folder / "policy.yaml").write_text(text)
    return Policy.from_yaml(folder / "policy.yaml")


def changed(**changes):
    given = {**SMALL, **changes}
    return {key: value for key, value in given.items() if value is not ...}


def problems(given):
    with pytest.raises(PolicyError) as caught:
        Policy.from_dict(given)
    return caught.value.problems


def test_the_whole_file(folder):
    policy = read(folder, FULL)
    assert policy == Policy(
        version=1,
        person="customer_id",
        event_time="created",
        quasi_identifiers={
            "age": Numeric(domain=(17, 90)),
            "zipcode": Prefix(length=5),
            "education": Categorical(hierarchy=Hierarchy.from_mapping({"School": ["9th", "10th"], "Higher": ["BSc"]})),
            "joined": Datetime(domain=(dt.date(2020, 1, 1), dt.date(2030, 1, 1))),
            "income": Numeric(domain=(0, 200000), weight=2.0),
        },
        sensitive=["diagnosis"],
        publish=["visit_kind"],
        k=50,
        l=2,
        t=0.3,
        delay=dt.timedelta(minutes=10),
        delay_rows=10000,
        method="castle",
        parameters=CastleParameters(),
        on_suppress="star",
        seed=7,
    )
    assert policy.delay == 600_000_000
    assert policy.on_suppress is OnSuppress.STAR
    assert list(policy.quasi_identifiers) == ["age", "zipcode", "education", "joined", "income"]
    assert policy.publish == ("visit_kind",)


def test_defaults():
    policy = Policy.from_dict(SMALL)
    assert (policy.version, policy.event_time, policy.l, policy.t) == (1, None, None, None)
    assert (policy.delay_rows, policy.disorder, policy.seed, policy.secret) == (None, 0, None, None)
    assert policy.method == "bastion"
    assert policy.on_suppress is OnSuppress.DROP
    assert policy.crowd
    assert policy.parameters == BastionParameters(
        reuse=Reuse.OFF, eta=4.6, lonely=0.25, search=8192, max_reusable=4000, reorder=False
    )
    assert policy.sensitive == {}
    assert policy.publish == ()


def test_it_travels(folder):
    policy = read(folder, FULL)
    (folder / "education.csv").unlink()
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert hash(again) == hash(policy)
    assert again.quasi_identifiers["education"].publish(0, 1) == "School"
    plain = policy.to_dict()
    assert Policy.from_dict(plain) == policy
    assert Policy.from_dict(json.loads(json.dumps(plain))) == policy
    assert Policy.from_dict(yaml.safe_load(yaml.safe_dump(plain, sort_keys=False))) == policy


def test_it_cannot_be_changed_but_replaced():
    policy = Policy.from_dict(SMALL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.k = 3
    with pytest.raises(TypeError):
        policy.quasi_identifiers["age"] = Numeric()
    assert dataclasses.replace(policy, k=7).k == 7
    assert dataclasses.replace(policy, k=7).delay == policy.delay
    with pytest.raises(PolicyError, match=r"policy\.k must be"):
        dataclasses.replace(policy, k=1)


def test_the_order_of_quasi_identifiers_counts():
    a = FrozenDict({"x": 1, "y": 2})
    assert a == {"y": 2, "x": 1}
    assert a != FrozenDict({"y": 2, "x": 1})
    assert repr(a) == "{'x': 1, 'y': 2}"


def test_a_large_hierarchy_travels_light():
    hierarchy = Hierarchy.from_mapping(
        {f"{area:03}": [f"{area:03}{code:02}" for code in range(100)] for area in range(1000)}
    )
    policy = Policy(person="p", quasi_identifiers={"z": Categorical(hierarchy=hierarchy)}, k=2, delay=1)
    policy.quasi_identifiers["z"].coordinate("00000")
    data = pickle.dumps(policy)
    assert pickle.loads(data) == policy
    assert len(data) < 2_000_000
    assert len(repr(policy)) < 1000


def test_what_is_said_is_what_is_not_the_default():
    assert "on_suppress" not in Policy.from_dict(SMALL).to_dict()
    assert Policy.from_dict({**SMALL, "on_suppress": "star"}).to_dict()["on_suppress"] == "star"


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"reuse": "weighted"}},
        {"parameters": {"reorder": True}},
        {"on_suppress": "star"},
    ],
    ids=str,
)
def test_what_gives_up_the_crowd(changes):
    assert Policy.from_dict(SMALL).crowd
    assert not Policy.from_dict({**SMALL, **changes}).crowd


@pytest.mark.parametrize("method", ["castle", "castleguard", "partition", "mondrian", "adaptive-window", "rtree-full"])
def test_the_methods_of_papers_promise_no_crowd_at_one_moment(method):
    assert not Policy.from_dict({**SMALL, "method": method}).crowd


def test_the_repr_shows_no_seed():
    assert "31337" not in repr(Policy.from_dict({**SMALL, "seed": 31337}))


CASES = [
    (changed(k="ten"), "policy.k must be an integer of at least 2, not 'ten'."),
    (changed(k=1), "policy.k must be an integer of at least 2, not 1."),
    (changed(k=True), "policy.k must be an integer of at least 2, not True."),
    (changed(k=2.0), "policy.k must be an integer of at least 2, not 2.0."),
    (changed(k=...), "policy.k must be an integer of at least 2; it is not given."),
    (changed(k=2**31), "policy.k must be an integer from 2 to 2147483647, not 2147483648."),
    (changed(k=10**20 - 1), "policy.k must be an integer from 2 to 2147483647, not 99999999999999999999."),
    (changed(l=2**31, sensitive=["s"]), "policy.l must be an integer from 2 to 2147483647, not 2147483648."),
    (changed(delay_rows=2**62 + 1), "policy.delay_rows must be an integer from 1 to 4611686018427387904, not 461168"),
    (changed(person=...), f"policy.person must be {WHO}; it is not given."),
    (changed(person=3), f"policy.person must be {WHO}, not 3."),
    (changed(quasi_identifiers={}), "policy.quasi_identifiers must be a mapping of at least one"),
    (changed(quasi_identifiers=...), "policy.quasi_identifiers must be a mapping of at least one"),
    (changed(version=2), "policy.version must be 1, not 2."),
    (changed(version=True), "policy.version must be 1, not True."),
    (changed(kk=3), "policy.kk is unknown; did you mean 'k'? the fields are: version, person"),
    (changed(sensitve=["x"]), "policy.sensitve is unknown; did you mean 'sensitive'?"),
    (changed(l=1, sensitive=["s"]), "policy.l must be an integer of at least 2, not 1."),
    (changed(l=6, sensitive=["s"]), "policy.l must be at most k (5)"),
    (changed(l=2), "policy.l needs a sensitive column"),
    (changed(t=0.1), "policy.t needs a sensitive column"),
    (changed(t=1, sensitive=["s"]), "policy.t must be a number above 0 and below 1, not 1."),
    (changed(t="1e-1", sensitive=["s"]), "policy.t must be a number above 0 and below 1"),
    (
        changed(l=3, sensitive={"s": {"values": ["a", "b"]}}),
        "policy.l must be at most 2, the number of values of sensitive.s, not 3.",
    ),
    (changed(delay=...), "policy.delay or policy.delay_rows must be given, or both."),
    (changed(delay=10), "policy.delay must be a duration such as '500ms'"),
    (changed(delay="10 minutes"), "policy.delay must be a duration such as"),
    (changed(delay="0s"), "policy.delay must be a duration such as"),
    (changed(delay="99999999d"), "policy.delay must be a duration such as"),
    (changed(disorder=-1), "policy.disorder must be a duration such as"),
    (changed(delay_rows=0), "policy.delay_rows must be an integer of at least 1, not 0."),
    (changed(delay_rows=4), "policy.delay_rows must be at least k (5)"),
    (changed(seed=-1), "policy.seed must be an integer of at least 0, not -1."),
    (changed(seed="7"), "policy.seed must be an integer of at least 0, not '7'."),
    (
        changed(secret="env:"),
        "policy.secret must be env:NAME, file:/PATH (an absolute path) or gcp:projects/P/secrets/S/versions/N: it says "
        "where",
    ),
    (changed(secret="env:A B"), "policy.secret must be env:NAME, file:/PATH"),
    (changed(secret="file:key"), "policy.secret must be env:NAME, file:/PATH"),
    (changed(secret=b"env:NAME"), "policy.secret must be env:NAME, file:/PATH"),
    (changed(secret="env:NAME", seed=7), "policy.secret must not be given together with seed; keep the secret."),
    (changed(on_suppress="keep"), "policy.on_suppress must be 'star' or 'drop', not 'keep'."),
    (changed(method="castel"), "policy.method must be one of adaptive-window, bastion, castle"),
    (changed(method="castle", parameters={"beta": 0}), "policy.parameters.beta must be an integer of at least 1"),
    (changed(method="castle", parameters={"mu": 0}), "policy.parameters.mu must be an integer of at least 1"),
    (
        changed(parameters={"max_reusable": -1}),
        "policy.parameters.max_reusable must be an integer of at least 0, not -1.",
    ),
    (changed(method="castle", parameters={"reuse": "all"}), "policy.parameters.reuse must be 'uniform' or 'off'"),
    (changed(parameters={"reorder": 1}), "policy.parameters.reorder must be true or false, not 1."),
    (changed(parameters={"serch": 3}), "policy.parameters.serch is unknown; did you mean 'search'?"),
    (changed(parameters={"mu": 100}), "policy.parameters.mu is unknown; the fields are: reuse, eta,"),
    (changed(parameters=[1]), "policy.parameters must be a mapping, or BastionParameters, not [1]."),
    (
        changed(delay_rows=10, parameters={"reorder": True}),
        "policy.parameters.reorder must not be true with both delay and delay_rows",
    ),
    (changed(sensitive=["id"]), "the column 'id' must have one role, not person and sensitive."),
    (changed(publish=["age"]), "the column 'age' must have one role, not quasi_identifiers and"),
    (changed(event_time="id"), "the column 'id' must have one role, not person and event_time."),
    (changed(event_time="at", publish=["at"]), "one role, not event_time and publish."),
    (
        changed(person="age"),
        "the column 'age' must have one role, not person and quasi_identifiers",
    ),
    (changed(publish=["a", "a"]), "policy.publish must name each column once, not 'a' again."),
    (changed(publish="a"), "policy.publish must be a list of columns, not 'a'."),
    (changed(publish=[1]), "policy.publish must be a list of columns' names, not 1."),
    (changed(sensitive="s"), "policy.sensitive must be a list of columns, or a mapping of them"),
    (changed(sensitive={"s": 3}), "policy.sensitive.s must be a mapping, or nothing, not 3."),
    (changed(sensitive={"s": {"ordred": True}}), "policy.sensitive.s.ordred is unknown; did you"),
    (changed(sensitive={"s": {"ordered": True}}), "policy.sensitive.s.ordered needs values"),
    (changed(sensitive={"s": {"bins": 3}}), "policy.sensitive.s.bins needs a numeric domain."),
    (changed(sensitive={"s": {"values": [1, "1"]}}), "values must hold each value once, not '1'"),
    (changed(sensitive={"s": {"domain": [1, 0]}}), "policy.sensitive.s.domain must be a list of"),
]


@pytest.mark.parametrize(("given", "message"), CASES, ids=[message[:60] for _, message in CASES])
def test_what_is_wrong_is_named(given, message):
    found = problems(given)
    assert len(found) == 1, found
    assert message in found[0]


QI_CASES = [
    ({"type": "numerc"}, "policy.quasi_identifiers.age.type must be one of numeric, prefix, "),
    ({"type": ["numeric"]}, "policy.quasi_identifiers.age.type must be one of numeric, prefix, "),
    ({"domain": [1, 2]}, "policy.quasi_identifiers.age must be a mapping with a type"),
    ("numeric", "policy.quasi_identifiers.age must be a mapping with a type"),
    ({"type": "numeric", "domian": [1, 2]}, "age.domian is unknown; did you mean 'domain'?"),
    (
        {"type": "numeric", "domain": [90, 17]},
        "policy.quasi_identifiers.age.domain must be a list of two numbers, the first less than "
        "the second, not [90, 17].",
    ),
    (
        {"type": "numeric", "weight": 0},
        "policy.quasi_identifiers.age.weight must be a number above",
    ),
    ({"type": "prefix"}, "policy.quasi_identifiers.age.length must be given."),
    ({"type": "prefix", "length": 16}, "policy.quasi_identifiers.age.length must be at most 15"),
    ({"type": "categorical"}, "policy.quasi_identifiers.age.hierarchy must be given."),
    ({"type": "categorical", "hierarchy": 3}, "age.hierarchy must be a CSV file's name"),
    (
        {"type": "categorical", "hierarchy": "none.csv"},
        "policy.quasi_identifiers.age.hierarchy: there is no file 'none.csv'.",
    ),
    (
        {"type": "categorical", "hierarchy": {"A": ["x"], "B": ["x"]}},
        "policy.quasi_identifiers.age.hierarchy: the label 'x' must occur once",
    ),
    (
        {"type": "datetime", "domain": [dt.date(2021, 1, 1), dt.date(2020, 1, 1)]},
        "less than the second, not [2021-01-01, 2020-01-01].",
    ),
]


@pytest.mark.parametrize(("given", "message"), QI_CASES, ids=[m[:60] for _, m in QI_CASES])
def test_what_is_wrong_with_a_quasi_identifier_is_named(given, message):
    found = problems(changed(quasi_identifiers={"age": given}))
    assert len(found) == 1, found
    assert message in found[0]


def test_all_that_is_wrong_is_named_at_once(folder):
    (folder / "education.csv").write_text("9th;School;A;*\n10th;School;B;*\n9th;C;*\n")
    text = (
        FULL.replace("k: 50", "k: ten")
        .replace("domain: [17, 90]", "domain: [90, 17], wieght: 2")
        .replace("delay: 10m", "delay: 10")
        .replace("beta: 50", "beta: 0, gamma: 3")
        .replace("seed: 7", "seed: 7\nseed: 8")
    )
    with pytest.raises(PolicyError) as caught:
        read(folder, text)
    found = caught.value.problems
    expected = [
        "policy: policy.yaml, line 21: the key 'seed' must occur once; it is in line 20 too.",
        "policy.k must be an integer",
        "policy.quasi_identifiers.age.domain must be",
        "policy.quasi_identifiers.age.wieght is unknown; did you mean 'weight'?",
        "policy.quasi_identifiers.education.hierarchy: education.csv, line 2: the label in column 2",
        "policy.quasi_identifiers.education.hierarchy: education.csv, line 3: the label in column 1",
        "policy.delay must be a duration",
        "policy.parameters.beta must be",
        "policy.parameters.gamma is unknown",
    ]
    for start in expected:
        assert any(problem.startswith(start) for problem in found), (start, found)
    assert len(found) == len(expected)
    assert str(caught.value).startswith("9 problems:\n  - policy")
    assert pickle.loads(pickle.dumps(caught.value)).problems == found


def test_files_that_are_no_policy(folder):
    with pytest.raises(PolicyError, match=r"^policy: there is no file '.*none.yaml'\.$"):
        Policy.from_yaml(folder / "none.yaml")
    with pytest.raises(PolicyError, match="cannot be read"):
        Policy.from_yaml(folder)
    with pytest.raises(PolicyError, match=r"policy.yaml, line 2: it must be YAML; "):
        read(folder, "person: id\n  k: [3\n")
    with pytest.raises(PolicyError, match="policy must be a mapping of fields, not None"):
        read(folder, "")
    with pytest.raises(PolicyError, match=r"policy must be a mapping of fields, not a list"):
        read(folder, "- person\n")
    with pytest.raises(PolicyError, match="it must be YAML"):
        read(folder, "person: !!python/object:os.system id\n")
    with pytest.raises(PolicyError, match="it must be YAML"):
        read(folder, "seed: 2020-02-31\n")


def test_aliases_and_merges_are_fine_and_keys_twice_in_any_place_are_not(folder):
    text = """\
person: id
quasi_identifiers:
  age: &number {type: numeric, domain: [0, 10]}
  size: *number
  height: {<<: *number, domain: [0, 20]}
k: 5
delay: 10m
parameters: {reuse: off}
"""
    policy = read(folder, text)
    assert policy.quasi_identifiers["height"] == Numeric(domain=(0, 20))
    assert policy.quasi_identifiers["size"] == Numeric(domain=(0, 10))
    assert policy.parameters.reuse is Reuse.OFF
    with pytest.raises(PolicyError, match=r"line 4: the key 'age' must occur once; .* line 3 too"):
        read(folder, text.replace("size: *number", "age: *number"))


def test_the_event_time_may_be_a_quasi_identifier():
    given = changed(event_time="at")
    given["quasi_identifiers"] = {"at": {"type": "datetime"}}
    assert Policy.from_dict(given).event_time == "at"


def test_python_objects_may_say_microseconds():
    common = {"person": "p", "quasi_identifiers": {"a": Numeric()}, "k": 2}
    assert Policy(**common, delay=50).delay == 50
    assert Policy(**common, delay="1.5h", disorder="30s").delay == 5_400_000_000
    assert Policy(**common, delay="1.5h", disorder="30s").disorder == 30_000_000
    assert Policy.from_dict(Policy(**common, delay=50).to_dict()).delay == 50


@given(st.integers(0, 2**60))
def test_durations_round_trip(micros):
    assert parse_duration(format_duration(micros)) == micros


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("500ms", 500_000),
        ("30s", 30_000_000),
        ("10m", 600_000_000),
        ("2h", 7_200_000_000),
        ("1d", 86_400_000_000),
        ("0.5s", 500_000),
        ("7us", 7),
        ("0.1us", None),
        ("10", None),
        ("-1s", None),
        ("1e3s", None),
        ("", None),
    ],
)
def test_durations(text, micros):
    assert parse_duration(text) == micros


def test_sensitive_codes():
    plain = Sensitive()
    assert plain.size is None
    # A later version reads codes from stored state, so this code must never change.
    assert plain.code("flu") == 7026984775585684840
    assert plain.code(1) == plain.code("1") == plain.code(1.0)
    assert plain.code(None) == plain.code(float("nan"))
    assert len({plain.code(v) for v in ("", None, "missing", "None", True, "a")}) == 6
    assert 0 <= plain.code("flu") < 2**63
    listed = Sensitive(values=("low", "high", None), ordered=True)
    assert listed.size == 3
    assert [listed.code(v) for v in ("low", "high", None)] == [0, 1, 2]
    codes, reasons = listed.codes(["high", "x", None])
    assert codes.tolist() == [1, 0, 2]
    assert list(reasons) == [None, "unknown value", None]
    with pytest.raises(Rejected, match="missing"):
        Sensitive(values=("low", "high")).code(None)
    binned = Sensitive(domain=(0, 100), bins=4, ordered=True)
    assert binned.size == 4
    codes, reasons = binned.codes([0, 24.9, 25, 100, 101, None])
    assert codes.tolist() == [0, 0, 1, 3, 0, 0]
    assert list(reasons) == [None] * 4 + ["outside the domain", "missing"]
    assert binned.code(99.9) == 3
    with pytest.raises(Rejected, match="outside the domain"):
        binned.code(-1)
    assert Sensitive(domain=(0, 1)).bins == 10


@pytest.mark.parametrize(
    "extra",
    [{}, {"parameters": {"eta": 2.0}}, {"method": "castle", "parameters": {"beta": 7}}, {"method": "min-delay"}],
)
def test_a_policy_is_written_as_yaml_and_read_back(extra, tmp_path):
    policy = Policy.from_dict(changed(seed=None, **extra))
    (tmp_path / "policy.yaml").write_text(policy.to_yaml(), encoding="utf-8")
    assert Policy.from_yaml(tmp_path / "policy.yaml") == policy
    assert ("parameters" in policy.to_yaml()) == ("parameters" in extra)


def test_sensitive_columns_round_trip():
    policy = Policy.from_dict(
        changed(
            l=2,
            sensitive={
                "a": None,
                "b": {"values": ["x", None], "ordered": True},
                "c": {"domain": [0, 10], "bins": 5},
            },
        )
    )
    assert Policy.from_dict(policy.to_dict()) == policy
    assert policy.sensitive["c"] == Sensitive(domain=(0, 10), bins=5)
    assert repr(policy.sensitive["a"]) == "Sensitive()"


def test_the_page_on_the_policy(tmp_path):
    text = (DOCS / "policy.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    policy = read(tmp_path, example)
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(compile(code, "docs/policy.md", "exec"), {})
    for field in dataclasses.fields(policy):
        assert f"**`{field.name}`**" in text, field.name
    for field in dataclasses.fields(policy.parameters):
        assert f"| `{field.name}` |" in text, field.name


def test_import_is_light():
    code = (
        "import sys, crenel; crenel.__version__\n"
        "assert not {'numpy', 'numba', 'pyarrow', 'apache_beam', 'yaml'} & set(sys.modules)\n"
        "from crenel import Policy, PolicyError\n"
        "assert not {'numba', 'pyarrow', 'apache_beam', 'yaml'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert crenel.Policy is Policy
    assert crenel.PolicyError is PolicyError
    with pytest.raises(AttributeError, match="has no attribute 'Polcy'"):
        _ = crenel.Polcy
