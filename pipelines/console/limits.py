"""How many rows may fail to leave before a command says that something is wrong."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

__all__ = ["DEFAULT", "TOO_MANY", "Limits", "Passed", "add_arguments", "said", "share"]

#: The exit code of a run of which more rows did not leave than may.
TOO_MANY = 3

#: The share of rows that may be suppressed, and the share that may be rejected.
DEFAULT = 0.05

_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(\s*%)?", re.ASCII)

_NEXT = {
    "suppressed": (
        "give rows a longer delay or lower k (crenel check --data FILE shows how many are suppressed at other delays)"
    ),
    "rejected": "change the policy or the data (crenel check --data FILE shows which columns do not fit, and why)",
}


def share(text: str) -> float:
    """A share as it is written on a command line: `5%` or `0.05`.

    >>> share("5%"), share("0.05"), share("0"), share("100%")
    (0.05, 0.05, 0.0, 1.0)
    """
    found = _SHARE.fullmatch(text.strip())
    # By fractions: 0.7% is then the number that 7 of 1,000 rows are compared with.
    number = Fraction(found[1].rstrip(".")) / (100 if found[2] else 1) if found else Fraction(-1)
    if not 0 <= number <= 1:
        msg = f"must be a share of the rows such as 5% or 0.05, from 0 to 100%, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return float(number)


def said(number: float) -> str:
    """A share in percent, to a tenth; never 0.0% or 100.0% of what is not nothing or all.

    >>> said(0.9725), said(0.05), said(0), said(0.0001), said(0.99999)
    ('97.2%', '5%', '0%', 'under 0.1%', 'over 99.9%')
    """
    if 0 < number < 0.001:
        return "under 0.1%"
    if 0.999 < number < 1:
        return "over 99.9%"
    return f"{round(100 * number, 1):g}%"


@dataclass(frozen=True)
class Passed:
    """A limit that was passed. Counts only."""

    #: `suppressed` or `rejected`.
    what: str
    rows: int
    #: The share of the rows that they are, and the share that they may be.
    share: float
    limit: float
    #: How many more they are than they may be.
    excess: int

    @property
    def fact(self) -> str:
        """What happened."""
        limit = f"{100 * self.limit:g}%"
        return (
            f"{self.rows:,} rows ({said(self.share)}) were {self.what}, {self.excess:,} more than --most-{self.what} "
            f"{limit} allows"
        )

    @property
    def text(self) -> str:
        """What happened in a run, what it means for the output, and what to do next, in a sentence."""
        return (
            f"{self.fact}: the output is written and keeps the policy's promises, but to publish more of the rows, "
            f"{_NEXT[self.what]}."
        )

    def as_dict(self) -> dict[str, Any]:
        """As a record."""
        return asdict(self)


@dataclass(frozen=True)
class Limits:
    """Shares of the rows: of those that may be suppressed, and that may be rejected."""

    suppressed: float = DEFAULT
    rejected: float = DEFAULT

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Limits:
        """The limits of a command line."""
        return cls(arguments.most_suppressed, arguments.most_rejected)

    def passed(self, rows: int | None, *, suppressed: int | None, rejected: int | None) -> Iterator[Passed]:
        """The limits that are passed by these counts; of what is None nothing is known."""
        for what, count, limit in (("suppressed", suppressed, self.suppressed), ("rejected", rejected, self.rejected)):
            if rows and count is not None and count / rows > limit:
                yield Passed(what, count, count / rows, limit, count - math.floor(limit * rows + 1e-9))


def add_arguments(parser: argparse.ArgumentParser, then: str) -> None:
    """Declare the limits; `then` is what happens if more rows are suppressed or rejected."""
    for what in ("suppressed", "rejected"):
        parser.add_argument(
            f"--most-{what}",
            metavar="SHARE",
            type=share,
            default=DEFAULT,
            help=f"the share of rows that may be {what}, as 5%% or 0.05 (the default is 5%%); {then}",
        )
