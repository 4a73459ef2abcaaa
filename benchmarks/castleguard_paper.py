"""The experiments of the CASTLEGUARD paper (section VI), on its own two data sets.

    python -m benchmarks.castleguard_paper                 all of it, into docs/papers/
    python -m benchmarks.castleguard_paper --only loss     some only: loss, shape, quality
    python -m benchmarks.castleguard_paper --quick         small, as a smoke test; writes nothing

Every run is audited, and a broken promise ends it. `docs/papers/castleguard.md` lists what the paper leaves open, what
was chosen, and how its figures were computed. This program writes the tables in it, between their markers.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.castle_paper import write
from benchmarks.runs import BrokenPromiseError
from benchmarks.tables import finish, rounded, table
from crenel.audit import audit
from crenel.encoding import noise
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases, create_engine
from crenel.engine.methods.castleguard import CastleGuardParameters
from crenel.engine.methods.castleguard.castleguard_engine import CastleGuard
from crenel.policy import Policy, Sensitive
from crenel.policy.quasi_identifiers import Numeric

PAGE = "castleguard.md"
PARTS = ("loss", "shape", "quality")
BS = (5, 10, 25, 50, 100, 200, 300)
MUS = (10, 50, 100, 200)
BETAS = (0.25, 0.5, 0.75, 1.0)
PHIS = (1.0, 10.0, 100.0, 1000.0)
#: As in the authors' code.
NEIGHBOURS = tuple(range(10, 51, 5))
LAYERS = (256, 64, 256)
FOLDS = 10

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    seeds: int = 5
    quick: bool = False

    def points(self, values: Sequence[Any]) -> list[Any]:
        return [values[0], values[-1]] if self.quick else list(values)

    @property
    def epochs(self) -> int:
        return 5 if self.quick else 200

    @property
    def folds(self) -> int:
        return 3 if self.quick else FOLDS

    @property
    def networks(self) -> int:
        """The number of networks trained for each point. Each takes longer than everything else together."""
        return 1 if self.quick else self.seeds


@dataclass(frozen=True, eq=False)
class Data:
    """A table, as the paper uses it."""

    qi: Floats
    person: Ints
    label: Ints

    def rows(self, chosen: Ints | None = None) -> Rows:
        at = np.arange(len(self.qi)) if chosen is None else chosen
        none = np.zeros(len(at), dtype=np.int64)
        return Rows(np.ascontiguousarray(self.qi[at]), self.person[at], self.label[at][:, None].copy(), none)


@cache
def taxi() -> Data:
    table = read("castleguard_taxi_example.csv")
    qi = np.stack([table["TripDistance"], table["PickupLocationID"]], axis=1)
    return Data(qi, table["pid"].astype(np.int64), np.round(table["FareAmount"] * 100).astype(np.int64))


@cache
def pima() -> Data:
    table = read("pima_diabetes.csv")
    label = table.pop("outcome").astype(np.int64)
    return Data(np.stack(list(table.values()), axis=1), np.arange(len(label)), label)


def read(name: str) -> dict[str, Floats]:
    with open(datasets.data_folder() / name, newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    columns = np.array(rows, dtype=np.float64).T
    return dict(zip(header, columns, strict=True))


def policy(data: Data, *, k: int, delta: int, seed: int, **parameters: Any) -> Policy:
    return Policy(
        person="person",
        # Declare no domains: the paper's ranges are those of the data seen so far.
        quasi_identifiers={f"q{d}": Numeric() for d in range(data.qi.shape[1])},
        sensitive={"label": Sensitive()},
        k=k,
        delay_rows=delta,
        method="castleguard",
        parameters=CastleGuardParameters(**parameters),
        on_suppress="drop",
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class Run:
    """The result of a stream."""

    releases: Releases
    #: Mean over the rows in groups.
    loss: float
    #: Mean over the clusters that are open before the stream ends. The authors' code reports this.
    open_loss: float
    #: Shares of the rows.
    published: float
    suppressed: float


def run(policy: Policy, rows: Rows) -> Run:
    """Run the whole stream, and audit the result."""
    engine = create_engine(policy)
    assert isinstance(engine, CastleGuard)
    first = engine.push(rows)
    open_loss = loss_of_open_clusters(engine)
    releases = Releases.concat([first, engine.flush()])
    report = audit(policy, rows, releases)
    if not report.ok:
        raise BrokenPromiseError("\n".join(report.problems() + report.unchecked()))
    kind, loss = releases.per_row(releases.kind), releases.per_row(releases.loss)
    published = (kind == Kind.CLUSTER) | (kind == Kind.REUSE)
    return Run(
        releases=releases,
        loss=float(loss[published].mean()) if published.any() else 1.0,
        open_loss=open_loss,
        published=float(published.mean()),
        suppressed=float(np.mean(kind == Kind.SUPPRESSED)),
    )


def loss_of_open_clusters(engine: CastleGuard) -> float:
    """Return the mean loss of the open clusters."""
    held = engine._held()
    if not len(held["cluster"]):
        return 0.0
    width = engine._seen_hi - engine._seen_lo
    losses = []
    for cluster in np.unique(held["cluster"]):
        inside = held["qi"][held["cluster"] == cluster]
        losses.append(float(np.mean((inside.max(axis=0) - inside.min(axis=0)) / width)))
    return fmean(losses)


# -- information loss ------------------------------------------------------------------------------------------------


def taxi_runs(scale: Scale, *, of_kept: bool = False, **parameters: Any) -> list[Run]:
    """Run the taxi rides. With `of_kept`, delta counts only rows that are kept, as in the authors' code."""
    data = taxi()
    chosen = np.arange(200 if scale.quick else len(data.qi))
    runs = []
    for seed in range(scale.seeds):
        given, kept = dict(parameters), chosen
        if of_kept:
            kept = chosen[np.random.default_rng(seed).random(len(chosen)) < given["beta_sample"]]
            given["beta_sample"] = 1.0
        runs.append(run(policy(data, k=10, delta=200, seed=seed, **given), data.rows(kept)))
    return runs


