"""The streams of the experiments: Adult, with one and with several rows per person, the census, and drawn data.

The public data is not part of the project. It is read from $CRENEL_DATA, or from `shared/data` beside the repository,
as in the tests.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.encoding.encoder import Encoder
from crenel.encoding.rows import Rows
from crenel.engine.methods.castle import CastleParameters
from crenel.policy import Policy
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Numeric, QuasiIdentifier

ROOT = Path(__file__).resolve().parent.parent

#: The quasi-identifiers of the CASTLE paper in its order: "the first n" are the first n of these.
NUMERIC = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
CATEGORICAL = ("education", "marital_status", "occupation", "native_country")
ADULT = NUMERIC + CATEGORICAL

#: The quasi-identifiers of the census that stand for those of SAL, in SAL's order.
SAL = ("age", "sex", "marital", "nativity", "education_level", "occupation", "race")

#: The paper's names for the two data sets, and their numbers of rows.
UCI, SFU = 30_162, 45_222


#: Quasi-identifiers of the census: a number and four categories.
CENSUS = ("age", "education_level", "marital", "occupation", "race")


class NoDataError(FileNotFoundError):
    """The data sets were not found."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows and their declarations. The experiment adds the guarantee and the method."""

    rows: Rows
    quasi_identifiers: Mapping[str, QuasiIdentifier]
    name: str = ""
    #: Other columns as numbers, for the experiment's own use.
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def policy(self, *, k: int, delay_rows: int, beta: int = 50, mu: int = 100, seed: int = 0) -> Policy:
        return Policy(
            person="person",
            quasi_identifiers=self.quasi_identifiers,
            k=k,
            delay_rows=delay_rows,
            method="castle",
            parameters=CastleParameters(beta=beta, mu=mu),
            seed=seed,
        )

    def first(self, count: int) -> Stream:
        """Return only the first rows. The domains stay."""
        extra = {name: column[:count] for name, column in self.extra.items()}
        return replace(self, rows=self.rows.slice(0, min(count, len(self.rows))), extra=extra)

    def drawn(self, count: int, seed: int = 0) -> Stream:
        """Draw rows with replacement, each of its own person."""
        chosen = np.random.default_rng(seed).integers(len(self.rows), size=count)
        rows = replace(self.rows.take(chosen), person=np.arange(count, dtype=np.int64))
        extra = {name: column[chosen] for name, column in self.extra.items()}
        return replace(self, rows=rows, extra=extra)


