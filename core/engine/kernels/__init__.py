"""The hot loops, compiled by numba on first use and kept on disk: one file for each method, and what they share.

numba's cache notices a change only in the file of the function it cached: a kernel that calls into `common` would go on
running that file's old code. What was compiled before the last change of a file that it uses is therefore forgotten
here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

#: Of files whose functions others call: the caches that know their code.
_USED_BY = {"common": "*", "chain": "continuous.*", "rtree": "continuous.*"}


def _forget_older_than(used: str, users: str) -> None:
    here = Path(__file__).parent
    changed = (here / f"{used}.py").stat().st_mtime
    for index in (here / "__pycache__").glob(f"{users}.nbi"):
        with contextlib.suppress(OSError):  # another process does the same; or it is not ours to change
            if index.stat().st_mtime < changed:
                index.unlink()


for _used, _users in _USED_BY.items():
    _forget_older_than(_used, _users)
