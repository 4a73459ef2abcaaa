"""Published rows in groups: what the rows of a release share is kept once, beside the other columns of each row.

Making a dict of each row costs more than everything else that PUBLISH does. A writer of many rows at once needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, repeat
from typing import Any, overload

__all__ = ["GroupedRows", "LazyRows"]


class LazyRows(Sequence[dict[str, Any]]):
    """Rows that are made only when they are read: most records for the owner are never read.

    Args:
        count: How many there are.
        make: Makes them.
    """

    def __init__(self, count: int, make: Callable[[], Iterator[dict[str, Any]]]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        """Count the rows."""
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Make the rows."""
        return self._make()

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Make all rows, even to return one: rows are usually iterated over, not indexed."""
        return list(self)[index]

    def __repr__(self) -> str:
        """Show the size, never values."""
        return f"{type(self).__name__}({len(self)} rows)"


class GroupedRows(LazyRows):
    """Rows of releases.

    Args:
        boxes: What the rows of each release share.
        sizes: How many rows each has; there are as many releases as boxes.
        columns: The other columns of all rows, those of one release together.
    """

    def __init__(
        self, boxes: Sequence[Mapping[str, Any]], sizes: Sequence[int], columns: Mapping[str, Sequence[Any]]
    ) -> None:
        super().__init__(sum(sizes), self._rows)
        self.boxes = boxes
        self.sizes = sizes
        self.columns = columns

    def with_boxes(self, boxes: Sequence[Mapping[str, Any]]) -> GroupedRows:
        """Replace what the rows of each release share."""
        return GroupedRows(boxes, self.sizes, self.columns)

    def _rows(self) -> Iterator[dict[str, Any]]:
        names, filled = tuple(self.columns), _filler(len(self.columns))
        rows: Iterator[tuple[Any, ...]] = zip(*self.columns.values(), strict=True) if names else repeat(())
        for shared, size in zip(self.boxes, self.sizes, strict=True):
            # Its ranges are its own: a user who changes a row must not change a cache.
            own = {name: dict(value) if isinstance(value, dict) else value for name, value in shared.items()}
            # With all its columns, so that no copy of it must grow.
            yield from filled(own | dict.fromkeys(names), names, islice(rows, size))


@cache
def _filler(
    count: int,
) -> Callable[[dict[str, Any], tuple[str, ...], Iterator[tuple[Any, ...]]], Iterator[dict[str, Any]]]:
    """Compile a function that makes rows from a box and the values of `count` other columns.

    Its code is written out for their number, as `dataclasses` does it: a loop costs three times as much.
    """
    names = "".join(f"n{i}, " for i in range(count))
    values = "".join(f"v{i}, " for i in range(count))
    lines = [
        "def filled(box, names, rows):",
        f"    ({names}) = names",
        f"    for ({values}) in rows:",
        "        row = box.copy()",
        *(f"        row[n{i}] = v{i}" for i in range(count)),
        "        yield row",
    ]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)
    return made["filled"]  # type: ignore[no-any-return]