def loss(scale: Scale) -> tuple[str, dict[str, Any]]:
    """Figure 2, and section VI-B."""
    bs, mus, betas, phis = (scale.points(values) for values in (BS, MUS, BETAS, PHIS))
    by_b = {(b, mu): taxi_runs(scale, beta=b, mu=mu, beta_sample=1.0, phi=10_000.0) for b in bs for mu in mus}
    by_beta = {
        (beta, phi): taxi_runs(scale, beta=25, mu=100, beta_sample=beta, phi=phi) for beta in betas for phi in phis
    }
    of_kept = {
        (beta, phi): taxi_runs(scale, of_kept=True, beta=25, mu=100, beta_sample=beta, phi=phi)
        for beta in betas
        for phi in phis
    }
    text = "\n\n".join(
        [
            "Mean loss of the published rows, over b and mu (k = 10, delta = 200, beta = 1, phi = 10,000)\n\n"
            + grid("b", bs, [f"mu {mu}" for mu in mus], lambda i, j: mean(by_b[bs[i], mus[j]], "loss")),
            "Mean loss of the clusters still open at the end, the same runs\n\n"
            + grid("b", bs, [f"mu {mu}" for mu in mus], lambda i, j: mean(by_b[bs[i], mus[j]], "open_loss")),
            "Mean loss of the published rows, over beta and phi (b = 25, mu = 100)\n\n"
            + grid(
                "beta", betas, [f"phi {phi:g}" for phi in phis], lambda i, j: mean(by_beta[betas[i], phis[j]], "loss")
            ),
            "The same, if delta counts only the rows that are kept\n\n"
            + grid(
                "beta", betas, [f"phi {phi:g}" for phi in phis], lambda i, j: mean(of_kept[betas[i], phis[j]], "loss")
            ),
            "Mean loss of the clusters still open at the end, as in the table over beta and phi\n\n"
            + grid(
                "beta",
                betas,
                [f"phi {phi:g}" for phi in phis],
                lambda i, j: mean(by_beta[betas[i], phis[j]], "open_loss"),
            ),
            "Share of the rows that were published, the same runs\n\n"
            + grid(
                "beta",
                betas,
                [f"phi {phi:g}" for phi in phis],
                lambda i, j: mean(by_beta[betas[i], phis[j]], "published"),
            ),
            f"Means over {scale.seeds} seeds, of a standard deviation of at most "
            f"{max(pstdev(r.loss for r in runs) for runs in [*by_b.values(), *by_beta.values()]):.4f} of loss.",
        ]
    )
    figures = {
        "b_mu": [
            [b, mu, rounded(mean(runs, "loss")), rounded(mean(runs, "open_loss"))] for (b, mu), runs in by_b.items()
        ],
        "beta_phi": [
            [beta, phi, rounded(mean(runs, "loss")), rounded(mean(runs, "open_loss"))]
            for (beta, phi), runs in by_beta.items()
        ],
        "of_kept": [[beta, phi, rounded(mean(runs, "loss"))] for (beta, phi), runs in of_kept.items()],
    }
    return text, figures


