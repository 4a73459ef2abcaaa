"""The parts that compiled methods share; numba compiles them on first use and keeps the result on disk.

numba's cache notices a change only in the file of the function it cached: a kernel that calls into another file would
go on running that file's old code. Kernels compiled before the last change of any of them are forgotten here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def _forget_what_is_stale() -> None:
    engine = Path(__file__).parent.parent
    sources = [path for path in engine.rglob("*.py") if path.parent.name == "kernels" or "kernel" in path.name]
    sources += engine.rglob("chain_sampling.py")
    changed = max(path.stat().st_mtime for path in sources)
    for index in engine.rglob("__pycache__/*.nbi"):
        with contextlib.suppress(OSError):  # another process does the same, or the folder is read-only
            if index.stat().st_mtime < changed:
                index.unlink()


_forget_what_is_stale()
