"""How many rows may stay unpublished before a command says that something is wrong."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

__all__ = ["DEFAULT", "TOO_MANY", "Limits", "Passed", "add_arguments", "said", "share"]

#: The exit code of a run that suppressed or rejected more rows than it may.
TOO_MANY = 3

#: The share of rows that may be suppressed, and the share that may be rejected, unless the user sets another.
DEFAULT = 0.05

_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(\s*%)?", re.ASCII)

_NEXT = {
    "suppressed": (
        "give rows a longer delay or lower k (crenel check --data FILE shows how many are suppressed at other delays)"
    ),
    "rejected": "change the policy or the data (crenel check --data FILE shows which columns do not fit, and why)",
}


def share(text: str) -> float:
    """Read a share from a command line: `5%` or `0.05`.

    >>> share("5%"), share("0.05"), share("0"), share("100%")
    (0.05, 0.05, 0.0, 1.0)
    """
    found = _SHARE.fullmatch(text.strip())
    # Fractions make 0.7% exactly equal to 7 of 1,000 rows.
    number = Fraction(found[1].rstrip(".")) / (100 if found[2] else 1) if found else Fraction(-1)
    if not 0 <= number <= 1:
        msg = f"must be a share of the rows such as 5% or 0.05, from 0 to 100%, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return float(number)


def said(number: float) -> str:
    """Write a share in percent, to a tenth. Only nothing is 0%, and only all is 100%.

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
    """A limit that was exceeded. Counts only."""

    #: `suppressed` or `rejected`.
    what: str
    rows: int
    #: Their share of the rows, and the largest share allowed.
    share: float
    limit: float
    #: The rows above the limit.
    excess: int

    @property
    def fact(self) -> str:
        """Say what happened."""
        limit = f"{100 * self.limit:g}%"
        return (
            f"{self.rows:,} rows ({said(self.share)}) were {self.what}, {self.excess:,} more than --most-{self.what} "
            f"{limit} allows"
        )

    @property
    def text(self) -> str:
        """Say what happened in a run, what it means for the output, and what to do next."""
        return (
            f"{self.fact}: the output is written and keeps the policy's promises, but to publish more of the rows, "
            f"{_NEXT[self.what]}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as a record."""
        return asdict(self)


@dataclass(frozen=True)
class Limits:
    """The largest shares of the rows that may be suppressed, and that may be rejected."""

    suppressed: float = DEFAULT
    rejected: float = DEFAULT

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Limits:
        """Take the limits from a command line."""
        return cls(arguments.most_suppressed, arguments.most_rejected)

    def passed(self, rows: int | None, *, suppressed: int | None, rejected: int | None) -> Iterator[Passed]:
        """Yield the limits that these counts exceed. None stands for a count that is not known."""
        for what, count, limit in (("suppressed", suppressed, self.suppressed), ("rejected", rejected, self.rejected)):
            if rows and count is not None and count / rows > limit:
                yield Passed(what, count, count / rows, limit, count - math.floor(limit * rows + 1e-9))


def add_arguments(parser: argparse.ArgumentParser, then: str) -> None:
    """Declare the limits.

    Args:
        parser: The command's.
        then: What happens if more rows are suppressed or rejected, for the help.
    """
    for what in ("suppressed", "rejected"):
        parser.add_argument(
            f"--most-{what}",
            metavar="SHARE",
            type=share,
            default=DEFAULT,
            help=f"the largest share of rows that may be {what}, such as 5%% or 0.05 (default 5%%); {then}",
        )
