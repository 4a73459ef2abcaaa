"""IP addresses, published as networks."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from crenel.errors import Rejected
from crenel.policy import columns
from crenel.policy.checks import Problems
from crenel.policy.geometry import Radix
from crenel.policy.quasi_identifiers import QuasiIdentifier

__all__ = ["NOT_AN_ADDRESS", "IpAddress"]

NOT_AN_ADDRESS = "not an address"
OTHER_VERSION = "address of another version"

#: The bits of an address that count. Of IPv6 these are the network that a provider gives to a customer; the rest names
#: a device, and is never published.
_BITS = {4: 32, 6: 48}
_WIDTH = {4: 32, 6: 128}
_NETWORKS: dict[int, Any] = {4: ipaddress.IPv4Network, 6: ipaddress.IPv6Network}


@dataclass(frozen=True, kw_only=True)
class IpAddress(QuasiIdentifier):
    """An IP address, published as a network: 192.0.2.0/24, 2001:db8::/32."""

    #: The version of the addresses, 4 or 6; an address of the other one is rejected. Of version 6, only the first 48
    #: bits count.
    version: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = Problems()
        if isinstance(self.version, bool) or self.version not in _BITS:
            problems.must("version", "4 or 6", self.version)
        problems.raise_if_any(type(self).__name__)

    @cached_property
    def geometry(self) -> Radix:
        """Numbers with one digit per bit."""
        return Radix(2, _BITS[self.version])

    def coordinate(self, value: Any) -> float:
        """Return the first bits of an address, which is text or an object of `ipaddress`."""
        if columns.is_missing(value):
            raise Rejected(columns.MISSING)
        if isinstance(value, (bool, int, float)):  # which is meant by a number is not certain
            raise Rejected(columns.WRONG_TYPE)
        try:
            address = ipaddress.ip_address(value.strip() if isinstance(value, str) else value)
        except (ValueError, TypeError):
            raise Rejected(NOT_AN_ADDRESS) from None
        if address.version != self.version:
            raise Rejected(OTHER_VERSION)
        return float(int(address) >> self._hidden)

    def publish(self, lo: float, hi: float) -> str:
        """Return the network that all addresses share."""
        bits = self.geometry.shared(lo, hi)
        # Not `ip_network`, which takes a small number for an address of version 4.
        return str(_NETWORKS[self.version]((int(lo) << self._hidden, bits)))

    def read(self, published: Any) -> tuple[float, float]:
        """Return the span of a network."""
        network = _NETWORKS[self.version](published)
        if network.prefixlen > self.geometry.length:
            raise ValueError
        last = int(network.broadcast_address) >> self._hidden
        return float(int(network.network_address) >> self._hidden), float(last)

    @property
    def _hidden(self) -> int:
        """The number of bits that never count."""
        return _WIDTH[self.version] - _BITS[self.version]
