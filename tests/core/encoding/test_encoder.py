from __future__ import annotations

import datetime as dt
import pickle
import subprocess
import sys
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.encoding.encoder import Encoder, Rejection
from crenel.encoding.rows import Rows
from crenel.policy import Policy

POLICY = Policy.from_dict(
    {
        "person": "id",
        "event_time": "at",
        "quasi_identifiers": {
            "age": {"type": "numeric", "domain": [0, 120]},
            "zip": {"type": "prefix", "length": 5},
            "school": {"type": "categorical", "hierarchy": {"S": ["9th", "10th"], "H": ["BSc"]}},
        },
        "sensitive": ["illness"],
        "publish": ["kind"],
        "k": 2,
        "delay": "10m",
    }
)

BATCH = {
    "id": ["a", "b", None, "d", "e", "", "g"],
    "at": [0, 1.5, 2, "soon", "1970-01-01T00:00:04Z", 5, None],
    "age": [30, 200, 40, 50, None, 60, 70],
    "zip": ["53706", "53703", "53706", "53706", "53706", "53706", "x"],
    "school": ["9th", "BSc", "9th", "9th", "?", "9th", "9th"],
    "illness": ["flu", "flu", "flu", "flu", "flu", "flu", "flu"],
}
GOOD = {
    "id": ["a", "b", "a"],
    "at": [0, 1.5, "1970-01-01T00:00:02Z"],
    "age": [30, 40, 50],
    "zip": ["53706", "53703", "00001"],
    "school": ["9th", "BSc", "10th"],
    "illness": ["flu", None, "flu"],
}


def test_rows_that_fit_are_encoded():
    encoded = Encoder(POLICY).encode(GOOD)
    assert encoded.rejected == ()
    assert encoded.kept.tolist() == [0, 1, 2]
    rows = encoded.rows
    assert len(rows) == 3
    assert rows.qi.tolist() == [[30, 53706, 0], [40, 53703, 2], [50, 1, 1]]
    assert rows.qi.flags.c_contiguous
    assert rows.time.tolist() == [0, 1_500_000, 2_000_000]
    assert rows.person[0] == rows.person[2] != rows.person[1]
    assert rows.sensitive[0, 0] == rows.sensitive[2, 0] != rows.sensitive[1, 0]
    assert repr(rows) == "Rows(3 rows)"


def test_rows_that_do_not_fit_are_rejected_by_their_first_column():
    encoded = Encoder(POLICY).encode(BATCH)
    assert encoded.kept.tolist() == [0]
    assert len(encoded.rows) == 1
    assert encoded.rejected == (
        Rejection(1, "age", "outside the domain"),
        Rejection(2, "id", "missing"),
        Rejection(3, "at", "not a date"),
        Rejection(4, "age", "missing (missing: category takes it)"),
        Rejection(5, "id", "missing"),
        Rejection(6, "at", "missing"),
    )


@pytest.mark.parametrize("name", ["id", "at", "age", "illness"])
def test_an_absent_column_rejects_all_rows(name):
    batch = {key: column for key, column in GOOD.items() if key != name}
    encoded = Encoder(POLICY).encode(batch)
    assert len(encoded.rows) == 0
    assert encoded.rejected == tuple(Rejection(i, name, "no such column") for i in range(3))


WITH_HOLES = Policy.from_dict({**POLICY.to_dict(), "method": "partition", "parameters": {}})
NOTHING = {
    "None": None,
    "NaN": float("nan"),
    "empty text": "",
    "Decimal's NaN": Decimal("nan"),
    "numpy's NaN": np.float64("nan"),
    "numpy's NaT": np.datetime64("NaT"),
    "pandas' NA": type("NAType", (), {})(),
}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
@pytest.mark.parametrize("name", ["age", "zip", "school"])
def test_a_missing_quasi_identifier(name, nothing):
    """Every form of a missing value is NaN for a method that takes it, and has the same reason for all others."""
    batch = {**GOOD, name: [GOOD[name][0], nothing, GOOD[name][2]]}
    encoded = Encoder(WITH_HOLES).encode(batch)
    assert encoded.rejected == ()
    place = list(POLICY.quasi_identifiers).index(name)
    expected = Encoder(POLICY).encode(GOOD).rows.qi
    expected[1, place] = np.nan
    np.testing.assert_array_equal(encoded.rows.qi, expected)
    rejection = Rejection(1, name, "missing (missing: category takes it)")
    assert Encoder(POLICY).encode(batch).rejected == (rejection,)


