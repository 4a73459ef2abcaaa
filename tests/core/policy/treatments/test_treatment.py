"""Treatments: what each publishes, what it refuses, and what a policy may say."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.errors import Rejected
from crenel.policy import Policy, PolicyError
from crenel.policy.treatments.treatment import Bin, Pseudonymize, Redact, Round, Treatment, Truncate

DAY = 86_400_000_000


def policy(treat: Any, **changes: Any) -> Policy:
    given = {"person": "id", "quasi_identifiers": {"age": {"type": "numeric"}}, "k": 2, "delay": "1h", "treat": treat}
    return Policy.from_dict(given | changes)


@pytest.mark.parametrize(
    ("treatment", "value", "published"),
    [
        (Redact(text="-"), "anything", "-"),
        (Truncate(characters=3), "abcdef", "abc"),
        (Truncate(characters=3), 12345, "123"),
        (Truncate(to=DAY), "2020-05-06T23:59:59+01:00", "2020-05-06T00:00:00Z"),
        (Truncate(to=3_600_000_000), dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.timezone.utc), "1969-12-31T23:00:00Z"),
        (Round(step=10), 25, 20.0),  # half to even
        (Round(step=10), "34.9", 30.0),
        (Round(step=0.1), 0.30000000000000004, 0.3),
        (Round(step=0.1), Decimal("-0.26"), -0.3),
        (Bin(edges=(0, 10.5, 100)), -1, "below 0"),
        (Bin(edges=(0, 10.5, 100)), 0, "[0, 10.5)"),
        (Bin(edges=(0, 10.5, 100)), "10.5", "[10.5, 100)"),
        (Bin(edges=(0, 10.5, 100)), 100, "100 and above"),
    ],
)
def test_what_is_published(treatment: Treatment, value: Any, published: Any) -> None:
    assert treatment.treat(value, b"", 0) == published
    assert treatment.could_publish(published)


@pytest.mark.parametrize(
    ("treatment", "value"),
    [(Round(step=1), "ten"), (Round(step=1), True), (Bin(edges=(0,)), "x"), (Truncate(to=DAY), "yesterday")],
)
def test_a_value_that_does_not_fit_is_rejected_without_being_quoted(treatment: Treatment, value: Any) -> None:
    with pytest.raises(Rejected) as error:
        treatment.treat(value, b"", 0)
    assert str(value) not in error.value.reason


def test_a_pseudonym_is_a_keyed_hash_that_joins_equal_values() -> None:
    one = Pseudonymize(key="env:K")
    expected = hmac.new(b"key", b"crenel.pseudonym\0\0" + b"7", hashlib.sha256).hexdigest()[:32]
    assert {one.treat(value, b"key", 9) for value in (7, 7.0, "7")} == {expected}
    assert one.treat("7", b"other key", 0) != expected
    rotating = Pseudonymize(key="env:K", rotate=DAY)
    assert len({rotating.treat("7", b"key", period) for period in range(5)}) == 5


@given(
    st.floats(-1e9, 1e9, allow_subnormal=False).filter(lambda x: not 0 < abs(x) < 1e-200),
    st.sampled_from([Round(step=0.25), Round(step=7), Bin(edges=(-5, 0, 9))]),
)
def test_values_as_they_are_are_not_taken_for_treated_ones(value: float, treatment: Treatment) -> None:
    assert treatment.could_publish(treatment.treat(value, b"", 0))
    if treatment.treat(value, b"", 0) != value:
        assert not treatment.could_publish(value)


def test_a_policy_names_treated_columns_and_is_written_back() -> None:
    treat = {
        "id": {"pseudonymize": "env:K", "rotate": "30d"},
        "note": {"redact": "-"},
        "phone": {"truncate": 3},
        "seen": {"truncate": "1h"},
        "price": {"round": 10},
        "cost": {"bin": [0, 10.5, 100]},
    }
    made = policy(treat, publish=["kind"], event_time="at")
    assert made.publish == ("kind", *treat)
    assert made.to_dict()["treat"] == treat
    assert made.to_dict()["publish"] == ["kind"]
    assert Policy.from_dict(made.to_dict()) == made


@pytest.mark.parametrize(
    ("treat", "message"),
    [
        (["a"], r"treat must be a mapping of columns to treatments"),
        ({"a": {"rund": 3}}, r"treat\.a must be one of pseudonymize, .*did you mean 'round'\?"),
        ({"a": {"round": 1, "redact": "x"}}, r"treat\.a must be one of"),
        ({"a": {"round": 0}}, r"treat\.a\.round must be a number above 0, not 0"),
        ({"a": {"bin": [3, 1]}}, r"treat\.a\.bin must be a list of rising numbers"),
        ({"a": {"truncate": 0}}, r"treat\.a\.truncate must be a number of characters"),
        ({"a": {"truncate": "5ms"}}, r"truncate must be a duration of whole seconds"),
        ({"a": {"redact": ""}}, r"redact must be text"),
        ({"a": {"round": 1, "rotate": "1d"}}, r"treat\.a\.rotate is unknown"),
        ({"a": {"pseudonymize": "env:K", "rotate": "1d"}}, r"rotate needs event_time"),
        ({"age": {"round": 1}}, r"'age' must have one role, not quasi_identifiers and treat"),
        ({"id": {"redact": "x"}}, r"'id' must have one role, not person and treat"),
    ],
)
def test_what_is_refused(treat: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(treat)


def test_a_key_in_the_policy_is_refused_and_never_repeated() -> None:
    with pytest.raises(PolicyError, match="says where the key is, and never holds it") as error:
        policy({"a": {"pseudonymize": "s3cr3t"}})
    assert "s3cr3t" not in str(error.value)


def test_rows_are_not_kept_apart_by_what_is_treated() -> None:
    with pytest.raises(PolicyError, match=r"within must name columns .* unlike 'a'"):
        policy({"a": {"truncate": 1}}, within=["a"])
