"""The success of each attack, against deliberately weak streams and against some methods.

python -m benchmarks.attacks             the tables of docs/attacks.md, in about two minutes
python -m benchmarks.attacks --reuse     the table of docs/bastion.md on what reuse reveals, by eta
python -m benchmarks.attacks --quick     a tenth of the rows, as a smoke test
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.runs import push_all
from benchmarks.tables import finish, rounded, table
from crenel.audit import Published, audit
from crenel.audit.attacks import (
    Observation,
    boundary,
    ends,
    homogeneity,
    intersection,
    linkage,
    noise,
    observer,
    order,
    outermost,
    posterior,
    shrinking,
)
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases
from crenel.policy import Policy, Sensitive

OUTERMOST = "outermost: times chance, values as they are"
#: How often values are shuffled to measure the guess of the outermost member.
DEALS = 20
QUASI_IDENTIFIERS = ("age", "fnlwgt", "hours_per_week", "education", "marital_status", "native_country")
K, L, DELTA, ROWS, PERSONS = 10, 2, 1_000, 10_000, 3_000
#: The default policy, and variants of it. The papers' methods reuse boxes as their papers say.
DEFAULT: dict[str, Any] = {"method": "bastion", "parameters": {"reuse": "off"}, "on_suppress": "drop"}
REUSING: dict[str, Any] = {"method": "bastion", "parameters": {"reuse": "weighted"}, "on_suppress": "star"}
METHODS: dict[str, dict[str, Any]] = {
    "bastion (default)": DEFAULT,
    "bastion, reuse and star": REUSING,
    "castle": {"method": "castle", "parameters": {"reuse": "uniform"}, "on_suppress": "star"},
    "castleguard": {"method": "castleguard", "parameters": {"beta_sample": 0.6, "phi": 100.0}},
    "mondrian": {"method": "mondrian"},
    "partition": {"method": "partition"},
}
#: The methods of the table on what reuse reveals.
REUSE_CASES = (datasets.NUMERIC, ("age", "education", "marital_status", "native_country"))
REUSE_TARGETS = 300
REUSES: dict[str, dict[str, Any]] = {
    "castle": {},
    **{f"bastion, eta {eta:g}": {"reuse": "weighted", "eta": eta} for eta in (0.0, 1.0, 2.0, 4.6)},
    "bastion, reuse: off": {"reuse": "off"},
}
#: How many targets an attack tries if it examines each of them.
TARGETS = 1_000
#: The attacker who observes times: how precisely it knows an arrival, and the rides, victims and delays of a thin
#: stream.
KNOWN, RIDES, VICTIMS, DELAYS = 0.1, 12_000, 3_000, ("10m", "2h")
OBSERVED: dict[str, dict[str, Any]] = {
    "bastion (default)": DEFAULT,
    "bastion, star": {"method": "bastion", "parameters": {"reuse": "off"}, "on_suppress": "star"},
    "bastion, reuse and star": REUSING,
    "castle": METHODS["castle"],
}


class Stream:
    """Rows, the releases of a method, and what an attacker observes of them."""

    def __init__(self, of: datasets.Stream, rows: Rows, method: str, seed: int = 1, **changes: Any) -> None:
        said: dict[str, Any] = {
            "person": "person",
            "quasi_identifiers": of.quasi_identifiers,
            "sensitive": {"income": Sensitive()},
            "k": K,
            "l": L,
            "delay_rows": DELTA,
            "on_suppress": "drop",
            "seed": seed,
        }
        said |= METHODS[method]
        self.policy = Policy(**said | changes)
        self.rows = rows
        self.releases: Releases = push_all(self.policy, rows)
        self.seen = Observation.of(self.policy, rows, self.releases)
        #: The policy with the promised k, which a weak stream does not keep.
        self.promised = Policy(**said)


def linked(stream: Stream) -> dict[str, float]:
    found = linkage(stream.promised, stream.seen, stream.rows)
    return {"highest": found.highest, "mean": found.mean, "told": found.told or 0.0}


def shrunk(stream: Stream) -> dict[str, float]:
    found = shrinking(stream.policy, stream.rows, stream.releases, most=TARGETS)
    if found is None or not found.targets:
        return {}
    return {
        "odds": found.odds,
        "bound": found.odds_bound,
        "highest": found.highest,
        "mean": found.mean,
        "above": found.above / found.targets,
    }


def in_a_crowd(stream: Stream) -> dict[str, float]:
    """Run the attacks that use knowledge of times."""
    report = audit(stream.policy, stream.rows, stream.releases)
    told = posterior(stream.policy, stream.rows, stream.releases)
    timed = observer(stream.policy, stream.rows, stream.releases, known=KNOWN, most=TARGETS)
    assert report.alone is not None and told is not None and timed is not None
    return {
        "rows that left with fewer than k persons at one moment": report.alone / max(told.targets, 1),
        "posterior: rows with a best guess above 1/k": told.above / max(told.targets, 1),
        "posterior: highest chance": told.highest,
        "observer of time: rows with fewer than k possible": timed.above / max(timed.targets, 1),
        "observer of time: mean chance": timed.mean,
    }


def odd_one(made: Iterable[tuple[Policy, Rows, Any]]) -> tuple[float, float]:
    """Return how much better than chance it is to guess the outermost member: in all groups, and in those above k."""
    found = [of for of in (outermost(policy, rows, releases) for policy, rows, releases in made) if of is not None]
    ratios = []
    for right, expected in (("right", "expected"), ("larger_right", "larger_expected")):
        by_chance = sum(getattr(of, expected) for of in found)
        ratios.append(sum(getattr(of, right) for of in found) / by_chance if by_chance else float("nan"))
    return ratios[0], ratios[1]


def odd_ones(make: Callable[..., Stream], method: str, stream: Stream, plain: Stream, deals: int) -> dict[str, float]:
    """Compute the same with the true values, and with values shuffled so that they do not depend on the coordinates."""
    rows = stream.rows
    values = [np.random.default_rng(deal).permutation(rows.sensitive) for deal in range(deals)]
    dealt = [make(replace(rows, sensitive=one), method) for one in values]
    anywhere, larger = odd_one((of.policy, of.rows, of.releases) for of in dealt)
    return {
        "outermost: times chance, values dealt at random": anywhere,
        "outermost: times chance, values dealt at random, groups of more than k": larger,
        OUTERMOST: odd_one([(stream.policy, rows, stream.releases)])[0],
        "outermost: times chance, values as they are, without l": odd_one([(plain.policy, rows, plain.releases)])[0],
    }


def homogeneous(stream: Stream, *, timed: bool) -> float:
    rows = stream.rows
    chosen = np.random.default_rng(0).choice(len(rows), min(TARGETS, len(rows)), replace=False)
    when: dict[str, Any] = {"arrived": chosen, "within": DELTA} if timed else {}
    found = homogeneity(stream.seen, people=rows.qi[chosen], truth=rows.sensitive[chosen, 0], **when)
    return found.success


def bounded(stream: Stream) -> dict[str, float]:
    widest = np.array([qi.geometry.widest() for qi in stream.policy.quasi_identifiers.values()])
    present = np.isin(np.arange(len(stream.rows)), stream.seen.rows)
    scale = noise(stream.policy, stream.rows.qi)
    found = boundary(stream.seen, people=stream.rows.qi, published=present, widest=widest, scale=scale)
    return {
        "boundary: group found of": found.success,
        "boundary: claims that are right": float("nan") if found.precision is None else found.precision,
    }


def ended(stream: Stream) -> float:
    found = ends(stream.policy, stream.seen, stream.rows)
    return found.success


def nearest_and_a_new_value(rows: Rows, width: Any) -> Published:
    """Publish weakly: group a row with its nearest neighbours, and, if needed, with the nearest row of a new value."""
    groups: list[list[int]] = []
    for start in range(0, len(rows), DELTA):
        held = list(range(start, min(start + DELTA, len(rows))))
        while len(held) > K:
            far = np.abs((rows.qi[held] - rows.qi[held[0]]) / width).sum(axis=1)
            near = [held[i] for i in np.argsort(far, kind="stable")]
            group, values = near[:K], set(rows.sensitive[near[:K], 0].tolist())
            if len(values) < L:
                group += [row for row in near[K:] if rows.sensitive[row, 0] not in values][:1]
            groups.append(group)
            held = [row for row in held if row not in set(group)]
    return Published(
        rows=np.concatenate(groups),
        offsets=np.cumsum([0, *map(len, groups)]),
        lo=np.array([rows.qi[group].min(axis=0) for group in groups]),
        hi=np.array([rows.qi[group].max(axis=0) for group in groups]),
        kind=np.zeros(len(groups)),
    )


def as_they_came(seen: Observation) -> Observation:
    parts = np.split(seen.rows, np.flatnonzero(np.diff(seen.release)) + 1)
    return replace(seen, rows=np.concatenate([np.sort(part) for part in parts]))


def several(of: datasets.Stream, rows: Rows) -> Rows:
    """Draw three rows of each of some persons, with different values, in random order."""
    chosen = np.random.default_rng(0).permutation(np.repeat(np.arange(min(PERSONS, len(rows))), 3))
    return replace(rows.take(chosen), person=chosen)


def figures_of(make: Callable[..., Stream], rows: Rows, repeated: Rows, method: str) -> dict[str, float]:
    """Run all attacks on one method."""
    stream, again = make(rows, method), make(rows, method, seed=2)
    persons = make(repeated, method)
    link, shrink = linked(stream), shrunk(stream)
    plain = make(rows, method, l=None)
    of_person = intersection(persons.policy, persons.seen, repeated, of_person=True)
    return {
        **in_a_crowd(stream),
        "linkage: highest chance": link["highest"],
        "linkage: mean chance": link["mean"],
        "linkage: told who is in each group": link["told"],
        "homogeneity, without l: found of": homogeneous(plain, timed=False),
        "homogeneity, without l, knowing when rows came: found of": homogeneous(plain, timed=True),
        "homogeneity, l = 2: found of": homogeneous(stream, timed=False),
        "homogeneity, l = 2, knowing when rows came: found of": homogeneous(stream, timed=True),
        **odd_ones(make, method, stream, plain, DEALS),
        **bounded(stream),
        "ends: unique values that left exactly, of": ended(stream),
        "shrinking: odds changed by at most": shrink.get("odds", float("nan")),
        "shrinking: the bound on that": shrink.get("bound", float("nan")),
        "shrinking: highest chance": shrink.get("highest", float("nan")),
        "shrinking: mean chance": shrink.get("mean", float("nan")),
        "shrinking: rows that left alone above 1/k": shrink.get("above", float("nan")),
        "intersection: rows seen twice": intersection(stream.policy, stream.seen, rows).targets / len(rows),
        "intersection with a run by another seed: mean chance": intersection(
            stream.policy, stream.seen.then(again.seen), rows
        ).mean,
        "three rows known to be of one person: mean chance": of_person.mean,
        "order: right of pairs": order(stream.seen).success,
    }


def weak_figures(make: Callable[..., Stream], rows: Rows) -> dict[str, float]:
    """Run each attack on a stream that is weak against just this attack."""
    default, reusing = "bastion (default)", "bastion, reuse and star"
    careless = linked(make(rows, default, k=3, l=None))
    plain = make(rows, default, l=None)
    greedy = shrunk(make(rows, reusing, parameters={"reuse": "weighted", "eta": 20.0}))
    twice = plain.seen.then(make(rows, "castle", seed=2, l=None, on_suppress="drop").seen)
    seen_twice = intersection(plain.promised, twice, rows)
    thin = make(rows, reusing, l=None, delay_rows=2 * K)
    width = np.array([np.ptp(column) or 1.0 for column in rows.qi.T])
    return {
        **in_a_crowd(thin),
        "linkage: highest chance": careless["highest"],
        "linkage: mean chance": careless["mean"],
        "linkage: told who is in each group": careless["told"],
        "homogeneity, without l: found of": homogeneous(plain, timed=False),
        "homogeneity, without l, knowing when rows came: found of": homogeneous(plain, timed=True),
        OUTERMOST: odd_one([(plain.promised, rows, nearest_and_a_new_value(rows, width))])[0],
        **bounded(plain),
        "ends: unique values that left exactly, of": ended(plain),
        "shrinking: odds changed by at most": greedy["odds"],
        "shrinking: the bound on that": greedy["bound"],
        "shrinking: highest chance": greedy["highest"],
        "shrinking: mean chance": greedy["mean"],
        "shrinking: rows that left alone above 1/k": greedy["above"],
        "intersection: rows seen twice": seen_twice.targets / len(rows),
        "intersection with a run by another seed: mean chance": seen_twice.mean,
        "order: right of pairs": order(as_they_came(plain.seen)).success,
    }


def observed(quick: bool) -> dict[str, dict[str, float]]:
    """Attack a thin stream, taxi rides in the order they ended, with knowledge of times."""
    of = datasets.taxi(rows=RIDES // 10 if quick else RIDES, timed=True)
    figures = {}
    for delay in DELAYS:
        for name, said in OBSERVED.items():
            policy = Policy(person="person", quasi_identifiers=of.quasi_identifiers, k=K, delay=delay, seed=1, **said)
            releases = push_all(policy, of.rows)
            kind = releases.per_row(releases.kind)
            found = observer(policy, of.rows, releases, known=KNOWN, most=VICTIMS)
            told = posterior(policy, of.rows, releases)
            assert found is not None and told is not None
            figures[f"`{name}`, {delay}"] = {
                "in groups": int(np.count_nonzero(kind == Kind.CLUSTER)),
                "alone": int(np.count_nonzero(kind == Kind.REUSE)),
                "suppressed": int(np.count_nonzero(kind == Kind.SUPPRESSED)),
                "highest chance": found.highest,
                "mean chance": found.mean,
                "fewer than k possible": found.above / max(found.targets, 1),
                "one possible, and right": found.linked / max(found.targets, 1),
                "posterior above 1/k": told.above / max(told.targets, 1),
            }
    return figures


def reuse(quick: bool) -> int:
    """Measure what the choice of a box reveals, by eta, and what it costs in loss."""
    figures: dict[str, Any] = {"quick": quick, "k": K, "delta": DELTA}
    lines = []
    for names in REUSE_CASES:
        of = datasets.adult(names).first(ROWS // 10 if quick else ROWS)
        for method, parameters in REUSES.items():
            policy = Policy(
                person="person",
                quasi_identifiers=of.quasi_identifiers,
                k=K,
                delay_rows=DELTA,
                method=method.partition(",")[0],
                parameters=parameters,
                on_suppress="star",
                seed=1,
            )
            releases = push_all(policy, of.rows)
            loss = float(releases.per_row(releases.loss).mean())
            found = shrinking(policy, of.rows, releases, most=REUSE_TARGETS)
            odds = [found.odds, found.odds_bound, found.highest, found.mean] if found and found.targets else []
            above = f"{found.above} of {found.targets}" if found else ""
            name = f"{len(names)} QIs, `{method}`"
            lines.append([name, f"{loss:.4f}", *(map(shown, odds) if odds else [""] * 4), above])
            figures[name] = [rounded(value) for value in (loss, *odds)]
    header = ["", "loss", "odds changed by at most", "the bound", "highest chance", "mean chance", "rows above 1/k"]
    print(table(header, lines) + "\n")
    finish(figures)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.attacks", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows; figures mean nothing")
    parser.add_argument("--reuse", action="store_true", help="what the choice of a reused box reveals, by eta")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="only these methods")
    options = parser.parse_args(arguments)
    if options.reuse:
        return reuse(options.quick)
    of = datasets.adult(QUASI_IDENTIFIERS, extra=("income",)).first(ROWS // 10 if options.quick else ROWS)
    rows = replace(of.rows, sensitive=np.ascontiguousarray(of.extra["income"][:, None]))
    repeated = several(of, rows)

    def make(rows: Rows, method: str, seed: int = 1, **changes: Any) -> Stream:
        return Stream(of, rows, method, seed, **changes)

    figures = {"weak": weak_figures(make, rows)}
    figures |= {method: figures_of(make, rows, repeated, method) for method in options.methods}
    attacks = list(dict.fromkeys(name for found in [*figures.values()][::-1] for name in found))
    lines = [[attack, *(shown(found.get(attack, float("nan"))) for found in figures.values())] for attack in attacks]
    print(table(["attack", "a weak stream", *(f"`{method}`" for method in options.methods)], lines) + "\n")
    timed = observed(options.quick)
    columns = list(next(iter(timed.values())))
    cells = [[name, *(shown(found[column]) for column in columns)] for name, found in timed.items()]
    print(table(["", *columns], cells) + "\n")
    kept = {
        name: {attack: rounded(value) for attack, value in found.items() if not np.isnan(value)}
        for name, found in figures.items()
    }
    kept |= {"taxi": {name: {c: rounded(v) for c, v in found.items()} for name, found in timed.items()}}
    finish({"quick": options.quick, "k": K, "l": L, "delta": DELTA, "rows": len(rows), "figures": kept})
    return 0


def shown(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "" if np.isnan(value) else f"{value:.3g}" if value < 1e6 else f"{value:.0e}"


if __name__ == "__main__":
    sys.exit(main())
