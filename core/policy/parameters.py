"""The parameters of each method: what a policy's `parameters` may hold."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from crenel.policy import sampling_privacy as differential
from crenel.policy.checks import Problems, a_boolean, a_number, an_integer, as_number, one_of, short, suggestion
from crenel.policy.durations import A_DURATION, a_duration, format_duration
from crenel.policy.frozen import FrozenDict
from crenel.policy.geometry import Interval, Radix, Tree

__all__ = [
    "METHODS",
    "AdaptiveWindowParameters",
    "BastionParameters",
    "CastleGuardParameters",
    "CastleParameters",
    "Cover",
    "FaanstParameters",
    "MinDelayParameters",
    "MondrianParameters",
    "PartitionParameters",
    "PartitionReuse",
    "RTreeDensityParameters",
    "RTreeParameters",
    "Reuse",
    "SdgsParameters",
    "WindowReuse",
    "register_method_parameters",
    "takes_holes",
]


class Reuse(Enum):
    """Whether a row may leave under a generalization that was published before."""

    #: One of those that contain the row, drawn uniformly.
    UNIFORM = "uniform"

    #: Never.
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class CastleParameters:
    """The parameters of `castle`, by the paper's letters."""

    #: The most clusters held at once. More find closer company for a row, and cost more time for
    #: each.
    beta: int = 50

    #: How many of the last releases' losses the threshold tau is the mean of.
    mu: int = 100

    #: Whether a published generalization may take later rows; a late row is otherwise merged or
    #: suppressed.
    reuse: Reuse = Reuse.UNIFORM

    #: The most generalizations kept for reuse; the oldest go first. It bounds memory.
    max_reusable: int = 1000

    #: Whether rows are taken in the order of their event times instead of their arrival. Needs
    #: one kind of delay.
    reorder: bool = False

    def __post_init__(self) -> None:
        problems = Problems()
        clean = self._checked(problems)
        problems.raise_if_any("parameters")
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def _checked(self, problems: Problems) -> dict[str, Any]:
        # YAML reads a bare `off` as False.
        reuse: Any = self.reuse
        if reuse is False:
            reuse = "off"
        return {
            "beta": an_integer(problems, "beta", self.beta, 1),
            "mu": an_integer(problems, "mu", self.mu, 1),
            "reuse": one_of(problems, "reuse", reuse, Reuse),
            "max_reusable": an_integer(problems, "max_reusable", self.max_reusable, 0),
            "reorder": a_boolean(problems, "reorder", self.reorder),
        }


@dataclass(frozen=True, kw_only=True)
class CastleGuardParameters(CastleParameters):
    """The parameters of `castleguard`: those of `castle`, and what it samples and perturbs by."""

    #: Boxes are over perturbed values, and need not contain a row's own; rows are left out at random.
    perturbs: ClassVar[bool] = True
    samples: ClassVar[bool] = True

    #: The chance that a row is kept: the paper's beta. The others are neither published nor suppressed.
    beta_sample: float = 0.5

    #: The range of a quasi-identifier over the scale of its Laplace noise: more is less noise.
    phi: float = 100.0

    #: Sensitive columns that leave with noise, and the budget (an epsilon) of each.
    perturb_sensitive: Mapping[str, float] = FrozenDict()

    def _checked(self, problems: Problems) -> dict[str, Any]:
        return super()._checked(problems) | {
            "beta_sample": _chance(problems, self.beta_sample),
            "phi": a_number(problems, "phi", self.phi, "a number above 0", 0, math.inf),
            "perturb_sensitive": _budgets(problems, self.perturb_sensitive),
        }

    def check(self, policy: Mapping[str, Any], problems: Problems) -> None:
        """Note what does not fit the rest of the policy."""
        _no_closeness(policy, problems)
        for name in self.perturb_sensitive:
            path = f"parameters.perturb_sensitive.{name}"
            column = policy["sensitive"].get(name)
            if column is None:
                known = suggestion(name, policy["sensitive"])
                problems.add(path, f"must name a sensitive column; {known}they are: {_listed(policy['sensitive'])}.")
            elif column.size is None:
                problems.add(path, f"needs the values or the domain of sensitive.{name}: noise is drawn from these.")
            if isinstance(policy["shard_by"], tuple) and name in policy["shard_by"]:
                problems.add("shard_by", f"must not name {name!r}, which is perturbed: its shard would show it.")


