"""Bounded rows: shards through GroupByKey, and the same engine in a plain step.

Nothing here has state, so that shards run side by side wherever a runner has workers, on Beam's local runner too; and
all rows of a shard are there before the first is pushed, so that they can be put in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam import pvalue
from apache_beam.transforms.trigger import DefaultTrigger
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from numpy.typing import NDArray

from crenel.errors import Rejected
from crenel.policy import Policy, columns
from crenel.transforms._hold.hold_step import shard_name
from crenel.transforms._hold.holder import Departure, Holder
from crenel.transforms._pack.payloads import Batch, Form, Objects, Payload
from crenel.transforms._pack.row_pack import Pack, joined
from crenel.transforms._publish.emitter import Emitter
from crenel.transforms.anonymize import Anonymize, hold_outputs

__all__ = ["AnonymizeBounded", "departures"]

#: Rows pushed at once.
_ROWS = 8192


class AnonymizeBounded(Anonymize):
    """`Anonymize` for bounded rows: in the order of their event times, and without state.

    The rows of a shard (and window) are gathered, put in the order of their event times, and pushed through one engine.
    Rows of the same time are ordered by what they hold. So the releases depend on the rows and the secret alone: not on
    how the input was cut into files and bundles, nor on which worker was faster. A shard's rows must fit into the
    memory of a worker.

    The results, their names and kinds are those of `Anonymize`.

    Args:
        policy: A `Policy`, the path of a YAML file, or what such a file would hold.
        overlapping_windows: As for `Anonymize`.

    Raises:
        PolicyError: the policy is wrong, or does not fit the rows' schema.
        ValueError: the rows are not bounded, or in windows that merge, that overlap, or that have a trigger.
    """

    def expand(self, rows: pvalue.PCollection) -> Any:
        """Pack, group, publish."""
        if not rows.is_bounded:
            message = "AnonymizeBounded: the rows must be bounded. Use Anonymize for a stream."
            raise ValueError(message)
        if rows.windowing.triggerfn != DefaultTrigger():
            message = (
                "AnonymizeBounded: windows must have no trigger of their own, because all rows of a window are to be "
                "there before the first leaves. Set it after this step."
            )
            raise ValueError(message)
        return super().expand(rows)

    def _has_one_key(self, rows: pvalue.PCollection) -> bool:
        return False  # shards run side by side

    def _hold(self, packs: pvalue.PCollection) -> Any:
        grouped = packs | "Group" >> beam.GroupByKey()
        hold = HoldGrouped(self._policy, self._secret, self._record)
        return grouped | "Hold" >> hold_outputs(hold)


class HoldGrouped(beam.DoFn):
    """Pushes all packs of a shard and window through an engine, and emits what leaves."""

    def __init__(self, policy: Policy, secret: bytes, record: Callable[..., Any] = dict) -> None:
        self._policy = policy
        self._secret = secret
        self._record = record

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._emitter = Emitter(self._policy, self._secret, self._record)

    def start_bundle(self) -> None:
        """Forget the counts of a bundle that failed."""
        self._emitter.start_bundle()

    def finish_bundle(self) -> Iterator[Any]:
        """Emit the counts of the bundle."""
        return self._emitter.finish_bundle()

    def process(self, element: tuple[int, Iterable[bytes]], window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        """Take a shard."""
        shard, packs = element
        holder = Holder(self._policy, self._secret, shard_name(shard, window))
        for left in departures(holder, [Pack.from_bytes(pack) for pack in packs]):
            self._emitter.hold(holder.held, window)
            # All input is there: nothing is late, and a row leaves with the moment of its release.
            yield from self._emitter.emit(left, shard, window, MIN_TIMESTAMP.micros)


def departures(holder: Holder, packs: Sequence[Pack]) -> Iterator[list[Departure]]:
    """All that leaves of all rows of a shard, in the order of their event times."""
    forms = [form for form in Form if any(pack.form is form for pack in packs)]
    whole = [joined([pack for pack in packs if pack.form is form]) for form in forms]
    starts = np.cumsum([0, *(len(pack.rows) for pack in whole)])
    order = _order(whole)
    for start in range(0, len(order), _ROWS):
        chosen = order[start : start + _ROWS]
        for run in _runs(np.searchsorted(starts, chosen, side="right") - 1):
            at = int(np.searchsorted(starts, chosen[run][0], side="right")) - 1
            yield holder.push(whole[at].take(chosen[run] - starts[at]))
    yield holder.flush()


def _order(packs: Sequence[Pack]) -> NDArray[np.int64]:
    """The rows by event time; those of one time by what they hold: person, quasi-identifiers, the rest."""
    if not packs:
        return np.zeros(0, dtype=np.int64)
    time = np.concatenate([pack.rows.time for pack in packs])
    order = np.argsort(time, kind="stable").astype(np.int64)
    tied = _tied([time[order]])
    if not tied.any():
        return order
    # Only rows that share their time are looked at further: mostly few.
    some = order[tied]
    keys = [key[some] for key in _contents(packs)]
    keys = [time[some], *keys]
    inner = np.lexsort(keys[::-1])
    order[tied] = some[inner]
    still = _tied([key[inner] for key in keys])
    if still.any():
        order[np.flatnonzero(tied)[still]] = _by_payload(packs, [key[inner][still] for key in keys], some[inner][still])
    return order


def _contents(packs: Sequence[Pack]) -> list[NDArray[Any]]:
    rows = [pack.rows for pack in packs]
    keys: list[NDArray[Any]] = [np.concatenate([part.person for part in rows])]
    # What is missing is equal to what is missing, and no coordinate is infinite.
    keys += [np.where(np.isnan(column), np.inf, column) for column in np.concatenate([part.qi for part in rows]).T]
    keys += list(np.concatenate([part.sensitive for part in rows]).T)
    return keys


def _tied(keys: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Which rows, in order, are equal to a neighbour."""
    same = np.ones(max(len(keys[0]) - 1, 0), dtype=bool)
    for key in keys:
        same &= key[1:] == key[:-1]
    tied = np.zeros(len(keys[0]), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    return tied


def _by_payload(packs: Sequence[Pack], keys: Sequence[NDArray[Any]], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that an engine cannot tell apart, by what leaves of them as it is."""
    starts = np.cumsum([0, *(len(pack.rows) for pack in packs)])
    texts: list[tuple[str, ...]] = [()] * len(places)
    for at, pack in enumerate(packs):
        here = np.flatnonzero((places >= starts[at]) & (places < starts[at + 1]))
        for where, text in zip(here.tolist(), _texts(pack.payload, places[here] - starts[at]), strict=True):
            texts[where] = text
    ranks = {text: rank for rank, text in enumerate(sorted(set(texts)))}
    rank = np.array([ranks[text] for text in texts], dtype=np.int64)
    return places[np.lexsort([rank, *keys[::-1]])]


def _texts(payload: Payload, places: NDArray[np.int64]) -> list[tuple[str, ...]]:
    chosen = payload.take(places)
    if isinstance(chosen, Batch):
        listed = [column.to_pylist() for column in chosen.table.columns]
        rows: Iterable[tuple[Any, ...]] = zip(*listed, strict=True)
    elif isinstance(chosen, Objects):
        rows = chosen.rows()
    return [tuple(map(_text, row)) for row in rows]


def _text(value: Any) -> str:
    """What a value is ordered by; the same whether a file holds 1.5, "1.5" or "1.50"."""
    try:
        text = columns.text_of(value)
    except Rejected:
        return "" if value is None else repr(value)
    try:
        return repr(float(text))
    except ValueError:
        return text


def _runs(values: NDArray[np.int64]) -> list[slice]:
    ends = [*(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
