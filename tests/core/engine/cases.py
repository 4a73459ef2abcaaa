"""Hypothesis strategies for test streams: policies, rows, and the calls that push the rows into an engine.

`cases()` prefers awkward streams: ties, constant columns, persons who return, `k` above the number of persons, times
that stand still or go back. Most streams draw most rows from a few places (`crenel.testing.engine_streams` says why).
`test_cases.py` checks that the strategy reaches splits, reuse and suppression often enough for the checks to mean
something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from crenel.encoding.rows import Rows
from crenel.engine.methods.adaptive_window import AdaptiveWindowParameters
from crenel.engine.methods.bastion import BastionParameters
from crenel.engine.methods.castle import CastleParameters
from crenel.engine.methods.castleguard import CastleGuardParameters
from crenel.engine.methods.faanst import FaanstParameters
from crenel.engine.methods.fads import FadsParameters
from crenel.engine.methods.mondrian import MondrianParameters
from crenel.engine.methods.partition import PartitionParameters
from crenel.engine.methods.rtree import MinDelayParameters, RTreeDensityParameters, RTreeParameters
from crenel.engine.methods.sdgs import Cover, SdgsParameters
from crenel.engine.methods.z_anonymity import ZAnonymityParameters
from crenel.policy import OnSuppress, Policy, Sensitive
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.methods import find
from crenel.policy.parameters import Reuse
from crenel.policy.quasi_identifiers import Categorical, Datetime, Numeric, Prefix
from crenel.testing.engine_streams import STEPS, Advance, Case, make_rows

MOST_ROWS = 80

#: Hypothesis draws the values of at most this many rows itself, and can shrink them.
MOST_DRAWN = 25


def judged(case: Case, oracle: Any) -> list[Any]:
    """Pass the stream to an oracle, with rows as tuples, and return its releases."""
    columns = (case.rows.qi, case.rows.person, case.rows.sensitive, case.rows.time)
    listed = list(zip(*(column.tolist() for column in columns), strict=True))
    releases: list[Any] = []
    for call in case.calls():
        releases += (
            oracle.advance(call.now) if isinstance(call, Advance) else oracle.push(listed[call.start : call.stop])
        )
    return releases + list(oracle.flush())


def promised(policy: Policy) -> dict[str, Any]:
    """Return a policy as keyword arguments for an oracle, without the method's parameters."""
    columns = policy.quasi_identifiers.values()
    return {
        "geometries": [qi.geometry for qi in columns],
        "weights": [qi.weight for qi in columns],
        "k": policy.k,
        "l": policy.l,
        "t": policy.t,
        "sensitive": [(column.ordered, column.size) for column in policy.sensitive.values()],
        "delay": policy.delay,
        "delay_rows": policy.delay_rows,
        "disorder": policy.disorder,
    }


# --- Quasi-identifiers, each with a strategy for its coordinates ---

RAGGED = Hierarchy.from_mapping(
    {"a": ["a1", "a2", "a3"], "b": {"b1": ["b11", "b12"], "b2": ["b21", "b22", "b23"]}, "c": None}
)
CHAIN = Hierarchy.from_mapping({"x": {"y": {"z": ["z1", "z2"]}}})
FLAT = Hierarchy.flat(["p", "q", "r", "s"])
SINGLE = Hierarchy.flat(["only"])

# 2023, in microseconds: as far from 0 as real coordinates are.
YEAR_2023 = 1_672_531_200_000_000


@st.composite
def _numeric(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[float]]:
    lo, hi = draw(st.sampled_from([(0.0, 10.0), (-5.5, 3.25), (-1e9, 1e9), (0.0, 0.1)]))
    steps = draw(st.sampled_from([1, 3, 10, 1000]))
    return (
        Numeric(domain=(lo, hi), weight=draw(_weights)),
        st.integers(0, steps).map(lambda i: min(hi, lo + (hi - lo) * i / steps)),
    )


@st.composite
def _learned(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[float]]:
    values = draw(
        st.sampled_from(
            [
                st.integers(-3, 6).map(float),
                st.floats(-1e6, 1e6, allow_subnormal=False),
                st.sampled_from([0.1, 0.2, 0.3, 0.7]),
            ]
        )
    )
    return Numeric(weight=draw(_weights)), values


