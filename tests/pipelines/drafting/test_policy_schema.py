"""The JSON Schema accepts what the checks accept, refuses what an editor can see, and knows every declaration."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from crenel import Policy, PolicyError
from crenel.pipelines.cli import main
from crenel.pipelines.drafting.policy_schema import ID, policy_schema
from crenel.policy import Sensitive, methods
from crenel.policy import quasi_identifiers as qi_types

ROOT = Path(__file__).resolve().parents[3]
GOOD: dict[str, Any] = {
    "version": 1,
    "person": "who",
    "quasi_identifiers": {
        "age": {"type": "numeric", "domain": [0, 120], "step": 5},
        "zip": {"type": "prefix", "length": 5},
        "job": {"type": "categorical", "hierarchy": {"*": {"a": ["b", "c"], "d": None}}},
        "born": {"type": "datetime", "domain": ["1900-01-01", "2030-01-01"], "step": "30d"},
    },
    "sensitive": {"ill": None, "income": {"domain": [0, 100], "bins": 5, "ordered": True}},
    "publish": ["ward"],
    "k": 5,
    "l": 2,
    "delay": "10m",
    "delay_rows": 100,
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return policy_schema()


def is_valid(schema: dict[str, Any], policy: Any) -> bool:
    # As an editor sees YAML: dates are text.
    return not list(jsonschema.Draft7Validator(schema).iter_errors(json.loads(json.dumps(policy, default=str))))


def accepts(policy: Any) -> bool:
    try:
        Policy.from_dict(policy)
    except PolicyError:
        return False
    return True


def test_it_is_a_schema(schema: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["$id"] == ID


def test_it_knows_every_declared_field(schema: dict[str, Any]) -> None:
    assert set(schema["properties"]) == {field.name for field in dataclasses.fields(Policy)}
    kinds = schema["properties"]["quasi_identifiers"]["additionalProperties"]["oneOf"]
    for kind, name in zip(kinds, qi_types.names(), strict=True):
        declared = {field.name for field in dataclasses.fields(qi_types.lookup(name)) if field.init}
        assert set(kind["properties"]) == {"type", *declared}
    (sensitive,) = [one for one in schema["properties"]["sensitive"]["anyOf"] if one["type"] == "object"]
    fields = sensitive["additionalProperties"]["properties"]
    assert set(fields) == {field.name for field in dataclasses.fields(Sensitive)}
    of_methods = {one["if"]["properties"]["method"]["const"]: one["then"] for one in schema["allOf"]}
    for name in methods.names():
        properties = of_methods[name]["properties"]["parameters"]["properties"]
        assert set(properties) == set(methods.find(name).fields)
        assert all(one["description"] for one in properties.values())
    assert all(field.get("description") for field in schema["properties"].values())


@pytest.mark.parametrize("method", methods.names())
def test_every_method_with_its_own_parameters_is_valid(schema: dict[str, Any], method: str) -> None:
    plain = {name: value for name, value in GOOD.items() if name != "l"}
    more = {"mu": 10} if method.startswith("faanst") else {"cover": "quasi_identifiers"} if method == "sdgs" else {}
    policy = Policy.from_dict({**plain, "method": method, "parameters": more})
    assert is_valid(schema, policy.to_dict())
    assert is_valid(schema, yaml.safe_load(policy.to_yaml()))


def test_policies_of_the_examples_and_the_pages_are_valid(schema: dict[str, Any]) -> None:
    files = [path.read_text("utf-8") for path in ROOT.glob("examples/**/policy.yaml")]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    files += [
        text for page in pages for text in re.findall(r"^```yaml\n(version: 1\n.*?)^```", page.read_text(), re.M | re.S)
    ]
    assert len(files) > 3
    for text in files:
        given = yaml.safe_load(text)
        if given.get("method", "bastion") in methods.names():
            assert is_valid(schema, given), text


@pytest.mark.parametrize(
    "change",
    [
        {"kk": 5},
        {"k": 1},
        {"k": "five"},
        {"l": 0},
        {"t": "x"},
        {"delay": 10},
        {"delay": "ten minutes"},
        {"delay_rows": 0},
        {"method": "bastin"},
        {"on_suppress": "keep"},
        {"parameters": {"nonsense": 1}},
        {"parameters": {"reuse": "often"}},
        {"publish": "ward"},
        {"publish": [3]},
        {"person": ""},
        {"quasi_identifiers": {}},
        {"quasi_identifiers": {"age": {"domain": [0, 1]}}},
        {"quasi_identifiers": {"age": {"type": "numerical"}}},
        {"quasi_identifiers": {"age": {"type": "numeric", "domain": [0]}}},
        {"quasi_identifiers": {"age": {"type": "numeric", "lenght": 5}}},
        {"quasi_identifiers": {"zip": {"type": "prefix"}}},
        {"sensitive": {"ill": {"bin": 3}}},
        {"version": 2},
        {"shards": 0},
        {"seed": -1},
    ],
)
def test_mistakes_are_seen(schema: dict[str, Any], change: dict[str, Any]) -> None:
    assert not accepts({**GOOD, **change})
    assert not is_valid(schema, {**GOOD, **change})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"disorder": 0},
        {"disorder": "1.5s"},
        {"l": None},
        {"sensitive": ["ill"]},
        {"sensitive": None, "l": None},
        {"publish": None},
        {"parameters": None},
        {"parameters": {"reuse": False}},
        {"event_time": None},
        {"shards": 4, "shard_by": ["ward"]},
        {"shards": "auto", "shard_by": "locality"},
        {"secret": "env:NAME"},
    ],
)
def test_what_the_checks_accept_is_valid(schema: dict[str, Any], change: dict[str, Any]) -> None:
    assert accepts({**GOOD, **change})
    assert is_valid(schema, {**GOOD, **change})


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], schema: dict[str, Any]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(schema))


def test_init_names_it_and_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("patient,age\n" + "".join(f"p{n},{n % 90}\n" for n in range(200)))
    assert main(["init", "data.csv", "--output", "policy.yaml"]) == 0
    text = Path("policy.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=policy.schema.json\n")
    assert is_valid(json.loads(Path("policy.schema.json").read_text()), yaml.safe_load(text))
    # A file of the user's own stays.
    Path("policy.schema.json").write_text("{}")
    assert main(["init", "data.csv", "--output", "other.yaml"]) == 0
    assert Path("policy.schema.json").read_text() == "{}"
    assert not Path("other.yaml").read_text().startswith("# yaml")
    assert main(["init", "data.csv"]) == 0
    assert "yaml-language-server" not in capsys.readouterr().out
