"""Whether the compiled code of a method is on disk."""

from __future__ import annotations

__all__ = ["WAIT", "is_compiled"]

#: What is said when it is not.
WAIT = "compiling the engine, once: up to a minute"


def is_compiled(method: str = "bastion") -> bool:
    """Return whether an engine of this method can start at once."""
    from crenel.engine import Engine  # here, since it imports numba
    from crenel.policy import methods

    engine = methods.find(method).load_engine()
    return engine.is_compiled() if isinstance(engine, type) and issubclass(engine, Engine) else True