def data_folder() -> Path:
    """Return the folder of the public data sets."""
    named = os.environ.get("CRENEL_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        raise NoDataError("no data sets: neither $CRENEL_DATA nor ../shared/data is a folder")
    return folder


def adult(
    names: Sequence[str] = ADULT,
    *,
    rows: int = UCI,
    extra: Sequence[str] = (),
    cut: Sequence[str] = (),
    folder: Path | None = None,
) -> Stream:
    """Load Adult without missing values, in the order of its file, with one person per row.

    Domains are those of the data, and hierarchies are those of ARX.

    Args:
        names: The quasi-identifiers.
        rows: `UCI` or `SFU`.
        extra: Further categorical columns to keep, as the numbers of their leaves.
        cut: Numbers whose domain ends at their 1% and 99% quantiles; values beyond are moved there.
        folder: The folder of the data, if it is not the usual one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = folder or data_folder()
    table = pq.read_table(folder / f"adult_{rows}.parquet", columns=sorted({*names, *extra}))
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    quasi_identifiers: dict[str, QuasiIdentifier] = {}
    for name in names:
        if name in CATEGORICAL:
            quasi_identifiers[name] = adult_categories(name, folder)
        else:
            values = columns[name].to_numpy()
            if name in cut:
                values = np.clip(values, *np.quantile(values, [0.01, 0.99], method="nearest"))
                columns[name] = pa.array(values)
            quasi_identifiers[name] = Numeric(domain=(float(values.min()), float(values.max())))
    return Stream(
        _encoded(quasi_identifiers, columns, np.arange(table.num_rows)),
        quasi_identifiers,
        name="UCI-Adult" if rows == UCI else "SFU-Adult",
        extra={name: adult_categories(name, folder).coordinates(columns[name])[0].astype(np.int64) for name in extra},
    )


def adult_categories(name: str, folder: Path | None = None) -> Categorical:
    """Return a categorical column of Adult with the hierarchy of ARX."""
    path = (folder or data_folder()) / "hierarchies" / "adult_arx" / f"{name}.csv"
    return Categorical(hierarchy=Hierarchy.from_csv(path))


def census(*, folder: Path | None = None) -> Stream:
    """Load the census of 2018 (ACS, public employees), in the order of its file, with one person per row."""
    import pyarrow.parquet as pq

    folder = folder or data_folder()
    table = pq.read_table(folder / "census_acs2018_gov.parquet", columns=list(CENSUS))
    columns: dict[str, Any] = {name: table[name].combine_chunks() for name in table.column_names}
    columns["education_level"] = columns["education_level"].cast("string")
    quasi_identifiers: dict[str, QuasiIdentifier] = {"age": Numeric(domain=(16, 99))}
    for name in CENSUS[1:]:
        quasi_identifiers[name] = Categorical(
            hierarchy=Hierarchy.from_csv(folder / "hierarchies" / "census" / f"{name}.csv")
        )
    return Stream(_encoded(quasi_identifiers, columns, np.arange(table.num_rows)), quasi_identifiers, name="census")


def taxi(*, rows: int, timed: bool = False, folder: Path | None = None) -> Stream:
    """Load the first rides of 2019 in New York's yellow taxis: distance, fare, both zones; one person per ride.

    Rides of more than 30 miles or 100 dollars, and empty rides, are left out. With `timed`, rides have the time at
    which they ended, and are sorted by it.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    folder = folder or data_folder()
    limits = {"trip_distance": 30.0, "fare_amount": 100.0}
    zones = ("pickup_location_id", "dropoff_location_id")
    table = pq.read_table(folder / "taxi_yellow_2019.parquet", columns=[*limits, *zones, "dropoff_datetime"])
    for name, most in limits.items():
        table = table.filter((pc.field(name) > 0) & (pc.field(name) <= most))
    table = table.slice(0, rows)
    columns: dict[str, Any] = {name: table[name].combine_chunks() for name in table.column_names}
    ended = columns.pop("dropoff_datetime").to_numpy().astype("datetime64[us]").astype(np.int64)
    quasi_identifiers: dict[str, QuasiIdentifier] = {n: Numeric(domain=(0.0, most)) for n, most in limits.items()}
    for name in zones:
        columns[name] = columns[name].cast("string")
        hierarchy = Hierarchy.from_csv(folder / "hierarchies" / "taxi" / "location_id.csv")
        quasi_identifiers[name] = Categorical(hierarchy=hierarchy)
    encoded = _encoded(quasi_identifiers, columns, np.arange(table.num_rows))
    if timed:
        encoded = replace(encoded, time=ended).take(np.argsort(ended, kind="stable"))
    return Stream(encoded, quasi_identifiers, name="taxi")


def power_law(*, alpha: float, rows: int, dimensions: int = 6, values: int = 1_000, seed: int = 0) -> Stream:
    """Draw rows whose values have p(v) = c / v**alpha for v in 1..values, as `genzipf` draws them.

    Quasi-identifiers are independent of each other. Alpha 0 is uniform. There is one person per row.
    """
    weights = np.arange(1, values + 1, dtype=np.float64) ** -alpha
    chances = weights / weights.sum()
    drawn = np.random.default_rng(seed).choice(values, size=(rows, dimensions), p=chances) + 1.0
    domain = (1.0, float(values))
    return Stream(
        _rows(drawn, np.arange(rows)),
        {f"v{i + 1}": Numeric(domain=domain) for i in range(dimensions)},
        name=f"power law, alpha {alpha:g}",
    )


def sal(dimensions: int, *, rows: int, seed: int = 0, distinct: bool = False, folder: Path | None = None) -> Stream:
    """Draw rows from the census of 2018, which stands for SAL, with the first of seven quasi-identifiers.

    As in the paper on continuous publishing, each value is a number. A category becomes the number of its leaf,
    depth-first. Rows with equal values belong to one person.

    Args:
        dimensions: The number of quasi-identifiers.
        rows: The number of rows to draw, without replacement.
        seed: The seed of the draw.
        distinct: Whether to keep only the first row of each person.
        folder: The folder of the data, if it is not the usual one.
    """
    everything = _census(folder or data_folder())
    chosen = np.random.default_rng(seed).choice(len(everything), size=rows, replace=False)
    names, qi = SAL[:dimensions], everything[chosen, :dimensions]
    _, first, person = np.unique(qi, axis=0, return_index=True, return_inverse=True)
    domains = {name: (float(column.min()), float(column.max())) for name, column in zip(names, qi.T, strict=True)}
    made = _rows(qi, person.reshape(-1))
    return Stream(
        made.take(np.sort(first)) if distinct else made,
        {name: Numeric(domain=domain) for name, domain in domains.items()},
        name=f"SAL({rows:,}, {dimensions})",
    )


@cache
def _census(folder: Path) -> NDArray[np.float64]:
    """Load all rows of the census, with one column for each of SAL's."""
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "census_acs2018_gov.parquet", columns=list(SAL))
    return np.stack([_census_column(name, table[name].to_pylist(), folder) for name in SAL], axis=1)


