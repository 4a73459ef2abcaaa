"""The state of an engine of continuous publishing, as arrays that the kernels work on.

A *slot* is where a held row lies; a *leaf* is a node of the tree. Events happen to leaves: the publishing time that was
drawn for a leaf comes, or the deadline of one of its rows. The next event over all leaves is kept, in event time
(`next_time`) and in arrivals (`next_row`), and searched again when a leaf has left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.box_geometry import Space
from crenel.engine.kernels.generator import Random
from crenel.engine.kernels.output import Output
from crenel.engine.methods.rtree.chain_sampling import Chains
from crenel.engine.methods.rtree.rtree_index_kernel import Tree

#: The single numbers of a state: first those that the policy sets (0 or negative: not asked for), then those that
#: change from row to row.


NUMBERS = np.dtype(
    [
        ("k", "i8"),
        ("delay", "i8"),
        ("tick", "i8"),  # deadlines are multiples of it
        ("delay_rows", "i8"),
        ("disorder", "i8"),
        ("instant", "i8"),  # microseconds; 0: an arrival
        ("active_rows", "i8"),  # rows to hold
        ("patience", "f8"),  # arrivals for which a row may be held back
        ("decay", "f8"),  # log(1 + alpha)
        ("first_fit", "i8"),  # whether a row joins the first leaf without its person
        ("dense", "i8"),  # whether the density of the stream counts
        ("holds", "i8"),  # whether rows are held back
        ("arrivals", "i8"),
        ("clock", "i8"),
        ("held", "i8"),
        ("free", "i8"),  # slots
        ("over", "i8"),  # whether the stream has ended and nothing is held back
        ("next_time", "i8"),
        ("next_time_leaf", "i8"),
        ("next_row", "i8"),
        ("next_row_leaf", "i8"),
        ("rate_rows", "f8"),  # rows counted
        ("rate_since", "f8"),  # since this moment
        ("draws", "i8"),
        ("released", "i8"),
        ("out_rows", "i8"),
        ("out_releases", "i8"),
    ]
)


#: `patience` is the instant from which a row is no longer held back; LATEST if it has not been held back yet.
SLOT = np.dtype([("number", "i8"), ("deadline", "i8"), ("patience", "i8")])
LEAF = np.dtype(
    [
        ("due", "i8"),  # the publishing time; LATEST: none
        ("deadline", "i8"),  # the first deadline of its rows
        ("oldest", "i8"),  # the smallest number of its rows
        ("samples", "i8"),  # samples of the stream in its box
    ]
)


class State(NamedTuple):
    """The complete state of an engine."""

    numbers: Any  # NUMBERS, one
    space: Space
    tree: Tree
    slots: Any  # SLOT
    free: Any  # slots without a row
    leaves: Any  # LEAF, by node
    held_distinct: Any  # for each kind of label, how many distinct ones all held rows have
    chains: Chains
    inside: Any  # scratch space: uint8 per chain
    found: Any  # scratch space: leaves or slots
    random: Random
    out: Output
