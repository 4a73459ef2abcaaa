"""Several rows of a person: what an attacker who links them gets, and what it costs to leave the attacker less.

    python -m benchmarks.linked_rows             the tables of docs/attacks.md
    python -m benchmarks.linked_rows --quick     a tenth of the persons, as a smoke test

Persons of Adult (6 quasi-identifiers, k = 10) have one, two, three or five rows each, within one day. The attacker
knows everyone's quasi-identifiers, and which published rows belong to one person, and looks up who is inside all of
their boxes. Every run is audited.

`cells` are trials, and no setting of crenel: the space is cut into cells that stay, and each row has the number of its
cell as one quasi-identifier more, which is not published. So groups prefer rows of their own cell, and a person who
returns is in company with the same persons again. It shows what could be gained by that.
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
from crenel.audit import Published, audit
from crenel.audit.attacks.person_index import PersonIndex
from crenel.encoding.rows import Rows
from crenel.encoding.tree_learning import learn_tree
from crenel.engine import Kind, Releases
from crenel.engine.methods.mondrian.mondrian_engine import partition
from crenel.engine.space import space_of
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric
from crenel.policy.sharding.shard_tree import ShardTree

QUASI_IDENTIFIERS = ("age", "fnlwgt", "hours_per_week", "education", "marital_status", "native_country")
K, PERSONS, HELD, DAY = 10, 3_000, 1_000, 86_400_000_000
COUNTS = (1, 2, 3, 5)
ORDERS = ("random", "rounds")
#: Rows that cells are learned from, where they are not known before; and the persons of a cell where they are.
FIRST, OF_CELL = 2_048, 60
#: What cells weigh, where each of the 6 quasi-identifiers weighs 1.
WEIGHT = 5.0

SETTINGS: dict[str, dict[str, Any]] = {
    "bastion": {},
    "k = 12": {"k": 12},
    "k = 15": {"k": 15},
    "cells, learned from the first rows": {"cells": "learned"},
    "cells, known before": {"cells": "known"},
    "once_per: 8h": {"once_per": "8h"},
    "once_per: 8h, cells known before": {"once_per": "8h", "cells": "known"},
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
    cells = said.pop("cells", None)
    policy = Policy(person="person", quasi_identifiers=of.quasi_identifiers, **said)
    running, given = (policy, rows) if cells is None else _with_cells(policy, rows, cells)
    start = time.process_time()
    releases = push_all(running, given)
    spent = time.process_time() - start
    out = _without_cells(releases, len(of.quasi_identifiers))
    report = audit(policy, rows, out)
    # Losses are of the boxes as they are published, so that those that trials report are not compared.
    if report.problems() or report.alone:
        raise BrokenPromiseError("\n".join(report.problems()))
    found = chances(policy, rows, releases)
    left, kind = len(rows) - report.left_out, releases.per_row(releases.kind)
    suppressed = int(np.count_nonzero(kind == Kind.SUPPRESSED))
    return {
        "persons": float(len(found)),
        "chance": float(found.mean()) if len(found) else 0.0,
        "above 1/k": float(np.mean(found > 1 / K + 1e-12)) if len(found) else 0.0,
        "certain": float(np.mean(found > 0.99)) if len(found) else 0.0,
        "loss": ((report.loss or 0.0) * left - suppressed) / max(left - suppressed, 1),
        "suppressed": suppressed / len(rows),
        "left out": report.left_out / len(rows),
        "us": 1e6 * spent / len(rows),
    }


def chances(policy: Policy, rows: Rows, releases: Releases) -> NDArray[np.float64]:
    """Return the chance with which the attacker names each person who has several published rows.

    As `crenel.audit.attacks.intersection` with `of_person`, which leaves out persons whose rows all have one box.
    """
    index, d = PersonIndex(policy, rows), rows.qi.shape[1]
    shown = releases.take(np.flatnonzero(releases.kind == Kind.CLUSTER))
    boxes, number = np.unique(np.hstack([shown.lo[:, :d], shown.hi[:, :d]]), axis=0, return_inverse=True)
    box = np.repeat(number.reshape(-1), shown.sizes)
    person = index.person[shown.rows]
    inside = [index.persons_of(index.inside(*np.split(one, 2))) for one in boxes]
    found = []
    for who in np.flatnonzero(np.bincount(person) > 1).tolist():
        first, *others = np.unique(box[person == who]).tolist()
        left = inside[first]
        for other in others:
            left = np.intersect1d(left, inside[other])
        found.append(1.0 / max(len(left), 1))
    return np.array(found)


def _with_cells(policy: Policy, rows: Rows, how: str) -> tuple[Policy, Rows]:
    """Give each row the place of its cell, from 0 to 1; if cells are learned, 0 to the rows they are learned from."""
    if how == "known":
        _, first, who = np.unique(rows.person, return_index=True, return_inverse=True)
        cell = partition(space_of(policy), rows.take(first), OF_CELL)[who].astype(np.float64)
    else:
        tree = learn_tree(policy, rows.slice(0, min(FIRST, len(rows))), 256)
        cell = _places(tree)[tree.find(rows.qi)]
        cell[:FIRST] = 0.0
    columns = {**policy.quasi_identifiers, "cell": Numeric(domain=(0, 1), weight=WEIGHT)}
    place = np.maximum(cell, 0.0) / max(cell.max(), 1.0)
    return replace(policy, quasi_identifiers=columns), replace(rows, qi=np.column_stack([rows.qi, place]))


def _places(tree: ShardTree) -> NDArray[np.float64]:
    """Return the place of each cell: cells that are next to each other in the tree are next to each other."""
    places, waiting, place = np.zeros(tree.shards), [0 if tree.cuts else ~0], 0
    while waiting:
        side = waiting.pop()
        if side < 0:
            places[~side] = place
            place += 1
        else:
            waiting += [tree.cuts[side].above, tree.cuts[side].below]
    return places


def _without_cells(releases: Releases, dimensions: int) -> Published:
    columns = {name: getattr(releases, name) for name in ("rows", "offsets", "kind", "moment", "arrivals", "group")}
    return Published(lo=releases.lo[:, :dimensions], hi=releases.hi[:, :dimensions], **columns)


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
        columns = ["mean chance", "above 1/k", "certain", "loss", "suppressed", "left out", "time to the first"]
        print(f"Order: {order}\n")
        print(table(["rows", "setting", "persons with several", *columns], lines) + "\n", flush=True)
    finish({"quick": options.quick, "k": K, "persons": persons, "held": HELD, "figures": kept})
    return 0


if __name__ == "__main__":
    sys.exit(main())