def _census_column(name: str, values: list[Any], folder: Path) -> NDArray[np.float64]:
    if name == "age":
        return np.array(values, dtype=np.float64)
    if name == "occupation":  # by its 23 groups, because SAL has 25 occupations and the census 518
        return np.unique([value[:2] for value in values], return_inverse=True)[1].astype(np.float64)
    leaves = Hierarchy.from_csv(folder / "hierarchies" / "census" / f"{name}.csv").leaves
    number = {str(leaf): place for place, leaf in enumerate(leaves)}
    return np.array([number[str(value)] for value in values], dtype=np.float64)


def spread(kind: str, *, rows: int, seed: int = 0) -> Stream:
    """Draw three quasi-identifiers from 0 to 10: `uniform`, or `normal` around different means; one person per row."""
    random = np.random.default_rng(seed)
    if kind == "uniform":
        qi = random.uniform(0.0, 10.0, (rows, 3))
    else:  # N(5, 4), N(3.3, 9), N(6.6, 9)
        qi = np.clip(random.normal([5.0, 3.3, 6.6], [2.0, 3.0, 3.0], (rows, 3)), 0.0, 10.0)
    return Stream(_rows(qi, np.arange(rows)), {f"v{i + 1}": Numeric(domain=(0.0, 10.0)) for i in range(3)}, name=kind)


def repeated(stream: Stream, dup: int) -> Stream:
    """Replace each row by `dup` rows of one person that arrive together, like the items of one purchase.

    The paper joins transactions of IBM's Quest generator with Adult by person, and splits each transaction into one row
    per item on arrival. The items are not quasi-identifiers. So the method sees `dup` consecutive rows of the same
    person with the same values, and that is what this function makes.
    """
    each = np.repeat(np.arange(len(stream.rows)), dup)
    return replace(
        stream,
        rows=stream.rows.take(each),
        name=f"{stream.name}, {dup} rows a person",
        extra={name: column[each] for name, column in stream.extra.items()},
    )


def _encoded(
    quasi_identifiers: Mapping[str, QuasiIdentifier],
    columns: Mapping[str, Any],
    person: NDArray[np.int64],
) -> Rows:
    policy = Policy(person="person", quasi_identifiers=quasi_identifiers, k=2, delay_rows=2)
    encoded = Encoder(policy).encode({**columns, "person": person})
    if encoded.rejected:
        raise ValueError(f"datasets: {len(encoded.rejected)} rows do not fit their own domains.")
    return encoded.rows


def _rows(qi: NDArray[np.float64], person: NDArray[np.int64]) -> Rows:
    count = len(person)
    none = np.zeros((count, 0), dtype=np.int64)
    return Rows(np.ascontiguousarray(qi), person.astype(np.int64), none, np.zeros(count, dtype=np.int64))
