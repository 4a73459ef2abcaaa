"""Modelled state and timers: a bundle changes a copy, which takes effect when the bundle is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from apache_beam.transforms import userstate
from apache_beam.utils.timestamp import Timestamp

#: The stage, the key and the window that state belongs to.
Address = tuple[str, Any, Any]


class KeyState:
    """The state and the timers of a key and window. What is committed is never changed, only replaced."""

    __slots__ = ("cells", "timers")

    def __init__(self, cells: dict[str, Any] | None = None, timers: dict[str, int] | None = None) -> None:
        #: By the name of the cell: bytes, or for a bag a tuple of bytes.
        self.cells: dict[str, Any] = cells or {}
        #: By the name of the timer: when it fires, in microseconds.
        self.timers: dict[str, int] = timers or {}

    def copy(self) -> KeyState:
        """A copy to work on."""
        return KeyState(dict(self.cells), dict(self.timers))

    def size(self, cell: str) -> int:
        """The bytes in a cell."""
        found = self.cells.get(cell, b"")
        return sum(map(len, found)) if isinstance(found, tuple) else len(found)


#: All committed state of a job.
Store = dict[Address, KeyState]


class Transaction:
    """The state that a bundle works on.

    Args:
        store: The committed state.
        tick: Called whenever state is touched: the bundle may fail there.
    """

    def __init__(self, store: Store, tick: Callable[[], None]) -> None:
        self._store = store
        self.tick = tick
        self.changed: Store = {}

    def at(self, address: Address) -> KeyState:
        """The state of a key and window, to be changed."""
        found = self.changed.get(address)
        if found is None:
            before = self._store.get(address)
            found = self.changed[address] = KeyState() if before is None else before.copy()
        return found


class StateOfStage(userstate.UserStateContext):  # type: ignore[misc]
    """The state that Beam gives to a step. The stage sets the transaction of each bundle."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.transaction = Transaction({}, lambda: None)

    def get_state(self, state_spec: Any, key: Any, window: Any) -> Any:
        """A cell."""
        kind = _Bag if isinstance(state_spec, userstate.BagStateSpec) else _Value
        return kind(self.transaction, (self._stage, key, window), state_spec)

    def get_timer(self, timer_spec: Any, key: Any, window: Any, timestamp: Any, pane: Any) -> Any:
        """A timer."""
        return _Timer(self.transaction, (self._stage, key, window), timer_spec.name)

    def commit(self) -> None:
        """Nothing to do: the runner commits."""


class _Bag(userstate.BagRuntimeState):  # type: ignore[misc]
    """A bag, which promises no order: it is read backwards."""

    def __init__(self, transaction: Transaction, address: Address, spec: Any) -> None:
        self._transaction = transaction
        self._cells = transaction.at(address).cells
        self._name = spec.name
        self._coder = spec.coder

    def read(self) -> Iterable[Any]:
        self._transaction.tick()
        return [self._coder.decode(value) for value in reversed(self._cells.get(self._name, ()))]

    def add(self, value: Any) -> None:
        self._transaction.tick()
        self._cells[self._name] = (*self._cells.get(self._name, ()), self._coder.encode(value))

    def clear(self) -> None:
        self._transaction.tick()
        self._cells.pop(self._name, None)


class _Value(userstate.ReadModifyWriteRuntimeState):  # type: ignore[misc]
    """A single value."""

    def __init__(self, transaction: Transaction, address: Address, spec: Any) -> None:
        self._transaction = transaction
        self._cells = transaction.at(address).cells
        self._name = spec.name
        self._coder = spec.coder

    def read(self) -> Any:
        self._transaction.tick()
        value = self._cells.get(self._name)
        return None if value is None else self._coder.decode(value)

    def write(self, value: Any) -> None:
        self._transaction.tick()
        self._cells[self._name] = self._coder.encode(value)

    def clear(self) -> None:
        self._transaction.tick()
        self._cells.pop(self._name, None)


def with_tag(name: str, tag: str) -> str:
    """The name of a timer in the state of a key: a step may set one for each tag."""
    return f"{name} {tag}" if tag else name


def without_tag(name: str) -> tuple[str, str]:
    """The name that a step gives its timers, and the tag."""
    own, _, tag = name.partition(" ")
    return own, tag


class _Timer(userstate.BaseTimer):  # type: ignore[misc]
    """A timer; each name, with each tag, has one for a key and window."""

    def __init__(self, transaction: Transaction, address: Address, name: str) -> None:
        self._transaction = transaction
        self._timers = transaction.at(address).timers
        self._name = name

    def set(self, timestamp: Any, dynamic_timer_tag: str = "") -> None:
        self._transaction.tick()
        # Runners keep milliseconds.
        self._timers[with_tag(self._name, dynamic_timer_tag)] = Timestamp.of(timestamp).micros // 1000 * 1000

    def clear(self, dynamic_timer_tag: str = "") -> None:
        self._transaction.tick()
        self._timers.pop(with_tag(self._name, dynamic_timer_tag), None)
