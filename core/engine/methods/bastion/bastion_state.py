"""The state of a bastion engine, as arrays that the kernels work on.

Held rows lie in order of arrival, one line per quasi-identifier. A row that has left remains as a gap until the rows
are moved together. No result depends on the gaps: places are compared only by their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.box_geometry import Space
from crenel.engine.kernels.closeness import Closeness
from crenel.engine.kernels.generator import Random
from crenel.engine.kernels.output import Output
from crenel.engine.kernels.reusable_boxes import ReusableBoxes
from crenel.engine.methods.bastion.bastion_cells import Cells

#: Candidates are striped over LANES; caching each lane's minimum avoids a full scan.
LANES = 128
#: Places that share an entry of `Held.earliest`.
SPAN = 256
#: Values whose categories or prefixes are looked at together: few enough to stay in the nearest cache.
PART = 512
#: Bins that the domain of a quasi-identifier is divided into, to find the reusable boxes that contain a value.
BINS = 32

#: The single numbers of a state: first those that the policy sets (0 or negative: not asked for), then those that
#: change from row to row.
NUMBERS = np.dtype(
    [
        ("k", "i8"),
        ("l", "i8"),
        ("t", "f8"),
        ("delay", "i8"),
        ("tick", "i8"),
        ("delay_rows", "i8"),
        ("disorder", "i8"),
        ("max_reusable", "i8"),
        ("eta", "f8"),
        ("lonely", "f8"),
        ("search", "i8"),  # the most candidates
        ("search_cells", "i8"),  # the most candidates, if they come from cells
        ("at_end", "f8"),  # what a row may add to the loss of a group at the end of the stream, not to be suppressed
        ("thin", "i8"),  # if fewer rows are held than this and some are not due, a group takes the oldest
        ("index_from", "i8"),  # if more rows are held than this, they are kept in cells
        ("arrivals", "i8"),
        ("clock", "i8"),
        ("held", "i8"),
        ("places", "i8"),  # rows and gaps
        ("first", "i8"),  # there is no row before this place
        ("soonest", "i8"),  # there is no deadline before this moment
        ("until", "i8"),  # the deadline of the rows that are due
        ("over", "i8"),  # whether the stream is over and all rows are due
        ("writing", "i8"),  # whether there is a plan that is not completely written
        ("staying", "i8"),  # whether some of the held rows are not due
        ("dividing", "i8"),  # whether all held rows are due, and Python must divide them
        ("indexed", "i8"),  # whether all held rows are in cells
        ("cut_at", "i8"),  # the number of arrivals at which cells are cut anew
        ("nearby", "i8"),  # whether candidates come from cells
        ("candidates", "i8"),
        ("planned", "i8"),  # groups of the plan
        ("planned_rows", "i8"),
        ("written", "i8"),  # groups of the plan that are written
        ("sampled", "i8"),  # rows that went into the sample
        ("until_sample", "i8"),  # arrivals until the next row goes into the sample
        ("average", "f8"),  # recent loss per row
        ("ratio", "f8"),  # recent loss of groups, relative to that of the anchor and its (k-1)-th nearest row
        ("waited", "f8"),  # recent waits, relative to the wait of the anchor
        ("guess", "f8"),  # recent loss of groups, relative to the loneliness of the anchor
        ("caution", "f8"),  # from LEAST_CAUTION to MOST_CAUTION
        ("reusable", "i8"),
        ("reusable_oldest", "i8"),
        ("draws", "i8"),
        ("released", "i8"),
        ("out_rows", "i8"),
        ("out_releases", "i8"),
    ]
)


class Held(NamedTuple):
    """The held rows by place. A gap has the number NONE."""

    number: Any
    person: Any
    deadline: Any  # empty if the policy has no delay
    lonely: Any  # estimate of the loss of a group around the row
    columns: Any  # [quasi-identifier, place]
    sensitive: Any
    earliest: Any  # of each SPAN places: no deadline is earlier; empty if the policy has no delay


class Search(NamedTuple):
    """Scratch space to form one group."""

    cost: Any  # by place: the loss of a box of this row and the anchor
    order: Any  # numbers to select from
    place: Any  # of each candidate
    offset: Any  # [quasi-identifier, candidate]: distance from the anchor, in single precision; of a category: the leaf
    score: Any  # of each candidate; infinite if it cannot join
    least: Any  # minimum of the scores in each lane
    members: Any  # places of the group's rows
    company: Any  # their persons
    node: Any  # nodes of the cuts that are still to be looked at, as a heap by key
    key: Any  # of each: how much the anchor's box must grow to reach it


class Plan(NamedTuple):
    """The groups of the rows that are due at one moment, before they are written. Planned rows are no longer held."""

    place: Any  # of each planned row, where its columns stay until the plan is written
    number: Any
    group: Any
    size: Any  # of each group
    box: Any  # [group, 3, quasi-identifier]: as `State.box`
    end: Any  # of each group in `order`
    order: Any  # planned rows by group


class Scratch(NamedTuple):
    """Scratch space for small things: code without reference counts cannot create arrays."""

    row: Any  # the quasi-identifiers of a row
    box: Any  # as `State.box`
    values: Any  # l values of a sensitive column


class BoxIndex(NamedTuple):
    """An index of the reusable boxes: which of them have a value in which bin."""

    boxes: Any  # [quasi-identifier, bin, word]: one bit for each box that reaches into the bin
    bounds: Any  # [3, quasi-identifier]: the ends of the domain that the bins cover, and bins per unit
    bins: Any  # scratch space: the bins of a row


class Terrain(NamedTuple):
    """The quasi-identifiers, and scratch space for their categories and prefixes."""

    space: Space
    growth: Any  # [2, leaf]
    spans: Any  # [2, 3, span]: lo, hi, and how much a span grows to each
    part: Any  # [2, value]


class Kept(NamedTuple):
    """The complete state of a bastion engine between calls."""

    numbers: Any  # NUMBERS, one
    terrain: Terrain
    held: Held
    sample: Any  # [quasi-identifier, place]: some of the rows that arrived recently
    box: Any  # [3, quasi-identifier]: lo, hi and tree node of the group that is being formed
    scratch: Scratch
    reusable: ReusableBoxes
    index: BoxIndex
    closeness: Closeness
    random: Random
    cells: Cells  # the held rows once more, if there are many


class State(NamedTuple):
    """The same, with scratch space and an output buffer that the engines of a thread share."""

    numbers: Any
    terrain: Terrain
    held: Held
    sample: Any
    box: Any
    scratch: Scratch
    reusable: ReusableBoxes
    index: BoxIndex
    closeness: Closeness
    random: Random
    cells: Cells
    search: Search
    plan: Plan
    out: Output