HOLED = {
    "numpy": lambda: np.array([30.0, np.nan, 50.0]),
    "masked": lambda: np.ma.array([30, 40, 50], mask=[False, True, False]),
    "Arrow's null": lambda: pa.array([30, None, 50]),
    "Arrow's NaN": lambda: pa.array([30.0, float("nan"), 50.0]),
    "Arrow's chunks": lambda: pa.chunked_array([pa.array([30]), pa.array([None, 50])]),
    "Arrow's objects": lambda: pa.array([None, None, None]),
}


@pytest.mark.parametrize("column", HOLED.values(), ids=HOLED)
def test_missing_values_in_columns_of_any_kind(column):
    encoded = Encoder(WITH_HOLES).encode({**GOOD, "age": column()})
    assert encoded.rejected == ()
    assert np.isnan(encoded.rows.qi[1, 0])


def test_missing_values_in_text_of_arrow():
    for texts in (["53706", "", None], pa.array(["53706", "", None]).dictionary_encode()):
        batch = {**GOOD, "zip": pa.array(texts) if isinstance(texts, list) else texts}
        encoded = Encoder(WITH_HOLES).encode(batch)
        assert encoded.rejected == ()
        assert np.isnan(encoded.rows.qi[:, 1]).tolist() == [False, True, True]


def test_a_wrong_value_is_not_a_missing_one():
    """A wrong value is never guessed to mean a missing one."""
    batch = {**GOOD, "age": [float("inf"), "?", 200], "school": [" ", "9th", "9th"]}
    assert [(r.field, r.reason) for r in Encoder(WITH_HOLES).encode(batch).rejected] == [
        ("age", "not a number"),
        ("age", "not a number"),
        ("age", "outside the domain"),
    ]
    assert Encoder(WITH_HOLES).encode({**GOOD, "school": [" ", "9th", None]}).rejected == (
        Rejection(0, "school", "unknown value"),
    )


def test_person_and_time_must_not_be_missing():
    batch = {**GOOD, "id": [None, "b", "c"], "at": [0, None, 2]}
    assert Encoder(WITH_HOLES).encode(batch).rejected == (Rejection(0, "id", "missing"), Rejection(1, "at", "missing"))


def test_an_absent_quasi_identifier_is_missing_in_all_rows():
    encoded = Encoder(WITH_HOLES).encode({name: column for name, column in GOOD.items() if name != "age"})
    assert encoded.rejected == ()
    assert np.isnan(encoded.rows.qi[:, 0]).all()


def test_empty_batches():
    encoded = Encoder(POLICY).encode({name: [] for name in GOOD})
    assert len(encoded.rows) == 0
    assert encoded.rows.qi.shape == (0, 3)
    assert encoded.rejected == ()
    assert len(Encoder(POLICY).encode({}).rows) == 0


def test_columns_of_different_lengths_are_an_error_that_shows_no_values():
    with pytest.raises(ValueError, match="all columns must be of one length, not id 3, at 2") as error:
        Encoder(POLICY).encode({**GOOD, "at": ["secret", "secret"]})
    assert "secret" not in str(error.value)


def test_arrow_numpy_and_lists_encode_to_the_same_rows():
    lists = {
        "id": [5, 6, 5],
        "at": [dt.datetime(2020, 1, day, tzinfo=dt.timezone.utc) for day in (1, 2, 3)],
        "age": [30, 40, 50],
        "zip": ["53706", "53703", "00001"],
        "school": ["9th", "BSc", "10th"],
        "illness": ["flu", None, "flu"],
    }
    arrow = {name: pa.array(column) for name, column in lists.items()}
    arrow["school"] = arrow["school"].dictionary_encode()
    chunked = {name: pa.chunked_array([a[:1], a[1:]]) for name, a in arrow.items()}
    arrays = {name: np.array(column, dtype=object) for name, column in lists.items()}
    arrays["id"] = np.array([5, 6, 5], dtype=np.uint16)
    arrays["age"] = np.array([30, 40, 50], dtype=np.float32)
    arrays["at"] = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[D]")
    first = Encoder(POLICY).encode(lists)
    assert first.rejected == ()
    for batch in (arrow, chunked, arrays):
        again = Encoder(POLICY).encode(batch)
        assert again.rejected == ()
        for part in ("qi", "person", "sensitive", "time"):
            assert np.array_equal(getattr(first.rows, part), getattr(again.rows, part)), part


