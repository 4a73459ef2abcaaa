"""Whether the engine's kernels have been compiled on this machine before."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["WAIT", "is_compiled"]

#: What is said when they have not.
WAIT = "compiling the engine, once: up to a minute"


def is_compiled(method: str = "bastion") -> bool:
    """Whether numba would find a method's kernels in its cache; True if it cannot be told."""
    try:
        run: Any = import_module(f"crenel.engine.kernels.{method}").run
        return bool(run._cache._cache_file._load_index())
    except Exception:  # numba's insides may change, and a wait that is not announced does no harm
        return True