def mean(runs: Sequence[Any], name: str) -> float:
    return fmean(getattr(run, name) for run in runs)


def grid(corner: str, rows: Sequence[Any], columns: Sequence[str], value: Callable[[int, int], float]) -> str:
    cells = [[f"{row:g}", *(f"{value(i, j):.4f}" for j in range(len(columns)))] for i, row in enumerate(rows)]
    return table([corner, *columns], cells)


# -- the shape of the data -------------------------------------------------------------------------------------------


def moved(beta_sample: float, phi: float, seed: int = 0) -> tuple[Floats, Floats, Ints]:
    """Return the taxi rides that are kept: as they were, as they are after the noise, and their fares in cents."""
    data = taxi()
    engine = create_engine(policy(data, k=10, delta=200, seed=seed, beta_sample=beta_sample, phi=phi))
    assert isinstance(engine, CastleGuard)
    bits = engine._draws.of(0, len(data.qi))
    kept = noise.sampled(bits[:, 0], beta_sample)
    return data.qi[kept], engine._perturbed(data.qi[kept], bits[kept, 1:]), data.label[kept]


def shape(scale: Scale) -> tuple[str, dict[str, Any]]:
    """Figure 3: the kept and perturbed rows. The table has what the eye judges there."""
    data, rows, figures = taxi(), [], {}
    width = np.ptp(data.qi, axis=0)
    for phi in scale.points(PHIS):
        for beta in scale.points(BETAS):
            before, after, _ = moved(beta, phi)
            far = np.median(np.abs(after - before) / width, axis=0)
            outside = np.mean(np.any((after < data.qi.min(axis=0)) | (after > data.qi.max(axis=0)), axis=1))
            rows.append([f"phi {phi:g}, beta {beta:g}", len(after), *(f"{value:.4f}" for value in (*far, outside))])
            figures[f"{phi:g}, {beta:g}"] = [len(after), *map(rounded, (*far.tolist(), float(outside)))]
    header = ["taxi", "rows kept", "distance moved by, of its range", "zone moved by", "outside of the data"]
    return table(header, rows), figures