def test_time_without_a_column():
    policy = Policy.from_dict({**POLICY.to_dict(), "event_time": None})
    batch = {name: column for name, column in GOOD.items() if name != "at"}
    times = np.array([7, 8, 9], dtype=np.int64)
    assert Encoder(policy).encode(batch, times).rows.time.tolist() == [7, 8, 9]
    with pytest.raises(ValueError, match="time must be given if the policy has delay and no event_time"):
        Encoder(policy).encode(batch)
    by_rows = Policy.from_dict({**POLICY.to_dict(), "event_time": None, "delay": None, "delay_rows": 5})
    assert Encoder(by_rows).encode(batch).rows.time.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="of one length"):
        Encoder(policy).encode(batch, times[:2])


SAME = [
    [1, 1.0, "1", np.int8(1), np.float32(1)],
    [0, -0.0, "0", np.uint64(0)],
    [-(2**63), str(-(2**63))],
    [2**63, str(2**63), np.uint64(2**63)],
    [uuid.UUID(int=5), str(uuid.UUID(int=5))],
]


def hash_of(encoder: Encoder, value: Any) -> int:
    """Return the hash of a person alone in a column."""
    column, reasons = encoder.persons([value])
    assert reasons is None
    return int(column[0])


@pytest.mark.parametrize("alike", SAME, ids=str)
def test_a_person_has_one_hash_however_it_is_written(alike):
    encoder = Encoder(POLICY, secret=b"x")
    assert len({hash_of(encoder, value) for value in alike}) == 1
    column, reasons = encoder.persons([*alike, "other"])
    assert reasons is None
    assert set(column[:-1].tolist()) == {hash_of(encoder, alike[0])} != {column[-1]}


def test_different_persons_have_different_hashes():
    encoder = Encoder(POLICY)
    others = ["1", "01", "+1", " 1", "1.0", "\u0661", "a", "A", b"a", 2**64, -1, "-0"]
    assert len({hash_of(encoder, value) for value in others}) == len(others)


def test_values_that_identify_nobody_are_rejected():
    values = [None, float("nan"), "", True, 1.5, [1], object(), "fine"]
    _, reasons = Encoder(POLICY).persons(values)
    assert list(reasons) == [
        "missing",
        "missing",
        "missing",
        "wrong type",
        "wrong type",
        "wrong type",
        "wrong type",
        None,
    ]
    assert list(Encoder(POLICY).persons(np.array([True]))[1]) == ["wrong type"]


@given(st.lists(st.one_of(st.integers(), st.text(), st.none(), st.booleans(), st.floats(), st.binary())))
def test_a_column_hashes_to_the_hashes_of_its_values(values):
    encoder = Encoder(POLICY, secret=b"s")
    hashes, reasons = encoder.persons(values)
    assert hashes.dtype == np.int64
    for place, value in enumerate(values):
        alone, why = encoder.persons([value])
        if reasons is not None and reasons[place]:
            assert why[0] == reasons[place]
        else:
            assert why is None
            assert alone[0] == hashes[place]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True))
def test_integers_do_not_collide_and_are_the_same_in_arrow(values):
    encoder = Encoder(POLICY)
    hashes, _ = encoder.persons(values)
    assert len(set(hashes.tolist())) == len(values)
    column = pa.array(values, type=pa.int64())
    assert np.array_equal(encoder.persons(column)[0], hashes)
    assert np.array_equal(encoder.persons(np.array(values, dtype=np.int64))[0], hashes)
    assert np.array_equal(encoder.persons([str(value) for value in values])[0], hashes)


#: Text near integers: some of it is one, and some is only taken for one by a careless parser.
NEARLY_INTEGERS = st.one_of(
    st.integers().map(str),
    st.text("0123456789-+x. ", max_size=5),
    st.sampled_from(["007", "-0", "+7", "0x7", " 7", "7.0", "1e3", "", str(2**63), str(-(2**63)), "\u0667"]),
)


