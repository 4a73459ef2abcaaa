"""Whether the engine's kernels have been compiled on this machine before."""

from __future__ import annotations

from typing import Any

__all__ = ["WAIT", "is_compiled"]

#: What is said when they have not.
WAIT = "compiling the engine, once: up to a minute"


def is_compiled() -> bool:
    """Whether numba would find the kernels in its cache; True if it cannot be told."""
    from crenel.engine.kernels import castle as kernels

    try:
        run: Any = kernels.run
        return bool(run._cache._cache_file._load_index())
    except Exception:  # numba's insides may change, and a wait that is not announced does no harm
        return True
