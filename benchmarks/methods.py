"""All methods on the same rows: their loss, suppressed rows, delay and time, and what each attack gets.

    python -m benchmarks.methods                  the tables of docs/methods.md and docs/fads.md
    python -m benchmarks.methods --only field     some of it: field, fads
    python -m benchmarks.methods --quick          a tenth of the rows and one seed, as a smoke test; writes nothing

Every run is audited, and a broken promise ends it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.castle_paper import REFERENCES, write
from benchmarks.datasets import ROOT, Stream
from benchmarks.runs import BrokenPromiseError, push_all
from benchmarks.tables import finish, rounded, table
from crenel.audit import audit
from crenel.audit.attacks import Observation, boundary, ends, homogeneity, linkage, noise, observer, order, posterior
from crenel.engine import Kind, Releases
from crenel.policy import Policy, Sensitive

SECOND = 1_000_000
SEEDS = 5
K, DELTA = 10, 1_000
#: A method needs no more than k and delta, except for these. Their papers' reuse, and none.
METHODS: dict[str, dict[str, Any]] = {
    "castle": {"method": "castle"},
    "castle, reuse: off": {"method": "castle", "parameters": {"reuse": "off"}},
    "bastion": {"method": "bastion"},
    "fads": {"method": "fads"},
    "fads, reuse: off": {"method": "fads", "parameters": {"reuse": "off"}},
    "partition": {"method": "partition"},
    "mondrian": {"method": "mondrian"},
    "adaptive-window": {"method": "adaptive-window", "delay": DELTA * SECOND, "delay_rows": None},
    "rtree": {"method": "rtree"},
    "rtree-density": {"method": "rtree-density"},
    "rtree-full": {"method": "rtree-full"},
    "min-delay": {"method": "min-delay"},
    "faanst-passive": {"method": "faanst-passive"},
    "faanst-proactive": {"method": "faanst-proactive"},
    "castleguard": {"method": "castleguard", "parameters": {"beta_sample": 1.0, "phi": 1000.0}},
    "sdgs": {"method": "sdgs", "parameters": {"beta_sample": 0.999}},
}
#: The cases of the table: 6 and 10 quasi-identifiers, k = 10, delta 1,000.
CASES = (REFERENCES[1], REFERENCES[3])
#: How many targets an attack tries if it examines each of them, and how precisely the observer knows an arrival.
TARGETS, KNOWN = 1_000, 0.1
COSTS = {"loss": "loss", "suppressed": "suppressed", "delay": "mean delay, rows", "us": "time to castle's"}
ATTACKS = {
    "alone": "not in a crowd",
    "posterior": "posterior: above 1/k",
    "observer": "observer: mean chance",
    "linkage": "linkage: highest",
    "homogeneity": "homogeneity: found",
    "ends": "ends: found",
    "boundary": "boundary: found",
    "order": "order: right",
}


def stream_of(names: Sequence[str], *, quick: bool) -> Stream:
    """Return Adult with a row a second, and its income as the sensitive column."""
    stream = datasets.adult(names, extra=("income",))
    rows = replace(
        stream.rows,
        time=np.arange(len(stream.rows), dtype=np.int64) * SECOND,
        sensitive=np.ascontiguousarray(stream.extra["income"][:, None]),
    )
    return replace(stream, rows=rows).first(len(rows) // 10 if quick else len(rows))


def policy_of(stream: Stream, said: Mapping[str, Any], seed: int, *, k: int = K, delta: int = DELTA) -> Policy:
    """Build a policy with the same deadline for all methods: `delta` rows, one second apart."""
    given: dict[str, Any] = {
        "person": "person",
        "quasi_identifiers": stream.quasi_identifiers,
        "sensitive": {"income": Sensitive()},
        "k": k,
        "delay_rows": delta,
        "on_suppress": "drop",
        "seed": seed,
    }
    return Policy(**given | said)


def measured(stream: Stream, policy: Policy) -> dict[str, float]:
    """Run a method, audit it, and return what that cost."""
    return released(stream, policy)[1]


def released(stream: Stream, policy: Policy) -> tuple[Releases, dict[str, float]]:
    """Run a method, audit it, and return what it released and what that cost."""
    begun = time.process_time()
    releases = push_all(policy, stream.rows)
    took = time.process_time() - begun
    report = audit(policy, stream.rows, releases)
    if not report.ok:
        raise BrokenPromiseError("\n".join(report.problems() + report.unchecked()))
    kind = releases.per_row(releases.kind)
    there = kind != Kind.SAMPLED_OUT
    delay = releases.per_row(releases.arrivals) - 1 - releases.rows
    assert report.alone is not None
    return releases, {
        "loss": float(releases.per_row(releases.loss)[there].mean()),
        "suppressed": float(np.mean(kind[there] == Kind.SUPPRESSED)),
        "delay": float(delay[there].mean()),
        "longest": float(delay[there].max()),
        "us": 1e6 * took / len(stream.rows),
        "alone": report.alone / max(report.published, 1),
    }


def attacked(stream: Stream, policy: Policy, releases: Releases) -> dict[str, float]:
    """Return what each attack gets: shares of the rows or values that it tries, and chances."""
    rows = stream.rows
    seen = Observation.of(policy, rows, releases)
    told = posterior(policy, rows, releases)
    timed = observer(policy, rows, releases, known=KNOWN, most=TARGETS)
    assert told is not None
    assert timed is not None
    chosen = np.random.default_rng(0).choice(len(rows), min(TARGETS, len(rows)), replace=False)
    truth = rows.sensitive[chosen, 0]
    found = homogeneity(seen, people=rows.qi[chosen], truth=truth, arrived=chosen, within=DELTA)
    return {
        "posterior": told.above / max(told.targets, 1),
        "observer": timed.mean,
        "linkage": linkage(policy, seen, rows).highest,
        "homogeneity": found.success,
        "ends": ends(policy, seen, rows).success,
        "order": order(seen).success,
    }


def bounded(stream: Stream, policy: Policy, releases: Releases) -> dict[str, float]:
    """Return how many persons' releases are found by their ends."""
    rows, seen = stream.rows, Observation.of(policy, stream.rows, releases)
    bounds = boundary(
        seen,
        people=rows.qi,
        published=np.isin(np.arange(len(rows)), seen.rows),
        widest=np.array([qi.geometry.widest() for qi in policy.quasi_identifiers.values()]),
        scale=noise(policy, rows.qi),
    )
    return {"boundary": bounds.success}


