"""The state of an engine of the method `partition`, as arrays that the kernels work on.

A *slot* is where a held row lies in the buffer; the *set* of a row is the quasi-identifiers it has, one bit each; a
*partition* is an entry of the table of the sets that held rows have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.box_geometry import Space
from crenel.engine.kernels.generator import Random
from crenel.engine.kernels.held_rows import slot_type
from crenel.engine.kernels.output import Output
from crenel.engine.kernels.reusable_boxes import ReusableBoxes

#: How a reusable box is chosen.
OFF, BEST, UNIFORM, WEIGHTED = 0, 1, 2, 3

#: The single numbers of a state: first those that the policy sets (0 or negative: not asked for), then those that
#: change from row to row.


NUMBERS = np.dtype(
    [
        ("k", "i8"),
        ("l", "i8"),
        ("delay", "i8"),
        ("tick", "i8"),  # deadlines are multiples of it
        ("delay_rows", "i8"),
        ("disorder", "i8"),
        ("reuse", "i8"),
        ("reuse_rows", "i8"),  # arrivals for which a box can be reused; 0: a time
        ("reuse_time", "i8"),  # microseconds for which a box can be reused
        ("eta", "f8"),
        ("fill_missing", "i8"),  # whether missing quasi-identifiers are published as if they were there
        ("arrivals", "i8"),
        ("clock", "i8"),
        ("held", "i8"),
        ("free", "i8"),  # slots
        ("oldest", "i8"),
        ("newest", "i8"),
        ("timed", "i8"),  # rows in the heap
        ("partitions", "i8"),
        ("reusable", "i8"),
        ("reusable_oldest", "i8"),
        ("draws", "i8"),
        ("released", "i8"),
        ("out_rows", "i8"),
        ("out_releases", "i8"),
    ]
)


SLOT = slot_type(("set", "i8"))
PARTITION = np.dtype([("set", "i8"), ("rows", "i8"), ("place", "i8")])


class Buffer(NamedTuple):
    """The held rows, by slot."""

    slots: Any  # SLOT
    sensitive: Any
    heap: Any
    free: Any
    qi: Any  # [quasi-identifier, slot]: one row is compared with many, column by column
    partition: Any  # of the row; NONE if the slot has no row


class Partitions(NamedTuple):
    """The sets of quasi-identifiers that held rows have: Set_p of the paper."""

    table: Any  # PARTITION
    distinct: Any  # [partition, tracked]: distinct persons, and with l distinct values of each sensitive column
    active: Any  # partitions by place; the unused ones come after the active ones
    wanted: Any  # partitions whose rows may join the group that is being formed


class GroupSearch(NamedTuple):
    """Scratch space to form a group."""

    slots: Any  # the rows to choose from
    distance: Any
    shared: Any  # the share of the quasi-identifiers that each row and the row that is due both have
    heap: Any  # places in `slots` by (distance, number)
    group: Any  # the slots that were chosen
    distinct: Any  # of the chosen rows, as in `Partitions`
    lo: Any
    hi: Any


class State(NamedTuple):
    """The complete state of an engine."""

    numbers: Any  # NUMBERS, one
    space: Space
    counts: Any  # ENTRY: how often each (tag, value) is there
    buffer: Buffer
    partitions: Partitions
    search: GroupSearch
    reusable: ReusableBoxes  # Set_kc of the paper
    random: Random
    out: Output
