"""crenel anonymizes a stream of personal records, and publishes each record before a deadline.

**The guarantee.** Under the default policy, every published row leaves in a crowd: a release of rows of at least `k`
persons, each person in it once, at one moment, under one generalization, in a secret random order. An attacker who
knows everyone's quasi-identifiers and all times can link a published row to its person with probability at most 1/k.
With `l`, a release has at least `l` distinct values of each sensitive column; with `t`, these are distributed within
`t` of the whole stream's. A published generalization contains the row's own values, and no row leaves after its
deadline. Other methods, `reuse`, `reorder` and `on_suppress: star` promise less; `Policy.crowd` tells whether a policy
promises the crowd.

**The unit of privacy** is a person, identified by the one column that the policy names. Somebody under two names
counts as two persons. The guarantee holds within a shard, and for one published stream.

**What is not protected.** Whether somebody is in the stream at all. Columns that the policy publishes as they are
(`publish`), which nobody checks. What an attacker knew about sensitive values before, or learns from another stream
about the same persons. What all rows of a release have in common, beyond what `l` and `t` forbid. The library does not
guard against the code that uses it. A column that the policy does not name is never published.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crenel import audit
    from crenel.engine import create_engine
    from crenel.errors import PolicyError
    from crenel.policy import Policy, Sensitive
    from crenel.policy.kinds.coordinates import Coordinates
    from crenel.policy.kinds.ip_address import IpAddress
    from crenel.policy.quasi_identifiers import Categorical, Datetime, Numeric, Prefix
    from crenel.testing import check_engine
    from crenel.transforms import Anonymize, AnonymizeBounded
    from crenel.transforms.tables import anonymize

__all__ = [
    "Anonymize",
    "AnonymizeBounded",
    "Categorical",
    "Coordinates",
    "Datetime",
    "IpAddress",
    "Numeric",
    "Policy",
    "PolicyError",
    "Prefix",
    "Sensitive",
    "__version__",
    "anonymize",
    "audit",
    "check_engine",
    "create_engine",
]

#: The module of each name. They are imported when they are first asked for: `import crenel` must cost nothing.
_HOME = {
    "Anonymize": "crenel.transforms",
    "AnonymizeBounded": "crenel.transforms",
    "Categorical": "crenel.policy.quasi_identifiers",
    "Coordinates": "crenel.policy.kinds.coordinates",
    "Datetime": "crenel.policy.quasi_identifiers",
    "IpAddress": "crenel.policy.kinds.ip_address",
    "Numeric": "crenel.policy.quasi_identifiers",
    "Policy": "crenel.policy",
    "PolicyError": "crenel.errors",
    "Prefix": "crenel.policy.quasi_identifiers",
    "Sensitive": "crenel.policy",
    "anonymize": "crenel.transforms.tables",
    "check_engine": "crenel.testing",
    "create_engine": "crenel.engine",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name == "audit":
        return importlib.import_module("crenel.audit")
    if name == "__version__":
        from importlib.metadata import version

        return version("crenel")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
