"""The state of a CASTLE engine, as arrays that the kernels work on.

A state is made of parts, and a function takes only the parts that it needs: numba passes each array as seven words, so
that a function that runs for every row must not be given everything.

A *slot* is where a held row lies in the buffer; a *cluster* is an entry of the table of clusters; a *span* is a range
widened to what can be published (`docs/castle.md` has a table of the words).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.box_geometry import Boxes, Space
from crenel.engine.kernels.closeness import Closeness
from crenel.engine.kernels.generator import Random
from crenel.engine.kernels.held_rows import slot_type
from crenel.engine.kernels.output import Output
from crenel.engine.kernels.reusable_boxes import ReusableBoxes

#: The single numbers of a state: first those that the policy sets (0 or negative: not asked for), then those that
#: change from row to row.


NUMBERS = np.dtype(
    [
        ("k", "i8"),
        ("l", "i8"),
        ("t", "f8"),
        ("delay", "i8"),
        ("tick", "i8"),  # deadlines are multiples of it
        ("delay_rows", "i8"),
        ("disorder", "i8"),
        ("beta", "i8"),
        ("mu", "i8"),
        ("reuse", "i8"),
        ("tracked", "i8"),  # what is counted per cluster: persons, and with l the values of each sensitive column
        ("arrivals", "i8"),
        ("clock", "i8"),
        ("held", "i8"),
        ("free", "i8"),  # slots
        ("oldest", "i8"),
        ("newest", "i8"),
        ("timed", "i8"),  # rows in the heap
        ("clusters", "i8"),
        ("born", "i8"),  # clusters made so far
        ("recent", "i8"),  # losses that tau was computed from so far
        ("reusable", "i8"),
        ("reusable_oldest", "i8"),
        ("draws", "i8"),
        ("released", "i8"),
        ("out_rows", "i8"),
        ("out_releases", "i8"),
        ("tau", "f8"),
    ]
)


SLOT = slot_type(
    ("cluster", "i8"),
    ("previous", "i8"),  # slot of the row that arrived before, in the same cluster
    ("next", "i8"),
)
CLUSTERS = np.dtype([("head", "i8"), ("tail", "i8"), ("born", "i8"), ("place", "i8")])


class Buffer(NamedTuple):
    """The held rows, by slot."""

    slots: Any  # SLOT
    sensitive: Any
    heap: Any
    free: Any
    qi: Any  # [slot, quasi-identifier]


class Clusters(NamedTuple):
    """The clusters: Gamma of the paper."""

    table: Any  # CLUSTERS
    boxes: Boxes  # by place among the active clusters
    distinct: Any  # [cluster, tracked]: distinct persons, and with l distinct values of each sensitive column
    held_distinct: Any  # [tracked]: the same for all held rows
    active: Any  # clusters by place; the unused ones come after the active ones
    enlargement: Any  # scratch space, by place


class Persons(NamedTuple):
    """The persons of a cluster that is about to leave, numbered by their first row."""

    count: Any
    of: Any  # each member's person
    following: Any  # each member's next row of the same person


class Nearest(NamedTuple):
    """Scratch space to find the persons nearest to a box."""

    distance: Any  # of each person that was found, as a heap: the farthest comes first
    person: Any
    node: Any  # nodes of the tree that may have nearer ones
    bound: Any  # how near
    enlargement: Any


class State(NamedTuple):
    """The complete state of a CASTLE engine."""

    numbers: Any  # NUMBERS, one
    space: Space
    counts: Any  # GROUPED, one table for each that is tracked: how often each value is in each cluster
    scratch: Any  # ENTRY: an empty table to count with
    buffer: Buffer
    clusters: Clusters
    reusable: ReusableBoxes  # Omega of the paper
    recent: Any  # the last mu losses, a ring
    closeness: Closeness
    random: Random
    out: Output