def field(seeds: int, quick: bool, names: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """All methods on Adult: what they cost, and what attackers get."""
    texts, figures = [], {}
    for case in CASES:
        stream = stream_of(case.quasi_identifiers, quick=quick)
        title = f"{len(case.quasi_identifiers)} quasi-identifiers"
        found: dict[str, dict[str, float]] = {}
        for name in names:
            small = stream.first(DELTA + 500)
            push_all(policy_of(small, METHODS[name], 0), small.rows)  # compile first
            runs = []
            for seed in range(seeds):
                policy = policy_of(stream, METHODS[name], seed)
                releases, costs = released(stream, policy)
                runs.append(costs | attacked(stream, policy, releases))
                if seed == 0 or not policy.declaration.perturbs:  # against noise it takes a minute
                    runs[-1] |= bounded(stream, policy, releases)
            found[name] = {key: rounded(fmean(run[key] for run in runs if key in run)) for key in runs[0]}
            print(f"{title}, {name}: {found[name]}", file=sys.stderr, flush=True)
        base = found[next(iter(found))]["us"]
        cost = [
            [f"`{name}`", of["loss"], f"{of['suppressed']:.1%}", round(of["delay"]), of["us"] / base]
            for name, of in found.items()
        ]
        got = [
            [f"`{name}`", *(f"{of[key]:.1%}" if key not in ("observer", "linkage") else of[key] for key in ATTACKS)]
            for name, of in found.items()
        ]
        texts += [table([title, *COSTS.values()], cost), table([title, *ATTACKS.values()], got)]
        figures[title] = found
    texts.append(f"Means over {seeds} seed{'s' * (seeds > 1)}.")
    return "\n\n".join(texts), figures


def fads(seeds: int, quick: bool) -> tuple[str, dict[str, Any]]:
    """FADS with a buffer that is always full, as it is often built, and held to a deadline of as many rows."""
    lines, figures = [], {}
    for case in (REFERENCES[1], REFERENCES[0]):
        stream = stream_of(case.quasi_identifiers, quick=quick)
        k, delta = (max(2, case.k // 10), case.delay_rows // 10) if quick else (case.k, case.delay_rows)
        for name, buffer, deadline in (("always full", delta, 10**7), ("deadline", None, delta)):
            said = {"method": "fads", "parameters": {"reuse": "best", "buffer": buffer, "reuse_for": delta}}
            runs = [measured(stream, policy_of(stream, said, seed, k=k, delta=deadline)) for seed in range(seeds)]
            means = {key: fmean(run[key] for run in runs) for key in runs[0]}
            title = f"k = {k}, delta {delta:,}: {name}"
            lines.append(
                [title, means["loss"], f"{means['suppressed']:.2%}", round(means["delay"]), round(means["longest"])]
            )
            figures[title] = {key: rounded(value) for key, value in means.items()}
    return table(["6 quasi-identifiers", "loss", "suppressed", "mean delay, rows", "longest"], lines), figures


#: Where the tables of each part are.
PAGES = {"field": ROOT / "docs" / "methods.md", "fads": ROOT / "docs" / "fads.md"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.methods", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows and one seed; writes nothing")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of which the mean is reported")
    parser.add_argument("--only", default=",".join(PAGES), help=f"some of {', '.join(PAGES)}")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), help="only these; writes nothing"
    )
    options = parser.parse_args(arguments)
    wanted = options.only.split(",")
    if unknown := [name for name in wanted if name not in PAGES]:
        parser.error(f"--only must be some of {', '.join(PAGES)}, not {', '.join(unknown)}")
    seeds = 1 if options.quick else options.seeds
    parts: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
        "field": lambda: field(seeds, options.quick, options.methods),
        "fads": lambda: fads(seeds, options.quick),
    }
    figures: dict[str, Any] = {"quick": options.quick, "seeds": seeds}
    for name in wanted:
        text, figures[name] = parts[name]()
        print(f"{name}\n\n{text}\n", flush=True)
        if not options.quick and options.methods == list(METHODS):
            page: Path = PAGES[name]
            write(page, name, text)
    finish(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
