"""Avro values: a record is read with the schema that it was written with, or not at all."""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.messages.output_fit import OutputFit
from crenel.pipelines.kafka.messages.value_formats import reading, writing
from crenel.pipelines.kafka.messages.values import UNFIT, AvroValues, Unreadable
from crenel.pipelines.kafka.sink import EncodeRows
from crenel.pipelines.kafka.topic_job import Request, range_form
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms._publish.grouped_rows import GroupedRows
from crenel.transforms._publish.range_form import Ranges

VISIT: dict[str, Any] = {
    "type": "record",
    "name": "Visit",
    "fields": [
        {"name": "who", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "kind", "type": "string"},
    ],
}
#: The same fields, but two of one type are swapped: either schema can read the bytes of the other.
SWAPPED = {**VISIT, "fields": [VISIT["fields"][0], VISIT["fields"][2], VISIT["fields"][1]]}
ROW = {"who": 7, "name": "Xanthippe", "kind": "check-up"}

POLICY = Policy.from_dict(
    {
        "version": 1,
        "person": "who",
        "quasi_identifiers": {"kind": {"type": "categorical", "hierarchy": ["check-up", "flu"]}},
        "publish": ["name"],
        "k": 2,
        "delay_rows": 9,
    }
)


def bare(row: dict[str, Any], schema: dict[str, Any] = VISIT) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def topic(folder: Path, schema: Any = VISIT, **options: str) -> Topic:
    (folder / "visit.avsc").write_text(json.dumps(schema))
    options = {"format": "avro", "schema": str(folder / "visit.avsc"), **options}
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return Topic.of(f"kafka://a:1/visits?{query}", read=True)


def test_a_record_is_read_and_written(tmp_path: Path) -> None:
    of = topic(tmp_path)
    assert reading(of).read(bare(ROW)) == ROW
    assert writing(of).write(ROW) == bare(ROW)


def test_a_single_object_of_another_schema_is_rejected(tmp_path: Path) -> None:
    """A writer that swaps two fields has another schema, and therefore another fingerprint."""
    swapped = writing(topic(tmp_path, SWAPPED, encoding="single")).write(ROW)
    of = topic(tmp_path, encoding="single")
    with pytest.raises(Unreadable, match="not Avro of this schema"):
        reading(of).read(swapped)
    assert reading(of).read(writing(of).write(ROW)) == ROW


@pytest.mark.parametrize("value", [b"", b"{}", b"\16\2a", bare(ROW) + b"\0", bare(ROW)[:-1]])
def test_what_is_not_of_this_schema_is_rejected(tmp_path: Path, value: bytes) -> None:
    with pytest.raises(Unreadable, match="not Avro of this schema"):
        reading(topic(tmp_path)).read(value)


def test_a_broken_schema_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"visit\.avsc must hold the Avro schema of a record"):
        reading(topic(tmp_path, "long"))


def test_the_schema_of_published_rows_is_derived(tmp_path: Path) -> None:
    topic(tmp_path)
    read, out = f"kafka://a:1/visits?format=avro&schema={tmp_path / 'visit.avsc'}", tmp_path / "out.avsc"
    outputs = {"published": f"kafka://a:1/published?format=avro&schema={out}"}
    request = Request.of(POLICY, [read], outputs, local=True)
    assert {field["name"] for field in json.loads(out.read_text())["fields"]} == {"kind", "name"}
    place = request.outputs["published"]
    assert isinstance(place, Topic)
    assert writing(place).write({"kind": "*", "name": "x"})


