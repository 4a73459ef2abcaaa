"""The cost of the first use: from an installation without compiled kernels to the first published rows.

    python -m benchmarks.first_use                     about five minutes
    python -m benchmarks.first_use --methods bastion   one method
    python -m benchmarks.first_use --against SITE      alternately with another installed copy
    python -m benchmarks.first_use --quick             one method, as a smoke test; it may find compiled kernels

Each case gets its own copy of the installed package without compiled kernels, an empty home, an empty folder for
temporary files, and none of the environment variables that could name a cache. `crenel run` writes its output when all
rows are published, so with 100 rows the end of the run is also the time of the first published row. Tables show
wall-clock seconds, which include imports, and processor seconds.

    methods    each method: `crenel run` on 100 rows, cold, then warm; functions compiled; modules loaded
    larger     the same on 5,000 rows, with the default method and `castle`: another process compiles meanwhile, and
               ends with the run. Processor seconds are those of both
    tests      pytest on a file with three pipelines of 50 rows, cold, then warm
    read_only  `crenel run` where neither the home nor the installed package is writable
    baked      `crenel compile`, then the first `crenel run`
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.children import Copy, Spent, add_against, copies, run
from benchmarks.tables import finish, rounded, table

METHODS = (
    "bastion",
    "castle",
    "castleguard",
    "partition",
    "sdgs",
    "mondrian",
    "adaptive-window",
    "faanst-passive",
    "faanst-proactive",
    "fads",
    "min-delay",
    "rtree",
    "rtree-density",
    "rtree-full",
)
_ROWS, _MORE_ROWS = 100, 5_000
#: Prefixes of environment variables that could point a child to a cache or to settings of this machine.
_HIDDEN = ("NUMBA_", "CRENEL_", "XDG_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")

#: Prints where the parts of the package are: an editable installation has them in several folders.
_PLACES = """
import importlib.util, json
names = ["crenel", "crenel.pipelines", "crenel.transforms", "crenel.runners"]
print(json.dumps({name: importlib.util.find_spec(name).submodule_search_locations[0] for name in names}))
"""

#: What the installed script does, which also counts the modules it loaded and the functions it compiled.
_COUNTED = """
import gc, json, os, sys
from crenel.pipelines.cli import program
try:
    code = program()
except SystemExit as left:
    code = left.code
told = {"modules": len(sys.modules), "compiled": 0}
if "numba.core.dispatcher" in sys.modules:
    of = sys.modules["numba.core.dispatcher"].Dispatcher
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), of)]
    told["compiled"] = sum(sum(thing.stats.cache_misses.values()) for thing in found)
with open(os.environ["COUNTS"], "w") as file:
    json.dump(told, file)
sys.exit(code)
"""

#: Tests as a user of the library would write them.
_TESTS = """
import apache_beam as beam
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that
from crenel.policy import Policy
from crenel.transforms import Anonymize
from crenel.transforms.testing import is_k_anonymous

ROWS = [{"person": i, "age": 20 + i % 40, "hours": 7 * i % 60, "illness": "abc"[i % 3]} for i in range(50)]
POLICY = {
    "version": 1,
    "person": "person",
    "quasi_identifiers": {name: {"type": "numeric", "domain": [0, 100]} for name in ("age", "hours")},
    "k": 5,
    "delay_rows": 20,
    "seed": 0,
}


@pytest.mark.parametrize("more", [{}, {"l": 2, "sensitive": ["illness"]}, {"method": "castle"}])
def test_rows_are_published_in_groups(more):
    policy = Policy.from_dict(POLICY | more)
    with TestPipeline() as pipeline:
        published = (pipeline | beam.Create(ROWS) | Anonymize(policy)).published
        assert_that(published, is_k_anonymous(5, ["age", "hours"]))
