"""Base class for engines driven by a compiled kernel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crenel.avro import packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Releases, SnapshotError
from crenel.engine.kernels import compiler
from crenel.engine.kernels.deadlines import EARLIEST
from crenel.engine.space import check_rows, fingerprint, space_of
from crenel.policy import Policy


class Compiled(Engine):
    """An engine that passes rows to a kernel in chunks. A method reserves space for them and runs its kernel.

    Args:
        policy: What is to be guaranteed.
    """

    #: Rows that one call of the kernel takes. It bounds the memory beside the rows that must be held.
    chunk: ClassVar[int] = 4096
    #: The compiled function that runs the method.
    kernel: ClassVar[Any]
    #: What the kernel works on. It has `numbers` and `random`, and arrays of the method's own.
    _state: Any

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._space = space_of(policy)
        self._fingerprint = fingerprint(policy, self._space)
        compiler.use(policy.method)

    def __repr__(self) -> str:
        """Tell how many rows are held, but nothing about them."""
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
        """Take rows that arrive in this order, and return what became due."""
        check_rows(self._policy, self._space, rows, holes=self._policy.declaration.takes_holes)
        rows = self._counted(rows)
        compiler.expect(len(rows))
        parts, start = [], 0
        while start < len(rows):
            # An interpreted kernel gets one row at a time, so that it soon shows whether compiling pays.
            stop = min(start + (self.chunk if self._is_compiled() else 1), len(rows))
            self._reserve(stop - start)
            parts.append(self._take(rows.slice(start, stop)))
            start = stop
        return Releases.concat(parts) if parts else Releases.empty(self._dimensions)

    def advance(self, now: int) -> Releases:
        """Move event time on to `now`, in microseconds, and return what became due."""
        self._is_compiled()
        return self._run(self._no_rows(), now=now)

    def flush(self) -> Releases:
        """End the stream, and return everything that is still held."""
        self._is_compiled()
        return self._run(self._no_rows(), over=True)

    def _is_compiled(self) -> bool:
        """Return whether the kernel is compiled. If it is not, and many rows are held, wait until it is."""
        compiler.expect_held(self.held)
        return bool(self.kernel.is_compiled())

    @property
    def _dimensions(self) -> int:
        return len(self._policy.quasi_identifiers)

    def _no_rows(self) -> Rows:
        none = np.zeros(0, dtype=np.int64)
        sensitive = np.zeros((0, len(self._policy.sensitive)), dtype=np.int64)
        return Rows(np.zeros((0, self._dimensions)), none, sensitive, none)

    def _counted(self, rows: Rows) -> Rows:
        """Return the rows with sensitive values as the method counts them: unchanged, unless it overrides this."""
        return rows

    @abstractmethod
    def _reserve(self, arriving: int) -> None:
        """Reserve space for rows that arrive."""

    def _take(self, rows: Rows) -> Releases:
        """Take a chunk of rows."""
        return self._run(rows)

    @abstractmethod
    def _run(self, rows: Rows, *, now: int = EARLIEST, over: bool = False) -> Releases:
        """Run the kernel, and return the releases that it wrote."""

    # --- Snapshots ---

    def _check_space(self, space: bytes) -> None:
        """Refuse a snapshot whose numbers mean something else."""
        if space != self._fingerprint:
            message = (
                f"{type(self).__name__}: a snapshot can be restored only under the quasi-identifiers and sensitive "
                "columns it was taken under: policy.quasi_identifiers, policy.sensitive or the use of t has changed."
            )
            raise SnapshotError(message)

    def _unpacked_rows(self, held: Mapping[str, bytes], names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Return held rows that were stored: these columns, the sensitive ones, and the quasi-identifiers."""
        rows = len(unpacked(held["number"], "<i8"))
        columns: dict[str, NDArray[Any]] = {name: unpacked(held[name], "<i8", (rows,)) for name in names}
        columns["sensitive"] = unpacked(held["sensitive"], "<i8", (rows, len(self._policy.sensitive)))
        columns["qi"] = unpacked(held["qi"], shape=(rows, self._dimensions))
        return columns

    def _resume(self, record: Mapping[str, Any], names: Iterable[str]) -> None:
        """Take over numbers that were stored."""
        for name in names:
            self._state.numbers[name] = record[name]


def numbers_of(policy: Policy, numbers: np.dtype[np.void]) -> NDArray[Any]:
    """Return a kernel's numbers before the first row: from the policy where there is such a field, else 0."""
    given = {
        "k": policy.k,
        "l": policy.l or 0,
        "t": -1.0 if policy.t is None else policy.t,
        "delay": -1 if policy.delay is None else policy.delay,
        "tick": policy.tick,
        "delay_rows": policy.delay_rows or 0,
        "disorder": policy.disorder,
        "clock": EARLIEST,
    }
    made = np.zeros(1, dtype=numbers)
    for name in given.keys() & set(numbers.names or ()):
        made[name] = given[name]
    return made