@given(st.lists(st.one_of(NEARLY_INTEGERS, st.none())))
def test_text_of_arrow_hashes_to_the_hashes_of_its_values(values):
    encoder = Encoder(POLICY, secret=b"s")
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(values, kind)
        hashes, reasons = encoder.persons(column)
        by_list, known = encoder.persons(values)
        assert (reasons is None) == (known is None)
        for place in range(len(values)):
            if reasons is not None and reasons[place]:
                assert known[place] == reasons[place]
            else:
                assert hashes[place] == by_list[place]
        chunked = pa.chunked_array([column[:2], column[2:]])
        assert np.array_equal(encoder.persons(chunked)[0], hashes)


def test_a_long_column_is_hashed_in_parts():
    encoder = Encoder(POLICY)
    ids = np.arange(40_000)
    hashes, _ = encoder.persons(ids)
    assert len(np.unique(hashes)) == len(ids)
    for place in (0, 16_383, 16_384, 39_999):
        assert hashes[place] == hash_of(encoder, place)


def test_hashes_depend_only_on_the_secret():
    code = (
        "from crenel.encoding.encoder import Encoder; from crenel.policy import Policy\n"
        "p = Policy.from_dict({'person': 'id', 'quasi_identifiers': {'a': {'type': 'numeric'}},"
        " 'k': 2, 'delay': '1s'})\n"
        "print(*Encoder(p, secret=b's' * 100).persons([1, 'a'])[0])"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60).stdout
        for _ in range(2)
    }
    here = Encoder(POLICY, secret=b"s" * 100).persons([1, "a"])[0]
    assert runs == {f"{here[0]} {here[1]}\n".encode()}
    other = Encoder(POLICY, secret=b"t").persons([1, "a"])[0]
    assert not set(other.tolist()) & set(here.tolist())
    again = pickle.loads(pickle.dumps(Encoder(POLICY, secret=b"t")))
    assert np.array_equal(again.persons([1, "a"])[0], other)


def test_nothing_shows_a_value():
    marked = {name: [f"SECRET-{name}"] * 2 for name in GOOD}
    encoded = Encoder(POLICY).encode(marked)
    assert "SECRET" not in repr(encoded)
    assert len(encoded.rejected) == 2


def test_the_batch_is_neither_changed_nor_aliased():
    age = np.array([-0.0, 200.0, 50.0])
    batch = {**GOOD, "age": age}
    encoded = Encoder(POLICY).encode(batch)
    assert np.signbit(age[0])
    assert age.tolist() == [0.0, 200.0, 50.0]
    age[:] = 1
    assert encoded.rows.qi[:, 0].tolist() == [0, 50]


@given(st.data())
def test_every_row_is_kept_or_rejected(data):
    size = data.draw(st.integers(0, 20))
    pools = {
        "id": [None, 1, "x"],
        "at": [None, 1, "?"],
        "age": [None, 1, 500],
        "zip": ["12345", "1", None],
        "school": ["9th", "?"],
        "illness": ["flu", None, 3],
    }
    batch = {name: [data.draw(st.sampled_from(p)) for _ in range(size)] for name, p in pools.items()}
    encoded = Encoder(POLICY).encode(batch)
    rejected = [rejection.index for rejection in encoded.rejected]
    assert sorted([*encoded.kept.tolist(), *rejected]) == list(range(size))
    assert len(encoded.rows) == len(encoded.kept)
    assert np.isfinite(encoded.rows.qi).all()


def test_rows_are_checked():
    rows = Encoder(POLICY).encode(GOOD).rows
    assert rows.take(np.array([2, 0])).qi[:, 0].tolist() == [50, 30]
    assert rows.slice(1, 3).time.tolist() == [1_500_000, 2_000_000]
    with pytest.raises(ValueError, match="must be of one length, not 3, 2, 3, 3"):
        Rows(rows.qi, rows.person[:2], rows.sensitive, rows.time)
    with pytest.raises(TypeError, match="qi must be float64 of 2 dimensions, not int64 of 1"):
        Rows(rows.person, rows.person, rows.sensitive, rows.time)
    with pytest.raises(TypeError, match="person must be a numpy array, not list"):
        Rows(rows.qi, [1, 2, 3], rows.sensitive, rows.time)
    with pytest.raises(ValueError, match="qi must be C-contiguous"):
        Rows(np.asfortranarray(rows.qi), rows.person, rows.sensitive, rows.time)
