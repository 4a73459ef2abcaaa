"""The hot loops, compiled by numba on first use and kept on disk: one file for each method, and what they share.

numba's cache notices a change only in the file of the function it cached: a kernel that calls into `common` would go on
running that file's old code. What was compiled before the last change of `common` is therefore forgotten here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def _forget_older_than_common() -> None:
    here = Path(__file__).parent
    changed = (here / "common.py").stat().st_mtime
    for index in (here / "__pycache__").glob("*.nbi"):
        with contextlib.suppress(OSError):  # another process does the same; or it is not ours to change
            if index.stat().st_mtime < changed:
                index.unlink()


_forget_older_than_common()
