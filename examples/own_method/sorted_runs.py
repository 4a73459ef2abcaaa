"""`sorted-runs`, a method in a page: sort the held rows by one quasi-identifier, and release runs of k persons.

It decides when the first held row is due, or when `rows` of them are there. `Buffered` does the rest: it holds rows,
knows the clock and the deadlines, draws the order inside a release, and writes snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crenel.engine.buffered import Buffered
from crenel.policy.methods import Method
from crenel.policy.parameters import Parameters, integer, parameter


@dataclass(frozen=True, kw_only=True)
class SortedRunsParameters(Parameters):
    """The parameters of `sorted-runs`."""

    rows: int = parameter(100, integer(at_least=2), "How many rows are held before they are released.", unit="rows")
    along: int = parameter(0, integer(at_least=0), "Which quasi-identifier the rows are sorted by, from 0.")


class SortedRuns(Buffered[SortedRunsParameters]):
    """Releases all held rows at once, as runs of neighbours."""

    parameters_of = SortedRunsParameters

    def _until_full(self) -> int:
        return self._parameters.rows - self.held

    def _decide(self) -> None:
        if self._all_enough():
            self._release_groups(self._runs())
        self._suppress(self._due())

    def _finish(self) -> None:
        self._decide()
        self._suppress(np.arange(self.held))

    def _runs(self) -> np.ndarray:
        """The run of each held row; -1 for rows that stay, because their run has too few persons or values."""
        held = self._held
        along = min(self._parameters.along, held.qi.shape[1] - 1)
        order = np.argsort(held.qi[:, along], kind="stable")
        run = np.full(len(order), -1, dtype=np.int64)
        waiting: list[int] = []
        runs = 0
        for row in order.tolist():
            if held.person[row] in held.person[waiting]:
                continue  # a person is in a release once; this row waits for the next
            waiting.append(row)
            if self._enough(np.array(waiting)):
                run[waiting] = runs
                runs, waiting = runs + 1, []
        return run


METHOD = Method(
    name="sorted-runs",
    summary="Sorts the held rows by one quasi-identifier, and releases runs of k persons.",
    parameters=SortedRunsParameters,
    engine=SortedRuns,
    keeps_l=True,
    crowd=lambda parameters: True,
)
