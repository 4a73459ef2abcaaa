"""Missing values and unknown categories: what a policy may say, where they lie, and what is published for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.errors import Rejected
from crenel.pipelines.auditing.published_values import box
from crenel.policy import Policy, PolicyError, Sensitive
from crenel.policy.kinds.coordinates import Coordinates
from crenel.policy.kinds.ip_address import IpAddress
from crenel.policy.quasi_identifiers import Categorical, Datetime, Numeric, Prefix, QuasiIdentifier, Range
from crenel.testing import check_quasi_identifier

AGE = Numeric(domain=(17, 90), missing="category")
IN_STEPS = Numeric(domain=(17, 90), step=5, missing="category")
JOINED = Datetime(domain=("2020-01-01", "2030-01-01"), missing="category")
ZIP = Prefix(length=5, missing="category")
JOB = Categorical(hierarchy={"Any": {"Health": ["nurse", "vet"], "Law": ["judge"]}}, missing="category")
CLIENT = IpAddress(missing="category")
HOME = Coordinates(levels=9, missing="category")
SAMPLES: dict[QuasiIdentifier, list[Any]] = {
    CLIENT: ["192.0.2.1", "192.0.2.200", "0.0.0.0", "255.255.255.255"],
    HOME: ["43.07,-89.40", "43.2,-89.3", "-90,-180", "90,180"],
    AGE: [17, 34, 90],
    IN_STEPS: [17, 34, 90],
    JOINED: ["2020-01-01", "2024-05-06", "2030-01-01"],
    ZIP: ["00000", "53706", "99999"],
    JOB: ["nurse", "vet", "judge"],
}
TYPES = pytest.mark.parametrize(("qi", "samples"), SAMPLES.items(), ids=[type(qi).__name__ for qi in SAMPLES])


@TYPES
def test_a_type_with_missing_values_passes_the_checks_of_types(qi: QuasiIdentifier, samples: list[Any]) -> None:
    check_quasi_identifier(qi, samples)


@TYPES
def test_missing_values_alone_are_published_as_nothing(qi: QuasiIdentifier, samples: list[Any]) -> None:
    assert qi.missing_at is not None
    assert qi.publish(*qi.geometry.span(qi.missing_at, qi.missing_at)) is None
    assert qi.geometry.loss(qi.missing_at, qi.missing_at) < 0.07  # at most one cell of the step
    assert box(qi, None) == (qi.missing_at, qi.missing_at)


@TYPES
def test_no_value_shares_the_coordinate_of_missing_ones(qi: QuasiIdentifier, samples: list[Any]) -> None:
    assert qi.missing_at not in [qi.coordinate(sample) for sample in samples]
    with pytest.raises(Rejected):
        qi.coordinate(None)


@TYPES
@given(data=st.data())
def test_a_box_of_missing_and_other_values_says_so_and_can_be_read_back(
    qi: QuasiIdentifier, samples: list[Any], data: st.DataObject
) -> None:
    picked = data.draw(st.lists(st.sampled_from([qi.missing_at, *map(qi.coordinate, samples)]), min_size=1))
    lo, hi = qi.geometry.span(min(picked), max(picked))
    published = qi.publish(lo, hi)
    read = published if published is None or isinstance(published, str) else {"lo": published.lo, "hi": published.hi}
    assert box(qi, read) == (lo, hi)
    with_missing, with_values = qi.missing_at in picked, set(picked) != {qi.missing_at}
    if with_missing and with_values:
        # Only what includes every value, or has no upper end, includes missing ones.
        open_end = isinstance(published, Range) and published.hi is None and published.lo is not None
        assert open_end or published == qi.publish(*qi.geometry.widest())
    elif isinstance(published, Range):
        assert None not in published


def test_the_published_forms() -> None:
    assert AGE.publish(AGE.coordinate(80), AGE.missing_at) == (80, None)
    assert IN_STEPS.publish(IN_STEPS.coordinate(82), IN_STEPS.missing_at) == (80, None)
    assert JOINED.publish(JOINED.coordinate("2024-05-06"), JOINED.missing_at) == ("2024-05-06T00:00:00Z", None)
    assert ZIP.publish(*ZIP.geometry.span(ZIP.coordinate("53706"), ZIP.missing_at)) == "*****"
    assert ZIP.publish(*ZIP.geometry.span(ZIP.coordinate("53706"), ZIP.coordinate("53799"))) == "537**"
    assert CLIENT.publish(*CLIENT.geometry.span(CLIENT.coordinate("10.0.0.1"), CLIENT.missing_at)) == "0.0.0.0/0"
    assert HOME.publish(*HOME.geometry.widest()) == "-90.0,-180.0,90.0,180.0"
    assert JOB.publish(0, JOB.missing_at) == "Any"
    assert JOB.publish(0, 1) == "Health"


def test_missing_values_lie_a_tenth_of_the_domain_beyond_its_end() -> None:
    assert Numeric(domain=(0, 100), missing="category").missing_at == 110
    assert Numeric(domain=(0, 100), step=5, missing="category").missing_at == 21  # 20 cells, and 2 beyond the last
    assert Numeric(domain=(0, 100), missing="category").geometry.loss(100, 110) == pytest.approx(10 / 110)


UNKNOWN = Categorical(hierarchy={"Any": {"Health": ["nurse"], "Law": ["judge"]}}, unknown="root", missing="category")


def test_an_unknown_category_is_published_as_the_root_alone_and_in_company() -> None:
    place = UNKNOWN.coordinate("astronaut")
    assert place == UNKNOWN.unknown_at
    assert UNKNOWN.missing_at not in (place, None)
    assert UNKNOWN.publish(place, place) == "Any"
    assert UNKNOWN.publish(*UNKNOWN.geometry.span(0, place)) == "Any"
    assert UNKNOWN.publish(0, 0) == "nurse"
    with pytest.raises(Rejected, match="missing"):
        UNKNOWN.coordinate("")
    with pytest.raises(Rejected, match="unknown value"):
        Categorical(hierarchy=["a", "b"]).coordinate("c")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Numeric(missing="category"), r"Numeric\.missing needs a domain"),
        (lambda: Datetime(missing="category"), r"Datetime\.missing needs a domain"),
        (lambda: Numeric(missing="drop"), r"missing must be 'category' or 'reject' or 'hole', not 'drop'"),
        (lambda: Categorical(hierarchy=["a"], unknown="leaf"), r"unknown must be 'root' or 'reject', not 'leaf'"),
        (lambda: Prefix(length=13, alphabet="hex", missing="category"), "at most 12 .* and missing values"),
        (lambda: Numeric(domain=(0, 2**53), step=1, missing="category"), "missing values have no place"),
        (lambda: Sensitive(missing="hole"), r"Sensitive\.missing must be 'category' or 'reject'"),
        (
            lambda: Sensitive(values=(1, 2), ordered=True, missing="category"),
            r"missing must be 'reject' with ordered",
        ),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()


def policy(qi: dict[str, Any], method: str = "bastion") -> Policy:
    return Policy.from_dict({"person": "id", "quasi_identifiers": {"x": qi}, "k": 2, "delay": "1h", "method": method})


def test_methods_refuse_what_they_do_not_do() -> None:
    age = {"type": "numeric", "domain": [0, 9]}
    job = {"type": "categorical", "hierarchy": ["a", "b"], "unknown": "root"}
    with pytest.raises(PolicyError, match=r"x\.missing must be 'category' or 'reject' .* only partition takes holes"):
        policy(age | {"missing": "hole"})
    with pytest.raises(PolicyError, match=r"x\.missing must be 'reject' .* adds noise"):
        policy(age | {"missing": "category"}, "castleguard")
    with pytest.raises(PolicyError, match=r"x\.unknown must be 'reject' .* takes rows with holes"):
        policy(job, "partition")
    with pytest.raises(PolicyError, match=r"x\.unknown must be 'reject' .* adds noise"):
        policy(job, "castleguard")
    assert policy(age | {"missing": "hole"}, "partition").missing("x").value == "hole"
    assert policy(age, "partition").missing("x").value == "hole"
    assert policy(age | {"missing": "reject"}, "partition").missing("x").value == "reject"
    assert policy(age).missing("x").value == "reject"


def test_a_policy_is_written_with_what_becomes_of_missing_and_unknown_values() -> None:
    made = policy({"type": "categorical", "hierarchy": ["a", "b"], "unknown": "root", "missing": "category"})
    assert Policy.from_dict(made.to_dict()) == made
    assert made.to_dict()["quasi_identifiers"]["x"]["missing"] == "category"
    assert "missing" not in policy({"type": "numeric"}).to_dict()["quasi_identifiers"]["x"]


def test_missing_sensitive_values_are_a_value_or_rejected() -> None:
    codes, reasons = Sensitive(domain=(0, 10), bins=5, missing="category").codes([None, 3.0, float("nan")])
    assert (codes.tolist(), reasons) == ([5, 1, 5], None)
    assert Sensitive(domain=(0, 10), bins=5, missing="category").size == 6
    assert Sensitive(domain=(0, 10), bins=5, missing="category").code(None) == 5
    codes, reasons = Sensitive(values=("a", "b"), missing="category").codes(["b", None])
    assert (codes.tolist(), reasons) == ([1, 2], None)
    assert Sensitive(values=("a", "b"), missing="category").size == 3
    assert Sensitive(values=("a", None), missing="category").size == 2
    _, reasons = Sensitive(missing="reject").codes(["a", None])
    assert reasons is not None
    assert reasons.tolist() == [None, "missing"]
    codes, reasons = Sensitive(domain=(0, 10), missing="category").codes(np.array([20.0, np.nan]))
    assert reasons is not None
    assert reasons.tolist() == ["outside the domain", None]
