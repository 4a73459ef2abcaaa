"""What a user declares: a policy, the roles of its columns, its quasi-identifiers and hierarchies, and their checks."""

from __future__ import annotations

from crenel.errors import PolicyError
from crenel.policy.frozen import FrozenDict
from crenel.policy.policy import OnSuppress, Policy, ShardBy
from crenel.policy.sensitive import Sensitive

__all__ = ["FrozenDict", "OnSuppress", "Policy", "PolicyError", "Sensitive", "ShardBy"]
