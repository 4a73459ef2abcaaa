"""Which shard a row goes to, as far as a policy declares it: the rule, and the tree of cuts that a rule may name."""