def test_a_header_is_refused_where_a_schema_describes_the_columns(tmp_path: Path) -> None:
    topic(tmp_path)
    policy = Policy.from_dict({**POLICY.to_dict(), "publish": ["header:region"]})
    read, out = f"kafka://a:1/visits?format=avro&schema={tmp_path / 'visit.avsc'}", tmp_path / "out.avsc"
    with pytest.raises(CommandError, match=r"must name no header \(header:region\)"):
        Request.of(policy, [read], {"published": f"kafka://a:1/out?format=avro&schema={out}"}, local=True)
    assert Request.of(policy, [read], {"published": "kafka://a:1/out"}, local=True)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                ("a", "b", "c", "d", "e"),
                st.none()
                | st.booleans()
                | st.integers(-(2**64), 2**64)
                | st.floats()
                | st.text(max_size=2)
                | st.binary(),
            ),
        ),
        max_size=6,
    )
)
def test_rows_fit_together_if_and_only_if_each_fits(rows: list[dict[str, Any]]) -> None:
    """What the types of a column tell at once is what fastavro says of each row."""
    kinds = {"a": "int", "b": ["null", "long"], "c": ["string", "int"], "d": ["null", "double"], "e": "bytes"}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    of = writing(Topic(servers="a:1", name="t", format="avro", schema="r.avsc", schema_text=text))

    def misfit(row: dict[str, Any]) -> str | None:
        alone = {
            name: {"type": "record", "name": "R", "fields": [one]} for name, one in zip(kinds, fields, strict=True)
        }
        told = ((name, fastavro.validate({name: row.get(name)}, alone[name], raise_errors=False)) for name in kinds)
        return next((name for name, fits in told if not fits), None)

    expected = {place: found for place, row in enumerate(rows) if (found := misfit(row)) is not None}
    assert of.misfits(rows, tuple(kinds)) == expected


_SPAN = {"type": "record", "name": "Span", "fields": [{"name": "lo", "type": "long"}, {"name": "hi", "type": "long"}]}
_SHARED = [{"name": "age", "type": ["null", _SPAN]}, {"name": "stay", "type": ["null", "Span"]}]
_OWN = [{"name": "ill", "type": ["null", "string"]}, {"name": "a_note", "type": "int"}]
#: Schemas of the same fields in several orders, and whether those that rows of a release share come first.
_ORDERS = {
    "shared first": [*_SHARED, *_OWN],
    "own first": [_OWN[0], *_SHARED, _OWN[1]],
    "own type": [*_SHARED, *_OWN, {"name": "more", "type": ["null", "Span"]}],
}
_SPANS = st.none() | st.fixed_dictionaries({"lo": st.integers(0, 9), "hi": st.integers(0, 9)})


@pytest.mark.parametrize("order", _ORDERS)
@pytest.mark.parametrize("encoding", ["bare", "single"])
@given(
    releases=st.lists(
        st.tuples(
            st.fixed_dictionaries({"age": _SPANS, "stay": _SPANS}),
            st.lists(st.tuples(st.none() | st.text(max_size=2), st.integers(0, 99) | st.just("x"), _SPANS), max_size=3),
        ),
        max_size=4,
    )
)
def test_rows_of_a_release_are_written_together_as_each_alone(order: str, encoding: str, releases: list[Any]) -> None:
    text = json.dumps({"type": "record", "name": "R", "fields": _ORDERS[order]})
    of = writing(Topic(servers="a:1", name="t", format="avro", encoding=encoding, schema="r.avsc", schema_text=text))
    own = [row for _, rows in releases for row in rows]
    columns = {name: [row[place] for row in own] for place, name in enumerate(("ill", "a.note", "more"))}
    if order != "own type":
        del columns["more"]
    grouped = GroupedRows([box for box, _ in releases], [len(rows) for _, rows in releases], columns)
    together, alone = (
        [value if isinstance(value, bytes) else (value.field, value.reason) for value in of.write_many(rows)]
        for rows in (grouped, list(grouped))
    )
    assert together == alone
    wrong = [place for place, row in enumerate(own) if row[1] == "x"]
    assert wrong == [place for place, value in enumerate(together) if value == ("a_note", UNFIT)]


def test_what_rows_share_is_told_from_their_own_fields() -> None:
    found = {}
    for order, fields in _ORDERS.items():
        text = json.dumps({"type": "record", "name": "R", "fields": fields})
        of = AvroValues(Topic(servers="a:1", name="t", format="avro", schema="r.avsc", schema_text=text))
        halves = of._halves(("ill", "a_note", "more"))
        found[order] = halves and [[field["name"] for field in half["fields"]] for half in halves]
    shared = ["age", "stay"]
    assert found == {
        "shared first": [shared, ["ill", "a_note"]],
        "own first": None,
        "own type": [shared, ["ill", "a_note", "more"]],
    }


