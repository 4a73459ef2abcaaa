"""Chain sampling: a uniform sample of the last rows of a stream that does not keep all of them.

Babcock, Datar, Motwani: *Sampling from a moving window over streaming data*, SODA 2002. Each chain samples one row: its
head. When a head is chosen, so is the row that will replace it when it leaves the window; once that row has arrived, it
waits in the chain, with a successor of its own. Chains are independent: they sample with replacement.

A chain costs something only when something happens to it: it lies in the bucket of the number of that row.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.compiler import inner, kernel
from crenel.engine.kernels.generator import Random, below
from crenel.engine.kernels.interpreter import instead_of

META = np.dtype([("free", "i8"), ("changes", "i8")])


CHAIN = np.dtype(
    [
        ("head", "i8"),  # links
        ("tail", "i8"),
        ("successor", "i8"),  # number of the row that will follow the tail
        ("event", "i8"),  # number of the row at which something happens to the chain next
        ("previous", "i8"),  # chains in the same bucket
        ("next", "i8"),
    ]
)


LINK = np.dtype([("number", "i8"), ("next", "i8")])


#: How long to wait for a trial that hardly ever succeeds, at most.
_MOST_TRIALS = 1 << 60


class Chains(NamedTuple):
    """The sample chains."""

    meta: Any  # META, one
    table: Any  # CHAIN
    links: Any  # LINK: the rows in chains
    points: Any  # [link, quasi-identifier]
    free: Any  # unused links
    buckets: Any  # the first chain of each bucket, by row number modulo the window
    heads: Any  # [quasi-identifier, chain]
    changed: Any  # chains whose heads the last row changed
    gone: Any  # [change, quasi-identifier]: their former heads; NaN if there were none


@inner
def trials(random: Random, numbers: Array, chance: float) -> int:
    """Draw how many trials it takes until one succeeds, at least 1."""
    # 53 bits: from 2**-53 to 1.
    high = below(random, numbers, 1 << 26)
    uniform = ((high << 27) + below(random, numbers, 1 << 27) + 1) / 9007199254740992.0
    if chance >= 1.0:
        return 1
    failures = math.log(uniform) / math.log1p(-chance) if chance > 0.0 else np.inf
    return np.int64(min(failures, float(_MOST_TRIALS))) + 1


@inner
def _unlink(chains: Chains, chain: int) -> None:
    """Take a chain out of its bucket."""
    table = chains.table
    previous, following = table[chain].previous, table[chain].next
    if previous == NONE:
        chains.buckets[table[chain].event % chains.buckets.size] = following
    else:
        table[previous].next = following
    if following != NONE:
        table[following].previous = previous


@inner
def _link(chains: Chains, chain: int) -> None:
    """Put a chain into the bucket of its next event. Buckets are in the order of the chains."""
    table = chains.table
    window = chains.buckets.size
    table[chain].event = min(chains.links[table[chain].head].number + window, table[chain].successor)
    bucket = table[chain].event % window
    previous, following = np.int64(NONE), chains.buckets[bucket]
    while following != NONE and following < chain:
        previous, following = following, table[following].next
    table[chain].previous = previous
    table[chain].next = following
    if previous == NONE:
        chains.buckets[bucket] = chain
    else:
        table[previous].next = chain
    if following != NONE:
        table[following].previous = chain


@inner
def _append(chains: Chains, chain: int, point: Array, number: int, successor: int) -> None:
    """Add a row to the end of a chain."""
    meta = chains.meta[0]
    meta.free -= 1
    link = chains.free[meta.free]
    chains.links[link].number = number
    chains.links[link].next = NONE
    copy_into(point, chains.points[link])
    entry = chains.table[chain]
    if entry.tail == NONE:
        entry.head = link
    else:
        chains.links[entry.tail].next = link
    entry.tail = link
    entry.successor = successor


@inner
def _drop_head(chains: Chains, chain: int) -> None:
    """Remove the head of a chain."""
    meta, entry = chains.meta[0], chains.table[chain]
    chains.free[meta.free] = entry.head
    meta.free += 1
    entry.head = chains.links[entry.head].next
    if entry.head == NONE:
        entry.tail = NONE


@inner
def _note_change(chains: Chains, chain: int) -> None:
    """Keep the head of a chain before it changes."""
    meta = chains.meta[0]
    chains.changed[meta.changes] = chain
    copy_into(chains.heads[:, chain], chains.gone[meta.changes])
    meta.changes += 1


@inner
def _successor(chains: Chains, random: Random, numbers: Array, number: int) -> int:
    """Draw the row that follows this one in its chain: any that arrives before this one leaves the window.

    The row that arrives when this one leaves is not included: like every new row it can replace the head anyway, and a
    second chance would make the sample prefer it.
    """
    return number + 1 + below(random, numbers, max(chains.buckets.size - 1, 1))


@inner
def _begin(chains: Chains, random: Random, numbers: Array, chain: int, point: Array, number: int) -> None:
    """Make a row the only one of a chain. The chain is in no bucket."""
    _note_change(chains, chain)
    while chains.table[chain].head != NONE:
        _drop_head(chains, chain)
    _append(chains, chain, point, number, _successor(chains, random, numbers, number))
    copy_into(point, chains.heads[:, chain])


@inner
def _happen(chains: Chains, random: Random, numbers: Array, chain: int, point: Array, number: int) -> None:
    """Update a chain for this row: the successor arrives, the head leaves, or both. The chain is in no bucket."""
    entry = chains.table[chain]
    window = chains.buckets.size
    if entry.successor == number:
        if chains.meta[0].free == 0:  # practically never
            _begin(chains, random, numbers, chain, point, number)
            return
        _append(chains, chain, point, number, _successor(chains, random, numbers, number))
    if chains.links[entry.head].number == number - window:
        _note_change(chains, chain)
        _drop_head(chains, chain)
        copy_into(chains.points[entry.head], chains.heads[:, chain])


@inner
def sample_row(chains: Chains, random: Random, numbers: Array, point: Array, number: int) -> None:
    """Take a row, whose number is one more than the last one's; the first is 0. Write what changed to `changed`."""
    meta = chains.meta[0]
    meta.changes = 0
    size, window = chains.table.size, chains.buckets.size
    chance = 1.0 / min(number + 1, window)
    chain = trials(random, numbers, chance) - 1
    while chain < size:
        if number > 0:
            _unlink(chains, chain)
        _begin(chains, random, numbers, chain, point, number)
        _link(chains, chain)
        chain += trials(random, numbers, chance)
    chain = chains.buckets[number % window]
    while chain != NONE:
        following = chains.table[chain].next
        if chains.table[chain].event == number:
            _unlink(chains, chain)
            _happen(chains, random, numbers, chain, point, number)
            _link(chains, chain)
        chain = following


