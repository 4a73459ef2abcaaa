"""Mondrian in plain Python, written from `docs/mondrian.md`. It is slow, and shares no code with the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crenel.encoding.rows import Rows
from crenel.policy import Policy
from crenel.policy.geometry import Interval, Radix, Tree


@dataclass
class Oracle:
    """One set of rows under a policy that declares all domains."""

    policy: Policy
    rows: Rows
    domains: list[tuple[float, float]]
    relaxed: bool
    spare: int

    def groups(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return the groups, and the rows that are left over."""
        self.qi = self.rows.qi.tolist()
        self.done: list[list[int]] = []
        self.left: list[list[int]] = []
        everything = list(range(len(self.qi)))
        if not self.ready(everything):
            return [], [everything] if everything else []
        self.look_at(everything)
        return self.done, self.left

    def look_at(self, part: list[int]) -> None:
        best: Any = None
        uncut = self.loss([part], [])
        if len(part) >= 2 * self.policy.k or self.spare:
            for d in range(len(self.domains)):
                for spare in [0, self.spare] if self.spare else [0]:
                    parts, left = self.cut(part, d, spare)
                    if parts:
                        loss = self.loss(parts, left)
                        if (best is None or loss < best[0]) and not (left and loss >= uncut):
                            best = (loss, parts, left)
        if best is None:
            self.done.append(sorted(part))
            return
        _, parts, left = best
        self.left += [sorted(one) for one in left]
        self.spare -= sum(map(len, left))
        for one in parts:
            self.look_at(one)

    def ready(self, part: list[int]) -> bool:
        l = self.policy.l
        return len({self.rows.person[i] for i in part}) >= self.policy.k and (
            l is None or all(len({column[i] for i in part}) >= l for column in self.rows.sensitive.T)
        )

    def numeric(self, d: int) -> bool:
        return isinstance(self.geometry(d), Interval)

    def geometry(self, d: int) -> Any:
        return list(self.policy.quasi_identifiers.values())[d].geometry

    def cell(self, d: int) -> float:
        geometry = self.geometry(d)
        return 1.0 if isinstance(geometry, Interval) and geometry.cells else 0.0

    def scale(self, d: int) -> float:
        weights = [qi.weight for qi in self.policy.quasi_identifiers.values()]
        total = 0.0
        for weight in weights:
            total += weight
        width = self.domains[d][1] - self.domains[d][0] + self.cell(d)
        return weights[d] / total / width if width > 0 else 0.0

    def in_order(self, part: list[int], d: int) -> list[int]:
        def along(i: int) -> float:
            total = 0.0
            for e, x in enumerate(self.qi[i]):
                total += self.scale(e) * x
            return total

        return sorted(part, key=lambda i: (self.qi[i][d], along(i), i))

    def cut(self, part: list[int], d: int, spare: int) -> tuple[list[list[int]], list[list[int]]]:
        """Return the parts, and the rows that would be left over. There are no parts if no cut is possible."""
        rows = self.in_order(part, d)
        values = [self.qi[i][d] for i in rows]
        lo, hi = self.geometry(d).span(values[0], values[-1])
        if self.scale(d) * (hi - lo) <= 0:
            return [], []
        if not self.numeric(d):
            return self.by_children(rows, d, lo, hi, spare)
        return self.without_a_tail(rows, values, d, spare) if spare else (self.in_two(rows, values), [])

    def without_a_tail(self, rows: list[int], values: list[float], d: int, spare: int) -> Any:
        """Return the rows without the tail that is best left over, and the tail."""
        n, found = len(rows), []
        for m in range(1, n):
            for low, inside, tail in ((0, rows[m:], rows[:m]), (1, rows[: n - m], rows[n - m :])):
                # A tail of the same value as its neighbour would leave half of that value over.
                apart = values[m - 1] != values[m] if low == 0 else values[n - m - 1] != values[n - m]
                if m <= spare and apart and self.ready(inside) and not self.ready(tail):
                    width = self.qi[inside[-1]][d] - self.qi[inside[0]][d] + self.cell(d)
                    found.append((m + self.scale(d) * width * (n - m), low, m, inside, tail))
        if not found:
            return [], []
        *_, inside, tail = min(found, key=lambda one: one[:3])
        return [inside], [tail]

    def in_two(self, rows: list[int], values: list[float]) -> list[list[int]]:
        half = len(rows) // 2
        first = values.index(values[half])
        behind = first + values.count(values[half])
        near, far = (behind, first) if behind - half < half - first else (first, behind)
        for at in [near, far, half] if self.relaxed else [near, far]:
            if 0 < at < len(rows) and self.ready(rows[:at]) and self.ready(rows[at:]):
                return [rows[:at], rows[at:]]
        return []

    def by_children(self, rows: list[int], d: int, lo: float, hi: float, spare: int) -> Any:
        children: dict[Any, list[int]] = {}
        for i in rows:
            children.setdefault(self.child(d, lo, hi, self.qi[i][d]), []).append(i)
        alone = [child for child in children.values() if self.ready(child)]
        small = [child for child in children.values() if not self.ready(child)]
        count = sum(map(len, small))
        if 0 < count <= spare and alone:
            return (alone, small)
        pool = [i for child in small for i in child]
        while pool and not self.ready(pool):
            smallest = min(alone, key=len)
            alone.remove(smallest)
            pool += smallest
        parts = [*alone, pool] if pool else alone
        return (parts, []) if len(parts) > 1 else ([], [])

    def child(self, d: int, lo: float, hi: float, x: float) -> Any:
        geometry = self.geometry(d)
        if isinstance(geometry, Radix):
            return x // ((hi - lo + 1) / geometry.base)
        assert isinstance(geometry, Tree)
        top = geometry.ancestor(lo, hi)
        node = int(geometry.leaf[int(x)])
        while geometry.parent[node] != top:
            node = int(geometry.parent[node])
        return node

    def loss(self, parts: list[list[int]], left: list[list[int]]) -> float:
        total = float(sum(map(len, left)))
        for d in range(len(self.domains)):
            for part in parts:
                values = [self.qi[i][d] for i in part]
                lo, hi = self.geometry(d).span(min(values), max(values))
                total += self.scale(d) * (hi - lo + self.cell(d)) * len(part)
        return total
