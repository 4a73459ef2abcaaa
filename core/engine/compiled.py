"""What engines share of which a kernel does the work, on arrays that hold the rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crenel.avro import packed
from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Releases, SnapshotError
from crenel.engine.kernels import common
from crenel.engine.space import check_rows, fingerprint, space_of
from crenel.policy import Policy


class Compiled(Engine):
    """An engine whose rows go to a kernel in chunks. A method says how there is room for them, and how it is run.

    Parameters
    ----------
    policy
        What is to be guaranteed.
    """

    #: Rows that one call of the kernel takes: what bounds the buffer beside the rows that must be held.
    chunk: ClassVar[int] = 4096
    #: What the kernel works on: of every method it has `numbers` and `random`, beside arrays of its own.
    _state: Any

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._space = space_of(policy)
        self._fingerprint = fingerprint(policy, self._space)

    def __repr__(self) -> str:
        """Say how much, never what."""
        return f"{type(self).__name__}(held={self.held})"

    @property
    def held(self) -> int:
        """Rows that have arrived and not left."""
        return int(self._state.numbers["held"][0])

    @property
    def key(self) -> bytes:
        """The generator's key. Keep it secret."""
        return packed(self._state.random.key)

    def push(self, rows: Rows) -> Releases:
        """Take rows that arrive in this order; return what became due."""
        check_rows(self._policy, self._space, rows, holes=self._policy.declaration.takes_holes)
        rows = self._counted(rows)
        parts = []
        for start in range(0, len(rows), self.chunk):
            part = rows.slice(start, min(start + self.chunk, len(rows)))
            self._reserve(len(part))
            parts.append(self._take(part))
        return Releases.concat(parts) if parts else Releases.empty(self._dimensions)

    def advance(self, now: int) -> Releases:
        """Take note that event time has moved on to `now`, in microseconds; return what became due."""
        return self._run(self._no_rows(), now=now)

    def flush(self) -> Releases:
        """Take note that the stream is over; return everything that is still held."""
        return self._run(self._no_rows(), over=True)

    @property
    def _dimensions(self) -> int:
        return len(self._policy.quasi_identifiers)

    def _no_rows(self) -> Rows:
        none = np.zeros(0, dtype=np.int64)
        sensitive = np.zeros((0, len(self._policy.sensitive)), dtype=np.int64)
        return Rows(np.zeros((0, self._dimensions)), none, sensitive, none)

    def _counted(self, rows: Rows) -> Rows:
        """The rows with sensitive values as the method counts them: as they came, if it does not say."""
        return rows

    @abstractmethod
    def _reserve(self, arriving: int) -> None:
        """Make room for rows that arrive."""

    def _take(self, rows: Rows) -> Releases:
        """Take a chunk of rows."""
        return self._run(rows)

    @abstractmethod
    def _run(self, rows: Rows, *, now: int = common.EARLIEST, over: bool = False) -> Releases:
        """Run the kernel, and take what it wrote."""

    # --- Snapshots ---

    def _check_space(self, space: bytes) -> None:
        """Refuse a snapshot whose numbers mean something else."""
        if space != self._fingerprint:
            message = (
                f"{type(self).__name__}: a snapshot can be restored only under the quasi-identifiers and sensitive "
                "columns it was taken under: policy.quasi_identifiers, policy.sensitive or the use of t has changed."
            )
            raise SnapshotError(message)

    def _resume(self, record: Mapping[str, Any], names: Iterable[str]) -> None:
        """Go on with numbers that were stored, and with the generator where it was."""
        for name in names:
            self._state.numbers[name] = record[name]
        if record["draws"] % common.WORDS:
            common.chacha20_block(self._state.random, record["draws"] // common.WORDS)


def numbers_of(policy: Policy, numbers: np.dtype[np.void]) -> NDArray[Any]:
    """A kernel's numbers before any row: what the policy promises, as far as the kernel asks for it; all others 0."""
    promised = {
        "k": policy.k,
        "l": policy.l or 0,
        "t": -1.0 if policy.t is None else policy.t,
        "delay": -1 if policy.delay is None else policy.delay,
        "tick": policy.tick,
        "delay_rows": policy.delay_rows or 0,
        "disorder": policy.disorder,
        "clock": common.EARLIEST,
    }
    made = np.zeros(1, dtype=numbers)
    for name in promised.keys() & set(numbers.names or ()):
        made[name] = promised[name]
    return made
