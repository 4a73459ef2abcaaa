"""`WriteToBigQuery` takes what is published as it is, by the schema that is told beforehand.

The service cannot be had here. Beam's own code runs up to it: it writes the files that it would load, and hands them to
a stand-in of the service's client, which reads them.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import pyarrow as pa
import pytest

from crenel import Policy
from crenel.transforms import Anonymize, bigquery_schema, published_schema
from tests.transforms.test_sinks import POLICY, ROWS, TABLE

FORMS = ["columns", "struct", "text"]


def kinds(schema: dict[str, Any]) -> dict[str, str]:
    return {field["name"]: field["type"] for field in schema["fields"]}


def test_the_schema_of_published_rows() -> None:
    policy = Policy.of(POLICY)
    assert kinds(bigquery_schema(policy, TABLE.schema)) == {
        **{"age_lo": "INTEGER", "age_hi": "INTEGER", "born_lo": "DATE", "born_hi": "DATE"},
        **{"seen_lo": "TIMESTAMP", "seen_hi": "TIMESTAMP", "size_lo": "FLOAT", "size_hi": "FLOAT"},
        **{"zip": "STRING", "ward": "STRING"},
    }
    struct = bigquery_schema(policy, TABLE.schema, "struct")
    assert kinds(struct) == {
        **dict.fromkeys(("age", "born", "seen", "size"), "RECORD"),
        "zip": "STRING",
        "ward": "STRING",
    }
    assert kinds(struct["fields"][0]) == {"lo": "FLOAT", "hi": "FLOAT"}
    assert set(kinds(bigquery_schema(policy, TABLE.schema, "text")).values()) == {"STRING"}
    assert all(field["mode"] == "NULLABLE" for field in struct["fields"])


def test_the_input_may_be_a_table_of_bigquery() -> None:
    types = ["BOOL", "INT64", "FLOAT64", "DATE", "TIME", "TIMESTAMP", "DATETIME", "NUMERIC", "BIGNUMERIC", "BYTES"]
    fields = [{"name": f"c{place}", "type": kind} for place, kind in enumerate(types)]
    fields += [{"name": "tags", "type": "STRING", "mode": "REPEATED"}, {"name": "place", "type": "GEOGRAPHY"}]
    policy = Policy.of({**POLICY, "publish": [field["name"] for field in fields]})
    found = bigquery_schema(policy, {"fields": fields})
    told = {field["name"]: field for field in found["fields"]}
    expected = ["BOOLEAN", "INTEGER", "FLOAT", *types[3:]]
    assert [told[f"c{place}"]["type"] for place in range(len(types))] == expected
    assert (told["tags"]["type"], told["tags"]["mode"]) == ("STRING", "REPEATED")
    assert told["place"]["type"] == "STRING"


@pytest.mark.parametrize(
    ("publish", "given", "said"),
    [
        ("the ward", pa.schema([("the ward", pa.string())]), "'the ward' is no name of a column in BigQuery"),
        ("a.b", pa.schema([("a.b", pa.string())]), "'a.b' is no name of a column in BigQuery"),
        ("ward", pa.schema([("other", pa.string())]), "has no column 'ward', which the policy publishes"),
        (
            "ward",
            pa.schema([("ward", pa.map_(pa.string(), pa.string()))]),
            "no type for the column 'ward', which holds",
        ),
    ],
)
def test_what_bigquery_does_not_have_is_refused(publish: str, given: pa.Schema, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bigquery_schema(Policy.of({**POLICY, "publish": [publish]}), given)


class Service:
    """Stands for the client of the service: takes jobs that load files, and keeps their rows."""

    def __init__(self, folder: Path) -> None:
        #: Where rows are kept: steps of a pipeline have copies of this object.
        self.folder = folder
        self.jobs = self
        self.tables = self

    def Insert(self, request: Any, upload: Any = None) -> Any:
        load = request.job.configuration.load
        rows: list[Any] = []
        for uri in load.sourceUris:
            if load.sourceFormat == "AVRO":
                with open(uri, "rb") as file:
                    rows += fastavro.reader(file)
            else:
                rows += map(json.loads, Path(uri).read_text("utf-8").splitlines())
        place = self.folder / f"{len(list(self.folder.iterdir()))}.json"
        told = {"rows": rows, "fields": [(field.name, field.type) for field in load.schema.fields]}
        place.write_text(json.dumps(told, default=str))
        return self._job(request.job.jobReference)

    def Get(self, request: Any) -> Any:
        from apache_beam.io.gcp.internal.clients import bigquery

        return self._job(bigquery.JobReference(projectId="project1", jobId=getattr(request, "jobId", "j")))

    def _job(self, reference: Any) -> Any:
        from apache_beam.io.gcp.internal.clients import bigquery

        status = bigquery.JobStatus(state="DONE")
        return bigquery.Job(jobReference=reference, status=status, statistics=bigquery.JobStatistics())


@pytest.mark.parametrize("ranges", FORMS)
@pytest.mark.parametrize("format_", ["NEWLINE_DELIMITED_JSON", "AVRO"])
def test_beam_writes_what_is_published(ranges: str, format_: str, tmp_path: Path) -> None:
    pytest.importorskip("apitools", reason="needs Google's libraries: pip install 'crenel[gcp]'")
    from apache_beam.io.gcp.bigquery import WriteToBigQuery

    (tmp_path / "rows").mkdir()
    (tmp_path / "temporary").mkdir()
    schema = bigquery_schema(Policy.of(POLICY), TABLE.schema, ranges)
    with beam.Pipeline("FnApiRunner") as pipeline:
        rows = pipeline | beam.Create(ROWS) | Anonymize(POLICY, ranges=ranges)
        _ = rows | WriteToBigQuery(
            "project1:dataset.table",
            schema=schema,
            method="FILE_LOADS",
            temp_file_format=format_,
            custom_gcs_temp_location=str(tmp_path / "temporary"),
            test_client=Service(tmp_path / "rows"),
            validate=False,
            create_disposition="CREATE_IF_NEEDED",
        )
    jobs = [json.loads(place.read_text()) for place in (tmp_path / "rows").iterdir()]
    found = [row for job in jobs for row in job["rows"]]
    assert len(found) > 50
    assert all(dict(job["fields"]) == kinds(schema) for job in jobs)
    assert all(set(row) == set(kinds(schema)) for row in found)
    if ranges == "columns":
        assert all(type(row["age_lo"]) is int and type(row["size_lo"]) is float for row in found)
        moments = [dt.datetime.fromisoformat(row["seen_hi"]) for row in found]
        assert all(one.tzinfo is not None for one in moments)
        assert all(dt.date.fromisoformat(row["born_lo"]) <= dt.date.fromisoformat(row["born_hi"]) for row in found)


def test_a_pipeline_publishes_by_the_schema_that_is_told() -> None:
    told = published_schema(Policy.of(POLICY), TABLE.schema, "columns")
    assert [field.name for field in told] == list(kinds(bigquery_schema(Policy.of(POLICY), TABLE.schema)))