@inner
def samples_inside(chains: Chains, lo: Array, hi: Array, inside: Array) -> int:
    """Return how many heads are in a box, and write which to `inside`."""
    size = inside.size
    for i in range(size):
        inside[i] = 1
    for d in range(lo.size):
        column = chains.heads[d]
        least, most = lo[d], hi[d]
        for i in range(size):
            inside[i] &= np.uint8(column[i] >= least) & np.uint8(column[i] <= most)
    total = 0
    for i in range(size):
        total += np.int64(inside[i])
    return total


@instead_of(samples_inside)
def _samples_inside_in_numpy(chains: Chains, lo: Array, hi: Array, inside: Array) -> int:
    heads = chains.heads[:, : inside.size]
    inside[:] = ((heads >= lo[:, None]) & (heads <= hi[:, None])).all(axis=0)
    return int(inside.sum())


# --- Snapshots ---


@kernel
def stored_links(chains: Chains, lengths: Array) -> Array:
    """Return the links of all chains, chain by chain, from head to tail, and write how many each chain has."""
    found = np.empty(chains.links.size, dtype=np.int64)
    count = 0
    for chain in range(chains.table.size):
        first = count
        link = chains.table[chain].head
        while link != NONE:
            found[count] = link
            count += 1
            link = chains.links[link].next
        lengths[chain] = count - first
    return found[:count]


@kernel
def restore_chains(chains: Chains, lengths: Array, successors: Array, numbers: Array, points: Array) -> None:
    """Fill empty chains with stored ones."""
    at = 0
    for chain in range(lengths.size):
        if lengths[chain] == 0:
            continue
        copy_into(points[at], chains.heads[:, chain])
        for _ in range(lengths[chain]):
            _append(chains, chain, points[at], numbers[at], successors[chain])
            at += 1
        _link(chains, chain)