def plot_shape(path: Path) -> None:
    """Draw figure 3: distance and zone of the rows that are kept and perturbed, coloured by fare."""
    import io

    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    figure, axes = plt.subplots(len(PHIS), len(BETAS), figsize=(9, 8), sharex="row", sharey="row", squeeze=False)
    for line, phi in zip(axes, PHIS, strict=True):
        for axis, beta in zip(line, BETAS, strict=True):
            _, after, fare = moved(beta, phi)
            axis.scatter(after[:, 0], after[:, 1], c=fare, s=3, cmap="viridis", vmax=6_000)
            axis.set_title(f"phi {phi:g}, beta {beta:g}", fontsize=8)
            axis.tick_params(labelsize=6)
    figure.suptitle(
        "Figure 3. Taxi rides after sampling and noise: distance and zone; the colour is the fare", fontsize=9
    )
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=90)
    plt.close(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(128).save(path, optimize=True)


# -- data quality ----------------------------------------------------------------------------------------------------


def published(chosen: Ints, *, seed: int, beta_sample: float, phi: float) -> tuple[Floats, Ints]:
    """Return the rows as an analyst sees them: the two ends of each range, and the label."""
    data = pima()
    of = policy(data, k=7, delta=100, seed=seed, beta=25, mu=100, beta_sample=beta_sample, phi=phi)
    rows = data.rows(chosen)
    releases = run(of, rows).releases
    kind = releases.per_row(releases.kind)
    leaves = (kind == Kind.CLUSTER) | (kind == Kind.REUSE)
    features = np.hstack([releases.per_row(releases.lo), releases.per_row(releases.hi)])[leaves]
    return np.asarray(features, dtype=np.float64), rows.sensitive[releases.rows[leaves], 0]


def as_published(qi: Floats) -> Floats:
    """Return rows that were not anonymized in the same form."""
    return np.hstack([qi, qi])


@dataclass
class Quality:
    """The accuracy of classifiers in one setting."""

    #: Trained on the published rows, tested on the original rows.
    knn: float
    network: float
    auc: float
    #: The AUC of predicted classes instead of probabilities, as in the authors' code.
    auc_of_classes: float
    #: The network again, on the centres of ranges instead of their ends.
    centres: float
    centres_auc: float
    centres_auc_of_classes: float
    #: As in the authors' code: trained and tested on the published rows, and compared with the labels of other rows.
    knn_theirs: float
    published: float


def neighbours(train: Floats, labels: Ints, test: Floats) -> list[Ints]:
    from sklearn.neighbors import KNeighborsClassifier

    counts = [count for count in NEIGHBOURS if count <= len(train)] or [1]
    return [KNeighborsClassifier(count).fit(train, labels).predict(test) for count in counts]


def knn_accuracy(make: Callable[[Ints], tuple[Floats, Ints]], folds: int = FOLDS) -> float:
    """Cross-validate: train on what `make` returns for all folds but one, and test on the original rows of that one."""
    data, parts = pima(), np.array_split(np.arange(len(pima().label)), folds)
    right = []
    for part in parts:
        train, labels = make(np.setdiff1d(np.arange(len(data.label)), part))
        if len(train):
            right += [np.mean(p == data.label[part]) for p in neighbours(train, labels, as_published(data.qi[part]))]
    return float(np.mean(right))


def knn_theirs(features: Floats, labels: Ints, folds: int = FOLDS) -> float:
    """Judge as the authors' code does: compare the predictions for a fold with the first labels of the others."""
    found = []
    for part in np.array_split(np.arange(len(labels)), folds):
        others = np.setdiff1d(np.arange(len(labels)), part)
        for predicted in neighbours(features[others], labels[others], features[part]):
            found.append(np.mean(predicted == labels[others][: len(part)]))
    return float(np.mean(found))


def centres(features: Floats) -> Floats:
    """Return the middle of each range."""
    half = features.shape[1] // 2
    return (features[:, :half] + features[:, half:]) / 2


def network(
    train: Floats, labels: Ints, test: Ints, view: Callable[[Floats], Floats], *, seed: int, epochs: int
) -> tuple[float, float, float]:
    """Judge the authors' network on original rows; `view` makes features.

    Returns the accuracy, the area under the curve of the probabilities, and that of the predicted classes.
    """
    from sklearn.metrics import roc_auc_score
    from sklearn.neural_network import MLPClassifier

    data = pima()
    if len(np.unique(labels)) < 2:
        return float(np.mean(data.label[test] == (labels[0] if len(labels) else 0))), 0.5, 0.5
    model = MLPClassifier(LAYERS, batch_size=min(64, len(labels)), max_iter=epochs, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ignore the warning that training has not converged
        model.fit(view(train), labels)
    features = view(as_published(data.qi[test]))
    classes, chances = model.predict(features), model.predict_proba(features)[:, 1]
    curves = [float(roc_auc_score(data.label[test], scores)) for scores in (chances, classes)]
    return float(np.mean(classes == data.label[test])), curves[0], curves[1]


def split(seed: int) -> tuple[Ints, Ints]:
    """Split into seven tenths for training, in their order, and three tenths for testing."""
    shuffled = np.random.default_rng(seed).permutation(len(pima().label))
    cut = len(shuffled) * 7 // 10
    return np.sort(shuffled[:cut]), np.sort(shuffled[cut:])


def judged(scale: Scale, make: Callable[[Ints, int], tuple[Floats, Ints]]) -> Quality:
    everybody = np.arange(len(pima().label))
    knn, theirs, shares = [], [], []
    for seed in range(scale.seeds):
        knn.append(knn_accuracy(lambda chosen, seed=seed: make(chosen, seed), scale.folds))
        features, labels = make(everybody, seed)
        theirs.append(knn_theirs(features, labels, scale.folds))
        shares.append(len(labels) / len(everybody))
    nets = []
    for seed in range(scale.networks):
        train, test = split(seed)
        features, labels = make(train, seed)
        ends, middles = (
            network(features, labels, test, view, seed=seed, epochs=scale.epochs) for view in (lambda x: x, centres)
        )
        nets.append([*ends, *middles])
    return Quality(fmean(knn), *np.mean(nets, axis=0).tolist(), fmean(theirs), fmean(shares))


def quality(scale: Scale) -> tuple[str, dict[str, Any]]:
    """Figures 4, 5 and 6."""
    data = pima()
    plain = judged(replace(scale, seeds=1), lambda chosen, _: (as_published(data.qi[chosen]), data.label[chosen]))
    betas, phis = scale.points(BETAS), scale.points(PHIS)
    found = {
        (beta, phi): judged(
            scale, lambda chosen, seed, beta=beta, phi=phi: published(chosen, seed=seed, beta_sample=beta, phi=phi)
        )
        for phi in phis
        for beta in betas
    }
    lines = [["original", *cells(plain)]]
    lines += [[f"phi {phi:g}, beta {beta:g}", *cells(q)] for (beta, phi), q in found.items()]
    header = ["Pima, k = 7", "k-NN", "network", "AUC", "of classes", "on centres", "AUC", "of classes"]
    header += ["k-NN as theirs", "published"]
    always = max(float(np.mean(data.label)), 1 - float(np.mean(data.label)))
    names = (
        "knn",
        "network",
        "auc",
        "auc_of_classes",
        "centres",
        "centres_auc",
        "centres_auc_of_classes",
        "knn_theirs",
    )
    best = {name: max(getattr(q, name) for q in found.values()) for name in names}
    said = (
        f"Always predicting the more frequent label is right in {100 * always:.1f}% of the rows. Best per column: "
        f"k-NN {100 * best['knn']:.1f}%, network {100 * best['network']:.1f}% (AUC {best['auc']:.3f}), on centres "
        f"{100 * best['centres']:.1f}% (AUC {best['centres_auc']:.3f}), k-NN as theirs "
        f"{100 * best['knn_theirs']:.1f}%. Means over {scale.seeds} seeds, of the network {scale.networks}."
    )
    figures = {
        "original": vars(plain),
        "anonymized": [{"beta": beta, "phi": phi, **vars(q)} for (beta, phi), q in found.items()],
        "best": best,
    }
    return f"{table(header, lines)}\n\n{said}", _rounded(figures)


def cells(quality: Quality) -> list[str]:
    shares = {name: f"{100 * value:.1f}%" for name, value in vars(quality).items()}
    networks = [shares["network"], f"{quality.auc:.3f}", f"{quality.auc_of_classes:.3f}"]
    networks += [shares["centres"], f"{quality.centres_auc:.3f}", f"{quality.centres_auc_of_classes:.3f}"]
    return [shares["knn"], *networks, shares["knn_theirs"], f"{100 * quality.published:.0f}%"]


def _rounded(figures: Any) -> Any:
    if isinstance(figures, dict):
        return {name: _rounded(value) for name, value in figures.items()}
    if isinstance(figures, list):
        return [_rounded(value) for value in figures]
    return rounded(figures) if isinstance(figures, float) else figures


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.castleguard_paper", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=int, default=5, help="runs for each point")
    parser.add_argument("--quick", action="store_true", help="small; writes nothing")
    parser.add_argument("--out", type=Path, help="the folder to write to, instead of docs/papers")
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    parts = said.only.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}")
    scale = Scale(seeds=1, quick=True) if said.quick else Scale(seeds=said.seeds)
    out = said.out or (None if said.quick else datasets.ROOT / "docs" / "papers")
    figures: dict[str, Any] = {"benchmark": "castleguard_paper", "quick": said.quick, "seeds": scale.seeds}
    for part in parts:
        start = time.process_time()
        text, figures[part] = {"loss": loss, "shape": shape, "quality": quality}[part](scale)
        if out is not None:
            write(out / PAGE, part, text)
        if out is not None and part == "shape":
            plot_shape(out / "castleguard-figure-3.png")
        print(f"\n{part} ({time.process_time() - start:.0f} s of processor time)\n\n{text}", flush=True)
    finish(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
