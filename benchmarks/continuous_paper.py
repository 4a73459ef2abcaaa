"""The experiments of the paper on continuous publishing (EDBT 2009, section 5).

    python -m benchmarks.continuous_paper                        all of it, into docs/papers/
    python -m benchmarks.continuous_paper --only scale,mondrian  some of it
    python -m benchmarks.continuous_paper --quick                small, as a smoke test; writes nothing

Every run is audited, and a broken promise ends it. `docs/papers/continuous-publishing.md` lists what the paper leaves
open and what was chosen. This program writes the tables in it, between their markers.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.datasets import ROOT, Stream
from benchmarks.runs import BrokenPromiseError, push_all
from benchmarks.tables import finish, rounded, table
from crenel.audit import audit
from crenel.engine import create_engine
from crenel.policy import Policy

PAGE = ROOT / "docs" / "papers" / "continuous-publishing.md"
METHODS = ("min-delay", "rtree", "rtree-density", "rtree-full")
#: The paper's settings.
K, ALPHA, SAMPLE = 10, 0.001, 3_000
SIZES = (20_000, 40_000, 60_000, 80_000, 100_000)
DIMENSIONS = (3, 4, 5, 6, 7)
#: Our choice, as the paper does not say. It is the same for every k: how alpha weighs a delay does not depend on k.
ACTIVE_ROWS = 300
REPETITIONS = 5
#: A deadline so late that the soft deadline decides, and no row is suppressed.
DELAY_ROWS = 20_000


@dataclass(frozen=True)
class Cost:
    """The cost of one run, per row."""

    penalty: float
    loss: float
    delay: float


def policy_of(
    stream: Stream, method: str, seed: int, *, k: int = K, delay_rows: int = DELAY_ROWS, **said: Any
) -> Policy:
    parameters: dict[str, Any] = {"active_rows": said.pop("active_rows", ACTIVE_ROWS)} if method in METHODS[1:] else {}
    if method in METHODS[2:]:
        parameters |= {"alpha": ALPHA, "sample": SAMPLE} | said
    return Policy(
        person="person",
        quasi_identifiers=stream.quasi_identifiers,
        k=k,
        delay_rows=delay_rows,
        method=method,
        parameters=parameters,
        seed=seed,
    )


def cost(policy: Policy, stream: Stream, alpha: float = ALPHA) -> Cost:
    """Run a stream, and audit the result.

    Raises:
        BrokenPromiseError: A promise was broken.
    """
    releases = push_all(policy, stream.rows)
    report = audit(policy, stream.rows, releases, alpha=alpha)
    if not report.ok:
        raise BrokenPromiseError(str(report))
    penalty, loss, delay = report.uncertainty_penalty, report.information_loss, report.mean_delay
    assert penalty is not None
    assert loss is not None
    assert delay is not None
    return Cost(penalty, loss, delay)


@dataclass(frozen=True)
class Scale:
    """How much to run: all, or (quick) a tenth of the rows, only the extreme points, and one seed."""

    seeds: int
    quick: bool

    def sizes(self, values: Sequence[int]) -> list[int]:
        return [value // 10 for value in (values[0], values[-1])] if self.quick else list(values)

    def points(self, values: Sequence[Any]) -> list[Any]:
        return [values[0], values[-1]] if self.quick else list(values)

    @property
    def most(self) -> int:
        return self.sizes(SIZES)[-1]


def mean(scale: Scale, make: Callable[[int], Stream], method: str, decay: float = ALPHA, **said: Any) -> Cost:
    """Return the mean over the seeds, each with its own stream."""
    runs = []
    for seed in range(scale.seeds):
        stream = make(seed)
        runs.append(cost(policy_of(stream, method, seed, **said), stream, decay))
    return Cost(*(fmean(getattr(run, name) for run in runs) for name in ("penalty", "loss", "delay")))


#: Fields of `Cost`.
TITLES = {"loss": "information loss", "penalty": "uncertainty penalty", "delay": "delay"}
Part = tuple[str, dict[str, Any]]


def by_alpha(scale: Scale) -> Part:
    """Figure 3: penalty and delay of the density-aware method over alpha, SAL(10K, 7)."""
    size = scale.sizes((10_000,))[0]
    rows, figures = [], {}
    for alpha in scale.points((0.0, 0.0005, 0.001, 0.0015, 0.002)):
        found = mean(scale, lambda seed: datasets.sal(7, rows=size, seed=seed), "rtree-density", alpha, alpha=alpha)
        rows.append([f"{alpha:g}", found.penalty, found.delay])
        figures[f"{alpha:g}"] = [rounded(found.penalty), rounded(found.delay)]
    return table(["alpha", "uncertainty penalty", "delay"], rows), figures


def by_rows(scale: Scale) -> Part:
    """Figure 5: all measures over the number of rows, d = 7."""
    sizes = scale.sizes(SIZES)
    found = {
        (n, method): mean(scale, lambda seed, n=n: datasets.sal(7, rows=n, seed=seed), method)
        for n in sizes
        for method in METHODS
    }
    parts = []
    for name, title in TITLES.items():
        rows = [[f"{n:,}", *(getattr(found[n, method], name) for method in METHODS)] for n in sizes]
        parts.append(f"{title}\n\n{table(['rows', *METHODS], rows)}")
    losses = {f"{n}": {m: rounded(found[n, m].loss) for m in METHODS} for n in sizes}
    return "\n\n".join(parts), {
        "losses": losses,
        "ordered": all(_ordered([found[n, m].loss for m in METHODS]) for n in sizes),
    }


def speed(scale: Scale) -> Part:
    """Figure 4: processor time per row at both ends of figure 5, as medians of interleaved repetitions."""
    sizes = scale.points(scale.sizes(SIZES))
    first, last = sizes[0], sizes[-1]
    streams = {n: datasets.sal(7, rows=n) for n in (first, last)}
    taken: dict[tuple[int, str], list[float]] = {}
    for _ in range(1 if scale.quick else REPETITIONS):
        for method in METHODS:
            for n, stream in streams.items():
                policy = policy_of(stream, method, 0)
                start = time.process_time()
                push_all(policy, stream.rows)
                taken.setdefault((n, method), []).append((time.process_time() - start) / n * 1e6)
    found = {case: median(times) for case, times in taken.items()}
    rows = [[m, found[first, m], found[last, m], found[last, m] / found[first, m]] for m in METHODS]
    full = found[last, "rtree-full"] / found[last, "rtree-density"]
    text = table(["method", f"us per row, {first:,} rows", f"{last:,} rows", "ratio"], rows)
    growth = {m: rounded(ratio) for m, _, _, ratio in rows}
    says = f"`rtree-full` takes {full:.2f} times the time of `rtree-density`."
    return f"{text}\n\n{says}", {"growth": growth, "full_to_density": rounded(full)}


def at_equal_delay(scale: Scale) -> Part:
    """Compare the penalty of the methods at one mean delay: more rows are held until the delay is the same.

    Figure 5 compares methods that hold as many rows on average, and then differ in both penalty and delay.
    """
    size = scale.sizes((40_000,))[0]
    held = scale.points((200, 240, 280, 320, 360, 400))
    rows, figures = [], {}
    for name, make in (
        ("SAL(40K, 7)", lambda seed: datasets.sal(7, rows=size, seed=seed)),
        ("uniform", lambda seed: datasets.spread("uniform", rows=size, seed=seed)),
        ("normal", lambda seed: datasets.spread("normal", rows=size, seed=seed)),
    ):
        found = {m: [mean(scale, make, m, active_rows=n) for n in held] for m in METHODS[1:]}
        target = float(np.mean([found["rtree-density"][0].delay, found["rtree-density"][-1].delay]))
        penalties = [
            float(np.interp(target, *zip(*sorted((c.delay, c.penalty) for c in costs), strict=True)))
            for costs in found.values()
        ]
        rows.append([name, target, *penalties])
        figures[name] = {
            "delay": rounded(target),
            "penalty": [rounded(penalty) for penalty in penalties],
            "measured": {m: [[rounded(c.delay), rounded(c.penalty)] for c in costs] for m, costs in found.items()},
        }
    return table(["uncertainty penalty at equal delay", "delay", *METHODS[1:]], rows), figures


def _ordered(losses: Sequence[float]) -> bool:
    """Whether each method loses less than the one before it."""
    return all(later < earlier for earlier, later in pairwise(losses))


def _losses(scale: Scale, label: str, points: Sequence[Any], make: Callable[[Any, str], Cost]) -> Part:
    """Make a table of information losses by method."""
    found = {point: [make(point, method).loss for method in METHODS] for point in points}
    rows = [[f"{point:,}" if isinstance(point, int) else point, *losses] for point, losses in found.items()]
    figures: dict[str, Any] = {str(point): [rounded(loss) for loss in losses] for point, losses in found.items()}
    return table([label, *METHODS], rows), {**figures, "ordered": all(map(_ordered, found.values()))}


def by_k(scale: Scale) -> Part:
    """Figure 6: information loss over k, SAL(100K, 7)."""

    def run(k: int, method: str) -> Cost:
        return mean(scale, lambda seed: datasets.sal(7, rows=scale.most, seed=seed), method, k=k)

    return _losses(scale, "k", scale.points((5, 10, 15, 20)), run)


def by_dimensions(scale: Scale) -> Part:
    """Figure 7: information loss over the number of quasi-identifiers, SAL(100K, 3-7)."""

    def run(d: int, method: str) -> Cost:
        return mean(scale, lambda seed: datasets.sal(d, rows=scale.most, seed=seed), method)

    return _losses(scale, "QIs", scale.points(DIMENSIONS), run)


def by_sample(scale: Scale) -> Part:
    """Figure 8: uncertainty penalty over the number of samples, SAL(100K, 7)."""
    rows, figures = [], {}
    for sample in scale.points((1_000, 2_000, 3_000, 4_000, 5_000)):
        found = [
            mean(scale, lambda seed: datasets.sal(7, rows=scale.most, seed=seed), method, sample=sample).penalty
            for method in METHODS[2:]
        ]
        rows.append([f"{sample:,}", *found])
        figures[str(sample)] = [rounded(penalty) for penalty in found]
    return table(["samples", *METHODS[2:]], rows), figures


def to_mondrian(scale: Scale) -> Part:
    """Figure 9: uncertainty penalty compared with Mondrian on all rows at once; one row per person."""
    rows, figures = [], {}
    for n in scale.sizes(SIZES):

        def make(seed: int, n: int = n) -> Stream:
            return datasets.sal(7, rows=n, seed=seed, distinct=True)

        full = mean(scale, make, "rtree-full")
        static = mean(scale, make, "mondrian", delay_rows=n)
        kept = len(make(0).rows)
        rows.append([f"{n:,}", f"{kept:,}", full.penalty, static.penalty, full.penalty / static.penalty, full.delay])
        figures[str(n)] = [rounded(full.penalty), rounded(static.penalty), rounded(full.penalty / static.penalty)]
    header = ["rows", "distinct", "rtree-full", "Mondrian", "ratio", "delay of rtree-full"]
    return table(header, rows), figures


def drawn(scale: Scale, kind: str) -> Part:
    """Figures 10 and 11: information loss on drawn data."""

    def run(n: int, method: str) -> Cost:
        return mean(scale, lambda seed: datasets.spread(kind, rows=n, seed=seed), method)

    return _losses(scale, "rows", scale.sizes(SIZES), run)


def memory(scale: Scale) -> Part:
    """Measure the largest state of an engine in each half of a stream: as a snapshot, and in memory."""
    stream = datasets.spread("uniform", rows=2 * scale.most)
    rows, figures = [], {}
    for method in METHODS:
        engine, sizes, arrays = create_engine(policy_of(stream, method, 0)), [], []
        for start in range(0, len(stream.rows), 1_000):
            engine.push(stream.rows.slice(start, start + 1_000))
            sizes.append(len(engine.snapshot()) / 1e3)
            arrays.append(_bytes(vars(engine)) / 1e3)
        half = len(sizes) // 2
        found = [max(sizes[:half]), max(sizes[half:]), max(arrays[:half]), max(arrays[half:])]
        rows.append([method, *found])
        figures[method] = [rounded(value) for value in found]
    header = ["method", "snapshot kB, first half", "second half", "in memory kB, first half", "second half"]
    return table(header, rows), figures


def _bytes(held: Any) -> int:
    """Return the memory of all arrays that an object holds."""
    if isinstance(held, np.ndarray):
        return held.nbytes
    if isinstance(held, dict):
        return sum(map(_bytes, held.values()))
    return sum(map(_bytes, held)) if isinstance(held, tuple | list) else 0


PARTS: dict[str, Callable[[Scale], Part]] = {
    "alpha": by_alpha,
    "scale": by_rows,
    "speed": speed,
    "k": by_k,
    "dimensions": by_dimensions,
    "sample": by_sample,
    "mondrian": to_mondrian,
    "delay": at_equal_delay,
    "uniform": lambda scale: drawn(scale, "uniform"),
    "normal": lambda scale: drawn(scale, "normal"),
    "memory": memory,
}


def written(page: str, part: str, text: str) -> str:
    """Return the page with the text between the part's markers."""
    pattern = rf"(<!-- begin {part} -->\n).*?(<!-- end {part} -->)"
    return re.sub(pattern, lambda found: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=int, default=3, help="runs of which the mean is reported (the paper: 10)")
    parser.add_argument("--quick", action="store_true", help="small, as a smoke test; writes nothing")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write the tables to")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",")
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {', '.join(unknown)}")
    scale = Scale(1 if options.quick else options.seeds, options.quick)
    few = datasets.spread("uniform", rows=500)
    for method in METHODS:  # compile, or load, before measuring
        push_all(policy_of(few, method, 0), few.rows)
    figures: dict[str, Any] = {"quick": options.quick, "seeds": scale.seeds}
    for name in wanted:
        text, figures[name] = PARTS[name](scale)
        print(f"{name}\n\n{text}\n", flush=True)
        if not options.quick:
            page: Path = options.page
            page.write_text(written(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")
    finish(figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