@st.composite
def _categorical(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[float]]:
    hierarchy = draw(st.sampled_from([RAGGED, RAGGED, CHAIN, FLAT, SINGLE]))
    leaves = len(hierarchy.leaves)
    return (
        Categorical(hierarchy=hierarchy, weight=draw(_weights)),
        st.integers(0, leaves - 1).map(float),
    )


@st.composite
def _prefix(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[float]]:
    length, alphabet, base = draw(st.sampled_from([(1, "digits", 10), (3, "digits", 10), (5, "01", 2), (6, "hex", 16)]))
    few = draw(st.lists(st.integers(0, base**length - 1), min_size=1, max_size=12))
    return (
        Prefix(length=length, alphabet=alphabet, weight=draw(_weights)),
        st.sampled_from(few).map(float),
    )


@st.composite
def _datetime(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[float]]:
    domain = draw(st.sampled_from([None, ("2023-01-01", "2024-01-01")]))
    step = draw(st.sampled_from([1, 86_400_000_000]))
    values = st.integers(0, 300).map(lambda i: float(YEAR_2023 + i * step))
    return Datetime(domain=domain, weight=draw(_weights)), values


@st.composite
def _stepped(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[float]]:
    """A quasi-identifier with a step, whose coordinates are cells: one, two, a few, or many."""
    weight = draw(_weights)
    qi = draw(
        st.sampled_from(
            [
                Numeric(domain=(0, 10), step=10, weight=weight),
                Numeric(domain=(-3, 4), step=5, weight=weight),
                Numeric(domain=(17, 90), step=5, weight=weight),
                Numeric(domain=(0, 1), step=0.001, weight=weight),
                Numeric(step=0.1, weight=weight),
                Datetime(domain=("2023-01-01T00:30:00Z", "2023-02-01"), step="1h", weight=weight),
                Datetime(step="7d", weight=weight),
            ]
        )
    )
    least, most = qi.geometry.widest() if not qi.geometry.learned else (-20, 20)
    return qi, st.integers(int(least), int(most)).map(float)


_weights = st.sampled_from([1.0, 1.0, 0.5, 3.0, 0.1])
_quasi_identifier = st.one_of(_numeric(), _learned(), _stepped(), _categorical(), _prefix(), _datetime())
_declared = _quasi_identifier.filter(lambda column: column[0].geometry.widest()[0] > -np.inf)


@st.composite
def _sensitive(draw: st.DrawFn, least: int, binned: bool) -> tuple[Sensitive, list[int]]:
    kind = draw(st.sampled_from(["learned", "declared", "ordered", *(["bins"] if binned else [])]))
    size = draw(st.integers(least if kind == "learned" else max(least, 2), 5))
    values = tuple(f"v{i}" for i in range(size))
    if kind == "learned":
        # Codes of undeclared values are hashes: far apart, in no order.
        codes = [int(h) for h in np.random.default_rng(size).integers(0, 2**63 - 1, size)]
        return Sensitive(), codes
    if kind == "declared":
        return Sensitive(values=values), list(range(size))
    if kind == "ordered":
        return Sensitive(values=values, ordered=True), list(range(size))
    return Sensitive(domain=(0, 10), bins=size, ordered=True), list(range(size))


# --- Policies and rows ---


