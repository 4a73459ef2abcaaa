"""IP addresses and coordinates: what is published contains the value, and is read back as it was."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.errors import Rejected
from crenel.pipelines.auditing.published_values import NotReadableError, box
from crenel.policy import PolicyError
from crenel.policy.kinds.coordinates import Coordinates
from crenel.policy.kinds.ip_address import IpAddress
from crenel.policy.quasi_identifiers import QuasiIdentifier, lookup, name_of
from crenel.testing import check_quasi_identifier


def published(qi: QuasiIdentifier, *values: Any) -> Any:
    places = [qi.coordinate(value) for value in values]
    span = qi.geometry.span(min(places), max(places))
    assert box(qi, qi.publish(*span)) == span
    return qi.publish(*span)


@given(st.lists(st.ip_addresses(v=4), min_size=1, max_size=4))
def test_a_network_contains_its_addresses(addresses: list[ipaddress.IPv4Address]) -> None:
    network = ipaddress.ip_network(published(IpAddress(), *map(str, addresses)))
    assert all(address in network for address in addresses)


@given(st.lists(st.ip_addresses(v=6), min_size=1, max_size=4))
def test_of_ipv6_no_device_is_published(addresses: list[ipaddress.IPv6Address]) -> None:
    network = ipaddress.ip_network(published(IpAddress(version=6), *map(str, addresses)))
    assert all(address in network for address in addresses)
    assert network.prefixlen <= 48


@given(st.lists(st.tuples(st.floats(-90, 90), st.floats(-180, 180)), min_size=1, max_size=4), st.integers(1, 24))
def test_a_cell_contains_its_places(places: list[tuple[float, float]], levels: int) -> None:
    south, west, north, east = map(float, published(Coordinates(levels=levels), *places).split(","))
    assert all(south <= north_of <= north and west <= east_of <= east for north_of, east_of in places)


#: Rounded: a number that is not 0, and hardly differs from it, is rejected by every column of numbers.
DEGREES = st.floats(-190, 190).map(lambda one: round(one, 6))
BOUNDS = st.tuples(st.floats(-90, 89), st.floats(-180, 179), st.floats(0.01, 180), st.floats(0.01, 360)).map(
    lambda one: (one[0], one[1], min(one[0] + one[2], 90.0), min(one[1] + one[3], 180.0))
)


@given(BOUNDS, st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=4), st.integers(1, 12))
def test_a_cell_within_bounds_contains_its_places(
    bounds: tuple[float, float, float, float], parts: list[tuple[float, float]], levels: int
) -> None:
    ends = [(bounds[axis], bounds[axis + 2]) for axis in (0, 1)]
    places = [tuple(min(lo + (hi - lo) * at, hi) for (lo, hi), at in zip(ends, one, strict=True)) for one in parts]
    qi = Coordinates(levels=levels, bounds=bounds)
    south, west, north, east = map(float, published(qi, *places).split(","))
    assert all(south <= north_of <= north and west <= east_of <= east for north_of, east_of in places)
    assert bounds[0] <= south < north <= bounds[2]
    assert bounds[1] <= west < east <= bounds[3]


@given(
    st.lists(
        st.tuples(st.none() | DEGREES | st.just("x"), st.none() | DEGREES | st.just("") | st.just("x")),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([{}, {"bounds": (-10, -20, 40, 50)}, {"bounds": (-10, -20, 40, 50), "missing": "category"}]),
)
def test_two_columns_are_read_as_one(pairs: list[tuple[Any, Any]], options: dict[str, Any]) -> None:
    one, two = Coordinates(levels=8, **options), Coordinates(levels=8, columns=("lat", "lon"), **options)
    found, reasons = two.together([list(column) for column in zip(*pairs, strict=True)])
    for place, pair in enumerate(pairs):
        if any(isinstance(value, str) or value is None for value in pair):
            assert reasons is not None
            assert reasons[place] is not None
            continue
        try:
            expected = one.coordinate(pair)
        except Rejected as error:
            assert reasons is not None
            assert reasons[place] == error.reason
        else:
            assert found[place] == expected


def test_the_published_forms() -> None:
    assert published(IpAddress(), "192.0.2.1", "192.0.2.200") == "192.0.2.0/24"
    assert published(IpAddress(), " 10.0.0.1 ") == "10.0.0.1/32"
    assert published(IpAddress(version=6), "::1", "ffff::") == "::/0"
    assert published(IpAddress(version=6), "2001:db8:1:2::3") == "2001:db8:1::/48"
    assert published(Coordinates(levels=1), "43.07,-89.40") == published(Coordinates(levels=1), [43.07, -89.4])
    assert published(Coordinates(levels=3), "43.07,-89.40") == "22.5,-90.0,45.0,-45.0"
    montreal = Coordinates(levels=7, bounds=(45.4, -73.8, 45.656, -73.416))
    assert published(montreal, "45.5017,-73.5673") == "45.5,-73.569,45.502,-73.566"
    assert published(montreal, "45.4,-73.8", "45.656,-73.416") == "45.4,-73.8,45.656,-73.416"


@pytest.mark.parametrize(
    ("qi", "samples", "bad"),
    [
        (IpAddress(), ["192.0.2.1", "10.0.0.1"], ["300.1.1.1", 7, "::1", None, "", b"x"]),
        (IpAddress(version=6), ["2001:db8::1", "::1"], ["1.2.3.4", "x"]),
        (Coordinates(levels=6, bounds=(45.4, -73.8, 45.7, -73.4)), ["45.5,-73.5", "45.7,-73.4"], ["45.3,-73.5", None]),
        (Coordinates(), ["43.07,-89.40", "-33.9,151.2", "90,180"], ["here", "91,0", "nan,0", "1,2,3", None, 7]),
    ],
)
def test_the_checks_of_types(qi: QuasiIdentifier, samples: list[Any], bad: list[Any]) -> None:
    check_quasi_identifier(qi, samples, bad=bad)
    assert lookup(name_of(type(qi))) is type(qi)
    for value in bad:
        with pytest.raises(Rejected):
            qi.coordinate(value)


@pytest.mark.parametrize(
    ("qi", "value"),
    [
        (IpAddress(), "192.0.2.1"),  # the same network in another writing could carry a secret
        (IpAddress(), "192.0.2.1/24"),
        (IpAddress(version=6), "2001:db8::/64"),
        (Coordinates(levels=3), "43.07,-89.40"),
        (Coordinates(levels=3), "0.0,-90.0,45.0,0.1"),
        (Coordinates(levels=3), "0,-90,45,0"),
        (Coordinates(levels=7, bounds=(45.4, -73.8, 45.656, -73.416)), "45.5017,-73.569,45.502,-73.566"),
        (Coordinates(levels=7, bounds=(45.4, -73.8, 45.656, -73.416)), "45.5,-73.569,45.502,-73.5660"),
    ],
)
def test_what_no_policy_publishes_is_refused(qi: QuasiIdentifier, value: Any) -> None:
    with pytest.raises(NotReadableError):
        box(qi, value)


def test_what_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"version must be 4 or 6, not 5"):
        IpAddress(version=5)
    with pytest.raises(PolicyError, match=r"levels must be at most 24, not 25"):
        Coordinates(levels=25)
    with pytest.raises(
        PolicyError, match=r"levels must be fewer: cells must be at least 0.000001 degrees wide, not 20"
    ):
        Coordinates(levels=20, bounds=(45, -73, 45.5, -72))
    for bounds in ([1, 2, 3], [45, -73, 44, -72], [45, -73, 91, -72], "north", 5, [1, 2, 3, 4, 5], [0, 0, True, 1]):
        with pytest.raises(PolicyError, match=r"bounds must be \[south, west, north, east\] in degrees"):
            Coordinates(bounds=bounds)
    for columns in (["lat"], ["lat", "lat"], "lat", ["lat", 3], ["lat", "lon", "alt"]):
        with pytest.raises(PolicyError, match=r"columns must be two names, of the column of the latitude and"):
            Coordinates(columns=columns)
    with pytest.raises(PolicyError, match=r"missing must be 'reject' or 'hole': there are too many codes"):
        IpAddress(version=6, missing="category")
