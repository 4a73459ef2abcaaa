"""Engines: numpy arrays of rows in, releases out. Nothing here knows of Beam, of Arrow, or of files.

>>> from crenel.engine import create_engine
>>> from crenel.policy import Policy
>>> policy = Policy.from_dict(
...     {
...         "version": 1,
...         "person": "customer",
...         "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 120]}},
...         "k": 2,
...         "delay_rows": 10,
...         "seed": 7,
...     }
... )
>>> create_engine(policy).held
0
"""

from __future__ import annotations

import hashlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crenel.encoding.rows import Rows
    from crenel.engine.contract import Engine, Kind, Release, Releases, SnapshotError
    from crenel.policy import Policy
    from crenel.policy.secret import Secret

__all__ = ["Engine", "Kind", "Release", "Releases", "Rows", "SnapshotError", "create_engine"]

#: Where each name comes from. A policy imports the declarations of methods, which are below this package, and must
#: not wait for what engines need.
_HOME = {
    "Engine": "crenel.engine.contract",
    "Kind": "crenel.engine.contract",
    "Release": "crenel.engine.contract",
    "Releases": "crenel.engine.contract",
    "Rows": "crenel.encoding.rows",
    "SnapshotError": "crenel.engine.contract",
}


def create_engine(policy: Policy, *, secret: bytes | Secret | None = None, shard: bytes = b"") -> Engine:
    """Make an engine that holds no rows yet.

    Args:
        policy: What is to be guaranteed, and by which method.
        secret: The secret that the engine's random generator starts from, unless the policy has a `seed`. If it is
            not given, it is read from where the policy says (`secret`), or drawn anew.
        shard: Tells this engine from the others of the pipeline, so that no two draw the same sequence.

    Raises:
        PolicyError: the policy names a secret that does not exist or is unfit, or its method cannot be loaded.
    """
    from crenel.policy import Policy as _Policy
    from crenel.policy.secret import Secret

    policy = _Policy.of(policy)
    if secret is None or policy.seed is not None:
        secret = Secret.of(policy)
    elif isinstance(secret, bytes):
        secret = Secret.given(secret)
    key = hashlib.blake2b(shard, key=secret.root, digest_size=32, person=b"crenel.engine").digest()
    engine: Engine = policy.declaration.load_engine()(policy, key)
    if policy.reorders:
        from crenel.engine.wrappers.reorder import Reordered

        engine = Reordered(engine, policy)
    if policy.together is not None:
        from crenel.engine.wrappers.together import Together

        engine = Together(engine, policy)
    if policy.once_per is not None:
        from crenel.engine.wrappers.once_per import OncePer

        engine = OncePer(engine, policy)
    engine.is_drawn = secret.is_drawn
    return engine


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
