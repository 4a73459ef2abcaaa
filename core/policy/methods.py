"""Methods: the one declaration of each, and the registry that finds it by its name.

An installed package declares a method by an entry point in the group `crenel.methods`; crenel declares its own in the
same way:

    [project.entry-points."crenel.methods"]
    my-method = "my_package.my_method:METHOD"

A test or a notebook calls `register` instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from crenel.errors import PolicyError
from crenel.policy.checks import Problems, short, suggestion
from crenel.policy.parameters import Parameter, Parameters, Reuse, declared

__all__ = ["GROUP", "Method", "declaring", "find", "names", "register"]

#: The group of the entry points that declare methods.
GROUP = "crenel.methods"

#: Makes an engine from a policy and the 32 bytes of its generator's key.
MakeEngine = Callable[[Any, bytes], Any]


def _no_crowd(parameters: Any) -> bool:
    return False


def _nothing_to_check(policy: Mapping[str, Any], problems: Problems) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Method:
    """The one declaration of a method. Policies, engines, transforms, checks and pages all read it.

    Raises:
        TypeError: `parameters` is not a `Parameters` class, or one of its fields is not declared by `parameter`.
    """

    #: The name that a policy gives as its `method`.
    name: str

    #: What the method does, in one sentence.
    summary: str

    #: The class of its parameters.
    parameters: type[Parameters]

    #: Its engine, as "package.module:Class", which is imported when the first engine is made; or a callable. It is
    #: called with the policy and a key of 32 bytes.
    engine: str | MakeEngine

    #: The Avro schema of its snapshots, as "package:file"; None if it stores something else.
    snapshot: str | None = None

    #: Whether it keeps `l`: enough distinct sensitive values in every group.
    keeps_l: bool = True

    #: Whether it keeps `t`: sensitive values distributed like those of the whole stream.
    keeps_t: bool = False

    #: Whether it takes rows that lack quasi-identifiers, and may leave a quasi-identifier out of a release.
    takes_holes: bool = False

    #: Whether it leaves out rows at random. It then has a parameter `beta_sample`, the probability that a row is kept.
    samples: bool = False

    #: Whether it changes values, so that a published generalization need not contain the row's own.
    perturbs: bool = False

    #: Whether `k` holds for each published value by itself, and not for their combination: at least k persons had the
    #: value within the parameter `window` (else within `delay`) before. No release is a group then.
    value_by_value: bool = False

    #: Whether a published range ends at values of rows, so that an attacker may read somebody's value off it.
    ends_at_values: bool = True

    #: Whether every published row leaves in a crowd under these parameters: in a release of rows of at least k
    #: persons, each person in it once, at one moment.
    crowd: Callable[[Any], bool] = _no_crowd

    #: What somebody who chooses the method must know, in a sentence or two that `crenel check` shows; empty: nothing.
    caution: str = ""

    #: Adds to the problems what is special to the method, from the policy's fields by their names. Called only if
    #: every field is valid by itself.
    check: Callable[[Mapping[str, Any], Problems], None] = _nothing_to_check

    def __post_init__(self) -> None:
        if not (isinstance(self.parameters, type) and issubclass(self.parameters, Parameters)):
            msg = f"Method {self.name!r}: parameters must be a subclass of Parameters, not {self.parameters!r}."
            raise TypeError(msg)
        fields = declared(self.parameters)
        if self.samples and "beta_sample" not in fields:
            msg = f"Method {self.name!r}: a method that samples must have a parameter 'beta_sample'."
            raise TypeError(msg)
        if self.value_by_value and "window" not in fields:
            msg = f"Method {self.name!r}: a method that counts persons value by value must have a parameter 'window'."
            raise TypeError(msg)
        if "reuse" in fields and not all(isinstance(value, Reuse) for value in fields["reuse"].choices or (None,)):
            msg = f"Method {self.name!r}: reuse must be declared by crenel.policy.parameters.reuse."
            raise TypeError(msg)

    @property
    def fields(self) -> Mapping[str, Parameter]:
        """What is declared about each of its parameters."""
        return declared(self.parameters)

    @property
    def reuses(self) -> tuple[Reuse, ...]:
        """The values that its parameter `reuse` takes, the default first; empty if it has no such parameter."""
        return self.fields["reuse"].choices if "reuse" in self.fields else ()

    @property
    def reorders(self) -> bool:
        """Whether it has the parameter `reorder`, which publishes rows in the order of the input."""
        return "reorder" in self.fields

    def load_engine(self) -> MakeEngine:
        """Return what makes an engine, and import its module first if need be.

        Raises:
            PolicyError: the engine cannot be imported.
        """
        if not isinstance(self.engine, str):
            return self.engine
        module, _, name = self.engine.partition(":")
        try:
            made: MakeEngine = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            why = f": the engine of {self.name!r} cannot be loaded from {self.engine}: {error}"
            raise PolicyError([("method", why)]) from error
        return made


#: Methods registered in this process.
_registered: dict[str, Method] = {}

#: Declarations of installed packages that have been imported.
_loaded: dict[str, Method] = {}


def names() -> tuple[str, ...]:
    """Return the names of all methods, sorted."""
    return tuple(sorted({*_installed(), *_registered}))


def find(name: Any) -> Method:
    """Return the declaration of a method.

    Raises:
        PolicyError: there is no such method, or the package that declares it is broken.
    """
    if isinstance(name, str):
        known = _registered.get(name) or _loaded.get(name)
        if known is not None:
            return known
        if name in _installed():
            return _loaded.setdefault(name, _load(name, _installed()[name]))
    raise PolicyError([("method", _unknown(name))])


def declaring(what: str) -> list[str]:
    """Return the names of the methods that declare this, such as `keeps_t`; broken declarations are left out."""
    found = []
    for name in names():
        try:
            method = find(name)
        except PolicyError:  # reported when a policy asks for that method
            continue
        if getattr(method, what):
            found.append(name)
    return found


def register(method: Method) -> None:
    """Make a method known in this process alone, for tests and notebooks.

    Registering a name again replaces the earlier declaration, so that a notebook's cell can be run twice.

    Raises:
        ValueError: an installed package declares a method of this name.
    """
    if method.name in _installed():
        msg = f"the method {method.name!r} is declared by an installed package; choose another name."
        raise ValueError(msg)
    _registered[method.name] = method


@lru_cache(maxsize=1)
def _installed() -> dict[str, list[EntryPoint]]:
    """The entry points of each name; more than one if packages disagree."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        same = found.setdefault(point.name, [])
        if point.value not in [other.value for other in same]:
            same.append(point)
    return found


def _load(name: str, points: list[EntryPoint]) -> Method:
    if len(points) > 1:
        # Which package comes first on the path must not decide what is guaranteed.
        listed = " and ".join(point.value for point in points)
        raise PolicyError([("method", f": {name!r} is declared more than once: {listed}. Uninstall one package.")])
    (point,) = points
    try:
        method = point.load()
    except Exception as error:
        why = f": {name!r} cannot be loaded from {point.value}: {type(error).__name__}: {error}"
        raise PolicyError([("method", why)]) from error
    if not isinstance(method, Method) or method.name != name:
        why = f": {name!r} cannot be loaded: {point.value} must be a Method with this name, not {short(method)}."
        raise PolicyError([("method", why)])
    return method


def _unknown(name: Any) -> str:
    known = names()
    if not known:
        return "cannot be found: no methods are installed. Install crenel again, so that its entry points are written."
    guess = suggestion(name, known)
    near = f" ({guess.rstrip()})" if guess else ""
    return f"must be one of {', '.join(known)}{near}, not {short(name)}."