"""


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    methods: tuple[str, ...] = METHODS
    repetitions: int = 3
    #: Whether to remove compiled kernels. If not, the run is only a smoke test.
    cold: bool = True


@dataclass(frozen=True)
class Place:
    """A copied installation with its own home and folder for files."""

    copy: Copy
    folder: Path

    def environment(self) -> dict[str, str]:
        """Return the environment of a child that finds neither a cache nor settings."""
        kept = {name: value for name, value in self.copy.environment().items() if not name.startswith(_HIDDEN)}
        own = {"HOME": self.folder / "home", "TMPDIR": self.folder / "temporary", "COUNTS": self.folder / "counts.json"}
        return kept | {name: str(path) for name, path in own.items()}

    def python(self, *arguments: str, before: Sequence[str] = (), may_fail: bool = False) -> Spent:
        """Run Python with this installation."""
        command = [*before, sys.executable, *arguments]
        return run(command, self.environment(), folder=self.folder, may_fail=may_fail)

    def publish(
        self, method: str, *, rows: int = _ROWS, before: Sequence[str] = (), may_fail: bool = False
    ) -> dict[str, Any]:
        """Run `crenel run`; return its cost, and how much it loaded and compiled."""
        policy, given, out, counts = (self.folder / n for n in ("policy.yaml", "rows.csv", "out.csv", "counts.json"))
        policy.write_text(json.dumps(_policy(method)), encoding="utf-8")
        given.write_text(_csv(rows), encoding="utf-8")
        for path in (out, counts):
            path.unlink(missing_ok=True)
        arguments = ["run", str(policy), "--input", str(given), "--output", str(out), "--most-suppressed", "100%"]
        spent = self.python("-c", _COUNTED, *arguments, before=before, may_fail=may_fail)
        told = json.loads(counts.read_text()) if counts.exists() else {"modules": None, "compiled": None}
        return {"code": spent.code, "wall": spent.wall, "cpu": spent.cpu, "said": _last_line(spent.err), **told}


class Bench:
    """All measurements. Each part prints a table and returns its figures."""

    def __init__(self, scale: Scale, of: Sequence[Copy]) -> None:
        self.scale = scale
        self.copies = of

    def methods(self) -> dict[str, Any]:
        """Measure each method in its own installation, so that no other method has compiled shared functions."""
        return self._cold_and_warm(f"First use of a method, {_ROWS} rows", self.scale.methods, _ROWS)

    def larger(self) -> dict[str, Any]:
        """Measure two methods on rows that are worth compiling. Each warm run follows `crenel compile`."""
        some = [method for method in ("bastion", "castle") if method in self.scale.methods] or self.scale.methods[:1]
        return self._cold_and_warm(f"First use of a method, {_MORE_ROWS:,} rows", some, _MORE_ROWS)

    def _cold_and_warm(self, title: str, methods: Sequence[str], rows: int) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for method in methods:
            for copy in self.copies:
                with self._place(copy) as place:
                    cold = place.publish(method, rows=rows)
                    if rows > _ROWS and self.scale.cold:  # a run that is over ends the process that compiles
                        place.python("-m", "crenel.pipelines.cli", "compile", method)
                    warm = [place.publish(method, rows=rows) for _ in range(self.scale.repetitions)]
                figures.setdefault(method, {})[copy.name] = {
                    "cold, s": cold["wall"],
                    "cold, processor s": cold["cpu"],
                    "compiled": cold["compiled"],
                    "warm, s": median(one["wall"] for one in warm),
                    "warm, processor s": median(one["cpu"] for one in warm),
                    "compiled again": max(one["compiled"] for one in warm),
                    "modules": warm[0]["modules"],
                }
                # A run of all methods is long: print each result, so that stopping the run does not lose it.
                print(f"  {method}, {copy.name}: {json.dumps(figures[method][copy.name])}", file=sys.stderr, flush=True)
        return self._told(title, figures, ("cold, processor s", "warm, processor s"))

    def tests(self) -> dict[str, Any]:
        """Measure three pipelines of 50 rows: the default method, the same with l, and `castle`."""
        figures: dict[str, Any] = {}
        for copy in self.copies:
            with self._place(copy) as place:
                (place.folder / "test_pipelines.py").write_text(_TESTS, encoding="utf-8")
                command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pipelines.py"]
                for state in ("cold", "warm"):
                    spent = place.python(*command)
                    told = {"s": spent.wall, "processor s": spent.cpu, "result": _last_line(spent.out)}
                    figures.setdefault(state, {})[copy.name] = told
            print(f"  tests, {copy.name}: {json.dumps({n: f[copy.name] for n, f in figures.items()})}", file=sys.stderr)
        return self._told("A file of three tests, 50 rows each", figures, ("processor s",))

    def read_only(self) -> dict[str, Any]:
        """Measure the default method where only the folder for temporary files and the output are writable."""
        before = _powerless()
        if before is None:
            print("\nread_only: left out. The superuser can write everywhere, and there is no setpriv to prevent it.")
            return {"left out": "no setpriv"}
        figures: dict[str, Any] = {}
        for copy in self.copies:
            with self._place(copy) as place, _locked(place.folder / "site", place.folder / "home"):
                told = place.publish("bastion", before=before, may_fail=True)
            names = {"code": "exit code", "wall": "s", "cpu": "processor s", "said": "last line"}
            figures.setdefault("read-only", {})[copy.name] = {new: told[old] for old, new in names.items()}
        return self._told("Read-only home and package", figures, ())

    def baked(self) -> dict[str, Any]:
        """Compile all methods beforehand, then measure the first run of the default method."""
        figures: dict[str, Any] = {}
        for copy in self.copies:
            with self._place(copy) as place:
                spent = place.python("-m", "crenel.pipelines.cli", "compile", may_fail=True)
                told: dict[str, Any] = {"exit code": spent.code, "compile, s": spent.wall}
                if spent.code == 0:
                    first = place.publish("bastion")
                    told |= {"first run, s": first["wall"], "compiled": first["compiled"]}
                else:
                    told |= {"first run, s": None, "compiled": None}
            figures.setdefault("crenel compile", {})[copy.name] = told
        return self._told("Compiled beforehand", figures, ())

    @contextmanager
    def _place(self, copy: Copy) -> Iterator[Place]:
        """Provide a fresh installation, and remove it afterwards."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for needed in ("home", "temporary"):
                (folder / needed).mkdir()
            yield Place(install(copy, folder / "site", cold=self.scale.cold), folder)

    def _told(self, title: str, figures: dict[str, Any], compared: Sequence[str]) -> dict[str, Any]:
        """Print the figures, with ratios to the other copy if there is one, and return them rounded."""
        for by_copy in figures.values():
            if len(by_copy) > 1:
                this, other = by_copy.values()
                this |= {f"{what}, to other": this[what] / other[what] for what in compared}
            for one in by_copy.values():
                one |= {what: rounded(value) for what, value in one.items() if isinstance(value, float)}
        lines = {
            name if len(by_copy) == 1 else f"{name} ({copy})": one
            for name, by_copy in figures.items()
            for copy, one in by_copy.items()
        }
        header = list(dict.fromkeys(what for one in lines.values() for what in one))
        rows = [[name, *("" if one.get(what) is None else one[what] for what in header)] for name, one in lines.items()]
        print(f"\n{title}\n\n{table(['', *header], rows)}", flush=True)
        return figures


