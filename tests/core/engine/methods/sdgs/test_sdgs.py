"""(k, beta)-SDGS: windows, the grid, and the properties that the proof needs."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from crenel.audit import audit
from crenel.audit.differential_privacy import stated
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Release, Releases, create_engine
from crenel.engine.methods.sdgs import Cover, SdgsParameters
from crenel.policy import Policy, PolicyError, Sensitive
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Numeric, Prefix
from crenel.policy.sampling_privacy import delta
from crenel.testing.engine_streams import Case, run
from tests.core.engine.cases import sdgs_cases

TREE = Hierarchy.from_mapping({"a": ["a1", "a2"], "b": {"b1": ["b11", "b12"], "b2": ["b21"]}, "c": None})


def policy(**changes: Any) -> Policy:
    said: dict[str, Any] = {
        "person": "who",
        "event_time": "at",
        "quasi_identifiers": {"x": Numeric(domain=(0, 100)), "c": Categorical(hierarchy=TREE)},
        "sensitive": {"s": Sensitive(values=tuple("abcd"))},
        "k": 5,
        "delay": 1600,
        "method": "sdgs",
        "parameters": {"beta_sample": 0.6, "grid": {"x": 4}},
        "on_suppress": "drop",
        "seed": 3,
    }
    return Policy(**said | changes)


def stream(n: int, seed: int = 1, persons: int | None = None) -> Rows:
    random = np.random.default_rng(seed)
    qi = np.stack([random.uniform(0, 100, n), random.integers(0, 6, n)], axis=1).astype(np.float64)
    return Rows(
        qi,
        random.integers(0, persons or n, n),
        random.integers(0, 4, (n, 1)),
        np.cumsum(random.integers(0, 3, n)).astype(np.int64),
    )


def released(of: Policy, rows: Rows) -> Releases:
    return run(Case(policy=of, rows=rows))


def groups(releases: Releases) -> list[Release]:
    return [release for release in releases if release.kind is Kind.CLUSTER]


# -- an oracle, written from the page --------------------------------------------------------------------------------


def oracle(case: Case) -> list[tuple[str, int, tuple[float, ...], frozenset[int]]]:
    """Return all releases if everybody is sampled, as tuples of kind, moment, box and rows."""
    policy, rows = case.policy, case.rows
    tick = policy.tick
    length = None if policy.delay is None else policy.delay // tick * tick
    clock = -(2**63)
    held: dict[int, dict[int, int]] = defaultdict(dict)  # end of window -> person -> row
    found: list[tuple[str, int, tuple[float, ...], frozenset[int]]] = []

    def close(end: int) -> None:
        by_cell = defaultdict(list)
        for row in held.pop(end).values():
            by_cell[cell_of(policy, rows.qi[row])].append(row)
        suppressed = []
        for box in sorted(by_cell):
            shown = by_cell[box]
            if policy.parameters.cover is Cover.ALL:
                codes = [tuple(rows.sensitive[row]) for row in shown]
                shown = [row for row, code in zip(shown, codes, strict=True) if codes.count(code) >= policy.k]
            values = [{int(rows.sensitive[row, j]) for row in shown} for j in range(rows.sensitive.shape[1])]
            if len(shown) < policy.k or (policy.l and any(len(distinct) < policy.l for distinct in values)):
                shown = []
            if shown:
                found.append(("published", clock, box, frozenset(shown)))
            suppressed += [row for row in by_cell[box] if row not in shown]
        found.extend(("suppressed", clock, (), frozenset([row])) for row in suppressed)

    def move(now: int) -> None:
        nonlocal clock
        while length and held and min(held) <= now:
            clock = max(clock, min(held))
            close(min(held))
        clock = max(clock, now)

    moves = sorted(case.moves, key=lambda move: move[0])
    for row in range(len(rows)):
        for place, now in moves:
            if place == row:
                move(now)
        time = int(rows.time[row])
        move(time - policy.disorder)
        end = 2**63 - 1 if length is None else (time // length + 1) * length
        if (length and end <= clock) or int(rows.person[row]) in held.get(end, {}):
            found.append(("suppressed", clock, (), frozenset([row])))
        else:
            held[end][int(rows.person[row])] = row
        if policy.delay_rows and (row + 1) % policy.delay_rows == 0:
            for end in sorted(held):
                close(end)
    for place, now in moves:
        if place == len(rows):
            move(now)
    for end in sorted(held):
        close(end)
    return found


def cell_of(policy: Policy, qi: np.ndarray) -> tuple[float, ...]:
    box: list[float] = []
    for (name, column), value in zip(policy.quasi_identifiers.items(), qi.tolist(), strict=True):
        geometry, asked = column.geometry, policy.parameters.grid.get(name)
        lo, hi = geometry.widest()
        if isinstance(column, Categorical):
            node = int(geometry.leaf[int(value)])
            path = [node]
            while path[-1]:
                path.append(int(geometry.parent[path[-1]]))
            path = path[::-1]
            node = path[min(1 if asked is None else asked, len(path) - 1)]
            box += [float(geometry.first[node]), float(geometry.last[node])]
        elif isinstance(column, Prefix):
            kept = max(column.length // 2, 1) if asked is None else asked
            size = geometry.base ** (geometry.length - kept)
            box += [float(value // size * size), float(value // size * size + size - 1)]
        elif column.step is not None:
            cells = int(hi - lo) + 1
            bins = asked or min(10, cells)
            starts = [int(lo) + cells * i // bins for i in range(bins + 1)]
            at = max(i for i in range(bins) if starts[i] <= value)
            box += [float(starts[at]), float(starts[at + 1] - 1)]
        else:
            bins = asked or 10
            edges = [lo + (hi - lo) * (i / bins) for i in range(bins)] + [hi]
            at = max(i for i in range(bins) if edges[i] <= value)
            box += [edges[at], edges[at + 1]]
    return tuple(box)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(drawn=sdgs_cases())
def test_it_is_what_the_page_says(drawn: Case):
    everybody = replace(drawn.policy.parameters, beta_sample=1.0)
    case = replace(drawn, policy=replace(drawn.policy, parameters=everybody))
    found = [
        (
            "published" if release.kind is Kind.CLUSTER else "suppressed",
            release.moment,
            tuple(np.stack([release.lo, release.hi], axis=1).ravel().tolist()) if release.kind is Kind.CLUSTER else (),
            frozenset(release.rows.tolist()),
        )
        for release in run(case)
    ]
    assert sorted(found, key=repr) == sorted(oracle(case), key=repr)


# -- the properties that the proof needs -----------------------------------------------------------------------------


def test_persons_are_sampled_as_a_whole_in_each_window():
    """If each row were sampled by itself, a person with many rows would be in nearly every sample."""
    of, rows = policy(delay=16_000), stream(20_000, persons=300)
    releases = released(of, rows)
    out = np.zeros(len(rows), bool)
    out[releases.rows[releases.per_row(releases.kind) == Kind.SAMPLED_OUT]] = True
    fates = defaultdict(set)
    for row in range(len(rows)):
        fates[int(rows.person[row]), int(rows.time[row]) // 16_000].add(bool(out[row]))
    assert all(len(fate) == 1 for fate in fates.values())
    kept = np.mean([fate == {False} for fate in fates.values()])
    assert len(fates) > 500
    assert abs(kept - 0.6) < 5 * math.sqrt(0.6 * 0.4 / len(fates))


def test_a_person_counts_once_and_leaves_once_in_a_window():
    """Four persons count as four, no matter how many rows they have, and nobody has two rows in a cell."""
    everybody = {"beta_sample": 1.0, "grid": {"x": 1, "c": 0}, "cover": "quasi_identifiers"}
    of = policy(parameters=everybody, delay=100_000)
    assert not groups(released(of, stream(400, persons=4)))
    (group,) = groups(released(of, stream(400, persons=7)))
    assert len(group.rows) == group.persons == 7
    assert sorted(group.rows.tolist())[0] == 0  # the first row of each person


def test_a_person_changes_only_their_own_cell():
    """The proof considers a single cell, so a person's values must not change how other cells are published."""
    of, rows = policy(k=3), stream(3_000)
    first = released(of, rows)
    chosen = next(iter(groups(first))).rows[0]
    other = replace(rows, qi=rows.qi.copy(), sensitive=rows.sensitive.copy())
    other.qi[chosen] = [99.0, 5.0]
    second = released(of, other)

    def others(releases: Releases) -> set[Any]:
        return {(r.moment, *r.lo, *r.hi, frozenset(r.rows.tolist())) for r in groups(releases)}

    changed = others(first) ^ others(second)
    # The person's old cell and new cell, each before and after the change.
    assert 1 <= len(changed) <= 4


