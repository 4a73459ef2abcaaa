"""The grid of settings that `crenel explore` tries, and what each costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from crenel.encoding.encoder import Encoded
from crenel.errors import PolicyError
from crenel.pipelines.checking.engine_trial import MOST_ROWS, Shards, deadline_of, shards_of, tried
from crenel.pipelines.checking.trial_measures import query_error
from crenel.policy import Policy

__all__ = ["Axes", "Cost", "Setting", "costs", "grid"]

#: What a policy's own k and deadline are multiplied by, where the command line names none.
_K_TIMES = (0.5, 1, 2, 4)
_DEADLINE_TIMES = (0.25, 1, 4, 16)


@dataclass(frozen=True)
class Axes:
    """The guarantees to combine. None: those of the policy, and smaller and larger ones."""

    k: Sequence[int] | None = None
    l: Sequence[int] | None = None
    #: In microseconds.
    delay: Sequence[int] | None = None
    delay_rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Setting:
    """One point of the grid: a policy with its guarantees changed."""

    policy: Policy
    #: Whether these are the policy's own guarantees.
    is_own: bool

    @property
    def k(self) -> int:
        """The persons in each release."""
        return self.policy.k

    @property
    def guarantee(self) -> str:
        """The guarantee in words: `k = 10`, `k = 10, l = 2`."""
        diversity = "" if self.policy.l is None else f", l = {self.policy.l}"
        return f"k = {self.policy.k}{diversity}"

    @property
    def deadline(self) -> str:
        """The deadline in words."""
        return deadline_of(self.policy)

    @property
    def longest(self) -> tuple[float, float]:
        """The deadline as numbers to compare settings by."""
        policy = self.policy
        return (policy.delay or float("inf"), policy.delay_rows or float("inf"))


@dataclass(frozen=True)
class Cost:
    """What a setting costs. Counts, shares and means only."""

    setting: Setting
    rows: int
    #: The share of rows that find no group in time.
    suppressed: float
    #: The share that `once_per` left out: neither suppressed, nor in the loss.
    left_out: float
    #: The average over all rows, from 0 (exact) to 1 (nothing left). A suppressed row counts 1.
    loss: float
    #: How long published rows wait: on average, and 99 in 100 at most. In seconds, or in rows where there is no delay.
    delay: float | None
    delay_p99: float | None
    #: The median relative error of counts over the published rows.
    error: float | None
    #: Whether the sample is too short to show this deadline: no row reached it before the last one came.
    is_cut: bool


def grid(policy: Policy, axes: Axes) -> list[Setting]:
    """Combine the guarantees: by k and l, and then by deadline, in ascending order.

    Raises:
        PolicyError: no combination is a policy that the method takes.
    """
    ks = axes.k or sorted({max(round(policy.k * times), 2) for times in _K_TIMES})
    ls: Sequence[int | None] = axes.l or [policy.l]
    settings, problems = [], []
    for k in ks:
        for l in ls:
            for deadline in _deadlines(policy, axes):
                changes: dict[str, Any] = {"k": k, "l": l, **deadline}
                try:
                    changed = dataclasses.replace(policy, **changes)
                except PolicyError as error:
                    problems.append(error)
                    continue
                own = (changed.k, changed.l, changed.delay, changed.delay_rows)
                settings.append(Setting(changed, own == (policy.k, policy.l, policy.delay, policy.delay_rows)))
    if not settings and problems:
        raise problems[0]
    return settings


def costs(
    settings: Sequence[Setting],
    encoded: Encoded,
    table: Any,
    tick: Callable[[int, str], None] = lambda done, line: None,
    most: int = MOST_ROWS,
) -> Iterator[Cost]:
    """Run the engine once for each setting, on the same rows.

    Args:
        settings: From `grid`.
        encoded: The sample's rows.
        table: The sample as it was read, an Arrow table.
        tick: Called with the number of settings that are done, and what is going on.
        most: The most rows to run the engine on.
    """
    shards = shards_of(settings[0].policy, encoded, table, most)
    for done, setting in enumerate(settings):
        yield _cost(setting, shards, partial(_told, tick, done, setting))


def _told(tick: Callable[[int, str], None], done: int, setting: Setting, line: str) -> None:
    tick(done, f"{setting.guarantee}, deadline {setting.deadline}: {line}")


def _cost(setting: Setting, shards: Shards, tick: Callable[[str], None]) -> Cost:
    policy = setting.policy
    trial = tried(policy, shards, tick)
    waited = trial.waited / (1e6 if policy.delay is not None else 1.0)
    return Cost(
        setting=setting,
        rows=trial.rows,
        suppressed=trial.suppressed / trial.rows,
        left_out=trial.left_out / trial.rows,
        loss=trial.loss,
        delay=float(waited.mean()) if len(waited) else None,
        delay_p99=float(np.percentile(waited, 99)) if len(waited) else None,
        error=query_error(trial),
        is_cut=_is_cut(policy, shards),
    )


def _is_cut(policy: Policy, shards: Shards) -> bool:
    """Whether the rows end before the deadline of the first one, in every shard."""
    for _, rows in shards:
        by_time = policy.delay is not None and int(rows.time.max() - rows.time.min()) >= policy.delay
        by_rows = policy.delay_rows is not None and len(rows) >= policy.delay_rows
        if by_time or by_rows:
            return False
    return True


def _deadlines(policy: Policy, axes: Axes) -> list[dict[str, int]]:
    """The changes of the deadline to try."""
    if axes.delay:
        return [{"delay": delay} for delay in axes.delay]
    if axes.delay_rows:
        return [{"delay_rows": rows} for rows in axes.delay_rows]
    found: list[dict[str, int]] = []
    for times in _DEADLINE_TIMES:
        change: dict[str, int] = {}
        if policy.delay is not None:
            change["delay"] = max(int(policy.delay * times), 1)
        if policy.delay_rows is not None:
            change["delay_rows"] = max(int(policy.delay_rows * times), 1)
        if change and change not in found:
            found.append(change)
    return found
