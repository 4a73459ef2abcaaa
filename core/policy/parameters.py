"""How a method declares its parameters: each one's default, rule, unit and meaning, in one place.

>>> @dataclass(frozen=True, kw_only=True)
... class WindowParameters(Parameters):
...     rows: int = parameter(100, integer(at_least=2), "The number of rows in a window.", unit="rows")
>>> WindowParameters(rows=1)
Traceback (most recent call last):
...
crenel.errors.PolicyError: parameters.rows must be an integer of at least 2, not 1.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from crenel.policy.checks import Problems, a_boolean, an_integer, as_number, one_of
from crenel.policy.durations import A_DURATION, a_duration, format_duration
from crenel.policy.frozen import FrozenDict

__all__ = [
    "Parameter",
    "Parameters",
    "Reuse",
    "Rule",
    "boolean",
    "choice",
    "declared",
    "duration",
    "duration_text",
    "integer",
    "mapping",
    "max_reusable",
    "number",
    "optional",
    "parameter",
    "reorder",
    "reuse",
    "rows_or_duration",
]

_Default = TypeVar("_Default")

#: Checks a value: takes the list of problems, the path of the field and the value. It returns the value in the form
#: that the method reads, and adds a problem to the list if the value is wrong.
Rule = Callable[[Problems, str, Any], Any]

#: Where a dataclass field keeps its `Parameter`.
_KEY = "crenel.parameter"


class Reuse(Enum):
    """Whether a row may leave alone, under a generalization that was published before and contains it."""

    #: Never.
    OFF = "off"

    #: Under one of them, drawn uniformly.
    UNIFORM = "uniform"

    #: Under the one of least loss. An attacker who sees it learns that the row is in no better one.
    BEST = "best"

    #: Under one of them, drawn with weights that fall with the loss.
    WEIGHTED = "weighted"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What is declared about one parameter of a method."""

    #: The value if the policy does not give one.
    default: Any

    #: Checks a value that the policy gives.
    rule: Rule

    #: What the parameter means, in one sentence.
    sentence: str

    #: What the value counts, such as "rows"; "microseconds" for a duration; empty for a plain number.
    unit: str = ""

    #: What holds if the value is None, such as "the policy's delay".
    unset: str = ""

    #: The values it may take, where these are few.
    choices: tuple[Any, ...] = ()

    #: The values of `reuse` under which the parameter has an effect; empty: it always has.
    used_with: tuple[Reuse, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Base of the parameters of every method: checks each field by the rule it was declared with.

    A subclass is a frozen, keyword-only dataclass whose fields are all made by `parameter`.

    Raises:
        PolicyError: a value breaks its rule; the message lists all that do.
    """

    def __post_init__(self) -> None:
        problems = Problems()
        for name, about in declared(type(self)).items():
            object.__setattr__(self, name, about.rule(problems, name, getattr(self, name)))
        problems.raise_if_any("parameters")


def parameter(
    default: _Default,
    rule: Rule,
    sentence: str,
    *,
    unit: str = "",
    unset: str = "",
    choices: tuple[Any, ...] = (),
    used_with: tuple[Reuse, ...] = (),
) -> _Default:
    """Declare a field of a `Parameters` class; `Parameter` describes the arguments."""
    about = Parameter(
        default=default, rule=rule, sentence=sentence, unit=unit, unset=unset, choices=choices, used_with=used_with
    )
    made: _Default = dataclasses.field(default=default, metadata={_KEY: about})
    return made


def declared(parameters: type) -> Mapping[str, Parameter]:
    """Return what is declared about each field of a `Parameters` class.

    Raises:
        TypeError: a field was not made by `parameter`.
    """
    return _declared(parameters)


@cache
def _declared(parameters: type) -> Mapping[str, Parameter]:
    found = {}
    for field in dataclasses.fields(parameters):
        if _KEY not in field.metadata:
            msg = f"{parameters.__name__}.{field.name} must be declared by crenel.policy.parameters.parameter."
            raise TypeError(msg)
        found[field.name] = field.metadata[_KEY]
    return MappingProxyType(found)


# --- Rules ---


def integer(at_least: int) -> Rule:
    """An integer of at least this."""
    return lambda problems, path, value: an_integer(problems, path, value, at_least)


def number(
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Rule:
    """A finite number within these bounds."""
    words = _bounds(at_least, above, at_most, below)

    def rule(problems: Problems, path: str, value: Any) -> float | None:
        given = as_number(value)
        if (
            given is None
            or (at_least is not None and given < at_least)
            or (above is not None and given <= above)
            or (at_most is not None and given > at_most)
            or (below is not None and given >= below)
        ):
            problems.must(path, words, value)
            return None
        return given

    return rule


def _bounds(at_least: float | None, above: float | None, at_most: float | None, below: float | None) -> str:
    if at_least is not None and at_most is not None:
        return f"a number from {at_least:g} to {at_most:g}"
    lower = [f"above {above:g}"] if above is not None else [f"of at least {at_least:g}"] if at_least is not None else []
    upper = [f"at most {at_most:g}"] if at_most is not None else [f"below {below:g}"] if below is not None else []
    return " ".join(["a number", " and ".join(lower + upper)]).strip()


def boolean() -> Rule:
    """True or false."""
    return a_boolean


def choice(enum: type[Enum]) -> Rule:
    """A member of an enumeration, or its value."""
    return lambda problems, path, value: one_of(problems, path, value, enum)


def duration(*, at_least: int) -> Rule:
    """A duration such as `10m`, kept in microseconds; `at_least` is in microseconds too."""
    return lambda problems, path, value: a_duration(problems, path, value, at_least=at_least)


def duration_text() -> Rule:
    """A duration such as `10m`, kept as text. A bare number is refused: it has no unit."""

    def rule(problems: Problems, path: str, value: Any) -> str | None:
        if not isinstance(value, (str, dt.timedelta)):
            problems.must(path, A_DURATION, value)
            return None
        return format_duration(a_duration(problems, path, value, at_least=1))

    return rule


def optional(rule: Rule) -> Rule:
    """None, or what another rule accepts."""
    return lambda problems, path, value: None if value is None else rule(problems, path, value)


def rows_or_duration(problems: Problems, path: str, value: Any) -> int | str:
    """A number of rows of at least 1, or a duration."""
    if isinstance(value, int):
        return an_integer(problems, path, value, 1)
    return format_duration(a_duration(problems, path, value, at_least=1))


def mapping(of: Rule, words: str) -> Rule:
    """A mapping of columns to values, each of which another rule accepts; `words` describe it in an error."""

    def rule(problems: Problems, path: str, value: Any) -> FrozenDict[Any]:
        if not isinstance(value, Mapping):
            problems.must(path, words, value)
            return FrozenDict()
        return FrozenDict({name: of(problems, f"{path}.{name}", item) for name, item in value.items()})

    return rule


# --- Parameters that several methods have ---


def reuse(*values: Reuse) -> Reuse:
    """Declare the parameter `reuse`, which takes these values; the first is its default."""
    listed = [repr(value.value) for value in values]
    words = f"{', '.join(listed[:-1])} or {listed[-1]}" if len(listed) > 1 else listed[0]

    def rule(problems: Problems, path: str, value: Any) -> Reuse | None:
        given = "off" if value is False else value  # YAML reads a bare `off` as False
        for known in values:
            if given is known or given == known.value:
                return known
        problems.must(path, words, value)
        return None

    return parameter(
        values[0],
        rule,
        "Which earlier generalization that contains a row the row may be published under, alone.",
        choices=values,
    )


def max_reusable(default: int) -> int:
    """Declare the parameter `max_reusable`."""
    return parameter(
        default,
        integer(at_least=0),
        "The most generalizations kept for reuse, which bounds memory; the oldest are forgotten first.",
        unit="generalizations",
        used_with=(Reuse.UNIFORM, Reuse.BEST, Reuse.WEIGHTED),
    )


def reorder() -> bool:
    """Declare the parameter `reorder`."""
    return parameter(
        False,
        boolean(),
        "Whether rows are published in the order of the input; it needs exactly one of delay and delay_rows.",
    )