def install(copy: Copy, site: Path, *, cold: bool) -> Copy:
    """Copy the installed package; if `cold`, without the kernels that numba compiled for it."""
    places: Mapping[str, str] = json.loads(run([sys.executable, "-c", _PLACES], copy.environment()).out)
    unwanted = shutil.ignore_patterns(*(["*.nbi", "*.nbc"] if cold else []))
    for name, place in places.items():
        shutil.copytree(place, site.joinpath(*name.split(".")), ignore=unwanted, dirs_exist_ok=True)
    return replace(copy, site=site)


def _policy(method: str) -> dict[str, Any]:
    timed = method == "adaptive-window"  # this method's windows are spans of time
    return {
        "version": 1,
        "person": "person",
        "quasi_identifiers": {name: {"type": "numeric", "domain": [0, 100]} for name in ("age", "hours")},
        "k": 5,
        **({"event_time": "at", "delay": "50s"} if timed else {"delay_rows": 50}),
        "method": method,
        "seed": 0,
    }


def _csv(rows: int) -> str:
    times = [f"2026-01-01T{i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}Z" for i in range(rows)]
    lines = [f"p{i},{20 + 7 * i % 60},{11 * i % 90},{times[i]}" for i in range(rows)]
    return "\n".join(["person,age,hours,at", *lines, ""])


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _powerless() -> list[str] | None:
    """Return a command prefix that makes even the superuser obey file permissions; None if there is no such tool."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    return None if setpriv is None else [setpriv, "--inh-caps=-all", "--bounding-set=-all"]


@contextmanager
def _locked(*folders: Path) -> Iterator[None]:
    """Make these folders and everything in them read-only within the context."""
    found = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    modes = {path: path.stat().st_mode for path in found}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_use", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="one method; kernels that are compiled may be found")
    parser.add_argument("--methods", help="some of: " + ", ".join(METHODS))
    parser.add_argument("--only", help="some of: " + ", ".join(PARTS))
    add_against(parser)
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    chosen = said.only.split(",") if said.only else list(PARTS)
    if not set(chosen) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}")
    scale = Scale(("mondrian",), repetitions=1, cold=False) if said.quick else Scale()
    if said.methods:
        scale = replace(scale, methods=tuple(said.methods.split(",")))
    if not set(scale.methods) <= set(METHODS):
        parser.error(f"--methods must be some of {', '.join(METHODS)}, not {said.methods}")
    bench = Bench(scale, copies(said.against))
    figures = {part: getattr(bench, part)() for part in chosen}
    finish({"benchmark": "first_use", "quick": said.quick, **figures})
    return 0


PARTS = ("methods", "larger", "tests", "read_only", "baked")

if __name__ == "__main__":
    sys.exit(main())
