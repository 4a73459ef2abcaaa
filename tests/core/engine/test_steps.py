"""Quasi-identifiers with a step, under every method: the published ranges, and the loss that is reported."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from crenel.encoding.encoder import Encoder
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases, create_engine
from crenel.engine.contract import SnapshotError
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Datetime, Numeric

#: The ends of the domain are multiples of the step, so that published widths can be compared directly.
SCORE = Numeric(domain=(0, 100), step=2.5)
SEEN = Datetime(domain=("2020-01-01", "2020-03-01"), step="6h", weight=2.0)
DAY = 86_400_000_000
START = int(Datetime().coordinate("2020-01-01"))

#: Every method, with parameters under which it makes every kind of release it can.
METHODS: dict[str, dict[str, Any]] = {
    "castle": {"method": "castle", "parameters": {"beta": 5, "mu": 10}},
    "bastion": {"method": "bastion", "parameters": {"reuse": "weighted"}},
    "bastion without reuse": {"method": "bastion", "parameters": {"reuse": "off"}},
    "castleguard": {"method": "castleguard", "parameters": {"beta": 5, "mu": 10, "beta_sample": 0.8, "phi": 5.0}},
    "sdgs": {"method": "sdgs", "parameters": {"grid": {"score": 7}, "cover": "quasi_identifiers"}, "delay_rows": 300},
    "partition": {"method": "partition"},
    "mondrian": {"method": "mondrian"},
    "adaptive-window": {"method": "adaptive-window", "delay": "1s"},
    "faanst-passive": {"method": "faanst-passive"},
    "faanst-proactive": {"method": "faanst-proactive"},
    "min-delay": {"method": "min-delay"},
    "rtree": {"method": "rtree", "parameters": {"active_rows": 60}},
    "rtree-density": {"method": "rtree-density", "parameters": {"active_rows": 60}},
    "rtree-full": {"method": "rtree-full", "parameters": {"active_rows": 60}},
}


def policy(**changes: Any) -> Policy:
    said: dict[str, Any] = {
        "person": "who",
        "event_time": "at",
        "quasi_identifiers": {"score": SCORE, "seen": SEEN},
        "k": 4,
        "delay_rows": 60,
        "on_suppress": "drop",
        "seed": 3,
    }
    return Policy(**said | changes)


def values(n: int = 600, seed: int = 1) -> dict[str, Any]:
    """Make columns of exact values, nearly all of which belong to one person only."""
    random = np.random.default_rng(seed)
    micros = START + random.integers(0, 60 * DAY, n)
    return {
        "who": np.arange(n),
        "at": np.arange(n) / 100,
        "score": np.round(random.uniform(0, 100, n), 4),
        "seen": micros.astype("datetime64[us]"),
    }


def published(of: Policy, columns: dict[str, Any]) -> tuple[Rows, Releases]:
    rows = Encoder(of).encode(columns).rows
    assert len(rows) == len(columns["who"])
    engine = create_engine(of)
    return rows, Releases.concat([engine.push(rows), engine.flush()])


@pytest.mark.parametrize("name", METHODS)
def test_what_is_published_ends_at_multiples_and_its_loss_is_reported(name: str) -> None:
    of, columns = policy(**METHODS[name]), values()
    _, releases = published(of, columns)
    seen = 0
    for release in releases:
        if release.kind in (Kind.SUPPRESSED, Kind.SAMPLED_OUT):
            continue
        score, moments = SCORE.publish(release.lo[0], release.hi[0]), SEEN.publish(release.lo[1], release.hi[1])
        first, last = (Datetime().coordinate(end) for end in moments)
        assert score.lo % 2.5 == score.hi % 2.5 == 0.0
        assert 0 <= score.lo < score.hi <= 100
        assert first % (DAY / 4) == last % (DAY / 4) == 0.0
        assert START <= first < last <= START + 60 * DAY
        loss = (score.hi - score.lo) / 100 / 3 + (last - first) / (60 * DAY) * 2 / 3
        assert release.loss == pytest.approx(loss, abs=1e-12)
        if name != "castleguard":  # it publishes boxes of perturbed values
            own = columns["score"][release.rows], columns["seen"][release.rows].astype(np.int64)
            assert score.lo <= own[0].min() <= own[0].max() <= score.hi
            assert first <= own[1].min() <= own[1].max() <= last
        seen += len(release.rows)
    assert seen > 100


@pytest.mark.parametrize("name", METHODS)
def test_the_ends_depend_on_cells_alone(name: str) -> None:
    """Another value in the same cell changes nothing that is published."""
    of, columns = policy(**METHODS[name]), values()
    random = np.random.default_rng(2)
    moved = dict(columns)
    moved["score"] = columns["score"] // 2.5 * 2.5 + random.uniform(0, 2.49, len(columns["who"]))
    since = columns["seen"].astype(np.int64) - START
    moved["seen"] = (START + since // (DAY // 4) * (DAY // 4) + random.integers(0, DAY // 4, len(since))).astype(
        "datetime64[us]"
    )
    one, other = published(of, columns)[1], published(of, moved)[1]
    for column in ("rows", "offsets", "kind", "lo", "hi", "loss"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column), err_msg=column)


def test_the_bins_of_sdgs_are_of_whole_cells() -> None:
    grid = {"method": "sdgs", "k": 2, "delay_rows": 300}
    of = policy(**grid, parameters={"beta_sample": 1.0, "grid": {"score": 7}, "cover": "quasi_identifiers"})
    releases = published(of, values())[1]
    found = {(lo, hi) for lo, hi in zip(releases.lo[:, 0].tolist(), releases.hi[:, 0].tolist(), strict=True)}
    starts = [40 * i // 7 for i in range(8)]
    assert found <= {(lo, hi - 1) for lo, hi in pairwise(starts)} | {(0.0, 39.0)}
    with pytest.raises(ValueError, match=r"grid.score must be a number of bins from 1 to 40, not 41"):
        policy(**grid, parameters={"grid": {"score": 41}, "cover": "quasi_identifiers"})
    few = policy(
        **grid, parameters={"cover": "quasi_identifiers"}, quasi_identifiers={"score": Numeric(domain=(0, 9), step=3)}
    )
    assert few.parameters.fineness("score", few.quasi_identifiers["score"].geometry) == 3


def test_perturbed_values_of_a_learned_domain_stay_in_cells_that_there_are() -> None:
    quasi_identifiers = {"score": Numeric(step=0.001), "seen": Datetime(step="100d")}
    guard = {"method": "castleguard", "parameters": {"beta": 5, "beta_sample": 1.0, "phi": 1e-12}}
    of = policy(**guard, quasi_identifiers=quasi_identifiers)
    _, releases = published(of, values())
    for d, qi in enumerate(quasi_identifiers.values()):
        for lo, hi in zip(releases.lo[:, d].tolist(), releases.hi[:, d].tolist(), strict=True):
            begin, end = qi.publish(lo, hi)
            assert np.isinf(lo) or begin < end


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "score",
    [
        Numeric(domain=(0, 200), step=5),  # the same number of cells, with another width
        Numeric(domain=(0, 99), step=2.5),  # the same cells, with another end
        Numeric(domain=(0, 39)),
        Numeric(domain=(0, 100)),
    ],
)
def test_a_snapshot_is_refused_under_another_step(name: str, score: Numeric) -> None:
    of = policy(**METHODS[name])
    engine = create_engine(of)
    engine.push(Encoder(of).encode(values(50)).rows)
    other = create_engine(replace(of, quasi_identifiers={"score": score, "seen": SEEN}))
    with pytest.raises(SnapshotError):
        other.restore(engine.snapshot())
    again = create_engine(of)
    again.restore(engine.snapshot())
    assert again.held == engine.held


def exact_ends(of: Policy, columns: dict[str, Any]) -> set[float]:
    """Return values of `fnlwgt` that only one row has and at which ranges end, except for multiples of 5000."""
    _, releases = published(of, columns)
    grouped = releases.kind == Kind.CLUSTER
    weight = of.quasi_identifiers["fnlwgt"]
    ranges = [weight.publish(lo, hi) for lo, hi in zip(releases.lo[grouped, 0], releases.hi[grouped, 0], strict=True)]
    distinct, times = np.unique(columns["fnlwgt"], return_counts=True)
    alone = set(distinct[(times == 1) & (distinct % 5000 != 0)].tolist())
    return alone & {end for one in ranges for end in one}


@pytest.mark.parametrize("method", ["bastion without reuse", "castle"])
def test_no_range_ends_at_the_value_of_one_person(method: str, data_dir: Path) -> None:
    """In Adult, most rows have a unique `fnlwgt`. Without a step, the published ranges reveal thousands of them."""
    table = pq.read_table(data_dir / "adult_30162.parquet", columns=["fnlwgt", "age"])
    columns: dict[str, Any] = {name: table[name].to_numpy() for name in table.column_names}
    columns |= {"who": np.arange(table.num_rows), "at": np.arange(table.num_rows)}
    asked = METHODS[method] | {"k": 10, "delay_rows": 1000}
    found = {}
    for step in (None, 5000):
        quasi_identifiers = {
            "fnlwgt": Numeric(domain=(0, 1_500_000), step=step),
            "age": Numeric(domain=(17, 90), step=step and 5),
        }
        found[step] = len(exact_ends(policy(**asked, quasi_identifiers=quasi_identifiers), columns))
    assert found[None] > 2000
    assert found[5000] == 0
