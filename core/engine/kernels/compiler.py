"""The decorators that compile kernels, when they compile, and the folder that keeps the compiled code.

Only this module and `linking` import numba.

To compile a method takes many seconds, which a few rows are not worth. Therefore a process runs kernels as plain Python
at first, unless their compiled code is on disk. When its engines have been given INTERPRETED_ROWS rows, or when that
has taken INTERPRETED_SECONDS, another process begins to compile, and this one goes on until that is done: both ways
give the same results bit by bit, so it does not matter when kernels change. Only an engine that holds more than
INTERPRETED_HELD rows waits, since one call may look at all of them.

numba keeps compiled code on disk, but it recompiles a function only when the function's own file changes: a caller in
another file would go on running the old code. Therefore the folder's name has a digest of the sources of all kernels:
when any of them changes, every kernel is compiled again, into a new folder.

A function can be called from Python only if it is decorated with `kernel`. All other decorators are for functions that
kernels call.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.core.caching
from llvmlite.binding import get_host_cpu_name

from crenel.engine.background import Background
from crenel.engine.kernels.interpreter import interpret
from crenel.engine.kernels.linking import pipelines

_Function = TypeVar("_Function")
_LOGGER = logging.getLogger(__name__)
#: After so many rows, or so many seconds of running them as plain Python, compiling pays.
INTERPRETED_ROWS, INTERPRETED_SECONDS = 1_000, 2.0
#: An engine that holds more rows waits for the compiler. A plan for 3,000 rows takes longer than that if interpreted.
INTERPRETED_HELD = 1_000
_ENGINE = Path(__file__).resolve().parent.parent
_PREFIX = "crenel-kernels-"
#: Folders of compiled code that stay when a new one is made: those that were used last.
_KEPT_FOLDERS = 4
#: How kernels, and the modules that they need, import each other.
_IMPORT = re.compile(rb"^from crenel\.(engine\.[\w.]+) import", re.MULTILINE)


# --- When to compile ---


class _Compilation:
    """Whether this process compiles already, and who wants to know what it compiles."""

    def __init__(self) -> None:
        self.rows = 0
        self.held = 0
        self.seconds = 0.0
        self.listeners: list[Callable[[str], None]] = []
        self.background = Background(self._say)
        self.waits_for_nothing = False

    @property
    def has_begun(self) -> bool:
        """Whether this process compiles what it calls."""
        too_many = self.held > INTERPRETED_HELD
        worthwhile = too_many or self.rows > INTERPRETED_ROWS or self.seconds > INTERPRETED_SECONDS
        if not worthwhile or numba.config.DISABLE_JIT:
            return False
        if too_many and not self.waits_for_nothing:
            self.background.wait(FOLDER)
        return self.waits_for_nothing or not self.background.goes_on(FOLDER)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time within the context to what was spent on running kernels as plain Python."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - began

    @contextmanager
    def announced(self, function: Any) -> Iterator[None]:
        """Announce that a function is compiled within the context."""
        self._say(f"{function.__module__.rpartition('.')[2]}.{function.__name__}")
        collects = gc.isenabled()
        gc.disable()  # it takes a fifth of the compiler's time, and finds little
        try:
            yield
        finally:
            if collects:
                gc.enable()
            self._say("")

    def _say(self, name: str) -> None:
        if name:
            _LOGGER.info("Compiling %s, once. Compiled code is kept in %s.", name, FOLDER or "memory")
        for listener in self.listeners:
            listener(name)


_COMPILATION = _Compilation()


def expect(rows: int) -> None:
    """Take note that this many rows are about to go through kernels."""
    _COMPILATION.rows += rows


def use(method: str) -> None:
    """Take note that kernels of a method are about to be called: another process can compile the whole method."""
    _COMPILATION.background.use(method)


def unfinished() -> list[str]:
    """Return the methods that another process is still compiling for this one."""
    return _COMPILATION.background.unfinished


def expect_held(rows: int) -> None:
    """Take note that kernels are about to look at this many rows at once: if they are many, they wait for compiling."""
    _COMPILATION.held = rows


def compile_from_now_on() -> None:
    """Compile every kernel that is called from now on, in this process, however few rows there are."""
    expect(INTERPRETED_ROWS + 1)
    _COMPILATION.waits_for_nothing = True


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Tell a listener the name of each kernel before it is compiled, and an empty name afterwards."""
    _COMPILATION.listeners.append(listener)
    try:
        yield
    finally:
        _COMPILATION.listeners.remove(listener)


