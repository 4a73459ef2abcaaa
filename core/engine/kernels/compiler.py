"""The decorators that compile kernels, and the folder that keeps the compiled code.

Only this module and `linking` import numba.

numba keeps compiled code on disk, but it recompiles a function only when the function's own file changes: a caller in
another file would go on running the old code. Therefore the folder's name has a digest of the sources of all kernels:
when any of them changes, every kernel is compiled again, into a new folder.

A function can be called from Python only if it is decorated with `kernel`. All other decorators are for functions that
kernels call.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from crenel.engine.kernels.linking import pipelines

_Function = TypeVar("_Function")
_ENGINE = Path(__file__).resolve().parent.parent
_PREFIX = "crenel-kernels-"
#: Folders of compiled code that stay when a new one is made: those that were used last.
_KEPT_FOLDERS = 4
#: How kernels, and the modules that they need, import each other.
_IMPORT = re.compile(rb"^from crenel\.(engine\.[\w.]+) import", re.MULTILINE)


# --- Decorators ---


def kernel(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    return _compiled(function, keep=True, counts_references=True, **_KERNEL)


def inner(function: _Function) -> _Function:
    """Compile a function that only kernels call. Without an entry from Python it compiles twice as fast."""
    # The flag is explicit: otherwise the function would inherit its caller's (see `bare`).
    return _compiled(function, counts_references=True, **_INNER)


def bare(function: _Function) -> _Function:
    """Compile a function that only kernels call and that creates no array, without reference counts.

    Counting takes two atomic instructions for each array that is passed, and a state has dozens of arrays: that was
    half the cost of a row. The caller holds the references. A function that creates an array, with `np.empty` or by
    copying, cannot be compiled like this.
    """
    return _compiled(function, counts_references=False, **_INNER)


def vectorized(function: _Function) -> _Function:
    """Compile like `bare`, for loops that become vector instructions: no value is NaN, and zeros have no sign."""
    return _compiled(function, counts_references=False, fastmath={"nnan", "nsz"}, **_INNER)


def inlined(function: _Function) -> _Function:
    """Compile a function by copying it into its callers.

    For short functions that tie others together, since numba optimizes whatever a function calls once more for every
    caller; and for functions that take the whole state for every row, since passing it is expensive.
    """
    return _compiled(function, inline="always")


_KERNEL, _BELOW = pipelines()
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **_BELOW}


def _compiled(
    function: _Function, *, keep: bool = False, counts_references: bool | None = None, **options: Any
) -> _Function:
    """Decorate a function. Only kernels are worth keeping on disk: the code of what they call is in theirs."""
    if counts_references is not None and _HAS_NRT_FLAG:
        options["_nrt"] = counts_references
    with _cache_folder_in_use():
        return cast(_Function, numba.njit(cache=keep and FOLDER is not None, nogil=True, **options)(function))


def _has_nrt_flag() -> bool:
    """Whether this numba knows `_nrt`, a private flag. Without it kernels are slower and do the same."""
    try:
        from numba.core.compiler import Flags
        from numba.core.cpu import CPUTargetOptions

        CPUTargetOptions.parse_as_flags(Flags(), {"_nrt": False})
    except Exception:  # whatever it is that a later numba does instead
        return False
    return True


_HAS_NRT_FLAG = _has_nrt_flag()


# --- The folder of compiled code ---


def sources() -> dict[Path, bytes]:
    """Return the modules that compiled code depends on: those that import a decorator, and all that they import."""
    texts = {path: path.read_bytes() for path in sorted(_ENGINE.rglob("*.py"))}
    imports = {path: {_path_of(name.decode()) for name in _IMPORT.findall(text)} for path, text in texts.items()}
    found: set[Path] = set()
    waiting = [path for path, imported in imports.items() if Path(__file__).resolve() in imported]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imports.get(path, ())
    return {path: text for path, text in texts.items() if path in found}


def _path_of(module: str) -> Path:
    return _ENGINE.parent.joinpath(*module.split(".")).with_suffix(".py")


def is_cached(function: Any) -> bool:
    """Whether the compiled code of a kernel is on disk."""
    index = f"{function.__module__.rpartition('.')[2]}.{function.__name__}-*.nbi"
    return FOLDER is not None and any(FOLDER.glob(f"*/{index}"))


def _digest() -> str:
    digest = hashlib.sha256(b"_nrt" if _HAS_NRT_FLAG else b"")
    for path, source in sources().items():
        digest.update(f"\0{path.relative_to(_ENGINE).as_posix()}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()[:24]


def _parents() -> Iterator[Path]:
    """Where the folder may be, the preferred place first."""
    if numba.config.CACHE_DIR:  # the environment variable NUMBA_CACHE_DIR
        yield Path(numba.config.CACHE_DIR)
    yield _ENGINE / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crenel"


def _find_folder() -> Path | None:
    """Make the folder in the first place that can be written to. None if there is none: then nothing is kept."""
    try:
        name = _PREFIX + _digest()
        for parent in _parents():
            if _is_writable(parent / name):
                _forget_old_folders(parent, parent / name)
                return parent / name
    except (OSError, RuntimeError):  # sources that cannot be read, a user without a home
        pass
    return None


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        os.utime(folder)  # it was used now
    except OSError:
        return False
    return True


def _forget_old_folders(parent: Path, used: Path) -> None:
    """Delete all folders of other sources but the last few. A process that still uses one compiles in memory."""

    def last_use(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except OSError:  # another process has deleted it
            return 0.0

    others = sorted((path for path in parent.glob(f"{_PREFIX}*") if path != used), key=last_use, reverse=True)
    for folder in others[_KEPT_FOLDERS:]:
        shutil.rmtree(folder, ignore_errors=True)


#: Where compiled code is kept, if anywhere.
FOLDER = _find_folder()


@contextmanager
def _cache_folder_in_use() -> Iterator[None]:
    """Let numba keep a function in our folder: it looks up its setting when the function is decorated."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(FOLDER or before)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before