def test_a_value_of_fewer_than_k_persons_is_never_published():
    """A sensitive value that only one person has would reveal that person, with the probability of being sampled."""
    rows = stream(3_000)
    rows.sensitive[:] = rows.sensitive % 3
    rows.sensitive[::500] = 3  # two or three rows in each window
    of = policy(parameters={"beta_sample": 1.0, "grid": {"x": 1, "c": 0}})
    releases = released(of, rows)
    for group in groups(releases):
        counts = np.bincount(rows.sensitive[group.rows, 0])
        assert ((counts == 0) | (counts >= of.k)).all()
    assert len(groups(releases)) > 1
    # If only the quasi-identifiers are covered, such values are published.
    loose = replace(of, parameters=replace(of.parameters, cover="quasi_identifiers"))
    assert any(0 < np.sum(rows.sensitive[g.rows, 0] == 3) < of.k for g in groups(released(loose, rows)))


def test_the_sampled_count_of_a_cell_is_binomial():
    """Theorem 2 assumes it. Checked over many windows of 40 persons in one cell."""
    of = policy(k=2, delay=16, parameters={"beta_sample": 0.3, "grid": {"x": 1, "c": 0}, "cover": "quasi_identifiers"})
    windows, persons = 400, 40
    n = windows * persons
    rows = Rows(
        np.zeros((n, 2)),
        np.tile(np.arange(persons), windows),
        np.zeros((n, 1), np.int64),
        np.repeat(np.arange(windows) * 16, persons),
    )
    sizes = np.array([len(group.rows) for group in groups(released(of, rows))])
    assert len(sizes) > 390
    assert abs(sizes.mean() - 12) < 5 * math.sqrt(persons * 0.3 * 0.7 / windows)
    assert 0.75 < sizes.var() / (persons * 0.3 * 0.7) < 1.3


