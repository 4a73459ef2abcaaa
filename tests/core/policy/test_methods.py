"""Methods are declared once and found by name, and all refuse a guarantee that they do not keep in the same words."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from crenel.engine.methods.bastion import BastionParameters
from crenel.engine.methods.castle import METHOD as CASTLE
from crenel.engine.methods.castle import CastleParameters
from crenel.policy import Method, Policy, PolicyError, Reuse, methods
from crenel.policy.parameters import (
    Parameters,
    Rule,
    boolean,
    declared,
    duration,
    duration_text,
    integer,
    mapping,
    number,
    optional,
    parameter,
    reuse,
)

SMALL: dict[str, Any] = {
    "person": "id",
    "quasi_identifiers": {"age": {"type": "numeric"}},
    "k": 5,
    "delay": "10m",
    "delay_rows": 100,
}


@dataclass(frozen=True, kw_only=True)
class OtherParameters(Parameters):
    width: float = parameter(1.0, number(above=0), "How wide a box is.")


OTHER = Method(name="other", summary="Another method.", parameters=OtherParameters, engine="nowhere:Nothing")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove whatever a test registers after the test."""
    monkeypatch.setattr(methods, "_registered", {})
    monkeypatch.setattr(methods, "_loaded", dict(methods._loaded))


def installed(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    """Pretend that these entry points are installed, in addition to crenel's own."""
    found = dict(methods._installed())
    for name, value in points:
        found[name] = [*found.get(name, []), EntryPoint(name, value, methods.GROUP)]
    monkeypatch.setattr(methods, "_installed", lambda: found)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_is_declared_in_full(name: str) -> None:
    method = methods.find(name)
    assert method.name == name
    assert method.summary.endswith(".")
    for about in method.fields.values():
        assert about.sentence.endswith(".")
    # The defaults obey their own rules, and a default of None is explained.
    made = method.parameters()
    for field, about in method.fields.items():
        assert getattr(made, field) == about.default
        assert about.default is not None or about.unset


def test_a_method_can_be_registered() -> None:
    methods.register(OTHER)
    policy = Policy.from_dict({**SMALL, "method": "other", "parameters": {"width": 2}})
    assert policy.parameters == OtherParameters(width=2.0)
    assert policy.declaration is OTHER
    assert (policy.reuse, policy.reorders, policy.crowd) == (Reuse.OFF, False, False)
    assert policy.parameter("width", None) == 2.0
    assert policy.parameter("height", 7) == 7
    with pytest.raises(PolicyError, match="parameters must be a mapping, or OtherParameters"):
        dataclasses.replace(policy, parameters=CastleParameters())
    again = dataclasses.replace(OTHER, summary="The same cell of a notebook, run again.")
    methods.register(again)
    assert methods.find("other") is again


def test_the_name_of_an_installed_method_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="the method 'castle' is declared by an installed package"):
        methods.register(dataclasses.replace(OTHER, name="castle"))


THEIRS = """\
from crenel.engine.methods.mondrian import METHOD as MONDRIAN
from crenel.policy import Method

METHOD = Method(
    name="theirs", summary="As mondrian.", parameters=MONDRIAN.parameters, engine=MONDRIAN.engine, keeps_l=False
)
"""


