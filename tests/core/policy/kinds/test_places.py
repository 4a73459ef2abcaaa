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


def test_the_published_forms() -> None:
    assert published(IpAddress(), "192.0.2.1", "192.0.2.200") == "192.0.2.0/24"
    assert published(IpAddress(), " 10.0.0.1 ") == "10.0.0.1/32"
    assert published(IpAddress(version=6), "::1", "ffff::") == "::/0"
    assert published(IpAddress(version=6), "2001:db8:1:2::3") == "2001:db8:1::/48"
    assert published(Coordinates(levels=1), "43.07,-89.40") == published(Coordinates(levels=1), [43.07, -89.4])
    assert published(Coordinates(levels=3), "43.07,-89.40") == "22.5,-90.0,45.0,-45.0"


@pytest.mark.parametrize(
    ("qi", "samples", "bad"),
    [
        (IpAddress(), ["192.0.2.1", "10.0.0.1"], ["300.1.1.1", 7, "::1", None, "", b"x"]),
        (IpAddress(version=6), ["2001:db8::1", "::1"], ["1.2.3.4", "x"]),
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
    with pytest.raises(PolicyError, match=r"missing must be 'reject' or 'hole': there are too many codes"):
        IpAddress(version=6, missing="category")
