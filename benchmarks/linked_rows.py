"""Several rows of a person: what an attacker who links them gets, and what it costs to leave the attacker less.

    python -m benchmarks.linked_rows             the tables of docs/attacks.md
    python -m benchmarks.linked_rows --quick     a tenth of the persons, as a smoke test

Persons of Adult (6 quasi-identifiers, k = 10) have one, two, three or five rows each, within one day. The attacker
knows everyone's quasi-identifiers, and which published rows belong to one person, and looks up who is inside all of
their boxes. Every run is audited.

"Guess" is an attacker who knows the method, too: a box ends at values of its own rows, so of those inside all boxes,
the one at the most ends, that few others share, is the best guess. It is of all persons, also of those with one row.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.runs import BrokenPromiseError, push_all
from benchmarks.tables import finish, rounded, table
from crenel.audit import audit
from crenel.audit.attacks.person_index import PersonIndex
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases
from crenel.policy import Policy

Floats = NDArray[np.float64]

QUASI_IDENTIFIERS = ("age", "fnlwgt", "hours_per_week", "education", "marital_status", "native_country")
K, PERSONS, HELD, DAY = 10, 3_000, 1_000, 86_400_000_000
COUNTS = (1, 2, 3, 5)
ORDERS = ("random", "rounds")

SETTINGS: dict[str, dict[str, Any]] = {
    "bastion": {},
    "k = 12": {"k": 12},
    "k = 15": {"k": 15},
    "together": {"together": True},
    "together, k = 15": {"together": True, "k": 15},
    "once_per: 8h": {"once_per": "8h"},
    "once_per: 8h, together": {"once_per": "8h", "together": True},
    "once_per: 1d": {"once_per": "1d"},
}


def stream(of: datasets.Stream, persons: int, count: int, order: str) -> Rows:
    """Let each person have so many rows within a day: at random, or one in each of as many rounds of one order."""
    random = np.random.default_rng(count)
    if order == "random":
        person = random.permutation(np.repeat(np.arange(persons), count))
    else:
        place = random.permutation(persons)
        # In each round a person comes some places earlier or later.
        rounds = [np.argsort(place + random.normal(0, persons / 50, persons), kind="stable") for _ in range(count)]
        person = np.concatenate(rounds)
    when = (np.arange(len(person)) * (DAY // len(person))).astype(np.int64)
    return replace(of.rows.take(person), person=person.astype(np.int64), time=when)


def figures(of: datasets.Stream, rows: Rows, setting: dict[str, Any]) -> dict[str, float]:
    """Run one setting, and attack it."""
    said = {"k": K, "delay": HELD * (DAY // len(rows)), "seed": 1, **setting}
    policy = Policy(person="person", quasi_identifiers=of.quasi_identifiers, **said)
    start = time.process_time()
    releases = push_all(policy, rows)
    spent = time.process_time() - start
    report = audit(policy, rows, releases)
    if report.problems() or report.alone:
        raise BrokenPromiseError("\n".join(report.problems()))
    found, guessed = attacked(policy, rows, releases)
    left, kind = len(rows) - report.left_out, releases.per_row(releases.kind)
    suppressed = int(np.count_nonzero(kind == Kind.SUPPRESSED))
    return {
        "persons": float(len(found)),
        "chance": float(found.mean()) if len(found) else 0.0,
        "above 1/k": float(np.mean(found > 1 / K + 1e-12)) if len(found) else 0.0,
        "certain": float(np.mean(found > 0.99)) if len(found) else 0.0,
        "guess": float(guessed.mean()) if len(guessed) else 0.0,
        "loss": ((report.loss or 0.0) * left - suppressed) / max(left - suppressed, 1),
        "suppressed": suppressed / len(rows),
        "left out": report.left_out / len(rows),
        "us": 1e6 * spent / len(rows),
    }


def attacked(policy: Policy, rows: Rows, releases: Releases) -> tuple[Floats, Floats]:
    """Return the chance with which the attacker names each person who has several published rows; and guesses each.

    As `crenel.audit.attacks.intersection` with `of_person`, which leaves out persons whose rows all have one box.
    """
    index = PersonIndex(policy, rows)
    shown = releases.take(np.flatnonzero(releases.kind == Kind.CLUSTER))
    boxes, number = np.unique(np.hstack([shown.lo, shown.hi]), axis=0, return_inverse=True)
    box = np.repeat(number.reshape(-1), shown.sizes)
    person = index.person[shown.rows]
    inside = [index.persons_of(index.inside(*np.split(one, 2))) for one in boxes]
    qi = rows.qi[np.unique(index.person, return_index=True)[1]]
    found, guessed = [], []
    for who in np.unique(person).tolist():
        first, *others = np.unique(box[person == who]).tolist()
        left = inside[first]
        for other in others:
            left = np.intersect1d(left, inside[other])
        if np.count_nonzero(person == who) > 1:
            found.append(1.0 / max(len(left), 1))
        guessed.append(_guess(qi[left], left == who, boxes[[first, *others]]))
    return np.array(found), np.array(guessed)


def _guess(qi: Floats, is_target: NDArray[np.bool_], boxes: Floats) -> float:
    """Return the chance that the target is who is at most ends, those that are shared counting less."""
    lo, hi = np.split(boxes, 2, axis=1)
    is_wide = np.hstack([lo < hi, lo < hi])
    ends = (np.hstack([qi, qi])[:, None] == boxes) & is_wide
    score = (ends / np.maximum(ends.sum(axis=0), 1)).sum(axis=(1, 2))
    best = score >= score.max() - 1e-12
    return float(is_target[best].any() / best.sum())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.linked_rows", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a tenth of the persons; figures mean nothing")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="only these")
    options = parser.parse_args(arguments)
    persons = PERSONS // 10 if options.quick else PERSONS
    of = datasets.adult(QUASI_IDENTIFIERS).first(persons)
    for name in options.settings:  # so that no time is that of the compiler
        figures(of, stream(of, persons, 1, ORDERS[0]), SETTINGS[name])
    kept: dict[str, Any] = {}
    for order in ORDERS[:1] if options.quick else ORDERS:
        lines = []
        for count in COUNTS[1:2] if options.quick else COUNTS:
            rows, plain = stream(of, persons, count, order), 0.0
            for name in options.settings:
                found = figures(of, rows, SETTINGS[name])
                plain = plain or found["us"]
                kept[f"{order}, {count}, {name}"] = {key: rounded(value) for key, value in found.items()}
                several, spent = int(found.pop("persons")), found.pop("us")
                lines.append([f"{count}", name, several, *(f"{value:.3g}" for value in found.values())])
                lines[-1].append(f"{spent / plain:.1f}")
        columns = ["rows", "setting", "persons with several", "mean chance", "above 1/k", "certain", "guess"]
        columns += ["loss", "suppressed", "left out", "time to the first"]
        print(f"Order: {order}\n")
        print(table(columns, lines) + "\n", flush=True)
    finish({"quick": options.quick, "k": K, "persons": persons, "held": HELD, "figures": kept})
    return 0


if __name__ == "__main__":
    sys.exit(main())
