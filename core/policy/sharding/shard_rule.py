"""The rule by which a policy assigns rows to shards: its forms, how they are read, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Literal, TypeAlias

from crenel.errors import PolicyError
from crenel.policy.checks import Problems, an_integer
from crenel.policy.quasi_identifiers import QuasiIdentifier
from crenel.policy.reading.named_files import PolicyFiles
from crenel.policy.sharding.shard_tree import MOST_SHARDS, ShardTree
from crenel.policy.sharding.tree_schedule import TreeSchedule, read_tree

__all__ = [
    "AUTO",
    "MOST_AUTO",
    "TREES",
    "ShardBy",
    "ShardRule",
    "check_shards",
    "read_rule",
    "read_shards",
    "written_rule",
]

#: What a policy says to get as many shards as the stream needs, and the most shards that it then gets.
AUTO: Literal["auto"] = "auto"
MOST_AUTO = 64

_FORMS = "'person', 'locality', {tree: FILE}, {trees: [...]} or a list of columns"


class ShardBy(Enum):
    """Which rows go to the same shard."""

    #: All rows of a person, so that each shard is a sample of the persons.
    PERSON = "person"

    #: Rows with similar quasi-identifiers, by a tree that is learned from the input, and follows it if it is a stream.
    LOCALITY = "locality"


#: A rule; or a tree of cuts, or several, one after the other; or the columns whose values decide.
ShardRule: TypeAlias = ShardBy | ShardTree | TreeSchedule | tuple[str, ...]

#: What knows its own number of shards.
TREES = (ShardTree, TreeSchedule)


def read_rule(problems: Problems, given: Any, files: PolicyFiles) -> ShardRule:
    """Read `shard_by`. A tree is named by its file, or given by its content."""
    if isinstance(given, (ShardBy, *TREES)):
        return given
    if isinstance(given, str) and given in [choice.value for choice in ShardBy]:
        return ShardBy(given)
    if isinstance(given, Mapping) and set(given) == {"tree"}:
        return _read(problems, "tree", lambda: read_tree(given["tree"], files))
    if isinstance(given, Mapping) and set(given) == {"trees"}:
        return _read(problems, "trees", lambda: TreeSchedule.from_list(given["trees"], files))
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable) or not given:
        problems.must("shard_by", _FORMS, given)
        return ShardBy.PERSON
    return tuple(_columns(problems, given))


def _read(problems: Problems, name: str, read: Callable[[], ShardTree | TreeSchedule]) -> ShardRule:
    try:
        return read()
    except PolicyError as error:
        problems.include(f"shard_by.{name}", error)
        return ShardBy.PERSON


def _columns(problems: Problems, given: Iterable[Any]) -> list[str]:
    names: list[str] = []
    for name in given:
        if not isinstance(name, str) or not name:
            problems.must("shard_by", "a list of columns' names", name)
        elif name in names:
            problems.add("shard_by", f"must name each column once, not {name!r} again.")
        else:
            names.append(name)
    return names


def read_shards(problems: Problems, given: Any, rule: Any) -> int | Literal["auto"]:
    """Read `shards`. A tree knows its own number."""
    if isinstance(rule, TREES) and given in (None, AUTO):
        return rule.shards
    if given == AUTO:
        return AUTO
    return 1 if given is None else an_integer(problems, "shards", given, 1, default=1)


def check_shards(
    problems: Problems, shards: int | Literal["auto"], rule: ShardRule, quasi_identifiers: Mapping[str, QuasiIdentifier]
) -> None:
    """Require that the number of shards, the rule and the quasi-identifiers fit together."""
    if isinstance(rule, TREES):
        if shards != rule.shards:
            problems.must("shards", f"{rule.shards}, the leaves of the tree, or left out", shards)
        try:
            rule.check(quasi_identifiers)
        except PolicyError as error:
            problems.include("shard_by.tree" if isinstance(rule, ShardTree) else "shard_by.trees", error)
    elif rule is ShardBy.LOCALITY:
        if shards != AUTO and shards > MOST_SHARDS:
            problems.must("shards", f"at most {MOST_SHARDS:,} if shard_by is 'locality'", shards)
    elif shards == AUTO:
        problems.add(
            "shards",
            "must be a number unless shard_by is 'locality' or a tree: only these say how many shards the rows feed. "
            "crenel plan POLICY --rate N/s advises a number.",
        )


def written_rule(rule: ShardRule) -> Any:
    """Write `shard_by` as plain values, with the content of a tree."""
    if isinstance(rule, ShardTree):
        return {"tree": rule.to_dict()}
    if isinstance(rule, TreeSchedule):
        return {"trees": rule.to_list()}
    return rule.value if isinstance(rule, ShardBy) else list(rule)
