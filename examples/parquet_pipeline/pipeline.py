"""A Beam pipeline of your own: Parquet in, `Anonymize`, Parquet out.

    python examples/parquet_pipeline/pipeline.py [FOLDER] [Beam's flags]

It writes a made-up `visits.parquet` into FOLDER (here: the current one) and publishes it. With Beam's flags the same
pipeline runs elsewhere, such as `--runner=FlinkRunner`.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions

from crenel import Anonymize, Policy
from crenel.transforms import published_schema

POLICY = Policy.from_yaml(Path(__file__).parent / "policy.yaml")


def write_visits(path: Path, rows: int = 5_000) -> pa.Schema:
    """Write made-up visits to a hospital, and return their schema."""
    draw = random.Random(0)
    start = dt.datetime(2026, 3, 2, 8, tzinfo=dt.timezone.utc)
    table = pa.table(
        {
            "patient": [draw.randrange(1_500) for _ in range(rows)],
            "name": [f"patient {i}" for i in range(rows)],
            "seen_at": [start + dt.timedelta(seconds=6 * i) for i in range(rows)],
            "age": [min(99, max(0, round(draw.gauss(48, 21)))) for _ in range(rows)],
            "zipcode": [draw.choice(("53703", "53711", "53715", "54601", "54603")) for _ in range(rows)],
            "diagnosis": [draw.choice(("flu", "asthma", "fracture", "gout")) for _ in range(rows)],
        }
    )
    pq.write_table(table, path)
    return table.schema


def main(argv: list[str]) -> None:
    """Publish `visits.parquet` as `published-*.parquet`."""
    folder = Path(argv.pop(0)) if argv and not argv[0].startswith("--") else Path()
    schema = write_visits(folder / "visits.parquet")
    with beam.Pipeline(options=PipelineOptions(argv)) as pipeline:
        visits = pipeline | "Read" >> beam.io.ReadFromParquetBatched(str(folder / "visits.parquet"))
        anonymized = visits | "Anonymize" >> Anonymize(POLICY)
        _ = anonymized | "Write" >> beam.io.WriteToParquetBatched(
            str(folder / "published"), schema=published_schema(POLICY, schema), file_name_suffix=".parquet"
        )
        # For the owner alone: these hold exact values.
        _ = anonymized.rejected | "Write rejected" >> beam.io.WriteToText(str(folder / "rejected"))


if __name__ == "__main__":
    main(sys.argv[1:])