def test_the_grid_does_not_depend_on_the_data():
    of, boxes = policy(k=2), set()
    for seed in range(5):
        for group in groups(released(of, stream(1_000, seed))):
            boxes |= {(0, group.lo[0], group.hi[0]), (1, group.lo[1], group.hi[1])}
    assert {box[1:] for box in boxes if box[0] == 0} <= {(0, 25), (25, 50), (50, 75), (75, 100)}
    assert {box[1:] for box in boxes if box[0] == 1} <= {(0, 1), (2, 4), (5, 5)}


def test_rows_leave_in_random_order():
    of = policy(parameters={"beta_sample": 1.0, "grid": {"x": 1, "c": 0}, "cover": "quasi_identifiers"})
    orders = [group.rows.tolist() for group in groups(released(of, stream(2_000)))]
    assert orders
    assert all(rows != sorted(rows) for rows in orders if len(rows) > 5)


def test_windows_by_time_end_on_their_own_moments():
    of = policy(parameters={"beta_sample": 1.0, "grid": {"x": 1, "c": 0}, "cover": "quasi_identifiers"})
    moments = [release.moment for release in released(of, stream(5_000))]
    assert {moment % 1600 for moment in moments[:-10] if moment % 1600 == 0} == {0}
    late = Rows(np.zeros((3, 2)), np.arange(3), np.zeros((3, 1), np.int64), np.array([1601, 3, 1602]))
    engine = create_engine(of)
    (release,) = engine.push(late)
    assert (release.kind, release.rows.tolist()) == (Kind.SUPPRESSED, [1])


def test_a_flush_begins_new_windows():
    """A person who was not sampled before the flush may be sampled after it, as in every new window."""
    of = policy(delay=None, delay_rows=1000, parameters={"beta_sample": 0.5})
    rows = stream(200)
    engine = create_engine(of)
    fates = []
    for _ in range(2):
        releases = Releases.concat([engine.push(rows), engine.flush()])
        numbers = releases.rows[releases.per_row(releases.kind) == Kind.SAMPLED_OUT] % 200
        fates.append(set(numbers.tolist()))
    assert fates[0] != fates[1]


def chance_of_a_box_above(limit: float, near: int, with_it: bool, runs: int = 300) -> float:
    """Return how often a box reaches above `limit`. `near` rows (and one if `with_it`) lie at 95, others in [0, 20]."""
    seen = 0
    for seed in range(runs):
        of = Policy(
            person="who",
            quasi_identifiers={"x": {"type": "numeric", "domain": [0, 100]}},
            k=20,
            delay_rows=1_000,
            method="sdgs",
            parameters={"beta_sample": 0.5},
            on_suppress="drop",
            seed=seed,
        )
        x = np.random.default_rng(seed).uniform(0, 20, 300)
        x[100 : 100 + near + with_it] = 95.0
        rows = Rows(x[:, None], np.arange(300), np.zeros((300, 0), np.int64), np.zeros(300, np.int64))
        seen += any(group.hi[0] > limit for group in groups(released(of, rows)))
    return seen / runs


