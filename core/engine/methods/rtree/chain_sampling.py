"""Chain sampling: a uniform sample of the last rows of a stream, without a memory of them all.

Babcock, Datar, Motwani: *Sampling from a moving window over streaming data*, SODA 2002. Each chain is a sample of one
row: its head. The row that will take over when the head leaves the window is chosen when the head is, and waits in the
chain once it has come, with a successor of its own. Chains are independent, so that they sample with replacement.

A chain is asked about only when something happens to it: it lies in the bucket of the next such row's number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.common import NONE, Array, Random, below, copy_into, inner, kernel

META = np.dtype([("free", "i8"), ("changes", "i8")])
CHAIN = np.dtype(
    [
        ("head", "i8"),  # entries
        ("tail", "i8"),
        ("successor", "i8"),  # number of the row that follows the tail
        ("event", "i8"),  # number of the row at which something happens next
        ("previous", "i8"),  # chains of the same bucket
        ("next", "i8"),
    ]
)
LINK = np.dtype([("number", "i8"), ("next", "i8")])
#: A trial that hardly ever succeeds is not waited for longer than this.
_MOST_TRIALS = 1 << 60


class Chains(NamedTuple):
    """The chains."""

    meta: Any  # META, one
    table: Any  # CHAIN
    links: Any  # LINK: the rows that wait in chains
    points: Any  # [link, quasi-identifier]
    free: Any  # links that are not used
    buckets: Any  # the first chain of each, by row number modulo the window
    heads: Any  # [quasi-identifier, chain]
    changed: Any  # chains whose head the last row changed
    gone: Any  # [change, quasi-identifier]: the heads that they had; NaN if none


@inner
def trials(random: Random, numbers: Array, chance: float) -> int:
    """How many trials it takes until one succeeds, at least 1."""
    # 53 bits: from 2**-53 to 1.
    high = below(random, numbers, 1 << 26)
    uniform = ((high << 27) + below(random, numbers, 1 << 27) + 1) / 9007199254740992.0
    if chance >= 1.0:
        return 1
    failures = np.log(uniform) / np.log1p(-chance) if chance > 0.0 else np.inf
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
    """Put a chain into the bucket of what happens to it next; buckets are in the order of the chains."""
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
    """Let a row wait in a chain."""
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
    meta, entry = chains.meta[0], chains.table[chain]
    chains.free[meta.free] = entry.head
    meta.free += 1
    entry.head = chains.links[entry.head].next
    if entry.head == NONE:
        entry.tail = NONE


@inner
def _note_change(chains: Chains, chain: int) -> None:
    """Keep what the head was, before it changes."""
    meta = chains.meta[0]
    chains.changed[meta.changes] = chain
    copy_into(chains.heads[:, chain], chains.gone[meta.changes])
    meta.changes += 1


@inner
def _successor(chains: Chains, random: Random, numbers: Array, number: int) -> int:
    """The row that follows this one in its chain: any that comes before this one leaves the window.

    The row that comes as this one leaves is not among them: it has its chance already, as every new one, and a second
    would make the sample prefer it.
    """
    return number + 1 + below(random, numbers, max(chains.buckets.size - 1, 1))


@inner
def _begin(chains: Chains, random: Random, numbers: Array, chain: int, point: Array, number: int) -> None:
    """Make a row the only one of a chain, which is in no bucket."""
    _note_change(chains, chain)
    while chains.table[chain].head != NONE:
        _drop_head(chains, chain)
    _append(chains, chain, point, number, _successor(chains, random, numbers, number))
    copy_into(point, chains.heads[:, chain])


@inner
def _happen(chains: Chains, random: Random, numbers: Array, chain: int, point: Array, number: int) -> None:
    """Do what this row brings to a chain, which is in no bucket: the successor comes, the head goes, or both."""
    entry = chains.table[chain]
    window = chains.buckets.size
    if entry.successor == number:
        if chains.meta[0].free == 0:  # as good as never
            _begin(chains, random, numbers, chain, point, number)
            return
        _append(chains, chain, point, number, _successor(chains, random, numbers, number))
    if chains.links[entry.head].number == number - window:
        _note_change(chains, chain)
        _drop_head(chains, chain)
        copy_into(chains.points[entry.head], chains.heads[:, chain])


@inner
def sample_row(chains: Chains, random: Random, numbers: Array, point: Array, number: int) -> None:
    """Take a row, whose number is one more than the last one's; the first is 0. `changed` has what changed."""
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
    """How many heads are in a box; `inside` has which."""
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
        total += inside[i]
    return total


# --- Snapshots -------------------------------------------------------------------------------------------------------


@kernel
def stored_links(chains: Chains, lengths: Array) -> Array:
    """The links of all chains, from head to tail, chain after chain; `lengths` gets how many each has."""
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
    """Fill empty chains with what was stored."""
    at = 0
    for chain in range(lengths.size):
        if lengths[chain] == 0:
            continue
        copy_into(points[at], chains.heads[:, chain])
        for _ in range(lengths[chain]):
            _append(chains, chain, points[at], numbers[at], successors[chain])
            at += 1
        _link(chains, chain)
