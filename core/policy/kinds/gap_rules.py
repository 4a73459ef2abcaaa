"""Missing and unknown values: what a policy may say about them, and where they lie among the coordinates.

`missing: category` gives missing values a coordinate of their own, beside all others, so that every method takes them
and `k` counts them like any value:

- in an `Interval`, beyond its end, by a tenth of its width. A range that reaches there is published without an upper
  end: "from 80 on, or missing".
- in a `Tree`, as one more leaf under the root. Missing and other values together are published as the root.
- in a `Radix`, as a code that begins with a digit of its own. Missing and other values share no prefix.

What is nothing but missing is published as nothing (null).
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from crenel.policy.geometry import Interval, Radix, Tree

__all__ = ["Missing", "Unknown", "interval_and_missing", "radix_and_missing", "tree_and_more"]

#: Missing values lie beyond the end of a domain, by its width divided by this.
_TENTH = 10


class Missing(Enum):
    """What becomes of a missing value."""

    #: It is a value of its own, which is published if k persons of a group have none.
    CATEGORY = "category"

    #: Its row is rejected.
    REJECT = "reject"

    #: The row is taken without it. Only some methods do that.
    HOLE = "hole"


class Unknown(Enum):
    """What becomes of a category that the hierarchy does not have."""

    #: It is only ever published as the root.
    ROOT = "root"

    #: Its row is rejected.
    REJECT = "reject"


def interval_and_missing(values: Interval) -> Interval:
    """Return the interval of a declared domain and of missing values, which lie at its upper end.

    Raises:
        ValueError: Floats cannot tell the missing values' coordinate from others.
    """
    if values.lo is None or values.hi is None:
        message = "missing values need a declared domain."
        raise ValueError(message)
    width = values.hi - values.lo + values.cell
    beyond = math.ceil(width / _TENTH) if values.cells else width / _TENTH
    return Interval(values.lo, values.hi + beyond, values.cells)


def radix_and_missing(values: Radix) -> Radix:
    """Return codes with one more digit, with which only the missing values' code begins: the greatest of all.

    Raises:
        ValueError: There are too many codes.
    """
    return Radix(values.base + 1, values.length)


def tree_and_more(values: Tree, leaves: int) -> Tree:
    """Return the tree with more leaves directly under its root, after all others."""
    return Tree.from_parents(np.append(values.parent, np.zeros(leaves, dtype=np.int32))) if leaves else values