class Cover(Enum):
    """What a cell of `sdgs` has in common, and so what its guarantee covers."""

    #: All that leaves: the quasi-identifiers' cell and the sensitive values.
    ALL = "all"

    #: The quasi-identifiers' cell alone: sensitive and published columns are not covered.
    QUASI_IDENTIFIERS = "quasi_identifiers"


@dataclass(frozen=True, kw_only=True)
class SdgsParameters:
    """The parameters of `sdgs`: sampling, and a grid that does not depend on the data."""

    samples: ClassVar[bool] = True

    #: The chance that a person is kept in a window: the paper's beta.
    beta_sample: float = 0.5

    #: The epsilon that delta is stated for; None: the least, -ln(1 - beta_sample).
    epsilon: float | None = None

    #: For each quasi-identifier how fine the grid is: bins of a domain, levels below a hierarchy's root, characters of
    #: a prefix. Where it is not said: 10 bins (or as many as a step leaves cells), 1 level, half of the characters.
    grid: Mapping[str, int] = FrozenDict()

    #: What the rows of a cell have in common.
    cover: Cover = Cover.ALL

    def __post_init__(self) -> None:
        problems = Problems()
        clean: dict[str, Any] = {
            "beta_sample": _chance(problems, self.beta_sample),
            "epsilon": _epsilon(problems, self.epsilon, self.beta_sample),
            "grid": _fineness(problems, self.grid),
            "cover": one_of(problems, "cover", self.cover, Cover),
        }
        problems.raise_if_any("parameters")
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def fineness(self, name: str, geometry: Interval | Radix | Tree) -> int:
        """How fine the grid is in this quasi-identifier."""
        if isinstance(geometry, Interval):
            usual = min(10, _most_bins(geometry))
        else:
            usual = 1 if isinstance(geometry, Tree) else max(geometry.length // 2, 1)
        return self.grid.get(name, usual)

    def check(self, policy: Mapping[str, Any], problems: Problems) -> None:
        """Note what does not fit the rest of the policy."""
        _no_closeness(policy, problems)
        if policy["on_suppress"].value != "drop":
            problems.add(
                "on_suppress",
                "must be 'drop' with the method sdgs: a row published as * would show what fewer than k persons have.",
            )
        if policy["shards"] > 1 and getattr(policy["shard_by"], "value", None) != "person":
            problems.add(
                "shard_by",
                "must be 'person' with the method sdgs: a person would count once in each of several shards.",
            )
        self._check_grid(policy["quasi_identifiers"], problems)
        if self.cover is Cover.ALL:
            self._check_cover(policy, problems)

    def _check_grid(self, columns: Mapping[str, Any], problems: Problems) -> None:
        for name in self.grid:
            if name not in columns:
                known = suggestion(name, columns)
                problems.add(
                    f"parameters.grid.{name}", f"must name a quasi-identifier; {known}they are: {_listed(columns)}."
                )
        for name, column in columns.items():
            geometry = column.geometry
            if isinstance(geometry, Interval):
                if geometry.learned:
                    rule = "must be declared with the method sdgs: its grid must not depend on the data."
                    problems.add(f"quasi_identifiers.{name}.domain", rule)
                least, most, what = 1, _most_bins(geometry), "bins"
            elif isinstance(geometry, Radix):
                least, most, what = 0, geometry.length, "characters"
            else:
                least, most, what = 0, depth(geometry), "levels below the root"
            fineness = self.fineness(name, geometry)
            if not least <= fineness <= most:
                problems.must(f"parameters.grid.{name}", f"a number of {what} from {least} to {most}", fineness)

    def _check_cover(self, policy: Mapping[str, Any], problems: Problems) -> None:
        otherwise = "or parameters.cover be 'quasi_identifiers', which leaves it out of the guarantee."
        if policy["publish"]:
            problems.add("publish", f"must be empty with the method sdgs, {otherwise}")
        for name, column in policy["sensitive"].items():
            if column.domain is not None:
                rule = f"must not be given with the method sdgs, whose cells are of equal values, {otherwise}"
                problems.add(f"sensitive.{name}.domain", rule)


def _most_bins(geometry: Interval) -> int:
    """How many bins a domain may be cut into; one with a step is cut between its cells."""
    if geometry.cells and geometry.lo is not None and geometry.hi is not None:
        return min(1_000_000, int(geometry.hi - geometry.lo) + 1)
    return 1_000_000


def depth(tree: Tree) -> int:
    """The number of levels below a tree's root."""
    level = [0] * len(tree.parent)
    for node, parent in enumerate(tree.parent.tolist()[1:], start=1):
        level[node] = level[parent] + 1
    return max(level)


def _chance(problems: Problems, value: Any) -> float | None:
    number = as_number(value)
    if number is None or not 0 < number <= 1:
        problems.must("beta_sample", "a number above 0 and at most 1", value)
        return None
    return number


def _epsilon(problems: Problems, value: Any, chance: Any) -> float | None:
    beta = as_number(chance)
    if value is None or beta is None or not 0 < beta <= 1:
        return None
    if beta == 1:
        problems.add("epsilon", "needs a beta_sample below 1: without sampling there is no differential privacy.")
        return None
    number = as_number(value)
    if number is None or not differential.is_epsilon(number, beta):
        problems.must("epsilon", differential.epsilon_range(beta), value)
        return None
    return number


def _budgets(problems: Problems, given: Any) -> FrozenDict[float]:
    if not isinstance(given, Mapping):
        problems.must("perturb_sensitive", "a mapping of sensitive columns to their budgets", given)
        return FrozenDict()
    rule = "a budget, a number above 0"
    budgets = {n: a_number(problems, f"perturb_sensitive.{n}", v, rule, 0, math.inf) for n, v in given.items()}
    return FrozenDict({name: budget for name, budget in budgets.items() if budget is not None})


def _fineness(problems: Problems, given: Any) -> FrozenDict[int]:
    if not isinstance(given, Mapping):
        problems.must("grid", "a mapping of quasi-identifiers to integers", given)
        return FrozenDict()
    return FrozenDict({name: an_integer(problems, f"grid.{name}", value, 0) for name, value in given.items()})


def _no_closeness(policy: Mapping[str, Any], problems: Problems) -> None:
    if policy["t"] is not None:
        problems.add(
            "t",
            f"must not be given with the method {policy['method']}: the distribution it is compared with is that of "
            "all rows, and some are left out.",
        )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or short(None)


class PartitionReuse(Enum):
    """Which of the published generalizations that contain a row it may leave under."""

    #: The least lossy, as in the paper. Who sees it chosen knows that the row is in no better one.
    BEST = "best"

    #: One of them, drawn uniformly.
    UNIFORM = "uniform"

    #: One of them, drawn by weights that fall with the loss.
    WEIGHTED = "weighted"

    #: None.
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class PartitionParameters:
    """The parameters of `partition`."""

    #: Rows may lack quasi-identifiers.
    takes_holes: ClassVar[bool] = True

    #: A set of quasi-identifiers is a number of 64 bits, of which one is the sign.
    MOST_QUASI_IDENTIFIERS: ClassVar[int] = 62

    #: Which published generalization a row may leave under.
    reuse: PartitionReuse = PartitionReuse.UNIFORM

    #: How long one may be used again, the paper's omega: a number of arrivals, or a duration of event time. None: a
    #: tenth of `delay_rows`, or else of `delay`.
    reuse_for: int | str | None = None

    #: How steeply the weights of `reuse: weighted` fall with the loss; 0: not at all.
    eta: float = 1.0

    #: The most generalizations kept for reuse; the oldest go first. It bounds memory.
    max_reusable: int = 1000

    #: Whether a group of rows with different quasi-identifiers publishes all of them, also for rows that lack one,
    #: instead of those that every row has.
    fill_missing: bool = False

    def __post_init__(self) -> None:
        problems = Problems()
        # YAML reads a bare `off` as False.
        reuse: Any = self.reuse
        if reuse is False:
            reuse = "off"
        clean: dict[str, Any] = {
            "reuse": one_of(problems, "reuse", reuse, PartitionReuse),
            "reuse_for": self._checked_reuse_for(problems),
            "eta": self._checked_eta(problems),
            "max_reusable": an_integer(problems, "max_reusable", self.max_reusable, 0),
            "fill_missing": a_boolean(problems, "fill_missing", self.fill_missing),
        }
        problems.raise_if_any("parameters")
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def _checked_reuse_for(self, problems: Problems) -> int | str | None:
        given = self.reuse_for
        if given is None:
            return None
        if isinstance(given, int):
            return an_integer(problems, "reuse_for", given, 1)
        return format_duration(a_duration(problems, "reuse_for", given, at_least=1))

    def _checked_eta(self, problems: Problems) -> float:
        number = as_number(self.eta)
        if number is None or number < 0:
            problems.must("eta", "a number of at least 0", self.eta)
            return 0.0
        return number

    def check(self, policy: dict[str, Any], problems: Problems) -> None:
        """What the fields of a policy have to say to this method."""
        if policy["t"] is not None:
            problems.add("t", "must not be given with the method partition, which has no t-closeness; use l.")
        if isinstance(self.reuse_for, str) and policy["delay"] is None:
            problems.add("parameters.reuse_for", "must be a number of rows where policy.delay is not given.")
        most = self.MOST_QUASI_IDENTIFIERS
        if len(policy["quasi_identifiers"]) > most:
            problems.add("quasi_identifiers", f"must be at most {most} with the method partition.")


class WindowReuse(Enum):
    """Which of the generalizations that were published before, and contain a row, it may leave under."""

    #: One of them, drawn uniformly.
    UNIFORM = "uniform"

    #: The one of least loss, as in the papers. It tells where the row is not: see `docs/adaptive-window.md`.
    BEST = "best"

    #: None.
    OFF = "off"


def _no_t(policy: Mapping[str, Any], problems: Problems) -> None:
    if policy["t"] is not None:
        problems.add("t", f"must be left out with method {policy['method']!r}, which does not promise it.")


@dataclass(frozen=True, kw_only=True)
class MondrianParameters:
    """The parameters of `mondrian`."""

    #: Whether rows of equal values may be cut apart where no other cut is allowed.
    relaxed: bool = True

    def __post_init__(self) -> None:
        problems = Problems()
        a_boolean(problems, "relaxed", self.relaxed)
        problems.raise_if_any("parameters")

    def check(self, policy: Mapping[str, Any], problems: Problems) -> None:
        """Refuse what the method does not promise."""
        _no_t(policy, problems)


@dataclass(frozen=True, kw_only=True)
class AdaptiveWindowParameters:
    """The parameters of `adaptive-window`; durations as the policy takes them, kept in microseconds."""

    #: The least life of a window, t_l in the paper. None: two fifths of the policy's delay.
    min_delay: int | None = None

    #: The most life of a window, t_u in the paper. None: the policy's delay.
    max_delay: int | None = None

    #: How likely it must be that enough company comes for a row to wait, delta in the paper.
    threshold: float = 0.4

    #: The most rows of a window that may be left over, so that the others lose less.
    spare: int = 5

    #: Event time that anonymizing takes, T_A in the paper: a row's remaining life is that much less.
    processing: int = 0

    #: Under which of the published generalizations that contain a row it may leave.
    reuse: WindowReuse = WindowReuse.UNIFORM

    #: The most generalizations kept for reuse; the oldest go first. It bounds memory.
    max_reusable: int = 1000

    def __post_init__(self) -> None:
        problems = Problems()
        clean: dict[str, Any] = {
            "min_delay": _optional_duration(problems, "min_delay", self.min_delay),
            "max_delay": _optional_duration(problems, "max_delay", self.max_delay),
            "threshold": a_number(problems, "threshold", self.threshold, "a number above 0 and below 1", 0, 1),
            "spare": an_integer(problems, "spare", self.spare, 0),
            "processing": a_duration(problems, "processing", self.processing, at_least=0),
            "reuse": _window_reuse(problems, self.reuse),
            "max_reusable": an_integer(problems, "max_reusable", self.max_reusable, 0),
        }
        problems.raise_if_any("parameters")
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def lives(self, delay: int) -> tuple[int, int]:
        """The least and the most life of a window, in microseconds."""
        least = max(2 * delay // 5, 1) if self.min_delay is None else self.min_delay
        return least, delay if self.max_delay is None else self.max_delay

    def check(self, policy: Mapping[str, Any], problems: Problems) -> None:
        """Refuse what the method does not promise, and spans that contradict each other."""
        _no_t(policy, problems)
        delay = policy["delay"]
        if delay is None:
            problems.add("delay", "must be given with method 'adaptive-window': its windows are spans of time.")
            return
        least, most = self.lives(delay)
        tick = max(delay // 16, 1)
        if most > delay:
            rule = f"at most delay ({format_duration(delay)}): a row must leave by then"
            problems.must("parameters.max_delay", rule, format_duration(most))
        if not tick <= least <= most:
            rule = f"from a sixteenth of delay to max_delay ({format_duration(tick)} to {format_duration(most)})"
            problems.must("parameters.min_delay", rule, format_duration(least))
        if self.processing >= delay:
            rule = f"less than delay ({format_duration(delay)})"
            problems.must("parameters.processing", rule, format_duration(self.processing))


@dataclass(frozen=True, kw_only=True)
class FaanstParameters:
    """The parameters of `faanst-passive` and `faanst-proactive`."""

    #: Rows in the buffer when it is looked at. None: the policy's delay_rows.
    mu: int | None = None

    #: Clusters that the rows of the buffer are sorted into. None: mu / k.
    clusters: int | None = None

    #: The most loss of a cluster that is published, and may be used again.
    max_loss: float = 0.5

    #: Under which of the published generalizations that contain a row it may leave.
    reuse: WindowReuse = WindowReuse.UNIFORM

    #: The most generalizations kept for reuse; the oldest go first. It bounds memory.
    max_reusable: int = 1000

    def __post_init__(self) -> None:
        problems = Problems()
        clean: dict[str, Any] = {
            "mu": None if self.mu is None else an_integer(problems, "mu", self.mu, 2),
            "clusters": None if self.clusters is None else an_integer(problems, "clusters", self.clusters, 1),
            "max_loss": a_number(problems, "max_loss", self.max_loss, "a number above 0 and at most 1", 0, 1.0000001),
            "reuse": _window_reuse(problems, self.reuse),
            "max_reusable": an_integer(problems, "max_reusable", self.max_reusable, 0),
        }
        problems.raise_if_any("parameters")
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def check(self, policy: Mapping[str, Any], problems: Problems) -> None:
        """Refuse what the method does not promise, and a buffer that contradicts the policy."""
        _no_t(policy, problems)
        k, delay_rows = policy["k"], policy["delay_rows"]
        if self.mu is None:
            if delay_rows is None:
                problems.add("parameters.mu", "must be given if delay_rows is not: it is the size of the buffer.")
        elif self.mu < k:
            problems.must("parameters.mu", f"at least k ({k}): fewer rows are never a group", self.mu)
        elif delay_rows is not None and self.mu > delay_rows:
            problems.must("parameters.mu", f"at most delay_rows ({delay_rows}): rows leave by then", self.mu)


def _optional_duration(problems: Problems, name: str, value: Any) -> int | None:
    return None if value is None else a_duration(problems, name, value, at_least=1)


def _window_reuse(problems: Problems, value: Any) -> WindowReuse | None:
    # YAML reads a bare `off` as False.
    return one_of(problems, "reuse", "off" if value is False else value, WindowReuse)


def _refuse_t(policy: Mapping[str, Any], problems: Problems) -> None:
    if policy["t"] is not None:
        problems.add("t", f"is not kept by the method {policy['method']!r}: leave it out, or use bastion or castle.")


@dataclass(frozen=True, kw_only=True)
class MinDelayParameters:
    """`min-delay` has no parameters."""

    def check(self, policy: Mapping[str, Any], problems: Problems) -> None:
        """Note what of a policy does not go with the method."""
        _refuse_t(policy, problems)


@dataclass(frozen=True, kw_only=True)
class RTreeParameters:
    """The parameters of `rtree`."""

    #: How many rows are held, about. More find closer company, and leave later. None: 30 k.
    active_rows: int | None = None

    #: Event time that publishing times and delays are counted in, such as `1s`; None: arrivals.
    instant: str | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        for name, value in self._clean(problems).items():
            object.__setattr__(self, name, value)
        problems.raise_if_any("parameters")

    def _clean(self, problems: Problems) -> dict[str, Any]:
        active, instant = self.active_rows, self.instant
        return {
            "active_rows": active if active is None else an_integer(problems, "active_rows", active, 1),
            "instant": None if instant is None else _a_text_of_time(problems, "instant", instant),
        }

    def check(self, policy: Mapping[str, Any], problems: Problems) -> None:
        """Note what of a policy does not go with the method."""
        _refuse_t(policy, problems)
        if self.active_rows is not None and self.active_rows < 2 * policy["k"]:
            rule = f"at least 2 k ({2 * policy['k']}): there is no choice among fewer rows"
            problems.must("parameters.active_rows", rule, self.active_rows)
        if self.instant is not None and policy["delay"] is None:
            problems.add("parameters.instant", "needs policy.delay: without it event times do not count.")


@dataclass(frozen=True, kw_only=True)
class RTreeDensityParameters(RTreeParameters):
    """The parameters of `rtree-density` and `rtree-full`."""

    #: What an instant's delay adds to a row's loss, as a part of it.
    alpha: float = 0.001

    #: How many samples of the last rows say where the stream is dense: omega of the paper.
    sample: int = 3000

    #: Of how many last rows: W of the paper.
    window_rows: int = 10_000

    def _clean(self, problems: Problems) -> dict[str, Any]:
        return {
            **super()._clean(problems),
            "alpha": a_number(problems, "alpha", self.alpha, "a number from 0 up to 1", -math.ulp(0.0), 1.0),
            "sample": an_integer(problems, "sample", self.sample, 1),
            "window_rows": an_integer(problems, "window_rows", self.window_rows, 1),
        }

    def check(self, policy: Mapping[str, Any], problems: Problems) -> None:
        """Note what of a policy does not go with the method."""
        super().check(policy, problems)
        if self.sample > self.window_rows:
            rule = f"at most window_rows ({self.window_rows})"
            problems.must("parameters.sample", rule, self.sample)


def _a_text_of_time(problems: Problems, path: str, value: Any) -> str | None:
    """The duration, as text: a bare number would not say of what."""
    if not isinstance(value, (str, dt.timedelta)):
        problems.must(path, A_DURATION, value)
        return None
    return format_duration(a_duration(problems, path, value, 1))


@dataclass(frozen=True, kw_only=True)
class BastionParameters:
    """The parameters of `bastion`."""

    #: Whether a row may leave alone under a generalization that was published before.
    reuse: bool = False

    #: How much a generalization of less loss is preferred for reuse: one that loses a quarter of the average more than
    #: the best, or worse, is drawn e^eta times less often. 0 is CASTLE's uniform draw.
    eta: float = 4.6

    #: How much a row that will be hard to find company for is preferred as a member of a group.
    lonely: float = 0.25

    #: The most rows that a group is chosen among: where more are held, those that fit best. It bounds the time.
    search: int = 8192

    #: The most generalizations kept for reuse; the oldest go first. It bounds memory.
    max_reusable: int = 4000

    #: Whether rows are taken in the order of their event times instead of their arrival. Needs one kind of delay.
    reorder: bool = False

    @property
    def crowd(self) -> bool:
        """Whether every row that is not suppressed leaves among rows of k persons, at one moment."""
        # Rows that leave in the order of the input do not leave together.
        return not self.reuse and not self.reorder

    def __post_init__(self) -> None:
        # As other methods call it; YAML reads a bare `off` as False.
        reuse: Any = self.reuse
        if reuse == "off":
            reuse = False
        problems = Problems()
        clean: dict[str, Any] = {
            "reuse": a_boolean(problems, "reuse", reuse),
            "eta": a_number(problems, "eta", self.eta, "a number from 0 to 20", -1e-300, 20.0 + 1e-9),
            "lonely": a_number(problems, "lonely", self.lonely, "a number from 0 to 1", -1e-300, 1.0 + 1e-9),
            "search": an_integer(problems, "search", self.search, 2),
            "max_reusable": an_integer(problems, "max_reusable", self.max_reusable, 0),
            "reorder": a_boolean(problems, "reorder", self.reorder),
        }
        problems.raise_if_any("parameters")
        for name, value in clean.items():
            object.__setattr__(self, name, value)


#: For each method the frozen dataclass of its parameters.
METHODS: dict[str, type] = {
    "bastion": BastionParameters,
    "castle": CastleParameters,
    "castleguard": CastleGuardParameters,
    "partition": PartitionParameters,
    "sdgs": SdgsParameters,
    "mondrian": MondrianParameters,
    "adaptive-window": AdaptiveWindowParameters,
    "faanst-passive": FaanstParameters,
    "faanst-proactive": FaanstParameters,
    "min-delay": MinDelayParameters,
    "rtree": RTreeParameters,
    "rtree-density": RTreeDensityParameters,
    "rtree-full": RTreeDensityParameters,
}


def takes_holes(parameters: Any) -> bool:
    """Whether the method of these parameters takes rows that lack quasi-identifiers."""
    return bool(getattr(parameters, "takes_holes", False))


def register_method_parameters(name: str, parameters: type) -> None:
    """Make a method known to policies.

    Its parameters are a frozen dataclass with a default for each field. If it has a method `check(policy, problems)`,
    that is asked about the fields of a policy that are right by themselves.
    """
    if not dataclasses.is_dataclass(parameters):
        msg = f"parameters of {name!r} must be a dataclass, not {parameters!r}."
        raise TypeError(msg)
    if METHODS.setdefault(name, parameters) is not parameters:
        msg = f"the method {name!r} must be registered once; it has {METHODS[name].__name__}."
        raise ValueError(msg)