@pytest.mark.parametrize("namespace", [{}, {"namespace": "org.clinic"}])
@pytest.mark.parametrize("order", ["own last", "shared last"])
def test_a_record_that_holds_records_like_itself_is_written_whole(order: str, namespace: dict[str, str]) -> None:
    """Neither half of its fields is the record that the field `inner` is of."""
    fields = [{"name": "age", "type": ["null", "long"]}, {"name": "inner", "type": ["null", "R"]}]
    fields = fields if order == "own last" else fields[::-1]
    schema = {"type": "record", "name": "R", **namespace, "fields": fields}
    of = writing(Topic(servers="a:1", name="t", format="avro", schema="r.avsc", schema_text=json.dumps(schema)))
    inner = [{"age": 7, "inner": None}, None, {"age": None, "inner": {"age": 8, "inner": None}}]
    box, columns = ({"age": 30}, {"inner": inner}) if order == "own last" else ({"inner": inner[2]}, {"age": [1, 2, 3]})
    grouped = GroupedRows([box], [3], columns)
    values = of.write_many(grouped)
    assert values == list(map(of.write, grouped))
    assert [of.read(value) for value in values if isinstance(value, bytes)] == list(map(dict, grouped))


def test_paths_are_published_under_names_without_dots(tmp_path: Path) -> None:
    address = {"type": "record", "name": "address", "fields": [{"name": "zip", "type": "string"}]}
    who = [{"name": "id", "type": "string"}, {"name": "stay", "type": "int"}, {"name": "address", "type": address}]
    patient = {"type": "record", "name": "patient", "fields": who}
    schema = {"type": "record", "name": "visit", "fields": [{"name": "patient", "type": ["null", patient]}]}
    said = tmp_path / "nested.avsc"
    said.write_text(json.dumps(schema))
    policy = Policy.from_dict(
        {
            "person": "patient.id",
            "quasi_identifiers": {"patient.address.zip": {"type": "prefix", "length": 5}},
            "publish": ["patient.stay"],
            "k": 2,
            "delay": "1m",
        }
    )
    read, out = f"kafka://a:1/visits?format=avro&schema={said}", tmp_path / "out.avsc"
    place = f"kafka://a:1/published?format=avro&schema={out}"
    request = Request.of(policy, [read], {"published": place}, local=True)
    fields = {field["name"]: field["type"] for field in json.loads(out.read_text())["fields"]}
    assert fields == {"patient_address_zip": ["null", "string"], "patient_stay": ["null", "int"]}
    published = request.outputs["published"]
    assert isinstance(published, Topic)
    row = {"patient.address.zip": "1****", "patient.stay": 3}
    assert reading(published).read(writing(published).write(row)) == {"patient_address_zip": "1****", "patient_stay": 3}
    # A value that the output cannot hold is found within its object, before the row is taken.
    rows = [{"patient": {"stay": 3}}, {"patient": {"stay": "long"}}, {"patient": None}]
    assert list(OutputFit(policy, published).problems(rows, [1, 1, 1]).items()) == [(1, ("patient.stay", UNFIT))]


def test_paths_that_become_one_name_are_refused_in_avro(tmp_path: Path) -> None:
    topic(tmp_path)
    policy = Policy.from_dict({**POLICY.to_dict(), "publish": ["a.b", "a_b"]})
    read = f"kafka://a:1/visits?format=avro&schema={tmp_path / 'visit.avsc'}"
    outputs = {"published": f"kafka://a:1/published?format=avro&schema={tmp_path / 'out.avsc'}"}
    with pytest.raises(CommandError, match=r"'a\.b' and 'a_b' would both be called 'a_b'"):
        Request.of(policy, [read], outputs, local=True)