@pytest.mark.parametrize("near", [0, 39])
def test_it_withstands_the_attack_that_refutes_castleguard(near: int):
    """One more row changes little, in an empty cell or in a cell that is published half of the time."""
    present, absent = (chance_of_a_box_above(70, near, with_it) for with_it in (True, False))
    statement = stated(policy(k=20, parameters={"beta_sample": 0.5}))
    assert statement is not None
    # At most five standard deviations of 300 runs, which is 0.14. The difference could be as large as 0.46.
    error = 5 * math.sqrt(0.25 / 300)
    for one, other in ((present, absent), (absent, present)):
        assert one <= math.exp(statement.epsilon) * other + statement.delta + (error if near else 0.0)
    assert (present == absent == 0.0) if near == 0 else (0.2 < absent < 0.8)


def test_the_audit_states_what_is_proven():
    of, rows = policy(), stream(2_000)
    report = audit(of, rows, released(of, rows))
    assert report.ok, str(report)
    assert report.differential is not None
    assert report.differential.delta == delta(5, 0.6, report.differential.epsilon)
    assert "proven; for each person in each window, all that leaves" in str(report)
    assert stated(replace(of, parameters=SdgsParameters(beta_sample=1.0))) is None
    chosen = stated(replace(of, parameters=SdgsParameters(beta_sample=0.5, epsilon=2.0)))
    assert chosen is not None
    assert chosen.epsilon == 2.0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a learned domain": (
        {"quasi_identifiers": {"x": {"type": "numeric"}}, "parameters": {}},
        "quasi_identifiers.x.domain must be declared with the method sdgs",
    ),
    "star": ({"on_suppress": "star"}, "on_suppress must be 'drop' with the method sdgs"),
    "t": ({"t": 0.5}, "t is not kept by the method 'sdgs'"),
    "locality": ({"shards": 2, "shard_by": "locality"}, "shard_by must be 'person' with the method sdgs"),
    "columns": ({"shards": 2, "shard_by": ["x"]}, "shard_by must be 'person' with the method sdgs"),
    "published columns": ({"publish": ["p"]}, "publish must be empty with the method sdgs, or parameters.cover be"),
    "bins": (
        {"sensitive": {"s": {"domain": [0, 1]}}},
        "sensitive.s.domain must not be given with the method sdgs",
    ),
    "an unknown column": ({"parameters": {"grid": {"y": 1}}}, "parameters.grid.y must name a quasi-identifier"),
    "no bins": ({"parameters": {"grid": {"x": 0}}}, "grid.x must be a number of bins from 1 to 1000000, not 0."),
    "too deep": (
        {"parameters": {"grid": {"c": 9}}},
        "grid.c must be a number of levels below the root from 0 to 3, not 9.",
    ),
    "a fraction": (
        {"parameters": {"grid": {"x": 2.5}}},
        "parameters.grid.x must be an integer of at least 0, not 2.5.",
    ),
    "no mapping": ({"parameters": {"grid": 4}}, "parameters.grid must be a mapping of quasi-identifiers to integers"),
    "cover": ({"parameters": {"cover": "some"}}, "parameters.cover must be 'all' or 'quasi_identifiers', not 'some'."),
    "beta_sample": ({"parameters": {"beta_sample": 2}}, "beta_sample must be a number above 0 and at most 1, not 2."),
}


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_what_the_proof_does_not_allow_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(PolicyError) as raised:
        policy(**changes)
    assert said in str(raised.value)


def test_other_columns_are_allowed_if_only_quasi_identifiers_are_covered():
    loose = policy(publish=["p"], parameters={"cover": "quasi_identifiers"})
    assert Policy.from_dict(loose.to_dict()) == loose
    statement = stated(loose)
    assert statement is not None
    assert "the quasi-identifiers alone" in str(statement)
    # With l, one person's value may decide whether a cell is published, so nothing can be stated.
    assert stated(replace(loose, l=2)) is None


def test_state_does_not_grow_with_the_stream():
    of, rows = policy(delay=160), stream(6_000)
    engine = create_engine(of)
    sizes = []
    for start in range(0, 6_000, 100):
        engine.push(rows.slice(start, start + 100))
        sizes.append(len(engine.snapshot()))
    assert max(sizes[30:]) < 1.5 * max(sizes[:30])
