"""How many rows find no group at several deadlines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from crenel.encoding.encoder import Encoded
from crenel.errors import PolicyError
from crenel.pipelines.checking.engine_trial import Trial, deadline_of, shards_of, tried
from crenel.policy import OnSuppress, Policy, Reuse
from crenel.policy.durations import FOREVER

__all__ = ["Step", "steps"]

#: The deadlines that are tried, as multiples of the policy's: from ten minutes, say, up to six hours.
_TIMES = (1, 2, 6, 12, 36)


@dataclass(frozen=True)
class Step:
    """What would become of the rows at one deadline. Counts only."""

    #: The deadline in words.
    deadline: str
    rows: int
    suppressed: int
    #: The average over all rows. A suppressed row counts 1.
    loss: float
    #: What the engine did.
    trial: Trial = field(repr=False, compare=False)

    @property
    def share(self) -> float:
        """The share of rows that would be suppressed."""
        return self.suppressed / self.rows


def steps(
    policy: Policy, encoded: Encoded, table: Any, tick: Callable[[str], None] = lambda line: None
) -> Iterator[Step]:
    """Try a stretch of the sample at the policy's deadline, and at longer ones.

    The method is the policy's. What lets rows be released without a crowd, reuse and stars, is turned off where the
    method allows it.

    Args:
        policy: The policy.
        encoded: The sample's rows.
        table: The sample as it was read, an Arrow table.
        tick: Called with a line about the progress.
    """
    strict = _strict(policy)
    if strict is None or not len(encoded.kept):
        return
    shards = shards_of(strict, encoded, table)
    for times in _TIMES:
        longer = _longer(strict, times)
        if longer is None:
            return
        deadline = deadline_of(longer)
        trial = tried(longer, shards, partial(_told, tick, f"trying a deadline of {deadline}"))
        yield Step(deadline, trial.rows, trial.suppressed, trial.loss, trial)
        if trial.ended:  # all rows were held to the end, as they would be at any longer deadline
            return


def _told(tick: Callable[[str], None], what: str, done: str) -> None:
    tick(f"{what}: {done}")


def _strict(policy: Policy) -> Policy | None:
    """Turn off reuse and stars, and drop a deadline that the sample cannot show; None if no deadline is left."""
    changes: dict[str, Any] = {"on_suppress": OnSuppress.DROP}
    if policy.declaration.reuses:
        changes["parameters"] = dataclasses.replace(policy.parameters, reuse=Reuse.OFF)
    if policy.event_time is None and policy.delay is not None:
        if policy.delay_rows is None:
            return None
        changes |= {"delay": None, "disorder": 0}
    if policy.event_time is None:
        changes["once_per"] = None
        if policy.together is not None:
            changes["together"] = FOREVER
    return _changed(policy, **changes)


def _longer(policy: Policy, times: int) -> Policy | None:
    deadlines = {"delay": policy.delay, "delay_rows": policy.delay_rows}
    return _changed(policy, **{name: times * value for name, value in deadlines.items() if value is not None})


def _changed(policy: Policy, **changes: Any) -> Policy | None:
    """Change a policy; None if the method's parameters do not allow it."""
    try:
        return dataclasses.replace(policy, **changes)
    except PolicyError:
        return None
