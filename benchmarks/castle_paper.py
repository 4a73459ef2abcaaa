"""The experiments of the CASTLE paper (TDSC 2011, section 5), and reference losses for Adult.

    python -m benchmarks.castle_paper                   all of it, into docs/papers/
    python -m benchmarks.castle_paper --figures 4,8     some figures only (0: the references)
    python -m benchmarks.castle_paper --quick           small, as a smoke test; writes nothing

Every run is audited, and a broken promise ends it. `docs/papers/castle.md` lists what the paper leaves open and what
was chosen. This program writes the tables in it, between their markers.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import numpy as np

from benchmarks import datasets
from benchmarks.condensation import Condensed, Floats, condensation
from benchmarks.datasets import ADULT, NUMERIC, SFU, UCI, Stream
from benchmarks.runs import Run, run
from benchmarks.tables import finish, rounded, table
from crenel.audit.queries import Axis, Boxes, workload_error

PAGE = "castle.md"
#: The rows that condensation builds its first groups from: the best of the paper's 2,000 to 8,000.
HISTORY = 8_000
SEEDS = 5
ALPHAS = (0.0, 0.5, 1.0, 1.5, 2.0)
#: The quasi-identifiers of the query workload, of which figures again use "the first n". These are the paper's without
#: capital_gain and capital_loss, so that the first four are the four numeric ones of section 5.3. EVEN also leaves out
#: fnlwgt, which is skewed too.
QUERIED = tuple(name for name in ADULT if name not in ("capital_gain", "capital_loss", "occupation"))
EVEN = tuple(name for name in QUERIED if name != "fnlwgt")
SENSITIVE = "occupation"
#: Other choices that the paper's wording allows, to see how much depends on them.
CHOICES = (
    QUERIED[:4],
    EVEN[:2],
    ("age", "hours_per_week"),
    EVEN[:3],
    EVEN[:4],
    ("age", "education_num", "hours_per_week", "marital_status"),
    ("age", "education", "marital_status", "native_country"),
)
CHOICES_SENSITIVE = ("occupation", "income", "race", "marital_status")


class Reference(NamedTuple):
    """A published loss on the 30,162 rows, as the mean of several seeds."""

    name: str
    quasi_identifiers: tuple[str, ...]
    k: int
    delay_rows: int
    loss: float


FOUR = ("age", "education", "marital_status", "native_country")
REFERENCES = (
    Reference("6 numeric QIs", NUMERIC, 100, 10_000, 0.211),
    Reference("6 numeric QIs", NUMERIC, 10, 1_000, 0.131),
    Reference("10 QIs", ADULT, 100, 10_000, 0.399),
    Reference("10 QIs", ADULT, 10, 1_000, 0.263),
    Reference("age and 3 categories", FOUR, 50, 5_000, 0.222),
)
#: The figures of the paper; 0 is the table of references.
FIGURES = (0, 4, 5, 6, 7, 8, 9, 10)
#: How far the mean of five seeds may be from a reference.
TOLERANCE = 0.05


@dataclass(frozen=True, eq=False)
class Panel:
    """One plot: for each line, a value (the mean over the seeds) for each x."""

    title: str
    x_label: str
    xs: Sequence[float]
    y_label: str
    lines: dict[str, list[float]] = field(default_factory=dict)
    spread: dict[str, list[float]] = field(default_factory=dict)
    #: The largest share of suppressed rows of any point.
    suppressed: list[float] = field(default_factory=list)

    def add(self, line: str, values: Sequence[float], suppressed: Sequence[float]) -> None:
        self.lines.setdefault(line, []).append(fmean(values))
        # An infinite error (no row answers the queries) has no spread.
        spread = pstdev(values) if math.isfinite(sum(values)) else 0.0
        self.spread.setdefault(line, []).append(spread)
        self.suppressed.append(fmean(suppressed))

    def markdown(self) -> str:
        header = [self.x_label, *self.lines]
        rows = [[f"{x:,g}", *values] for x, *values in zip(self.xs, *self.lines.values(), strict=True)]
        return f"{self.title}: {self.y_label}\n\n{table(header, rows)}"

    def figures(self) -> dict[str, Any]:
        lines = {name: [_finite(y) for y in values] for name, values in self.lines.items()}
        return {"panel": self.title, "x": list(self.xs), **lines}


@dataclass(frozen=True)
class Scale:
    """How much of an experiment to run: all, or (quick) a tenth of each size."""

    seeds: int = SEEDS
    part: int = 1

    def stream(self, stream: Stream) -> Stream:
        return stream if self.part == 1 else stream.first(len(stream.rows) // self.part)

    def size(self, value: int) -> int:
        return max(2, value // self.part)

    def points(self, values: Sequence[Any]) -> list[Any]:
        return list(values) if self.part == 1 else [values[0], values[-1]]

    def sizes(self, values: Sequence[int]) -> list[int]:
        return [self.size(value) for value in self.points(values)]


@cache
def adult(names: tuple[str, ...], rows: int, *cut: str) -> Stream:
    return datasets.adult(names, rows=rows, extra=CHOICES_SENSITIVE, cut=cut)


class Experiments:
    """The figures of the paper, at some scale."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        #: The defaults of k and delta, for figures that do not vary them.
        self.k, self.delta = scale.size(100), scale.size(10_000)

    def runs(
        self, stream: Stream | Callable[[int], Stream], *, k: int, delta: int, **parameters: int
    ) -> list[tuple[Stream, Run]]:
        """Run once per seed; a function makes a new stream for each seed."""
        done = []
        for seed in range(self.scale.seeds):
            this = self.scale.stream(stream(seed) if callable(stream) else stream)
            policy = this.policy(k=k, delay_rows=delta, seed=seed, **parameters)
            done.append((this, run(policy, this.rows)))
        return done

    def loss(self, panel: Panel, line: str, stream: Any, **how: int) -> None:
        done = [result for _, result in self.runs(stream, **how)]
        panel.add(line, [r.loss for r in done], [r.suppressed for r in done])

    def figure_4(self) -> list[Panel]:
        """Plot the loss over beta and mu: 10 QIs, k = 100, delta = 10,000."""
        betas, panels = self.scale.points([10, 25, 50, 75, 100, 200]), []
        for letter, rows in (("a", SFU), ("b", UCI)):
            stream = adult(ADULT, rows)
            panel = Panel(f"({letter}) {stream.name}", "beta", betas, "average loss")
            for mu in self.scale.points([10, 50, 100, 150, 200]):
                for beta in betas:
                    how = {"k": self.k, "delta": self.delta, "beta": beta, "mu": mu}
                    self.loss(panel, f"mu {mu}", stream, **how)
            panels.append(panel)
        return panels

    def figure_5(self) -> list[Panel]:
        """Plot the loss over the number of QIs and over k: delta = 10,000."""
        sizes = self.scale.points([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
        ks = self.scale.sizes([10, 25, 50, 100, 200, 400])
        by_size = Panel(f"(a) k = {self.k}", "QIs", sizes, "average loss")
        by_k = Panel("(b) 10 QIs", "k", ks, "average loss")
        for rows in (SFU, UCI):
            for size in sizes:
                stream = adult(ADULT[:size], rows)
                self.loss(by_size, stream.name, stream, k=self.k, delta=self.delta)
            for k in ks:
                stream = adult(ADULT, rows)
                self.loss(by_k, stream.name, stream, k=k, delta=self.delta)
        return [by_size, by_k]

    def figure_6(self) -> list[Panel]:
        """Plot the loss on power-law data over delta: 30,000 rows, 6 QIs of 1,000 values each."""
        deltas = self.scale.sizes([2_000, 4_000, 6_000, 8_000, 10_000])
        panels = []
        for letter, k in zip("abcd", map(self.scale.size, (100, 400, 700, 1_000)), strict=True):
            panel = Panel(f"({letter}) k = {k:,}", "delta", deltas, "average loss")
            for alpha in self.scale.points(ALPHAS):
                for delta in deltas:
                    self.loss(panel, f"alpha {alpha:g}", _zipf(alpha), k=k, delta=delta)
            panels.append(panel)
        return panels

    def figure_7(self) -> list[Panel]:
        """Plot the loss with several rows per person: UCI-Adult, delta = 10,000 rows."""
        sizes = self.scale.points([2, 4, 6, 8, 10])
        ks = self.scale.sizes([25, 50, 100, 200, 400])
        by_size = Panel(f"(a) k = {self.k}", "QIs", sizes, "average loss")
        by_k = Panel("(b) 4 QIs", "k", ks, "average loss")
        title = f"(c) 4 QIs, delta = {self.delta:,} persons"
        by_k_persons = Panel(title, "k", ks, "average loss")
        for dup in self.scale.points([1, 5, 10, 15]):
            line = f"dup {dup}"
            for size in sizes:
                self.loss(by_size, line, _repeated(size, dup), k=self.k, delta=self.delta)
            for k in ks:
                stream = _repeated(4, dup)
                self.loss(by_k, line, stream, k=k, delta=self.delta)
                self.loss(by_k_persons, line, stream, k=k, delta=self.delta * dup)
        return [by_size, by_k, by_k_persons]

    def figure_8(self) -> list[Panel]:
        """Plot the error of the query workload over delta, k, the number of QIs and the selectivity."""
        deltas = self.scale.sizes([1_000, 2_500, 5_000, 10_000, 15_000])
        ks = self.scale.sizes([25, 50, 100, 200, 400])
        sizes = self.scale.points([1, 2, 3, 4, 5, 6, 7])
        thetas = self.scale.points([0.02, 0.05, 0.1, 0.2, 0.4])
        k, delta, y = f"k = {self.k}", f"delta = {self.delta:,}", "workload error, %"
        by_delta = Panel(f"(a) 4 QIs, {k}, theta = 0.1", "delta", deltas, y)
        by_k = Panel(f"(b) 4 QIs, {delta}, theta = 0.1", "k", ks, y)
        by_size = Panel(f"(c) {k}, {delta}, theta = 0.1", "QIs", sizes, y)
        by_theta = Panel(f"(d) 4 QIs, {k}, {delta}", "theta", thetas, y)
        for names, rows, cut, more in (
            (QUERIED, SFU, (), ""),
            (QUERIED, UCI, (), ""),
            (QUERIED, SFU, ("fnlwgt",), ", fnlwgt cut"),
            (QUERIED, UCI, ("fnlwgt",), ", fnlwgt cut"),
            (EVEN, UCI, (), ", no fnlwgt"),
        ):
            four = adult(names[:4], rows, *cut)
            line = four.name + more
            for value in deltas:
                self.errors(by_delta, line, four, delta=value)
            for value in ks:
                self.errors(by_k, line, four, k=value)
            for value in sizes:
                self.errors(by_size, line, adult(names[:value], rows, *cut), size=value)
            self.errors(by_theta, line, four, thetas=thetas)
        return [by_delta, by_k, by_size, by_theta]

    def figure_9(self) -> list[Panel]:
        """Plot the loss over delta beside condensation (dynamicGroup): UCI-Adult, 6 numeric QIs."""
        stream = self.scale.stream(adult(NUMERIC, UCI))
        deltas = self.scale.sizes([2_000, 4_000, 6_000, 8_000, 10_000, 20_000, len(adult(NUMERIC, UCI).rows)])
        panels = []
        for letter, k in zip("abcd", map(self.scale.size, (50, 100, 200, 400)), strict=True):
            panel = Panel(f"({letter}) k = {k:,}", "delta", deltas, "average loss")
            history = self.scale.size(HISTORY)
            condensed = [self._condensed(stream, k, history, seed).loss for seed in range(self.scale.seeds)]
            for delta in deltas:
                self.loss(panel, "CASTLE", stream, k=k, delta=delta)
                panel.add("dynamicGroup", condensed, [0.0])
            panels.append(panel)
        return panels

    def figure_10(self) -> list[Panel]:
        """Plot the error of the query workload beside condensation: UCI-Adult, 4 numeric QIs, delta = 20,000."""
        delta, y = self.scale.size(20_000), "workload error, %"
        ks = self.scale.sizes([50, 100, 200, 400])
        thetas = self.scale.points([0.05, 0.1, 0.2, 0.4])
        by_k = Panel("(a) theta = 0.1", "k", ks, y)
        by_theta = Panel(f"(b) k = {self.scale.size(200)}", "theta", thetas, y)
        for cut, more in (((), ""), (("fnlwgt",), ", fnlwgt cut")):
            stream = adult(QUERIED[:4], UCI, *cut)
            for panel, points in (
                (by_k, [(k, 0.1) for k in ks]),
                (by_theta, [(self.scale.size(200), theta) for theta in thetas]),
            ):
                for k, theta in points:
                    self.errors(panel, f"CASTLE{more}", stream, k=k, delta=delta, thetas=(theta,))
                    self._condensed_errors(panel, f"dynamicGroup{more}", stream, k, delta, theta)
        return [by_k, by_theta]

    def _condensed(self, stream: Stream, k: int, history: int, seed: int) -> Condensed:
        scales = [1 / (qi.domain[1] - qi.domain[0]) for qi in stream.quasi_identifiers.values()]
        return condensation(stream.rows.qi, np.array(scales), k, history, seed)

    def _condensed_errors(self, panel: Panel, line: str, stream: Stream, k: int, delta: int, theta: float) -> None:
        found, stream = [], self.scale.stream(stream)
        for seed in range(self.scale.seeds):
            boxes = self._condensed(stream, k, self.scale.size(HISTORY), seed)
            found.append(self._judged(stream, boxes.lo, boxes.hi, delta, theta, seed, SENSITIVE))
        panel.add(line, found, [0.0])

    def choices(self) -> list[list[Any]]:
        """Measure the error of the query workload on UCI-Adult by QIs and sensitive column, in percent."""
        rows = []
        for names in CHOICES:
            stream = adult(names, UCI)
            done = self.runs(stream, k=self.k, delta=self.delta)
            errors = [
                math.nan
                if sensitive in names
                else fmean(
                    self._error(this, result, self.delta, 0.1, seed, sensitive)
                    for seed, (this, result) in enumerate(done)
                )
                for sensitive in CHOICES_SENSITIVE
            ]
            rows.append([", ".join(names), *errors])
        return rows

    def errors(
        self,
        panel: Panel,
        line: str,
        stream: Stream,
        *,
        size: int = 4,
        k: int | None = None,
        delta: int | None = None,
        thetas: Sequence[float] = (0.1,),
    ) -> None:
        """Measure the error of the query workload for each selectivity; a window is delta rows."""
        window = delta or self.delta
        if size > len(stream.quasi_identifiers):
            panel.add(line, [math.nan], [0.0])
            return
        done = self.runs(stream, k=k or self.k, delta=window)
        for theta in thetas:
            found = [self._error(this, result, window, theta, seed) for seed, (this, result) in enumerate(done)]
            panel.add(line, found, [result.suppressed for _, result in done])

    def _error(
        self,
        stream: Stream,
        result: Run,
        window: int,
        theta: float,
        seed: int,
        sensitive: str = SENSITIVE,
    ) -> float:
        releases = result.releases
        lo, hi = stream.rows.qi.copy(), stream.rows.qi.copy()
        lo[releases.rows], hi[releases.rows] = releases.per_row(releases.lo), releases.per_row(releases.hi)
        return self._judged(stream, lo, hi, window, theta, seed, sensitive)

    def _judged(
        self, stream: Stream, lo: Floats, hi: Floats, window: int, theta: float, seed: int, sensitive: str
    ) -> float:
        """Return the error of the query workload on rows that were published under these boxes, in percent."""
        columns = [*stream.quasi_identifiers.values(), datasets.adult_categories(sensitive)]
        values = stream.extra[sensitive]
        judged = workload_error(
            [Axis(column.geometry) for column in columns],
            np.column_stack([stream.rows.qi, values]),
            Boxes.distinct(np.column_stack([lo, values]), np.column_stack([hi, values])),
            window=window,
            theta=theta,
            queries=self.scale.size(5_000),
            seed=seed,
        )
        return 100.0 * judged.error

    def references(self) -> list[float]:
        losses = []
        for wanted in REFERENCES:
            stream = adult(wanted.quasi_identifiers, UCI)
            k, delta = self.scale.size(wanted.k), self.scale.size(wanted.delay_rows)
            losses.append(fmean(result.loss for _, result in self.runs(stream, k=k, delta=delta)))
        return losses


def _finite(value: float) -> float | None:
    """Return the value if JSON can represent it, else None."""
    return rounded(value) if math.isfinite(value) else None


def _zipf(alpha: float) -> Callable[[int], Stream]:
    return lambda seed: datasets.power_law(alpha=alpha, rows=30_000, seed=seed)


def _repeated(size: int, dup: int) -> Stream:
    return datasets.repeated(adult(ADULT[:size], UCI), dup)


def references_markdown(losses: Sequence[float]) -> str:
    rows = [
        [r.name, r.k, r.delay_rows, r.loss, loss, loss / r.loss, verdict(r, loss)]
        for r, loss in zip(REFERENCES, losses, strict=True)
    ]
    header = ["UCI-Adult", "k", "delta", "reference", "measured", "ratio", "within 5%"]
    return table(header, rows)


def choices_markdown(rows: Sequence[Sequence[Any]]) -> str:
    header = ["QIs", *(f"sensitive: {name}" for name in CHOICES_SENSITIVE)]
    return f"(e) UCI-Adult, otherwise as in (c), by the choice of columns: workload error, %\n\n{table(header, rows)}"


def verdict(wanted: Reference, loss: float) -> str:
    return "ok" if abs(loss / wanted.loss - 1.0) <= TOLERANCE else "off"


def plot(number: int, caption: str, panels: Sequence[Panel], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    # The colours of Okabe and Ito work for colour-blind readers. Markers distinguish the lines in grey.
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"]
    markers = ["o", "s", "^", "D", "v"]
    columns = 3 if len(panels) == 3 else 2
    lines = -(-len(panels) // columns)
    size = (4.5 * columns if columns == 2 else 12.0, 3.4 * lines + 0.5)
    figure, axes = plt.subplots(lines, columns, figsize=size, sharey=True, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for i, (name, values) in enumerate(panel.lines.items()):
            axis.errorbar(
                panel.xs,
                values,
                yerr=panel.spread[name],
                label=name,
                color=colours[i % len(colours)],
                marker=markers[i % len(markers)],
                markersize=4.5,
                linewidth=1.4,
                capsize=2,
            )
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(panel.x_label)
        axis.set_ylabel(panel.y_label)
        axis.tick_params(labelleft=True)
        if max(panel.xs) >= 30 * min(panel.xs):
            axis.set_xscale("log")
            axis.minorticks_off()
        axis.set_xticks(panel.xs, [f"{x:,g}" for x in panel.xs], fontsize=8)
        axis.grid(alpha=0.3)
        if number in (8, 10):
            axis.axhline(13.0, color="#666666", linestyle="--", linewidth=1, label="13%, the paper's bound")
    if number != 4:
        # After all lines are drawn, because the panels share the axis.
        axes[0, 0].set_ylim(bottom=0.0)
    figure.suptitle(f"Figure {number}. {caption}", fontsize=10)
    # All panels have the same lines.
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize=9, frameon=False)
    figure.tight_layout(rect=(0.0, 0.25 / size[1], 1.0, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    plt.close(figure)
    # A palette is enough for lines. A palette of only 64 colours replaced colours that few pixels have.
    Image.open(drawn).convert("RGB").quantize(256).save(path, optimize=True)


def write(page: Path, name: str, text: str) -> None:
    """Put text between its markers in the page, and create the page or the markers if they are missing."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    content = page.read_text("utf-8") if page.exists() else ""
    block = f"{begin}\n{text}\n{end}"
    found = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if found.search(content):
        content = found.sub(lambda _: block, content)
    else:
        content += f"{block}\n"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(content, "utf-8")


def describe(number: int, panels: Sequence[Panel], scale: Scale) -> str:
    """Return the tables of a figure, and their precision."""
    spread = max(max(values) for panel in panels for values in panel.spread.values())
    suppressed = max(max(panel.suppressed) for panel in panels)
    unit = "points" if number in (8, 10) else "of loss"
    means = f"Means over {scale.seeds} seeds, of a standard deviation of at most {spread:.3f} {unit}"
    certain = (
        f"{means if scale.seeds > 1 else 'One seed'}; at most {100 * suppressed:.1f}% of the rows were suppressed."
    )
    return "\n\n".join([*(panel.markdown() for panel in panels), certain])


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.castle_paper", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--figures", default=",".join(map(str, FIGURES)), help="the numbers of the figures; 0: the references"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs for each point")
    parser.add_argument("--quick", action="store_true", help="small; writes nothing")
    parser.add_argument("--out", type=Path, help="the folder to write to, instead of docs/papers")
    said = parser.parse_args(given)
    said.numbers = [int(number) for number in said.figures.split(",")]
    if not set(said.numbers) <= set(FIGURES):
        parser.error(f"--figures must be some of {', '.join(map(str, FIGURES))}, not {said.figures}")
    return said


def main(given: Sequence[str] | None = None) -> int:
    said = arguments(sys.argv[1:] if given is None else given)
    scale = Scale(seeds=1, part=20) if said.quick else Scale(seeds=said.seeds)
    out = said.out or (None if said.quick else datasets.ROOT / "docs" / "papers")
    experiments = Experiments(scale)
    figures: dict[str, Any] = {
        "benchmark": "castle_paper",
        "quick": said.quick,
        "seeds": scale.seeds,
    }
    for number in said.numbers:
        start = time.process_time()
        if number == 0:
            losses = experiments.references()
            text, name = references_markdown(losses), "references"
            figures[name] = [
                {"name": r.name, "k": r.k, "loss": rounded(loss), "ratio": rounded(loss / r.loss)}
                for r, loss in zip(REFERENCES, losses, strict=True)
            ]
            if said.quick:
                text += "\n\nQuick: a small part of the rows, and of k and delta: not comparable."
        else:
            experiment = getattr(experiments, f"figure_{number}")
            panels = experiment()
            text, name = describe(number, panels, scale), f"figure {number}"
            figures[name] = [panel.figures() for panel in panels]
            if number == 8:
                choices = experiments.choices()
                text += f"\n\n{choices_markdown(choices)}"
                figures["choices"] = [[row[0], *map(_finite, row[1:])] for row in choices]
            if out is not None:
                caption = experiment.__doc__.removesuffix(".")
                plot(number, caption, panels, out / f"castle-figure-{number}.png")
        if out is not None:
            write(out / PAGE, name, text)
        spent = time.process_time() - start
        print(f"\n{name} ({spent:.0f} s of processor time)\n\n{text}", flush=True)
    finish(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
