"""The order in which the rows of a bounded shard are pushed. Independent of Beam."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.errors import Rejected
from crenel.policy import columns
from crenel.transforms._pack.payloads import Batch, Form, Objects, Payload
from crenel.transforms._pack.row_pack import RowPack, joined

__all__ = ["cut", "in_order"]

#: What a row is ordered by, of all columns that are published unchanged.
_Texts = tuple[tuple[str, str], ...]

#: Rows pushed at once.
ROWS = 8192


def in_order(packs: Sequence[RowPack], row_number: str | None = None) -> Iterator[RowPack]:
    """Cut all rows of a shard into packs that are in the order of event times.

    Rows of one time are ordered by their contents, so that the order does not depend on how the input was split.

    Args:
        packs: All rows of the shard.
        row_number: The column, if the packs carry one, that orders rows which are equal in everything else.
    """
    forms = [form for form in Form if any(pack.form is form for pack in packs)]
    whole = [joined([pack for pack in packs if pack.form is form]) for form in forms]
    starts = np.cumsum([0, *(len(pack.rows) for pack in whole)])
    order = _order(whole, row_number)
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        for run in _runs(np.searchsorted(starts, chosen, side="right") - 1):
            at = int(np.searchsorted(starts, chosen[run][0], side="right")) - 1
            yield whole[at].take(chosen[run] - starts[at])


def cut(packs: Iterable[RowPack]) -> Iterator[RowPack]:
    """Cut ordered rows as `in_order` does, whatever the packs are that they come in."""
    waiting: list[RowPack] = []
    room = ROWS
    for pack in packs:
        start, count = 0, len(pack.rows)
        while start < count:
            part = pack.slice(start, min(start + room, count))
            waiting.append(part)
            start, room = start + len(part.rows), room - len(part.rows)
            if not room:
                yield from _joined(waiting)
                waiting, room = [], ROWS
    yield from _joined(waiting)


def _joined(packs: Sequence[RowPack]) -> Iterator[RowPack]:
    for _, alike in groupby(packs, lambda pack: pack.form):
        yield joined(list(alike))


def _order(packs: Sequence[RowPack], row_number: str | None) -> NDArray[np.int64]:
    """Order rows by event time, then by person, quasi-identifiers, sensitive values, and the published columns."""
    if not packs:
        return np.zeros(0, dtype=np.int64)
    time = np.concatenate([pack.rows.time for pack in packs])
    order = np.argsort(time, kind="stable").astype(np.int64)
    tied = _tied([time[order]])
    if not tied.any():
        return order
    # Only rows that share their time need further keys, mostly few.
    some = order[tied]
    keys = [key[some] for key in _contents(packs)]
    keys = [time[some], *keys]
    inner = np.lexsort(keys[::-1])
    order[tied] = some[inner]
    still = _tied([key[inner] for key in keys])
    if still.any():
        equal = [key[inner][still] for key in keys]
        order[np.flatnonzero(tied)[still]] = _by_payload(packs, equal, some[inner][still], row_number)
    return order


def _contents(packs: Sequence[RowPack]) -> list[NDArray[Any]]:
    rows = [pack.rows for pack in packs]
    keys: list[NDArray[Any]] = [np.concatenate([part.person for part in rows])]
    # Infinity stands for a missing coordinate: no coordinate is infinite, and NaN is not equal to itself.
    keys += [np.where(np.isnan(column), np.inf, column) for column in np.concatenate([part.qi for part in rows]).T]
    keys += list(np.concatenate([part.sensitive for part in rows]).T)
    return keys


def _tied(keys: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Tell which of the ordered rows are equal to a neighbour."""
    same = np.ones(max(len(keys[0]) - 1, 0), dtype=bool)
    for key in keys:
        same &= key[1:] == key[:-1]
    tied = np.zeros(len(keys[0]), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    return tied


def _by_payload(
    packs: Sequence[RowPack], keys: Sequence[NDArray[Any]], places: NDArray[np.int64], row_number: str | None
) -> NDArray[np.int64]:
    """Order rows that are equal to the engine by their published columns, then by their numbers."""
    starts = np.cumsum([0, *(len(pack.rows) for pack in packs)])
    texts: list[_Texts] = [()] * len(places)
    numbers = np.zeros(len(places), dtype=np.int64)
    for at, pack in enumerate(packs):
        here = np.flatnonzero((places >= starts[at]) & (places < starts[at + 1]))
        chosen = pack.payload.take(places[here] - starts[at])
        if row_number is not None:
            numbers[here] = chosen.column(row_number)
        for where, text in zip(here.tolist(), _texts(chosen, row_number), strict=True):
            texts[where] = text
    ranks = {text: rank for rank, text in enumerate(sorted(set(texts)))}
    rank = np.array([ranks[text] for text in texts], dtype=np.int64)
    return places[np.lexsort([numbers, rank, *keys[::-1]])]


def _texts(payload: Payload, row_number: str | None) -> list[_Texts]:
    if isinstance(payload, Batch):
        names = [name for name in payload.table.schema.names if name != row_number]
        listed = [payload.table.column(name).to_pylist() for name in names]
        rows: Iterable[tuple[Any, ...]] = zip(*listed, strict=True) if listed else [()] * len(payload)
    elif isinstance(payload, Objects):
        rows = payload.under(tuple(name for name in payload.names if name != row_number)).rows()
    return [tuple(map(_text, row)) for row in rows]


def _text(value: Any) -> tuple[str, str]:
    """Give the texts that a value is ordered by.

    The first is the same whether a file holds 1.5, "1.5" or "1.50". The second tells those apart, so that rows which
    are published differently are not left in the order in which they came.
    """
    try:
        text = columns.text_of(value)
    except Rejected:
        return "" if value is None else repr(value), ""
    try:
        return repr(float(text)), f"={text}"
    except ValueError:
        return text, f"={text}"


def _runs(values: NDArray[np.int64]) -> list[slice]:
    ends = [*(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
