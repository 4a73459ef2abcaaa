"""What a user declares: the policy, the roles of its columns, quasi-identifiers, hierarchies, and all their checks.

Here belongs whatever can be said before the first row arrives, and how a declared type maps a value to a number. What
is done with rows belongs to `crenel.encoding` and `crenel.engine`.
"""

from __future__ import annotations

from crenel.errors import PolicyError
from crenel.policy.frozen import FrozenDict
from crenel.policy.methods import Method
from crenel.policy.parameters import Reuse
from crenel.policy.policy import OnSuppress, Policy, ShardBy
from crenel.policy.sensitive import Sensitive
from crenel.policy.sharding.shard_tree import ShardTree

__all__ = ["FrozenDict", "Method", "OnSuppress", "Policy", "PolicyError", "Reuse", "Sensitive", "ShardBy", "ShardTree"]