RANGED = Policy.from_dict(
    {
        "version": 1,
        "person": "who",
        "quasi_identifiers": {
            "age": {"type": "numeric", "domain": [0, 100]},
            "wage": {"type": "numeric", "domain": [0, 1000]},
            "born": {"type": "datetime", "domain": ["1900-01-01", "2020-01-01"], "step": "30d"},
            "seen": {"type": "datetime", "domain": ["2020-01-01", "2022-01-01"]},
        },
        "publish": ["note"],
        "k": 2,
        "delay_rows": 10,
    }
)
RANGED_VISIT = {
    "type": "record",
    "name": "Visit",
    "fields": [
        {"name": "who", "type": "long"},
        {"name": "age", "type": ["null", "int"]},
        {"name": "wage", "type": "double"},
        {"name": "born", "type": {"type": "int", "logicalType": "date"}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": "string"},
    ],
}
RELEASED = {
    "age": {"lo": 30.0, "hi": 39.0},
    "wage": {"lo": 2.0, "hi": 2.5},
    "born": {"lo": "1950-01-11T00:00:00Z", "hi": "1950-02-10T00:00:00Z"},
    "seen": {"lo": "2021-01-01T10:00:00Z", "hi": "2021-01-02T00:00:00Z"},
    "note": "x",
}


def encoded(request: Request) -> bytes:
    """Encode a published row as a run does."""
    step = EncodeRows("published", request.outputs["published"], range_form(request, "published"))
    step.setup()
    ((made,),) = step.process(RowBatch([RELEASED], [0]))
    return made[2]


def test_ranges_are_columns_of_their_types_in_avro(tmp_path: Path) -> None:
    topic(tmp_path, RANGED_VISIT)
    read, out = f"kafka://a:1/visits?format=avro&schema={tmp_path / 'visit.avsc'}", tmp_path / "out.avsc"
    outputs = {"published": f"kafka://a:1/published?format=avro&schema={out}"}
    request = Request.of(RANGED, [read], outputs, local=True, ranges=Ranges.COLUMNS)
    schema = fastavro.parse_schema(json.loads(out.read_text()))
    assert fastavro.schemaless_reader(io.BytesIO(encoded(request)), schema, None) == {
        "age_lo": 30,
        "age_hi": 39,
        "wage_lo": 2.0,
        "wage_hi": 2.5,
        "born_lo": dt.date(1950, 1, 11),
        "born_hi": dt.date(1950, 2, 10),
        "seen_lo": dt.datetime(2021, 1, 1, 10, tzinfo=dt.timezone.utc),
        "seen_hi": dt.datetime(2021, 1, 2, tzinfo=dt.timezone.utc),
        "note": "x",
    }
    kinds = {
        field["name"]: field["type"][1] for field in json.loads(out.read_text())["fields"] if field["name"] != "note"
    }
    assert (kinds["age_lo"], kinds["wage_lo"]) == ("long", "double")


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (
            Ranges.COLUMNS,
            {
                "age_lo": 30,
                "age_hi": 39,
                "wage_lo": 2,
                "wage_hi": 2.5,
                "born_lo": "1950-01-11",
                "born_hi": "1950-02-10",
                "seen_lo": "2021-01-01T10:00:00Z",
                "seen_hi": "2021-01-02T00:00:00Z",
                "note": "x",
            },
        ),
        (
            Ranges.TEXT,
            {
                "age": "[30, 39]",
                "wage": "[2, 2.5]",
                "born": "[1950-01-11T00:00:00Z, 1950-02-10T00:00:00Z]",
                "seen": "[2021-01-01T10:00:00Z, 2021-01-02T00:00:00Z]",
                "note": "x",
            },
        ),
        (Ranges.STRUCT, RELEASED),
    ],
)
def test_ranges_in_json(ranges: Ranges, expected: dict[str, Any]) -> None:
    request = Request.of(RANGED, ["kafka://a:1/in"], {"published": "kafka://a:1/out"}, local=True, ranges=ranges)
    made = encoded(request)
    assert json.loads(made) == expected
    assert ranges is not Ranges.COLUMNS or b'"age_lo":30,' in made


def test_ranges_that_a_topic_cannot_have_are_refused_before_a_broker_is_asked() -> None:
    taken = Policy.from_dict({**RANGED.to_dict(), "publish": ["age_lo"]})
    outputs = {"published": "kafka://a:1/out"}
    with pytest.raises(CommandError, match="--ranges columns makes a column 'age_lo', which the policy publishes"):
        Request.of(taken, ["kafka://a:1/in"], outputs, local=True, ranges=Ranges.COLUMNS)
