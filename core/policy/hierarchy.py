"""Hierarchies of categories: a tree of labels whose branches may differ in depth.

Every label stands for one node. A leaf is a value that a record may have; a node above it is published for a group of
leaves. All operations are linear in the number of nodes: no table of leaves by levels is kept.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.errors import PolicyError
from crenel.policy.checks import short
from crenel.policy.geometry import Tree
from crenel.policy.reading.named_files import NotReadable, read_bounded

__all__ = ["ROOT", "Hierarchy"]

#: The label of a root that has no name.
ROOT = "*"

#: A wrong file may be wrong in every line, so only the first problems are listed.
_MOST_PROBLEMS = 10


class Hierarchy:
    """A tree of labels. Leaves are numbered depth-first, siblings in the order they are declared.

    Use `from_csv`, `from_mapping` or `flat` to build one. It is immutable, compares by content, and pickles as its
    labels and parents.
    """

    #: The label of each node, depth-first.
    labels: tuple[str, ...]

    #: The parent of each node. Node 0 is the root and its own parent.
    parents: NDArray[np.int32]

    def __init__(self, labels: Iterable[str], parents: NDArray[np.int32]) -> None:
        self.labels = tuple(labels)
        self.parents = np.array(parents, dtype=np.int32)
        self.parents.flags.writeable = False

    @classmethod
    def from_csv(cls, path: str | PathLike[str], *, delimiter: str = ";", encoding: str = "utf-8-sig") -> Hierarchy:
        """Read ARX's format: one line per leaf, `leaf;level 1;...;*`, without a header.

        Lines may differ in length. An empty cell, or a label repeated on neighbouring levels, adds no node.

        Raises:
            PolicyError: The file cannot be read, or is not a tree. The message names the lines, and never quotes them.
        """
        name = Path(path).name
        builder = _Builder(f"{name}, line ")
        try:
            text = io.StringIO(read_bounded(path).decode(encoding), newline="")
            reader = csv.reader(text, delimiter=delimiter)
            widest = 0
            for cells in reader:
                if cells:
                    widest = max(widest, len(cells))
                    builder.add_path(cells, reader.line_num)
        except FileNotFoundError:
            raise PolicyError([("hierarchy", f": there is no file {str(path)!r}.")], "") from None
        except (NotReadable, UnicodeDecodeError, csv.Error) as error:
            why = error if isinstance(error, NotReadable) else f"cannot be read: it is not CSV in {encoding}"
            raise PolicyError([("hierarchy", f": {str(path)!r} {why}.")], "") from None
        if widest == 1 and any("," in label or "\t" in label for label in builder.leaves):
            builder.problem(f"{name}: the columns must be separated by {delimiter!r}.")
        return builder.build(cls, name)

    @classmethod
    def from_mapping(cls, nested: Mapping[Any, Any] | Sequence[Any]) -> Hierarchy:
        """Build a hierarchy from nested mappings and lists.

        A mapping holds groups by label. A list holds leaves, and may hold mappings. A label that maps to None is a
        leaf. If the top mapping has a single label, that is the root; otherwise the root is `*`.

        Example:
            >>> Hierarchy.from_mapping({"School": ["9th", "10th"], "Higher": {"BSc": None}})
            Hierarchy(3 leaves, depth 2, root '*')
        """
        builder = _Builder("")
        builder.add_tree(nested)
        return builder.build(cls, "it")

    @classmethod
    def flat(cls, values: Iterable[Any]) -> Hierarchy:
        """Build a hierarchy in which all values are directly under the root, `*`."""
        return cls.from_mapping(list(values))

    def to_mapping(self) -> dict[str, Any]:
        """Return the tree as nested mappings and lists, as `from_mapping` takes it."""
        children: list[list[int]] = [[] for _ in self.labels]
        for node in range(1, len(self.labels)):
            children[self.parents[node]].append(node)
        made: list[Any] = [None] * len(self.labels)
        for node in range(len(self.labels) - 1, -1, -1):  # children before their parents
            under = children[node]
            if not under:
                continue
            if any(children[child] for child in under):
                made[node] = {self.labels[child]: made[child] for child in under}
            else:
                made[node] = [self.labels[child] for child in under]
        return {self.labels[0]: made[0]}

    @cached_property
    def tree(self) -> Tree:
        """The tree without its labels."""
        return Tree.from_parents(self.parents)

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """The labels of the leaves in depth-first order: a leaf's position is its number."""
        labels = self.labels
        return tuple([labels[node] for node in self.tree.leaf.tolist()])

    @cached_property
    def depth(self) -> int:
        """The largest number of steps from the root to a leaf."""
        depths = [0] * len(self.labels)
        for node, parent in enumerate(self.parents.tolist()):
            if node:
                depths[node] = depths[parent] + 1
        return max(depths)

    @property
    def root_label(self) -> str:
        """The label that stands for all leaves."""
        return self.labels[0]

    def leaf_number(self, label: str) -> int:
        """Return the number of the leaf with this label; KeyError if there is none."""
        return self.numbers[label]

    def label(self, node: int) -> str:
        """Return the label of a node."""
        return self.labels[node]

    def label_of_span(self, lo: float, hi: float) -> str:
        """Return the label of the lowest node above the leaves `lo` to `hi`."""
        return self.labels[self.tree.ancestor(lo, hi)]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of the leaves by label."""
        return {label: number for number, label in enumerate(self.leaves)}

    def __len__(self) -> int:
        return len(self.tree.leaf)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hierarchy):
            return NotImplemented
        return self.labels == other.labels and np.array_equal(self.parents, other.parents)

    def __hash__(self) -> int:
        return hash((len(self.labels), self.labels[:100], self.parents[-100:].tobytes()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Hierarchy, (self.labels, self.parents)

    def __repr__(self) -> str:
        return f"Hierarchy({len(self)} leaves, depth {self.depth}, root {self.root_label!r})"


class _Builder:
    """Collects the parent of each label, and all problems.

    Args:
        place: What the lines of a file are called; empty if there is no file. Labels of a file are never quoted: the
            path may be that of a file with secrets.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.parent: dict[str, str] = {}
        self.line: dict[str, int] = {}
        self.tops: dict[str, int] = {}
        self.leaves: dict[str, int] = {}
        self.problems: list[str] = []
        self.unlisted = 0

    def problem(self, text: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(text)
        else:
            self.unlisted += 1

    def add_path(self, cells: list[str], line: int) -> None:
        """Add one line of a file: a leaf and the labels above it."""
        if not cells[0]:
            self.problem(f"{self.place}{line}: the leaf must not be empty.")
            return
        path = [cells[0]]
        for cell in cells[1:]:
            if cell and cell != path[-1]:
                path.append(cell)
        if len(set(path)) < len(path):
            self.problem(f"{self.place}{line}: a label must not occur twice on one path.")
            return
        self.leaves.setdefault(path[0], line)
        for child, above in pairwise(path):
            known = self.parent.get(child)
            if known is None:
                self.parent[child] = above
                self.line[child] = line
            elif known != above:
                self._two_parents(cells.index(child), line, self.line[child])
        self.tops.setdefault(path[-1], line)

    def _two_parents(self, level: int, line: int, first: int) -> None:
        self.problem(
            f"{self.place}{line}: the label in column {level + 1} must be under the same label as in line {first}; "
            "rename it on one of the branches."
        )

    def add_tree(self, nested: Any) -> None:
        """Add a tree of mappings and lists."""
        if isinstance(nested, (str, bytes)) or not isinstance(nested, (Mapping, Sequence)):
            self.problem(f"it must be a mapping or a list, not {short(nested)}.")
            return
        seen: set[str] = set()
        open_groups: list[tuple[str | None, Any]] = [(None, nested)]
        for above, group in open_groups:  # grows during the loop
            for label, under in self._members(above, group):
                if label in seen:
                    self.problem(
                        f"the label {short(label)} must occur once, not again"
                        + (f" under {short(above)}." if above is not None else ".")
                    )
                    continue
                seen.add(label)
                if above is None:
                    self.tops[label] = 0
                else:
                    self.parent[label] = above
                if under is None:
                    self.leaves[label] = 0
                else:
                    open_groups.append((label, under))

    def _members(self, above: str | None, group: Any) -> list[tuple[str, Any]]:
        where = "it" if above is None else f"the group {short(above)}"
        found: list[tuple[Any, Any]] = []
        if isinstance(group, Mapping):
            found = list(group.items())
        elif isinstance(group, Sequence) and not isinstance(group, (str, bytes)):
            for item in group:
                found.extend(item.items() if isinstance(item, Mapping) else [(item, None)])
        else:
            self.problem(f"{where} must hold a mapping, a list or nothing, not {short(group)}.")
            return []
        if not found:
            self.problem(f"{where} must not be empty.")
        return [(text, under) for label, under in found if (text := self._text(label)) is not None]

    def _text(self, label: Any) -> str | None:
        if isinstance(label, str) and label:
            return label
        if isinstance(label, (int, float)) and not isinstance(label, bool):
            return str(label)
        # YAML reads `no` as False and 2020-01-01 as a date. The text that was meant is lost.
        self.problem(f"a label must be text (put it in quotes), not {short(label)}.")
        return None

    def build(self, cls: type[Hierarchy], name: str) -> Hierarchy:
        root = self._root(name)
        groups = set(self.parent.values())
        for leaf, line in self.leaves.items():
            if leaf in groups:
                self.problem(f"{self._at(line)}{self._label(leaf, 'the leaf')} must be a value or a group, not both.")
        if self.problems:
            if self.unlisted:
                self.problems.append(f"and {self.unlisted} more problems of the same kinds.")
            raise PolicyError([("hierarchy", f": {text}") for text in self.problems], "")
        return cls(*_depth_first(root, self.parent))

    def _label(self, label: str, otherwise: str) -> str:
        """Quote a label of the policy itself, but not one of a file."""
        return otherwise if self.place else short(label)

    def _at(self, line: int) -> str:
        return f"{self.place}{line}: " if line else ""

    def _root(self, name: str) -> str:
        for top, line in self.tops.items():
            if top in self.parent:
                self.problem(
                    f"{self._at(line)}{self._label(top, 'the last label')} must be at the top everywhere, not under "
                    f"{self._label(self.parent[top], 'another')} as well."
                )
        if not self.tops:
            if not self.problems:
                self.problem(f"{name} must hold at least one value.")
            return ROOT
        if len(self.tops) == 1 and next(iter(self.tops)) not in self.leaves:
            return next(iter(self.tops))
        # Several tops, or a leaf at the top, get a common root above them.
        if ROOT in self.tops or ROOT in self.parent:
            other = next((top for top in self.tops if top != ROOT), ROOT)
            said = self._label(other, "another label")
            self.problem(f"{self._at(self.tops.get(other, 0))}the top must be {ROOT!r} everywhere, not {said}.")
        for top in self.tops:
            self.parent.setdefault(top, ROOT)
        return ROOT


def _depth_first(root: str, parent: dict[str, str]) -> tuple[list[str], NDArray[np.int32]]:
    children: dict[str, list[str]] = {}
    for child, above in parent.items():
        children.setdefault(above, []).append(child)
    labels: list[str] = []
    parents: list[int] = []
    stack = [(root, 0)]
    while stack:
        label, above_node = stack.pop()
        node = len(labels)
        labels.append(label)
        parents.append(above_node)
        stack.extend((child, node) for child in reversed(children.get(label, ())))
    return labels, np.array(parents, dtype=np.int32)