class Setting(NamedTuple):
    """What the parameters of a method may depend on."""

    k: int
    #: Whether there is a delay in event time.
    timed: bool
    reorder: bool
    lively: bool


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    diverse: bool = False,
    close: bool = False,
    reorder: bool = False,
    method: str = "castle",
    parameters: st.SearchStrategy[Any] | Callable[[Setting], st.SearchStrategy[Any]] | None = None,
    declared: bool = False,
    binned: bool = True,
    on_suppress: st.SearchStrategy[OnSuppress] = st.sampled_from(OnSuppress),  # noqa: B008 - it draws anew
    timed: bool = False,
    counted: bool = False,
) -> Case:
    """Draw a stream and its policy.

    Args:
        draw: Given by Hypothesis.
        diverse: Whether the policy asks for l.
        close: Whether the policy asks for t.
        reorder: Whether the policy asks for the order of the input.
        method: The name of the method.
        parameters: Its parameters if they are not those of `castle`: a strategy, or a function that makes one from
            the rest of the policy.
        declared: Whether all domains are declared.
        binned: Whether sensitive columns may be compared in bins.
        on_suppress: What happens to rows that cannot join a group.
        timed: Whether the method needs `delay`.
        counted: Whether the method needs `delay_rows`.
    """
    # Half of the cases are lively: they avoid the unusual settings that would prevent all reuse.
    lively = draw(st.booleans())
    columns = draw(st.lists(_declared if declared else _quasi_identifier, min_size=1, max_size=4))
    k = draw(st.integers(2, 4) if lively else _mostly(2, 3, 4, 6, 100))
    l = draw(st.integers(2, min(k, 4))) if diverse else None
    needed = int(diverse or close)
    sensitive = draw(st.lists(_sensitive(least=l or 1, binned=binned), min_size=needed, max_size=3))
    t = draw(_mostly(0.5, 0.3, 0.75, 0.9, 0.01)) if close else None
    delays = draw(_delays(k, lively, both=not reorder, timed=timed, counted=counted))
    if parameters is None:
        parameters = castle_parameters(reorder, lively)
    elif callable(parameters):
        parameters = parameters(Setting(k, delays["delay"] is not None, reorder, lively))
    policy = Policy(
        person="person",
        event_time="at",
        quasi_identifiers={f"q{i}": qi for i, (qi, _) in enumerate(columns)},
        sensitive={f"s{i}": column for i, (column, _) in enumerate(sensitive)},
        k=k,
        l=l,
        t=t,
        **delays,
        method=method,
        parameters=draw(parameters),
        on_suppress=draw(on_suppress),
        seed=None,
    )
    n = draw(st.integers(MOST_ROWS // 2, MOST_ROWS) if lively else st.integers(0, MOST_ROWS))
    rows = draw(_rows([values for _, values in columns], [codes for _, codes in sensitive], n))
    if find(method).takes_holes:
        rows = replace(rows, qi=draw(_with_holes(rows.qi)))
    return Case(
        policy=policy,
        rows=rows,
        cuts=tuple(sorted(draw(st.lists(st.integers(0, n), max_size=6)))),
        moves=() if lively else draw(_moves(rows)),
        secret=draw(st.sampled_from([b"secret", b"another"])),
        shard=draw(st.sampled_from([b"", b"shard"])),
    )


def castleguard_cases() -> st.SearchStrategy[Case]:
    """Draw cases of `castleguard`, with and without l and t."""
    given = {"method": "castleguard", "parameters": castleguard_parameters}
    asked = st.tuples(st.booleans(), st.booleans())
    return asked.flatmap(lambda of: cases(diverse=of[0], close=of[1], **given))


def sdgs_cases() -> st.SearchStrategy[Case]:
    """Draw cases of `sdgs`, with and without l. It restricts policies more than other methods do."""
    given = {"method": "sdgs", "parameters": sdgs_parameters, "declared": True, "binned": False}
    drop = st.just(OnSuppress.DROP)
    return st.booleans().flatmap(lambda diverse: cases(diverse=diverse, on_suppress=drop, **given))


@st.composite
def z_anonymity_parameters(draw: st.DrawFn) -> ZAnonymityParameters:
    return ZAnonymityParameters(window=draw(st.sampled_from(["30us", "1ms"])), bins=draw(st.sampled_from([1, 3, 64])))


def _mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Draw the usual value half of the time: if every setting were unusual, hardly any row would be published."""
    return st.sampled_from([*[usual] * len(others), *others])


@st.composite
def _delays(draw: st.DrawFn, k: int, lively: bool, *, both: bool, timed: bool, counted: bool) -> dict[str, Any]:
    kinds = ["rows", "time", "both"] if both else ["rows", "time"]
    which = draw(st.sampled_from([kind for kind in kinds if kind not in ["rows"] * timed + ["time"] * counted]))
    rows = k + draw(st.integers(0, 4) if lively else st.sampled_from([0, 1, 8, 30, 1000]))
    delay = draw(st.sampled_from([30, 50, 80] if lively else [1, 10, 100, 200, 10_000]))
    return {
        "delay_rows": rows if which != "time" else None,
        "delay": delay if which != "rows" else None,
        "disorder": draw(_mostly(0, 5, 100)),
    }


def _reuses(method: str) -> st.SearchStrategy[Reuse]:
    """Draw any value that the method accepts for `reuse`."""
    return st.sampled_from(find(method).reuses)


@st.composite
def castle_parameters(draw: st.DrawFn, reorder: bool, lively: bool) -> CastleParameters:
    least = 2 if lively else 1
    return CastleParameters(
        # With mu = 1, tau equals the last loss: no loss is below it, so nothing is ever reused.
        beta=draw(st.integers(least, 5)),
        mu=draw(st.integers(least, 5)),
        reuse=Reuse.UNIFORM if lively else draw(_reuses("castle")),
        max_reusable=draw(st.integers(least - 1, 3)),
        reorder=reorder,
    )


def mondrian_parameters() -> st.SearchStrategy[MondrianParameters]:
    return st.builds(MondrianParameters, relaxed=st.booleans())


def adaptive_parameters() -> st.SearchStrategy[AdaptiveWindowParameters]:
    return st.builds(
        AdaptiveWindowParameters,
        threshold=st.sampled_from([0.4, 0.01, 0.9]),
        spare=st.sampled_from([0.25, 0.0, 0.5, 0.99]),
        reuse=_reuses("adaptive-window"),
        max_reusable=st.integers(0, 4),
    )


def faanst_parameters() -> st.SearchStrategy[FaanstParameters]:
    return st.builds(
        FaanstParameters,
        clusters=st.sampled_from([None, 1, 3]),
        max_loss=st.sampled_from([0.1, 0.5, 1.0]),
        reuse=_reuses("faanst-passive"),
        max_reusable=st.integers(0, 4),
    )


def fads_parameters() -> st.SearchStrategy[FadsParameters]:
    return st.builds(
        FadsParameters,
        reuse=_reuses("fads"),
        reuse_for=st.sampled_from([None, 1, 20, 1000]),
        max_reusable=st.integers(0, 4),
    )


@st.composite
def castleguard_parameters(draw: st.DrawFn, setting: Setting) -> CastleGuardParameters:
    castle = draw(castle_parameters(setting.reorder, setting.lively))
    return CastleGuardParameters(
        **{field.name: getattr(castle, field.name) for field in fields(castle)},
        beta_sample=draw(_mostly(0.9, 0.5, 1.0, 0.01)),
        phi=draw(_mostly(100.0, 1.0, 0.01, 1e6)),
    )


@st.composite
def sdgs_parameters(draw: st.DrawFn, setting: Setting) -> SdgsParameters:
    return SdgsParameters(
        beta_sample=draw(_mostly(0.9, 0.5, 1.0, 0.01)),
        # Every type of quasi-identifier accepts 1 here, and the first column may have any type.
        grid={"q0": 1} if draw(st.booleans()) else {},
        cover=draw(st.sampled_from(Cover)),
    )


@st.composite
def _rtree_parameters(draw: st.DrawFn, dense: bool, k: int, timed: bool) -> RTreeParameters:
    # Only a few rows, so that publishing times come before deadlines.
    given: dict[str, Any] = {"active_rows": 2 * k + draw(st.integers(0, 4))}
    if timed:
        given["instant"] = draw(st.sampled_from([None, "1us", "7us"]))
    if dense:
        given["window_rows"] = draw(st.integers(1, 30))
        given["sample"] = draw(st.integers(1, given["window_rows"]))
        given["alpha"] = draw(st.sampled_from([0.01, 0.0, 0.5]))
    return RTreeDensityParameters(**given) if dense else RTreeParameters(**given)


def continuous(method: str, *, diverse: bool = False) -> st.SearchStrategy[Case]:
    """Draw cases for a method of continuous publishing."""
    if method == "min-delay":
        return cases(method=method, diverse=diverse, parameters=st.just(MinDelayParameters()))
    dense = method != "rtree"
    return cases(method=method, diverse=diverse, parameters=lambda s: _rtree_parameters(dense, s.k, s.timed))


@st.composite
def _bastion_parameters(draw: st.DrawFn, reuse: st.SearchStrategy[Reuse], reorder: bool) -> BastionParameters:
    return BastionParameters(
        reuse=draw(reuse),
        eta=draw(_mostly(4.5, 0.0, 20.0)),
        lonely=draw(_mostly(0.2, 0.0, 1.0)),
        # All held rows, fewer than a group needs, or a few more.
        search=draw(_mostly(8192, 2, 3, 6, 12)),
        max_reusable=draw(_mostly(3, 0, 1, 100)),
        reorder=reorder,
    )


def bastion_cases(
    *,
    reuse: st.SearchStrategy[Reuse] | None = None,
    reorder: bool = False,
    **how: Any,
) -> st.SearchStrategy[Case]:
    """Draw cases for `bastion`, with every kind of reuse and without reuse."""
    reuse = _reuses("bastion") if reuse is None else reuse
    return cases(method="bastion", parameters=_bastion_parameters(reuse, reorder), reorder=reorder, **how)


@st.composite
def _rows(
    draw: st.DrawFn,
    columns: list[st.SearchStrategy[float]],
    codes: list[list[int]],
    n: int,
) -> Rows:
    """Draw rows whose values come from small pools. A pool of one value makes a constant column."""
    most = draw(st.sampled_from([4, 8, 2, 8]))
    pools = [draw(st.lists(values, min_size=1, max_size=most)) for values in columns]
    kinds = [draw(st.sampled_from([*[values] * 9, values[:1]])) for values in codes]
    persons = draw(_mostly(10, 4, 1000, 1))
    # Steps that go back in time are drawn twice as often as others: otherwise few rows would be late.
    steps = draw(_mostly(*STEPS, *(steps for steps in STEPS if min(steps) < 0)))
    # Of ten rows, this many lie in one of a few places, and the others anywhere.
    gathered = draw(_mostly(7, 9, 10, 0))
    # Longer streams need more draws than Hypothesis allows: it would silently discard them.
    quick = n > MOST_DRAWN or draw(st.booleans())
    random = np.random.default_rng(draw(st.integers(0, 2**32))) if quick else None
    return make_rows(
        (lambda low, high: draw(st.integers(low, high - 1))) if random is None else random.integers,
        n,
        pools,
        kinds,
        persons=persons,
        steps=steps,
        gathered=gathered,
        start=draw(st.sampled_from([0, -100, YEAR_2023])),
    )


@st.composite
def _with_holes(draw: st.DrawFn, qi: np.ndarray) -> np.ndarray:
    """Give each row one of a few patterns of missing values. With more patterns, few rows would share one."""
    patterns = draw(st.lists(st.lists(st.booleans(), min_size=qi.shape[1], max_size=qi.shape[1]), max_size=3))
    choices = np.array([[False] * qi.shape[1], *patterns])
    picked = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, len(choices), len(qi))
    return np.where(choices[picked], np.nan, qi)


@st.composite
def partition_parameters(draw: st.DrawFn) -> PartitionParameters:
    return PartitionParameters(
        reuse=draw(_reuses("partition")),
        reuse_for=draw(st.sampled_from([None, 1, 20, 1000])),
        eta=draw(st.sampled_from([1.0, 0.0, 30.0])),
        max_reusable=draw(_mostly(3, 0, 1)),
        fill_missing=draw(st.booleans()),
    )


@st.composite
def _moves(draw: st.DrawFn, rows: Rows) -> tuple[tuple[int, int], ...]:
    """Draw watermarks that are shortly before or after the times of the rows around them."""
    moves = draw(
        st.lists(
            st.tuples(st.integers(0, len(rows)), st.sampled_from([-50, -1, 0, 1, 30, 500])),
            max_size=3,
        )
    )
    times = rows.time.tolist() or [0]
    return tuple(
        (place, times[min(place, len(times) - 1)] + ahead) for place, ahead in sorted(moves, key=lambda move: move[0])
    )


def in_bursts(case: Case, every: int) -> Case:
    """Return the same stream with event times rounded down to a multiple, so that many rows have one deadline."""
    time = case.rows.time
    return replace(case, rows=replace(case.rows, time=time - time % every))
