"""Sinks of other projects take published rows with ranges as columns, without a step in between."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest

import crenel
from crenel.transforms import Anonymize, published_schema

POLICY: dict[str, Any] = {
    "version": 1,
    "person": "who",
    "quasi_identifiers": {
        "age": {"type": "numeric", "domain": [0, 120], "step": 5},
        "born": {"type": "datetime", "domain": ["1900-01-01", "2030-01-01"], "step": "30d"},
        "seen": {"type": "datetime", "domain": ["2020-01-01", "2030-01-01"]},
        "size": {"type": "numeric"},
        "zip": {"type": "prefix", "length": 5},
    },
    "publish": ["ward"],
    "k": 4,
    "delay_rows": 40,
    "seed": 7,
}
ROWS = [
    {
        "who": number,
        "age": 7 * number % 90,
        "born": dt.date(1950, 1, 1) + dt.timedelta(days=211 * number % 9000),
        "seen": dt.datetime(2021, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(minutes=977 * number % 90_000),
        "size": number % 17 + 0.5,
        "zip": f"48{number % 100:03}",
        "ward": f"w{number % 3}",
    }
    for number in range(60)
]
TABLE = pa.Table.from_pylist(ROWS)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Create a table `open.visits` of published rows in a local catalog; return how to find it."""
    pytest.importorskip("pyiceberg.catalog.sql", reason="needs pyiceberg: pip install 'pyiceberg[sql-sqlite]'")
    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    with opened(where) as local:
        local.create_namespace("open")
        schema = published_schema(crenel.Policy.of(POLICY), TABLE.schema, "columns")
        local.create_table("open.visits", schema=schema)
    yield where


@contextmanager
def opened(where: dict[str, str]) -> Iterator[Any]:
    from pyiceberg.catalog.sql import SqlCatalog

    local = SqlCatalog("local", **where)
    try:
        yield local
    finally:
        local.close()


def append(batch: pa.RecordBatch, where: dict[str, str]) -> None:
    """Append a published batch to the table."""
    with opened(where) as local:
        local.load_table("open.visits").append(pa.Table.from_batches([batch]))


def test_iceberg_takes_a_published_table(catalog: dict[str, str]) -> None:
    published = crenel.anonymize(TABLE, POLICY, ranges="columns").published
    with opened(catalog) as local:
        table = local.load_table("open.visits")
        table.append(published)
        stored = table.scan().to_arrow()
        kinds = {field.name: str(field.field_type) for field in table.schema().fields}
    assert stored.num_rows == published.num_rows > 50
    assert stored.select(published.schema.names).to_pylist() == published.to_pylist()
    ends = [kinds[f"{name}_lo"] for name in ("age", "born", "seen", "size")]
    assert ends == ["long", "date", "timestamptz", "double"]


def test_iceberg_takes_what_a_pipeline_publishes(catalog: dict[str, str]) -> None:
    with beam.Pipeline("FnApiRunner") as pipeline:
        rows = pipeline | beam.Create(TABLE.to_batches()) | Anonymize(POLICY, ranges="columns")
        rows.published | "Append" >> beam.Map(append, catalog)
    with opened(catalog) as local:
        table = local.load_table("open.visits")
        everything = table.scan().to_arrow().to_pylist()
        young = table.scan(row_filter="age_hi <= 45").to_arrow().to_pylist()
    assert len(everything) > 50
    assert len(young) == sum(row["age_hi"] <= 45 for row in everything) > 0
