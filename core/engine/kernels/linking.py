"""Optimizes each kernel once, together with all functions that it calls.

numba compiles every function to machine code, together with everything the function calls. In a chain of calls the last
function is optimized once for each function above it, although only the kernel at the top is ever called from Python.
That was more than half of the time of a first use. Here the functions below a kernel stay as LLVM's intermediate code,
and the kernel's own library collects, optimizes and compiles all of them.

This builds on parts of numba that are not public. `pipelines` returns none where they are missing: then kernels do the
same, and compile more slowly.
"""

from __future__ import annotations

from typing import Any

__all__ = ["pipelines"]


def pipelines() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of `numba.njit` for functions that Python calls, and for functions that only kernels call."""
    try:
        return _pipelines()
    except (ImportError, AttributeError):
        return {}, {}


def _pipelines() -> tuple[dict[str, Any], dict[str, Any]]:
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import Compiler

    for needed in ("_ensure_finalized", "finalize", "get_pointer_to_function"):
        getattr(JITCodeLibrary, needed)

    class Uncompiled(JITCodeLibrary):  # type: ignore[misc, unused-ignore]
        """The code of a function that only kernels call: it is not compiled before a kernel collects it."""

        def finalize(self) -> None:
            for library in self._linking_libraries:
                self._reload_init.update(library._reload_init)
            self._finalized = True

        def get_pointer_to_function(self, name: str) -> int:
            self._ensure_finalized()
            return 0  # no function of this name can be called from Python

        @property
        def codegen(self) -> Any:
            return _WithoutEnvironment(self._codegen)

    class Collecting(JITCodeLibrary):  # type: ignore[misc, unused-ignore]
        """The code of a kernel, with that of all functions below it."""

        def finalize(self) -> None:
            self._linking_libraries = self._callers_first()
            super().finalize()

        def _callers_first(self) -> list[Any]:
            """Return all libraries below this one, callers first: LLVM drops a function that nobody calls yet."""
            found: dict[int, Any] = {}

            def visit(library: Any) -> None:
                if id(library) in visited:
                    return
                visited.add(id(library))
                if isinstance(library, Uncompiled):
                    for callee in library._linking_libraries:
                        visit(callee)
                found[id(library)] = library

            visited: set[int] = set()
            for callee in self._linking_libraries:
                visit(callee)
            return list(reversed(found.values()))

    def pipeline(library: Any) -> Any:
        class Pipeline(Compiler):  # type: ignore[misc, unused-ignore]
            def define_pipelines(self) -> Any:
                self.state.library = library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
                self.state.library.enable_object_caching()
                return super().define_pipelines()

        return Pipeline

    return {"pipeline_class": pipeline(Collecting)}, {"pipeline_class": pipeline(Uncompiled)}


class _WithoutEnvironment:
    """numba's code generator for a function without machine code, which has no place for an environment."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: only functions that Python calls need an environment."""
