"""Lets a command start and end fast, in the process of the installed script.

Beam, Arrow and numba import some packages only because they are installed: Beam looks for pandas, IPython, MongoDB's
client and Google's libraries, Arrow for pandas, numba for scipy and cffi. All three do without them, and no command
uses them, but they took half the time of a small run. So in that process they are not found, as on a machine that has
crenel and nothing else. There are two exceptions: where other packages add methods or types of quasi-identifiers,
which may need anything, and on runners other than `local`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

__all__ = ["begin", "find_everything", "loading"]

#: Not found. Wherever Beam, Arrow and numba import these, they expect that there may be none.
_UNUSED = frozenset({"IPython", "apache_beam.io.gcp.bigquery", "bson", "cffi", "pandas", "pymongo", "scipy"})

#: Imported when first used. Beam imports it to download files, which is rare, and it builds a grammar at once.
_LATER = frozenset({"httplib2"})


class _Light:
    """Stands before Python's own finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module, or hide it; None leaves it to the next finder."""
        if name not in _UNUSED | _LATER or _other_packages():
            return None
        if name in _UNUSED:
            msg = f"{name} is hidden from this process (crenel.pipelines.light_start)"
            raise ModuleNotFoundError(msg, name=name)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


_LIGHT = _Light()


@lru_cache(maxsize=1)
def _other_packages() -> bool:
    """Whether packages other than crenel add to it."""
    from importlib.metadata import entry_points  # here, since `crenel --help` does without

    groups = ("crenel.methods", "crenel.quasi_identifiers")
    return any(not point.value.startswith("crenel.") for group in groups for point in entry_points(group=group))


def begin() -> None:
    """Hide what no command uses. Only for a process that runs one command and nothing else."""
    sys.meta_path.insert(0, _LIGHT)


def find_everything() -> None:
    """Hide nothing from here on."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _LIGHT]


@contextmanager
def loading() -> Iterator[None]:
    """Import many modules. Collecting garbage meanwhile would only look at them, again and again."""
    if _LIGHT not in sys.meta_path:  # a process of somebody else
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
