"""A mapping that cannot change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

__all__ = ["FrozenDict"]

_Value = TypeVar("_Value")


class FrozenDict(Mapping[str, _Value], Generic[_Value]):
    """A mapping that cannot change. Two of them are equal only if their order is."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, _Value] | Iterable[tuple[str, _Value]] = ()) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> _Value:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenDict):
            return list(self.items()) == list(other.items())
        return self._items == other

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (self._items,)

    def __repr__(self) -> str:
        return repr(self._items)