class Kernel:
    """A function that Python calls, as can other kernels: interpreted at first, and compiled when that pays.

    Args:
        function: The function as it is written.
        compiled: What numba made of it. It compiles when it is first called, or loads its code from disk.
    """

    def __init__(self, function: Any, compiled: Any) -> None:
        self.__wrapped__ = self.py_func = function
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__
        self._compiled = compiled
        self._is_ready = False
        self._is_announced = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the function."""
        if not self.is_compiled():
            with _COMPILATION.timed():
                return interpret(self.py_func, *arguments, **named)
        if self._is_announced:
            return self._compiled(*arguments, **named)
        self._is_announced = True
        with _COMPILATION.announced(self):
            return self._compiled(*arguments, **named)

    def is_compiled(self) -> bool:
        """Return whether the next call runs compiled code, which may have to be compiled or loaded first."""
        return self._is_ready or self._prepare()

    @property
    def _numba_type_(self) -> Any:
        """How numba sees the function where a kernel calls it."""
        return self._compiled._numba_type_

    def _prepare(self) -> bool:
        """Decide whether the function is interpreted once more."""
        if _COMPILATION.background.unfinished and not _COMPILATION.has_begun:
            return False  # some signatures may be on disk already, and others not
        self._is_announced = is_cached(self)  # to load it is nothing to wait for
        self._is_ready = self._is_announced and not numba.config.DISABLE_JIT
        if not self._is_ready and _COMPILATION.has_begun:
            self._is_announced = is_cached(self)  # it may have been waited for
            self._is_ready = True
        return self._is_ready


# --- Decorators ---


def kernel(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    compiled = _compiled(function, keep=True, counts_references=True, **_KERNEL)
    return cast(_Function, Kernel(function, compiled))


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
        compiled = numba.njit(cache=keep and FOLDER is not None, nogil=True, **options)(function)
    _forget_literals(compiled)
    return cast(_Function, compiled)


def _forget_literals(compiled: Any) -> None:
    """Compile a function once for `f(1)`, `f(2)` and `f(n)`: numba would do so three times, and LLVM sees constants."""
    if numba.config.DISABLE_JIT:
        return
    usual = compiled.get_call_template

    def get_call_template(arguments: Any, named: Any) -> Any:
        plain = tuple(numba.types.unliteral(kind) for kind in arguments)
        return usual(plain, {name: numba.types.unliteral(kind) for name, kind in named.items()})

    compiled.get_call_template = get_call_template


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
    code = f"{function.__module__.rpartition('.')[2]}.{function.__name__}-*.nbc"  # written after its index
    return FOLDER is not None and any(FOLDER.glob(f"*/{code}"))


def _digest() -> str:
    digest = hashlib.sha256(b"_nrt" if _HAS_NRT_FLAG else b"")
    # Another type of processor, as numba sees it, needs other code.
    digest.update(f"{numba.config.CPU_NAME or get_host_cpu_name()} {numba.config.CPU_FEATURES or ''}".encode())
    for path, source in sources().items():
        digest.update(f"\0{path.relative_to(_ENGINE).as_posix()}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()[:24]


def _parents() -> Iterator[Path]:
    """Where the folder may be, the preferred place first."""
    if numba.config.CACHE_DIR:  # the environment variable NUMBA_CACHE_DIR
        yield Path(numba.config.CACHE_DIR)
    yield _ENGINE / "__pycache__"
    with suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crenel"
    private = Path(tempfile.gettempdir()) / f"crenel-{getattr(os, 'getuid', lambda: 0)()}"
    if _is_private(private):
        yield private


def _find_folder() -> Path | None:
    """Make the folder in the first place that can be written to. None if there is none: then nothing is kept."""
    filled = None
    try:
        name = _PREFIX + _digest()
        for parent in _parents():
            folder = parent / name
            if not _is_writable(folder):
                filled = filled or (folder if folder.is_dir() and os.access(folder, os.R_OK) else None)
                continue
            _forget_old_folders(parent, folder)
            if filled is not None and not any(folder.iterdir()):
                # numba can only use a folder that it can write to, and an image may have a filled one that it cannot.
                shutil.copytree(filled, folder, dirs_exist_ok=True)
            return folder
    except OSError:  # sources that cannot be read, a full disk
        pass
    return None


def _is_private(folder: Path) -> bool:
    """Make a folder that nobody else can write to; False if it is somebody else's: compiled code is executed."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    ours = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and ours and not found.st_mode & 0o077


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


class _Locator(numba.core.caching.UserProvidedCacheLocator):  # type: ignore[misc, unused-ignore]
    """Says where numba keeps the engine's own functions: at one place in the folder, so that a copy of it serves too.

    numba would go by the path of a function's file, and an older numba by its time. The folder's name already has a
    digest of all the sources.
    """

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """Leave functions of other packages to numba: the digest does not cover them."""
        return super().from_function(py_func, py_file) if _ENGINE in Path(py_file).resolve().parents else None

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Return the folder of a file, below ours."""
        return "_".join(Path(py_file).resolve().parent.relative_to(_ENGINE.parent).parts)

    def get_source_stamp(self) -> str:
        """Return the same for all: other sources have another folder."""
        return ""


@contextmanager
def _cache_folder_in_use() -> Iterator[None]:
    """Let numba keep a function in our folder: it looks up its settings when the function is decorated."""
    implementation = numba.core.caching.CompileResultCacheImpl
    before = numba.config.CACHE_DIR, implementation._locator_classes
    if FOLDER is not None:
        numba.config.CACHE_DIR, implementation._locator_classes = str(FOLDER), [_Locator, *before[1]]
    try:
        yield
    finally:
        numba.config.CACHE_DIR, implementation._locator_classes = before
