"""Hash tables that count values, to know how many distinct ones there are.

The size of a table is a power of two, and at most half of it is used. An entry with the count 0 is empty.
"""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.compiler import bare, kernel

#: An entry of a table that counts (tag, value). The tag says what is counted: persons of a cluster, and so on.
ENTRY = np.dtype([("tag", "i8"), ("value", "i8"), ("count", "i8")])
#: An entry of a table that counts (group, value). All entries of one value lie together, whatever their group, so that
#: one search tells both whether a value is new in its group and whether it is new in all groups.
GROUPED = np.dtype([("value", "i8"), ("group", "i4"), ("count", "i4")])
#: What one more, or one less, of a value changed: nothing, the distinct values of its group, or those of all groups.
SAME, IN_GROUP, ANYWHERE = 0, 1, 2


@bare
def _home(counts: Array, tag: int, value: int) -> int:
    """Return where the search for (tag, value) begins."""
    mixed = np.uint64(np.int64(value)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(np.int64(tag)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(mixed >> np.uint64(32)) & (counts.size - 1)


@bare
def find_entry(counts: Array, tag: int, value: int) -> int:
    """Return where (tag, value) is in the table, or where it belongs."""
    place = _home(counts, tag, value)
    while counts[place].count != 0:
        if counts[place].value == value and counts[place].tag == tag:
            break
        place = (place + 1) & (counts.size - 1)
    return place


@bare
def put_entry(counts: Array, place: int, tag: int, value: int, count: int) -> None:
    """Write an entry."""
    counts[place].tag = tag
    counts[place].value = value
    counts[place].count = count


@bare
def erase_entry(counts: Array, place: int) -> None:
    """Erase an entry, and move back the entries behind it that would no longer be found."""
    mask = counts.size - 1
    gap = place
    probe = (gap + 1) & mask
    while counts[probe].count != 0:
        tag, value = counts[probe].tag, counts[probe].value
        if ((probe - _home(counts, tag, value)) & mask) >= ((probe - gap) & mask):
            put_entry(counts, gap, tag, value, counts[probe].count)
            gap = probe
        probe = (probe + 1) & mask
    counts[gap].count = 0


@bare
def count_up(counts: Array, tag: int, value: int) -> bool:
    """Count one more, and return whether it is the first."""
    place = find_entry(counts, tag, value)
    put_entry(counts, place, tag, value, counts[place].count + 1)
    return counts[place].count == 1


@bare
def count_down(counts: Array, tag: int, value: int) -> bool:
    """Count one less, and return whether it was the last."""
    place = find_entry(counts, tag, value)
    if counts[place].count == 1:
        erase_entry(counts, place)
        return True
    counts[place].count -= 1
    return False


@bare
def count_up_in(counts: Array, group: int, value: int) -> int:
    """Count one more. Return ANYWHERE if no group had the value, IN_GROUP if only others had it, else SAME."""
    place = _home(counts, 0, value)
    elsewhere = False
    while counts[place].count != 0:
        if counts[place].value == value:
            if counts[place].group == group:
                counts[place].count += 1
                return SAME
            elsewhere = True
        place = (place + 1) & (counts.size - 1)
    counts[place].value = value
    counts[place].group = group
    counts[place].count = 1
    return IN_GROUP if elsewhere else ANYWHERE


@bare
def count_down_in(counts: Array, group: int, value: int) -> int:
    """Count one less. Return ANYWHERE if no group has the value now, IN_GROUP if only others do, else SAME."""
    mask = counts.size - 1
    place = _home(counts, 0, value)
    gap = NONE
    elsewhere = False
    while counts[place].count != 0 and (gap == NONE or not elsewhere):
        if counts[place].value == value:
            if counts[place].group != group:
                elsewhere = True
            elif counts[place].count > 1:
                counts[place].count -= 1
                return SAME
            else:
                gap = place
        place = (place + 1) & mask
    probe = (gap + 1) & mask
    while counts[probe].count != 0:  # as in `erase_entry`
        value = counts[probe].value
        if ((probe - _home(counts, 0, value)) & mask) >= ((probe - gap) & mask):
            counts[gap].value = value
            counts[gap].group = counts[probe].group
            counts[gap].count = counts[probe].count
            gap = probe
        probe = (probe + 1) & mask
    counts[gap].count = 0
    return IN_GROUP if elsewhere else ANYWHERE


@kernel
def move_counts(counts: Array, target: Array) -> None:
    """Copy all entries into a larger table, which is empty."""
    mask = target.size - 1
    for i in range(counts.size):
        if counts[i].count != 0:
            place = _home(target, 0, counts[i].value)
            while target[place].count != 0:
                place = (place + 1) & mask
            target[place] = counts[i]
