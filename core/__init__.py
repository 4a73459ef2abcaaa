"""crenel publishes a stream of personal records so that nobody in it can be singled out.

The guarantee: when a row is published, the rows published so far under the same generalization
are of at least `k` distinct persons; with `l`, they have at least `l` distinct values of each
sensitive column; with `t`, these are distributed within `t` of the whole stream's. A published
generalization contains the row's own values, and no row leaves after its deadline.

The unit of privacy is a person, told apart by the one column that the policy names: somebody
under two names counts twice. The guarantee holds within a shard, and for one published stream.

What is not protected: columns that the policy publishes as they are (`publish`) are not looked
at; what an attacker knows of sensitive values beforehand, or learns from another stream about the
same persons, is not accounted for; that somebody is in the stream at all is not hidden;
suppressed rows published as `star` match everybody and count for no group. A column that the
policy does not name never leaves. The library does not guard against the code it is used in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crenel.errors import PolicyError
    from crenel.policy import Policy

__all__ = ["Policy", "PolicyError", "__version__"]

_HOME = {"Policy": "crenel.policy", "PolicyError": "crenel.errors"}


def __getattr__(name: str) -> Any:
    # Late, so that `import crenel` costs nothing: numpy alone is a tenth of a second.
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("crenel")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, "__version__"])
