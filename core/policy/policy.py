"""The policy: columns, their roles, the guarantees, the method and its parameters.

It comes from a YAML file (`Policy.from_yaml`), a dict (`Policy.from_dict`) or Python objects. It is checked in full
when it is built, and a `PolicyError` lists everything that is wrong. `docs/policy.md` describes every field.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from crenel.errors import PolicyError
from crenel.policy import methods
from crenel.policy import quasi_identifiers as qi_types
from crenel.policy.checks import REFERENCE, Problems, a_number, an_integer, one_of, suggestion
from crenel.policy.columns import EACH_ROW
from crenel.policy.durations import (
    A_DURATION,
    FOREVER,
    TRUE_OR_A_DURATION,
    a_duration,
    format_duration,
    tick_of,
)
from crenel.policy.frozen import FrozenDict
from crenel.policy.methods import Method
from crenel.policy.parameters import Reuse
from crenel.policy.quasi_identifiers import Missing, QuasiIdentifier
from crenel.policy.reading.fields_together import check_roles, check_together
from crenel.policy.reading.named_files import PolicyFiles
from crenel.policy.reading.policy_file import as_yaml, read_yaml
from crenel.policy.sensitive import Sensitive
from crenel.policy.sharding.shard_rule import (
    AUTO,
    MOST_AUTO,
    ShardBy,
    ShardRule,
    check_shards,
    read_rule,
    read_shards,
    written_rule,
)
from crenel.policy.treatments.treatment import Treatment, read_treatment

__all__ = ["FrozenDict", "OnSuppress", "Policy", "PolicyError", "Sensitive", "ShardBy"]

#: The largest k and l. Engines count the persons and the values of a group, and some store the counts in 32 bits.
_LARGEST_GROUP = 2**31 - 1

#: The most rows of a deadline: with the number of any row, they still fit into 64 bits.
_MOST_DELAY_ROWS = 2**62


class OnSuppress(Enum):
    """What happens to a row that finds no group before its deadline."""

    #: It is published with every quasi-identifier fully generalized.
    STAR = "star"

    #: It is not published.
    DROP = "drop"


@dataclass(frozen=True, init=False)
class Policy:
    """What a user declares about a stream.

    A policy is immutable, compares by content, and pickles together with its hierarchies.

    Raises:
        PolicyError: something is wrong; the message lists everything that is.

    Example:
        >>> from crenel.policy.quasi_identifiers import Numeric
        >>> policy = Policy(person="customer_id", quasi_identifiers={"age": Numeric()}, k=5, delay="10m")
        >>> policy.delay
        600000000
    """

    #: The version of the policy format.
    version: int

    #: The column that identifies persons. It is never published. `{each: row}`: each row is about another person.
    person: str

    #: The column of the event time; None: the timestamp of the Beam element.
    event_time: str | None

    #: The columns that are published generalized, in order.
    quasi_identifiers: FrozenDict[QuasiIdentifier]

    #: The columns that an attacker must not learn about a person; they are published as they are.
    sensitive: FrozenDict[Sensitive]

    #: Other columns that are published: as they are, or treated.
    publish: tuple[str, ...]

    #: What is done to the columns that are not published as they are.
    treat: FrozenDict[Treatment]

    #: The fewest distinct persons under a published generalization.
    k: int

    #: The fewest distinct values of each sensitive column there; None: not required.
    l: int | None

    #: The largest distance between the sensitive values of a group and of the stream; None: not required.
    t: float | None

    #: Microseconds of event time within which a row leaves; None: no limit.
    delay: int | None

    #: Arrivals within which a row leaves; None: no limit.
    delay_rows: int | None

    #: Microseconds by which the clock stays behind the latest event time, because rows may be out of order.
    disorder: int

    #: Microseconds by which a row may be ahead of the latest event time; None: as many as `delay`, or as `once_per` if
    #: there is no delay.
    max_ahead: int | None

    #: Microseconds of event time in which at most one row of a person is published; None: no limit.
    once_per: int | None

    #: Microseconds of event time after a release in which a person is remembered, so that all boxes published for the
    #: person together leave at least k persons; FOREVER (written as true): without end; None: boxes are not compared.
    together: int | None

    #: The name of the method.
    method: str

    #: The method's parameters.
    parameters: Any

    #: What happens to a row that finds no group before its deadline.
    on_suppress: OnSuppress

    #: The number of shards that the stream is split into, each with an engine of its own; "auto": as few as keep up.
    #: With LOCALITY there may be fewer, so that each sees enough persons.
    shards: int | Literal["auto"]

    #: Which rows go to the same shard: by PERSON, by LOCALITY, by a tree, or by the values of these columns.
    shard_by: ShardRule

    #: The columns by whose values groups, `k` and shards are kept apart.
    within: tuple[str, ...]

    #: The seed of all random draws, for tests: an attacker can guess a seed.
    seed: int | None = field(repr=False)

    #: Where to read the secret that random draws start from: `env:NAME`, `file:PATH` or `gcp:VERSION`. None, and no
    #: seed: a secret is drawn when the pipeline is built.
    secret: str | None

    def __init__(
        self,
        *,
        version: int = 1,
        person: str | Mapping[str, str],
        event_time: str | None = None,
        quasi_identifiers: Mapping[str, QuasiIdentifier | Mapping[str, Any]],
        sensitive: Mapping[str, Sensitive | Mapping[str, Any] | None] | Iterable[str] = (),
        publish: Iterable[str] = (),
        treat: Mapping[str, Treatment | Mapping[str, Any]] = FrozenDict(),
        k: int,
        l: int | None = None,
        t: float | None = None,
        delay: int | str | dt.timedelta | None = None,
        delay_rows: int | None = None,
        disorder: int | str | dt.timedelta = 0,
        max_ahead: int | str | dt.timedelta | None = None,
        once_per: int | str | dt.timedelta | None = None,
        together: bool | int | str | dt.timedelta | None = None,
        method: str = "bastion",
        parameters: Any = None,
        on_suppress: OnSuppress | str = OnSuppress.DROP,
        shards: int | str | None = None,
        shard_by: ShardRule | str | Iterable[str] | Mapping[str, Any] = "person",
        within: Iterable[str] = (),
        seed: int | None = None,
        secret: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        problems = Problems()
        clean = _Check(given, PolicyFiles(), problems).all()
        problems.raise_if_any("policy")
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    @property
    def each_row(self) -> bool:
        """Whether each row is about another person, and the rows' numbers are the persons."""
        return self.person == EACH_ROW

    @property
    def measured(self) -> tuple[str, ...]:
        """The columns of the input that quasi-identifiers are made of: a place may be made of two."""
        return tuple(one for name, qi in self.quasi_identifiers.items() for one in qi.inputs(name))

    @property
    def tick(self) -> int:
        """Microseconds that deadlines and published moments are multiples of: see `tick_of`."""
        return tick_of(self.delay)

    @property
    def most_ahead(self) -> int | None:
        """Microseconds by which a row may be ahead of the latest event time; None if the clock decides nothing."""
        if not self.timed:
            return None
        usual: int = getattr(self, self.timed[0])
        return usual if self.max_ahead is None else self.max_ahead

    @property
    def timed(self) -> tuple[str, ...]:
        """The settings that are spans of event time, so that every row has to have one."""
        spans = {"delay": self.delay, "once_per": self.once_per, "together": self.together}
        return tuple(name for name, span in spans.items() if span not in (None, FOREVER))

    @property
    def remembers_persons(self) -> tuple[str, ...]:
        """The settings that compare a row with what was published of its person before."""
        return tuple(name for name in ("once_per", "together") if getattr(self, name) is not None)

    @property
    def most_shards(self) -> int:
        """The number of shards, or the most that `auto` makes."""
        return MOST_AUTO if self.shards == AUTO else self.shards

    @property
    def declaration(self) -> Method:
        """What the policy's method declares about itself."""
        return methods.find(self.method)

    @property
    def crowd(self) -> bool:
        """Whether every published row must leave in a crowd.

        A crowd is a release of rows of at least k persons, each person in it once, at one moment, under one
        generalization.
        """
        return self.on_suppress is OnSuppress.DROP and self.declaration.crowd(self.parameters)

    def missing(self, quasi_identifier: str) -> Missing:
        """Return what becomes of a missing value of a quasi-identifier."""
        said = self.quasi_identifiers[quasi_identifier].missing
        usual = Missing.HOLE if self.declaration.takes_holes else Missing.REJECT
        return usual if said is None else Missing(said)

    @property
    def reuse(self) -> Reuse:
        """Whether a row may leave alone, under an earlier generalization; `OFF` for a method that never does that."""
        reuse: Reuse = self.parameter("reuse", Reuse.OFF)
        return reuse

    @property
    def reorders(self) -> bool:
        """Whether rows are published in the order of the input."""
        reorder: bool = self.parameter("reorder", False)
        return reorder

    def parameter(self, name: str, otherwise: Any) -> Any:
        """Return one of the method's parameters, or `otherwise` if the method has no such parameter."""
        return getattr(self.parameters, name) if name in self.declaration.fields else otherwise

    @classmethod
    def of(cls, given: Policy | str | PathLike[str] | Mapping[str, Any]) -> Policy:
        """Return the policy that is given as such, as the path of a YAML file, or as what such a file holds."""
        if isinstance(given, Policy):
            return given
        if isinstance(given, Mapping):
            return cls.from_dict(given)
        if not isinstance(given, (str, PathLike)):
            msg = f"policy must be a Policy, the path of a YAML file, or a mapping of its fields, not {_kind(given)}."
            raise TypeError(msg)
        return cls.from_yaml(given)

    @classmethod
    def from_yaml(cls, path: str | PathLike[str], *, allow_outside_files: bool = False) -> Policy:
        """Read a policy from a YAML file.

        Args:
            path: The file. Names of other files (hierarchies, a tree of shards) are relative to its folder.
            allow_outside_files: Whether these may lie outside of that folder.
        """
        problems = Problems()
        given = read_yaml(Path(path), problems)
        files = PolicyFiles(Path(path).parent, allow_outside=allow_outside_files)
        return cls._from_given(given, files, problems)

    @classmethod
    def from_dict(
        cls, given: Mapping[str, Any], base_dir: str | PathLike[str] = ".", *, allow_outside_files: bool = False
    ) -> Policy:
        """Make a policy from what a YAML file would hold.

        Args:
            given: The content.
            base_dir: The folder that names of other files are relative to.
            allow_outside_files: Whether these may lie outside of that folder.
        """
        return cls._from_given(given, PolicyFiles(base_dir, allow_outside=allow_outside_files), Problems())

    @classmethod
    def _from_given(cls, given: Any, files: PolicyFiles, problems: Problems) -> Policy:
        if not isinstance(given, Mapping):
            # What it holds is not shown: the path may be that of a file with secrets.
            problems.add("", f"must be a mapping of fields, not {_kind(given)}.")
            problems.raise_if_any("policy")
        known = {f.name for f in dataclasses.fields(cls)}
        for key in given:
            if key not in known:
                problems.unknown("", key, [f.name for f in dataclasses.fields(cls)])
        for name in ("delay", "disorder", "max_ahead", "once_per", "together"):
            if type(given.get(name)) is int and given.get(name) != 0:
                # Python objects count microseconds, which nobody who reads a file would guess.
                problems.must(name, TRUE_OR_A_DURATION if name == "together" else A_DURATION, given[name])
                given = {**given, name: "1s"}  # so that no other check reports it
        defaults = {**_DEFAULTS, "person": _ABSENT, "quasi_identifiers": _ABSENT, "k": _ABSENT}
        known_given = {key: value for key, value in given.items() if key in known}
        clean = _Check({**defaults, **known_given}, files, problems).all()
        problems.raise_if_any("policy")
        return cls(**clean)

    def to_yaml(self) -> str:
        """Return the policy as the text of a YAML file. `from_yaml` makes this policy of such a file."""
        content = self.to_dict()
        usual = _parameters_spec(self.declaration.parameters())
        content["parameters"] = {n: v for n, v in content.get("parameters", {}).items() if v != usual[n]}
        return as_yaml({name: value for name, value in content.items() if value != {}})

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` makes this policy from: plain values that YAML and JSON can hold.

        Fields at their defaults are left out. A hierarchy and a tree are included by content, not by file.
        """
        full: dict[str, Any] = {
            "version": self.version,
            "person": {"each": "row"} if self.each_row else self.person,
            "event_time": self.event_time,
            "quasi_identifiers": {
                name: {"type": qi_types.name_of(type(qi)), **qi.to_spec()}
                for name, qi in self.quasi_identifiers.items()
            },
            "sensitive": _sensitive_spec(self.sensitive),
            "publish": [name for name in self.publish if name not in self.treat],
            "treat": {name: treatment.to_spec() for name, treatment in self.treat.items()},
            "k": self.k,
            "l": self.l,
            "t": self.t,
            "delay": None if self.delay is None else format_duration(self.delay),
            "delay_rows": self.delay_rows,
            "disorder": format_duration(self.disorder),
            "max_ahead": None if self.max_ahead is None else format_duration(self.max_ahead),
            "once_per": None if self.once_per is None else format_duration(self.once_per),
            "together": True if self.together == FOREVER else self.together and format_duration(self.together),
            "method": self.method,
            "parameters": _parameters_spec(self.parameters),
            "on_suppress": self.on_suppress.value,
            "shards": self.shards,
            "shard_by": written_rule(self.shard_by),
            "within": list(self.within),
            "seed": self.seed,
            "secret": self.secret,
        }
        unsaid: dict[str, Any] = {
            "disorder": "0s",
            "on_suppress": "drop",
            "shards": 1,
            "shard_by": "person",
        }
        return {
            name: value for name, value in full.items() if value not in (None, [], {}) and unsaid.get(name) != value
        }


class _Absent:
    """Stands for a required field that was not given."""

    def __repr__(self) -> str:
        return "given"


_ABSENT: Any = _Absent()
_DEFAULTS: dict[str, Any] = {
    "version": 1,
    "event_time": None,
    "sensitive": (),
    "publish": (),
    "treat": FrozenDict(),
    "l": None,
    "t": None,
    "delay": None,
    "delay_rows": None,
    "disorder": 0,
    "max_ahead": None,
    "once_per": None,
    "together": None,
    "method": "bastion",
    "parameters": None,
    "on_suppress": OnSuppress.DROP,
    "shards": None,
    "shard_by": "person",
    "within": (),
    "seed": None,
    "secret": None,
}


class _Check:
    """Turns what was given into the fields of a policy, and notes everything that is wrong."""

    def __init__(self, given: Mapping[str, Any], files: PolicyFiles, problems: Problems) -> None:
        self.given = given
        self.files = files
        self.problems = problems
        #: Of the method that was given; None if there is no such method.
        self.declaration: Method | None = None

    def all(self) -> dict[str, Any]:
        before = len(self.problems.found)
        clean = {name: getattr(self, name)(self.given[name]) for name in self.given}
        check_roles(self.given, self.problems)
        # Fields are compared with each other only if each is valid by itself.
        wrong = {path.split(".")[0] for path, _ in self._details(before)}
        check_together(clean, wrong, self.declaration, self.problems)
        if not wrong & {"shards", "shard_by", "quasi_identifiers"}:
            check_shards(self.problems, clean["shards"], clean["shard_by"], clean["quasi_identifiers"])
        if clean["seed"] is not None and clean["secret"] is not None:
            self.problems.add("secret", "must not be given together with seed; keep the secret.")
        if not wrong and self.declaration is not None:
            self.declaration.check(clean, self.problems)
        return clean

    def _details(self, start: int) -> list[tuple[str, str]]:
        return [p for p in self.problems.found[start:] if isinstance(p, tuple)]

    def version(self, value: Any) -> int:
        if isinstance(value, bool) or value != 1:
            self.problems.must("version", "1", value)
        return 1

    def person(self, value: Any) -> Any:
        if value in (EACH_ROW, {"each": "row"}):
            return EACH_ROW
        if not isinstance(value, str) or not value:
            rule = "the column that tells persons apart, or {each: row} if each row is about another person"
            self._must("person", rule, value)
        return value

    def event_time(self, value: Any) -> Any:
        if value is not None:
            self._column("event_time", value)
        return value

    def quasi_identifiers(self, value: Any) -> FrozenDict[QuasiIdentifier]:
        if value is _ABSENT or not isinstance(value, Mapping) or not value:
            rule = "a mapping of at least one column to its type, such as age: {type: numeric}"
            self._must("quasi_identifiers", rule, value)
            return FrozenDict()
        made: dict[str, QuasiIdentifier] = {}
        for name, given in value.items():
            path = f"quasi_identifiers.{name}"
            self._column(path, name)
            qi = given if isinstance(given, QuasiIdentifier) else self._quasi_identifier(path, given)
            if qi is not None:
                made[name] = qi
                a_number(self.problems, f"{path}.weight", qi.weight, "a number above 0", 0, math.inf)
        return FrozenDict(made)

    def _quasi_identifier(self, path: str, given: Any) -> QuasiIdentifier | None:
        if not isinstance(given, Mapping) or "type" not in given:
            listed = ", ".join(qi_types.names())
            rule = f"a mapping with a type, such as {{type: numeric}} (the types are {listed})"
            self.problems.must(path, rule, dict(given) if isinstance(given, Mapping) else given)
            return None
        try:
            cls = qi_types.lookup(given["type"])
        except (KeyError, TypeError):
            listed = ", ".join(qi_types.names())
            guess = suggestion(given["type"], qi_types.names())
            rule = f"one of {listed}" + (f" ({guess.rstrip()})" if guess else "")
            self.problems.must(f"{path}.type", rule, given["type"])
            return None
        spec = {key: value for key, value in given.items() if key != "type"}
        made = self._build(path, cls, spec, lambda said: cls.from_spec(said, self.files))
        return made if isinstance(made, QuasiIdentifier) else None

    def sensitive(self, value: Any) -> FrozenDict[Sensitive]:
        if isinstance(value, Mapping):
            return self._sensitive_mapping(value)
        if isinstance(value, str) or not isinstance(value, Iterable):
            if value is not None:
                self.problems.must("sensitive", "a list of columns, or a mapping of them", value)
            return FrozenDict()
        return FrozenDict((name, Sensitive()) for name in self._names("sensitive", value))

    def _sensitive_mapping(self, value: Mapping[Any, Any]) -> FrozenDict[Sensitive]:
        made: dict[str, Sensitive] = {}
        for name, given in value.items():
            path = f"sensitive.{name}"
            self._column(path, name)
            if isinstance(given, Sensitive):
                made[name] = given
            elif given is None:
                made[name] = Sensitive()
            elif isinstance(given, Mapping):
                built = self._build(path, Sensitive, dict(given), lambda said: Sensitive(**said))
                made[name] = built if isinstance(built, Sensitive) else Sensitive()
            else:
                self.problems.must(path, "a mapping, or nothing", given)
        return FrozenDict(made)

    def publish(self, value: Any) -> tuple[str, ...]:
        treated = self.given["treat"] if isinstance(self.given["treat"], Mapping) else ()
        return tuple(dict.fromkeys([*self._columns("publish", value), *treated]))

    def treat(self, value: Any) -> FrozenDict[Treatment]:
        if not isinstance(value, Mapping):
            if value is not None:
                self.problems.must("treat", "a mapping of columns to treatments, such as price: {round: 10}", value)
            return FrozenDict()
        made: dict[str, Treatment] = {}
        for name, given in value.items():
            self._column(f"treat.{name}", name)
            treatment = read_treatment(self.problems, f"treat.{name}", given)
            if treatment is not None:
                made[name] = treatment
        return FrozenDict(made)

    def within(self, value: Any) -> tuple[str, ...]:
        return self._columns("within", value)

    def _columns(self, path: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
            if value is not None:
                self.problems.must(path, "a list of columns", value)
            return ()
        return tuple(self._names(path, value))

    def k(self, value: Any) -> int:
        if value is _ABSENT:
            self._must("k", "an integer of at least 2", value)
            return 2
        return an_integer(self.problems, "k", value, 2, default=2, at_most=_LARGEST_GROUP)

    def l(self, value: Any) -> int | None:  # noqa: E743 - the papers' letter
        return None if value is None else an_integer(self.problems, "l", value, 2, default=2, at_most=_LARGEST_GROUP)

    def t(self, value: Any) -> float | None:
        if value is None:
            return None
        return a_number(self.problems, "t", value, "a number above 0 and below 1", 0, 1)

    def delay(self, value: Any) -> int | None:
        return None if value is None else a_duration(self.problems, "delay", value, at_least=1)

    def delay_rows(self, value: Any) -> int | None:
        return None if value is None else an_integer(self.problems, "delay_rows", value, 1, 1, at_most=_MOST_DELAY_ROWS)

    def disorder(self, value: Any) -> int:
        return 0 if value is None else a_duration(self.problems, "disorder", value, at_least=0)

    def max_ahead(self, value: Any) -> int | None:
        return None if value is None else a_duration(self.problems, "max_ahead", value, at_least=1)

    def once_per(self, value: Any) -> int | None:
        return None if value is None else a_duration(self.problems, "once_per", value, at_least=1)

    def together(self, value: Any) -> int | None:
        if value is None or value is False:
            return None
        if value is True or value == FOREVER:
            return FOREVER
        return a_duration(self.problems, "together", value, 1, TRUE_OR_A_DURATION)

    def method(self, value: Any) -> str:
        try:
            self.declaration = methods.find(value)
        except PolicyError as error:
            self.problems.include("", error)
            return ""
        return self.declaration.name

    def parameters(self, value: Any) -> Any:
        if self.declaration is None:  # reported already; whose parameters these are is not known
            return None
        cls = self.declaration.parameters
        if value is None or isinstance(value, Mapping):
            return self._build("parameters", cls, dict(value or {}), lambda given: cls(**given))
        if type(value) is not cls:  # a subclass belongs to another method, whose promises this one does not keep
            self.problems.must("parameters", f"a mapping, or {cls.__name__}", value)
        return value

    def shards(self, value: Any) -> int | Literal["auto"]:
        return read_shards(self.problems, value, self._rule)

    def shard_by(self, value: Any) -> ShardRule:
        return self._rule

    @cached_property
    def _rule(self) -> ShardRule:
        return read_rule(self.problems, self.given["shard_by"], self.files)

    def on_suppress(self, value: Any) -> OnSuppress | None:
        return one_of(self.problems, "on_suppress", value, OnSuppress)

    def seed(self, value: Any) -> int | None:
        return None if value is None else an_integer(self.problems, "seed", value, 0)

    def secret(self, value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not REFERENCE.fullmatch(value):
            # The value may be the secret itself, so it is not repeated.
            self.problems.add(
                "secret",
                "must be env:NAME, file:/PATH (an absolute path) or gcp:projects/P/secrets/S/versions/N: it says where "
                "the secret is, and never holds it.",
            )
            return None
        return value

    def _must(self, path: str, rule: str, value: Any) -> None:
        if value is _ABSENT:
            self.problems.add(path, f"must be {rule}; it is not given.")
        else:
            self.problems.must(path, rule, value)

    def _column(self, path: str, name: Any) -> None:
        if not isinstance(name, str) or not name:
            self._must(path, "the name of a column", name)

    def _names(self, path: str, value: Iterable[Any]) -> list[str]:
        names: list[str] = []
        for name in value:
            if not isinstance(name, str) or not name:
                self.problems.must(path, "a list of columns' names", name)
            elif name in names:
                self.problems.add(path, f"must name each column once, not {name!r} again.")
            else:
                names.append(name)
        return names

    def _build(self, path: str, cls: type, spec: dict[str, Any], make: Any) -> Any:
        """Make an object from its fields; None if they are wrong."""
        known = [f.name for f in dataclasses.fields(cls) if f.init]
        unknown = [key for key in spec if key not in known]
        for key in unknown:
            self.problems.unknown(path, key, known)
        said = {key: value for key, value in spec.items() if key in known}
        needed = [
            f.name
            for f in dataclasses.fields(cls)
            if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        absent = [name for name in needed if name not in said]
        for name in absent:
            self.problems.add(f"{path}.{name}", "must be given.")
        if absent:
            return None
        try:
            return make(said)
        except PolicyError as error:
            self.problems.include(path, error)
        except (ValueError, TypeError) as error:  # raised by a type of the user's own
            self.problems.add(path, f": {error}")
        return None


def _sensitive_spec(sensitive: Mapping[str, Sensitive]) -> Any:
    if all(column == Sensitive() for column in sensitive.values()):
        return list(sensitive)
    return {name: column.to_spec() for name, column in sensitive.items()}


def _parameters_spec(parameters: Any) -> dict[str, Any]:
    spec = {f.name: getattr(parameters, f.name) for f in dataclasses.fields(parameters)}
    return {name: _plain(value) for name, value in spec.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return dict(value) if isinstance(value, Mapping) else value


def _kind(given: Any) -> str:
    name = type(given).__name__
    article = "an" if name[0] in "aeiou" else "a"
    return "None" if given is None else "text" if isinstance(given, str) else f"{article} {name}"
