"""The methods: numpy arrays in, releases out. Nothing here knows of Beam, of Arrow, or of files.

>>> from crenel.engine import create
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
>>> create(policy).held
0
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Kind, Release, Releases, SnapshotError
from crenel.engine.methods.adaptive_window.adaptive_window_engine import AdaptiveWindow
from crenel.engine.methods.bastion.bastion_engine import Bastion
from crenel.engine.methods.castle.castle_engine import Castle
from crenel.engine.methods.castleguard.castleguard_engine import CastleGuard
from crenel.engine.methods.faanst.faanst_engine import Faanst, ProactiveFaanst
from crenel.engine.methods.mondrian.mondrian_engine import Mondrian
from crenel.engine.methods.partition.partition_engine import Partition
from crenel.engine.methods.rtree.rtree_engine import Continuous
from crenel.engine.methods.sdgs.sdgs_engine import Sdgs
from crenel.engine.reorder import Reordered
from crenel.policy import Policy
from crenel.policy.secret import secret_of

__all__ = ["Engine", "Kind", "Release", "Releases", "Rows", "SnapshotError", "create"]

_METHODS: dict[str, Callable[[Policy, bytes], Engine]] = {
    "adaptive-window": AdaptiveWindow,
    "bastion": Bastion,
    "castle": Castle,
    "castleguard": CastleGuard,
    "faanst-passive": Faanst,
    "faanst-proactive": ProactiveFaanst,
    "min-delay": Continuous,
    "mondrian": Mondrian,
    "partition": Partition,
    "rtree": Continuous,
    "rtree-density": Continuous,
    "rtree-full": Continuous,
    "sdgs": Sdgs,
}


def create(policy: Policy, *, secret: bytes | None = None, shard: bytes = b"") -> Engine:
    """Make an engine that holds no rows yet.

    Parameters
    ----------
    policy
        What is to be guaranteed, and by which method.
    secret
        What the engine's generator starts from where the policy has no `seed`. If it is not given, it is read from
        where the policy says (`secret`), or drawn anew.
    shard
        What tells this engine from the others of the pipeline, so that no two share a sequence.

    Raises
    ------
    PolicyError
        The policy names a secret that is not there, or that is not fit to be one.
    """
    if secret is None or policy.seed is not None:
        secret = secret_of(policy)
    hidden = hashlib.blake2b(secret, digest_size=32).digest()
    key = hashlib.blake2b(shard, key=hidden, digest_size=32, person=b"crenel.engine").digest()
    engine = _METHODS[policy.method](policy, key)
    return Reordered(engine, policy) if getattr(policy.parameters, "reorder", False) else engine
