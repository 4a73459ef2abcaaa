"""What each attack achieves: against deliberately weak streams, and against some methods.

python -m benchmarks.attacks             the table of docs/attacks.md
python -m benchmarks.attacks --reuse     that of docs/bastion.md: what reuse tells, by eta
python -m benchmarks.attacks --quick     a tenth of the rows, to see that it runs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.runs import push_all
from benchmarks.tables import finish, rounded, table
from crenel.audit.attacks import Seen, boundary, homogeneity, intersection, linkage, order, shrinking
from crenel.engine import Releases
from crenel.policy import Policy, Sensitive
from crenel.rows import Rows

QUASI_IDENTIFIERS = ("age", "fnlwgt", "hours_per_week", "education", "marital_status", "native_country")
K, L, DELTA, ROWS, PERSONS = 10, 2, 1_000, 10_000, 3_000
METHODS: dict[str, dict[str, Any]] = {
    "castle": {},
    "bastion": {},
    "bastion, reuse: true": {"method": "bastion", "parameters": {"reuse": True}},
    "castleguard": {"parameters": {"beta_sample": 0.6, "phi": 100.0}},
    "mondrian": {},
    "partition": {},
}
#: For the table of what reuse tells.
REUSE_CASES = (datasets.NUMERIC, ("age", "education", "marital_status", "native_country"))
REUSE_TARGETS = 300
REUSES: dict[str, dict[str, Any]] = {
    "castle": {},
    **{f"bastion, eta {eta:g}": {"reuse": True, "eta": eta} for eta in (0.0, 1.0, 2.0, 4.6)},
    "bastion, reuse: false": {"reuse": False},
}
#: Targets of attacks that look at each of them.
TARGETS = 1_000


class Stream:
    """Rows, what a method published of them, and what is seen of that."""

    def __init__(self, of: datasets.Stream, rows: Rows, method: str, seed: int = 1, **changes: Any) -> None:
        said: dict[str, Any] = {
            "person": "person",
            "quasi_identifiers": of.quasi_identifiers,
            "sensitive": {"income": Sensitive()},
            "k": K,
            "l": L,
            "delay_rows": DELTA,
            "method": method,
            "on_suppress": "drop",
            "seed": seed,
        }
        said |= METHODS.get(method, {})
        self.policy = Policy(**said | changes)
        self.rows = rows
        self.releases: Releases = push_all(self.policy, rows)
        self.seen = Seen.of(self.policy, rows, self.releases)
        #: What was promised, which a weak stream does not keep.
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


def homogeneous(stream: Stream, *, timed: bool) -> float:
    rows = stream.rows
    chosen = np.random.default_rng(0).choice(len(rows), min(TARGETS, len(rows)), replace=False)
    when: dict[str, Any] = {"arrived": chosen, "within": DELTA} if timed else {}
    found = homogeneity(stream.seen, people=rows.qi[chosen], truth=rows.sensitive[chosen, 0], **when)
    return found.success


def bounded(stream: Stream) -> float:
    widest = np.array([qi.geometry.widest() for qi in stream.policy.quasi_identifiers.values()])
    present = np.isin(np.arange(len(stream.rows)), stream.seen.rows)
    return boundary(stream.seen, people=stream.rows.qi, published=present, widest=widest).success


def as_they_came(seen: Seen) -> Seen:
    parts = np.split(seen.rows, np.flatnonzero(np.diff(seen.release)) + 1)
    return replace(seen, rows=np.concatenate([np.sort(part) for part in parts]))


def several(of: datasets.Stream, rows: Rows) -> Rows:
    """Three rows of each of some persons, who differ in their values, in random order."""
    chosen = np.random.default_rng(0).permutation(np.repeat(np.arange(min(PERSONS, len(rows))), 3))
    return replace(rows.take(chosen), person=chosen)


def figures_of(make: Callable[..., Stream], rows: Rows, repeated: Rows, method: str) -> dict[str, float]:
    """What comes of all attacks on one method."""
    stream, again = make(rows, method), make(rows, method, seed=2)
    persons = make(repeated, method)
    link, shrink = linked(stream), shrunk(stream)
    of_person = intersection(persons.policy, persons.seen, repeated, of_person=True)
    return {
        "linkage: highest chance": link["highest"],
        "linkage: mean chance": link["mean"],
        "linkage: told who is in each group": link["told"],
        "homogeneity: found of": homogeneous(stream, timed=False),
        "homogeneity, knowing when rows came: found of": homogeneous(stream, timed=True),
        "boundary: group found of": bounded(stream),
        "shrinking: odds changed by at most": shrink.get("odds", float("nan")),
        "shrinking: the bound on that": shrink.get("bound", float("nan")),
        "shrinking: highest chance": shrink.get("highest", float("nan")),
        "shrinking: mean chance": shrink.get("mean", float("nan")),
        "shrinking: rows above 1/k": shrink.get("above", float("nan")),
        "intersection: rows seen twice": intersection(stream.policy, stream.seen, rows).targets / len(rows),
        "intersection with a run by another seed: mean chance": intersection(
            stream.policy, stream.seen.then(again.seen), rows
        ).mean,
        "three rows known to be of one person: mean chance": of_person.mean,
        "order: right of pairs": order(stream.seen).success,
    }


def weak_figures(make: Callable[..., Stream], rows: Rows) -> dict[str, float]:
    """Each attack against a stream that is weak in just this."""
    reuse = {"reuse": True}
    careless = linked(make(rows, "bastion", k=3, l=None, parameters=reuse))
    plain = make(rows, "bastion", l=None, parameters=reuse)
    greedy = shrunk(make(rows, "bastion", parameters={**reuse, "eta": 20.0}))
    twice = plain.seen.then(make(rows, "bastion", seed=2, l=None, parameters=reuse).seen)
    seen_twice = intersection(plain.promised, twice, rows)
    return {
        "linkage: highest chance": careless["highest"],
        "linkage: mean chance": careless["mean"],
        "linkage: told who is in each group": careless["told"],
        "homogeneity: found of": homogeneous(plain, timed=False),
        "homogeneity, knowing when rows came: found of": homogeneous(plain, timed=True),
        "boundary: group found of": bounded(plain),
        "shrinking: odds changed by at most": greedy["odds"],
        "shrinking: the bound on that": greedy["bound"],
        "shrinking: highest chance": greedy["highest"],
        "shrinking: mean chance": greedy["mean"],
        "shrinking: rows above 1/k": greedy["above"],
        "intersection: rows seen twice": seen_twice.targets / len(rows),
        "intersection with a run by another seed: mean chance": seen_twice.mean,
        "order: right of pairs": order(as_they_came(plain.seen)).success,
    }


def reuse(quick: bool) -> int:
    """What the choice of a box tells, by eta, beside what it costs in loss."""
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
    parser.add_argument("--reuse", action="store_true", help="what the choice of a box to reuse tells, by eta")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="some of them")
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
    attacks = list(dict.fromkeys(name for found in figures.values() for name in found))
    lines = [[attack, *(shown(found.get(attack, float("nan"))) for found in figures.values())] for attack in attacks]
    print(table(["attack", "a weak stream", *(f"`{method}`" for method in options.methods)], lines) + "\n")
    kept = {
        name: {attack: rounded(value) for attack, value in found.items() if not np.isnan(value)}
        for name, found in figures.items()
    }
    finish({"quick": options.quick, "k": K, "l": L, "delta": DELTA, "rows": len(rows), "figures": kept})
    return 0


def shown(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3g}" if value < 1e6 else f"{value:.0e}"


if __name__ == "__main__":
    sys.exit(main())
