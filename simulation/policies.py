"""The policies of histories. Those of one family have the same columns and method: state goes from one to the next."""

from __future__ import annotations

from functools import cache
from typing import Any

from crenel.policy import Policy

#: Text that is in every row, and must be in nothing published.
PERSON, PRIVATE = "person-", "private-"

_COLUMNS: dict[str, Any] = {
    "version": 1,
    "person": "who",
    "event_time": "at",
    "quasi_identifiers": {
        "age": {"type": "numeric", "domain": [0, 100]},
        "area": {"type": "prefix", "length": 3},
    },
    "sensitive": ["illness"],
    "publish": ["n"],
}

#: By family. Within each, all have the same kinds of deadlines.
FAMILIES: tuple[dict[str, dict[str, Any]], ...] = (
    {
        "plain": {"k": 2, "delay": "30s"},
        "disorder": {"k": 3, "delay": "60s", "disorder": "5s", "shards": 3},
        "diverse": {"k": 3, "l": 2, "delay": "40s", "shards": 2},
        "large": {"k": 5, "delay": "2m", "shards": 2},
        "reuse": {"k": 2, "delay": "60s", "parameters": {"reuse": "weighted"}},
        "star": {"k": 4, "delay": "50s", "max_ahead": "20s", "on_suppress": "star", "shards": 2},
    },
    {"counted": {"k": 2, "delay_rows": 6}, "counted-more": {"k": 3, "delay_rows": 10, "shards": 2}},
    {
        "both": {"k": 2, "delay": "45s", "delay_rows": 8},
        "both-more": {"k": 3, "l": 2, "delay": "30s", "max_ahead": "2m", "delay_rows": 6},
        "quick": {"k": 2, "delay": "45s", "delay_rows": 2, "shards": 2},
    },
    {"close": {"k": 3, "t": 0.5, "delay": "60s"}, "closer": {"k": 4, "t": 0.4, "delay": "60s", "shards": 2}},
    {
        "castle": {"k": 2, "delay": "60s", "method": "castle"},
        "castle-more": {"k": 3, "l": 2, "delay": "40s", "method": "castle", "shards": 2},
    },
    {
        "castle-quick": {"k": 2, "delay": "45s", "delay_rows": 2, "method": "castle", "parameters": {"beta": 1}},
        "castle-both": {"k": 2, "delay": "30s", "delay_rows": 4, "method": "castle", "shards": 2},
    },
)

POLICIES = {name: changes for family in FAMILIES for name, changes in family.items()}

#: A family whose shards follow the stream by a tree.
FOLLOWING: dict[str, dict[str, Any]] = {
    "following": {"k": 2, "delay": "60s", "shards": 3, "shard_by": "locality"},
    "following-more": {"k": 3, "delay": "45s", "disorder": "5s", "shards": 5, "shard_by": "locality"},
    "following-few": {"k": 2, "delay": "30s", "shards": 2, "shard_by": "locality"},
}
_ALL = POLICIES | FOLLOWING


@cache
def policy(name: str) -> Policy:
    """The policy of this name."""
    return Policy.from_dict({**_COLUMNS, **_ALL[name]})


def place(name: str) -> int:
    """The place of a policy among all."""
    return list(_ALL).index(name)


def strangers(name: str) -> list[str]:
    """The policies that state of this one must not be taken up under: of another method, or with `t` or without."""
    return [other for other in POLICIES if _kind(other) != _kind(name)]


def _kind(name: str) -> tuple[str, bool]:
    return policy(name).method, policy(name).t is None


def family(name: str) -> list[str]:
    """The policies that state of this one can be taken up under; itself first."""
    (found,) = [one for one in (*FAMILIES, FOLLOWING) if name in one]
    return [name, *(other for other in found if other != name)]