def test_an_installed_package_adds_a_method(tmp_path: Path) -> None:
    """The package has a module and an entry point, as pip would install them. A second, broken one does no harm."""
    (tmp_path / "theirs.py").write_text(THEIRS)
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{methods.GROUP}]\ntheirs = theirs:METHOD\nbroken = no_such_package:METHOD\n"
    )
    code = (
        "from crenel.policy import Policy, PolicyError\n"
        f"small = {SMALL!r}\n"
        "print(Policy.from_dict(small | {'method': 'theirs'}).declaration.summary)\n"
        "try:\n    Policy.from_dict(small | {'method': 'broken'})\n"
        "except PolicyError as error:\n    print(error)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "As mondrian."
    assert second.startswith(
        "policy.method: 'broken' cannot be loaded from no_such_package:METHOD: ModuleNotFoundError"
    )


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        PolicyError, match=r"policy.method must be one of .*bastion, castle.* \(did you mean 'castle'\?\)"
    ):
        Policy.from_dict({**SMALL, "method": "castel"})
    with pytest.raises(PolicyError, match=r"policy.method must be one of"):
        Policy.from_dict({**SMALL, "method": 3})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_package:METHOD", "'theirs' cannot be loaded from no_such_package:METHOD: ModuleNotFoundError"),
        ("crenel.engine.methods.castle:NOTHING", "cannot be loaded from .* AttributeError"),
        ("crenel.engine.methods.castle:CastleParameters", "must be a Method with this name"),
        ("crenel.engine.methods.castle:METHOD", "must be a Method with this name"),
    ],
)
def test_a_broken_declaration_is_reported_when_it_is_asked_for(
    value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, ("theirs", value))
    assert "theirs" in methods.names()
    assert Policy.from_dict(SMALL).method == "bastion"
    with pytest.raises(PolicyError, match=r"policy.t is not kept by the method 'mondrian'"):
        Policy.from_dict({**SMALL, "method": "mondrian", "t": 0.2, "sensitive": ["s"]})
    with pytest.raises(PolicyError, match=why):
        Policy.from_dict({**SMALL, "method": "theirs"})


def test_two_packages_that_declare_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_loaded", {})
    installed(monkeypatch, ("castle", "elsewhere:METHOD"))
    with pytest.raises(PolicyError, match="'castle' is declared more than once"):
        Policy.from_dict({**SMALL, "method": "castle"})


@pytest.mark.parametrize("guarantee", ["l", "t"])
def test_a_guarantee_that_is_not_kept_is_refused_in_one_wording(guarantee: str) -> None:
    methods.register(dataclasses.replace(OTHER, keeps_l=False))
    kept = ", ".join(name for name in methods.names() if getattr(methods.find(name), f"keeps_{guarantee}"))
    asked = {**SMALL, "method": "other", "sensitive": ["s"], guarantee: {"l": 2, "t": 0.5}[guarantee]}
    with pytest.raises(PolicyError) as caught:
        Policy.from_dict(asked)
    said = f"is not kept by the method 'other': leave it out, or choose a method that keeps it ({kept})."
    assert caught.value.problems == (f"policy.{guarantee} {said}",)


REUSES = {
    "bastion": "off weighted uniform",
    "castle": "uniform off",
    "castleguard": "uniform off",
    "partition": "uniform best weighted off",
    "adaptive-window": "uniform best off",
    "faanst-passive": "uniform best off",
    "faanst-proactive": "uniform best off",
    "fads": "uniform best off",
}


@pytest.mark.parametrize("name", methods.names())
def test_reuse_is_one_type(name: str) -> None:
    expected = REUSES.get(name, "").split()
    method = methods.find(name)
    assert [value.value for value in method.reuses] == expected
    if not expected:
        return
    assert method.parameters().reuse.value == expected[0]
    for value in Reuse:
        if value.value in expected:
            assert method.parameters(reuse=value.value) == method.parameters(reuse=value)
        else:
            with pytest.raises(PolicyError, match=f"parameters.reuse must be .*, not '{value.value}'"):
                method.parameters(reuse=value.value)
    assert method.parameters(reuse=False).reuse is Reuse.OFF  # YAML reads a bare `off` as False
    with pytest.raises(
        PolicyError, match=rf"parameters\.reuse must be '{expected[0]}'.* or '{expected[-1]}', not True"
    ):
        method.parameters(reuse=True)


