"""The demo's stream: made-up card payments. Customers come back, some payments are late, a few are broken."""

from __future__ import annotations

import csv
import datetime as dt
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["BROKEN", "COLUMNS", "POLICY", "write"]

COLUMNS = ("receipt", "customer", "paid_at", "age", "zipcode", "occupation", "purchase", "channel", "amount")

#: How many rows do not fit the policy.
BROKEN = 12

POLICY = """\
# Card payments, to be published without revealing who bought what.
version: 1
person: customer                   # tells persons apart; never published
event_time: paid_at                # never published either
quasi_identifiers:                 # what an attacker may know; published coarser
  age: {type: numeric, domain: [18, 95]}
  zipcode: {type: prefix, length: 5}
  occupation: {type: categorical, hierarchy: occupations.csv}
sensitive: [purchase]              # what an attacker must not learn; published as it is
publish: [channel]                 # published as it is; columns that are not named never are
k: 10                              # each release has rows of at least 10 customers
l: 3                               # with at least 3 kinds of purchases
delay: 1h                          # no payment is released later than an hour after it was made
disorder: 2m                       # payments may arrive 2 minutes out of order
"""

_OCCUPATIONS = {
    "Health": {"Hospital": ["surgeon", "nurse", "midwife"], "Practice": ["dentist", "therapist", "optician"]},
    "Schools": {"Teaching": ["teacher", "lecturer"], "Around it": ["librarian", "caretaker"]},
    "Trades": {"Building": ["mason", "roofer", "plumber", "painter"], "Workshop": ["joiner", "smith", "tailor"]},
    "Offices": {"Money": ["accountant", "teller", "auditor"], "Paper": ["clerk", "notary", "editor"]},
    "Outdoors": {"Land": ["farmer", "forester", "gardener"], "Sea": ["fisher", "pilot"]},
}
_PURCHASES = {"groceries": 40, "clothes": 12, "pharmacy": 10, "travel": 8, "electronics": 8, "books": 7}
_PURCHASES |= {"alcohol": 6, "donation": 4, "betting": 3, "lawyer": 2}
_CHANNELS = ("shop", "online", "phone")
_TOWNS = ("481", "482", "483", "537", "606")
_START = dt.datetime(2024, 3, 4, 6, 0, tzinfo=dt.timezone.utc)
_HOURS = 36


def write(folder: Path, *, rows: int = 20_000, customers: int = 2_500, seed: int = 0) -> None:
    """Write `transactions.csv`, `occupations.csv` and `policy.yaml` to a folder."""
    draw = random.Random(seed)
    with open(folder / "transactions.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(_transactions(draw, rows, _customers(draw, customers)))
    lines = [
        f"{leaf};{group};{branch};*"
        for branch, groups in _OCCUPATIONS.items()
        for group, leaves in groups.items()
        for leaf in leaves
    ]
    (folder / "occupations.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "policy.yaml").write_text(POLICY, encoding="utf-8")


def _customers(draw: random.Random, count: int) -> list[dict[str, Any]]:
    jobs = [leaf for groups in _OCCUPATIONS.values() for leaves in groups.values() for leaf in leaves]
    return [
        {
            "customer": f"C{draw.randrange(10**8):08}",
            "age": min(max(round(draw.gauss(44, 16)), 18), 95),
            "zipcode": draw.choice(_TOWNS) + f"{min(int(draw.expovariate(1 / 18)), 99):02}",
            "occupation": draw.choice(jobs),
        }
        for _ in range(count)
    ]


def _transactions(draw: random.Random, rows: int, customers: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    # A few customers pay often, most now and then. No two payments are made in the same millisecond.
    weights = [1 / (place + 20) for place in range(len(customers))]
    payers = draw.choices(customers, weights, k=rows)
    moments = sorted(draw.sample(range(_HOURS * 3_600_000), rows))
    # Some terminals send a payment late. The file is in the order of arrival.
    arrivals = sorted((moment + int(draw.expovariate(1 / 20_000)), moment) for moment in moments)
    broken = set(draw.sample(range(rows), min(BROKEN, rows)))
    for number, ((_, moment), payer) in enumerate(zip(arrivals, payers, strict=True)):
        row = {
            "receipt": number,
            "paid_at": (_START + dt.timedelta(milliseconds=moment)).isoformat(timespec="milliseconds"),
            **payer,
            "purchase": draw.choices(list(_PURCHASES), list(_PURCHASES.values()))[0],
            "channel": draw.choices(_CHANNELS, (6, 3, 1))[0],
            "amount": f"{draw.lognormvariate(3, 1):.2f}",
        }
        if number in broken:
            row |= draw.choice(_BREAKS)
        yield row


_BREAKS: list[dict[str, Any]] = [
    {"age": ""},
    {"age": 203},
    {"zipcode": "4810"},
    {"occupation": "n/a"},
    {"paid_at": "yesterday"},
    {"customer": ""},
]
