"""What a user declares: a policy, the roles of its columns, its quasi-identifiers and hierarchies, and their checks."""

from __future__ import annotations

from crenel.errors import PolicyError
from crenel.policy.frozen import FrozenDict
from crenel.policy.methods import Method
from crenel.policy.parameters import Reuse
from crenel.policy.policy import OnSuppress, Policy, ShardBy
from crenel.policy.sensitive import Sensitive

__all__ = ["FrozenDict", "Method", "OnSuppress", "Policy", "PolicyError", "Reuse", "Sensitive", "ShardBy"]