RULES: dict[str, tuple[Rule, Any, str]] = {
    "integer": (integer(at_least=2), 1, "an integer of at least 2, not 1"),
    "above": (number(above=0), 0, "a number above 0, not 0"),
    "above and at most": (number(above=0, at_most=1), 1.5, "a number above 0 and at most 1, not 1.5"),
    "above and below": (number(above=0, below=1), 1, "a number above 0 and below 1, not 1"),
    "from to": (number(at_least=0, at_most=20), 20.5, "a number from 0 to 20, not 20.5"),
    "at least": (number(at_least=0), -0.5, "a number of at least 0, not -0.5"),
    "at least and below": (number(at_least=0, below=1), 1, "a number of at least 0 and below 1, not 1"),
    "finite": (number(), float("inf"), "a number, not inf"),
    "boolean": (boolean(), 1, "true or false, not 1"),
    "duration": (duration(at_least=1), "ten", "a duration such as"),
    "duration as text": (duration_text(), 10, "a duration such as"),
    "optional": (optional(integer(at_least=1)), 0, "an integer of at least 1, not 0"),
    "mapping": (
        mapping(integer(at_least=0), "a mapping of columns to integers"),
        3,
        "a mapping of columns to integers",
    ),
    "in a mapping": (mapping(integer(at_least=0), "a mapping"), {"a": -1}, "an integer of at least 0, not -1"),
}


@pytest.mark.parametrize(("rule", "wrong", "why"), RULES.values(), ids=RULES)
def test_a_parameter_is_checked_by_its_rule(rule: Rule, wrong: Any, why: str) -> None:
    made = dataclasses.make_dataclass(
        "Made",
        [("field", Any, parameter(None, rule, "A field."))],
        bases=(Parameters,),
        frozen=True,
        kw_only=True,
    )
    with pytest.raises(PolicyError) as caught:
        made(field=wrong)
    assert str(caught.value).startswith("parameters.field")
    assert f"must be {why}" in str(caught.value)


def test_a_declaration_that_lacks_something_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Bare(Parameters):
        width: float = 1.0

    @dataclass(frozen=True, kw_only=True)
    class Mixed(Parameters):
        reuse: bool = parameter(True, boolean(), "A reuse of its own kind.")

    with pytest.raises(TypeError, match=r"Bare\.width must be declared by crenel\.policy\.parameters\.parameter"):
        dataclasses.replace(OTHER, parameters=Bare)
    with pytest.raises(TypeError, match=r"reuse must be declared by crenel\.policy\.parameters\.reuse"):
        dataclasses.replace(OTHER, parameters=Mixed)
    with pytest.raises(TypeError, match="must be a subclass of Parameters"):
        dataclasses.replace(OTHER, parameters=dict)
    with pytest.raises(TypeError, match="must have a parameter 'beta_sample'"):
        dataclasses.replace(OTHER, samples=True)


@pytest.mark.parametrize("engine", ["no_such_package:Engine", "crenel.engine.contract:NoSuchEngine"])
def test_an_engine_that_cannot_be_imported_is_reported(engine: str) -> None:
    with pytest.raises(PolicyError, match=rf"policy\.method: the engine of 'other' cannot be loaded from {engine}"):
        dataclasses.replace(OTHER, engine=engine).load_engine()


def test_a_method_of_one_reuse_names_it() -> None:
    made = dataclasses.make_dataclass(
        "Made", [("reuse", Reuse, reuse(Reuse.OFF))], bases=(Parameters,), frozen=True, kw_only=True
    )
    with pytest.raises(PolicyError, match=r"parameters.reuse must be 'off', not 'best'"):
        made(reuse="best")


def test_what_is_declared_of_a_subclass_includes_its_base() -> None:
    assert set(declared(CASTLE.parameters)) == {"beta", "mu", "reuse", "max_reusable", "reorder"}
    guard = declared(methods.find("castleguard").parameters)
    assert set(declared(CASTLE.parameters)) < set(guard)


def test_the_crowd_is_declared_of_parameters() -> None:
    crowd = methods.find("bastion").crowd
    assert crowd(BastionParameters())
    assert not crowd(BastionParameters(reorder=True))
    assert not crowd(BastionParameters(reuse=Reuse.UNIFORM))
    assert not methods.find("mondrian").crowd(methods.find("mondrian").parameters())
