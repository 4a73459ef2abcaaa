"""IP addresses, published as networks."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from crenel.errors import Rejected
from crenel.policy import columns
from crenel.policy.checks import Problems
from crenel.policy.geometry import Radix
from crenel.policy.kinds.radix_values import RadixValues

__all__ = ["NOT_AN_ADDRESS", "IpAddress"]

NOT_AN_ADDRESS = "not an address"
OTHER_VERSION = "address of another version"

#: The bits of an address that count. Of IPv6 these are the network that a provider gives to a customer; the rest names
#: a device, and is never published.
_BITS = {4: 32, 6: 48}
_WIDTH = {4: 32, 6: 128}
_NETWORKS: dict[int, Any] = {4: ipaddress.IPv4Network, 6: ipaddress.IPv6Network}


@dataclass(frozen=True, kw_only=True)
class IpAddress(RadixValues):
    """An IP address, published as a network: 192.0.2.0/24, 2001:db8::/32."""

    #: The version of the addresses, 4 or 6; an address of the other one is rejected. Of version 6, only the first 48
    #: bits count.
    version: int = 4

    def __post_init__(self) -> None:
        problems = Problems()
        if isinstance(self.version, bool) or self.version not in _BITS:
            problems.must("version", "4 or 6", self.version)
        problems.raise_if_any(type(self).__name__)
        super().__post_init__()

    @property
    def codes(self) -> Radix:
        """Numbers with one digit per bit."""
        return Radix(2, _BITS[self.version])

    def code(self, value: Any) -> int:
        """Return the first bits of an address, which is text or an object of `ipaddress`."""
        if isinstance(value, (bool, int, float)):  # which address a number means is not certain
            raise Rejected(columns.WRONG_TYPE)
        try:
            address = ipaddress.ip_address(value.strip() if isinstance(value, str) else value)
        except (ValueError, TypeError):
            raise Rejected(NOT_AN_ADDRESS) from None
        if address.version != self.version:
            raise Rejected(OTHER_VERSION)
        return int(address) >> self._hidden

    def shown(self, first: int, digits: int) -> str:
        """Return the network that all addresses share."""
        # Not `ip_network`, which takes a small number for an address of version 4.
        return str(_NETWORKS[self.version]((first << self._hidden, digits)))

    def found(self, published: str) -> tuple[int, int]:
        """Return the first address of a network, and its bits."""
        network = _NETWORKS[self.version](published)
        if network.prefixlen > self.codes.length:
            raise ValueError
        return int(network.network_address) >> self._hidden, int(network.prefixlen)

    @property
    def _hidden(self) -> int:
        """The number of bits that never count."""
        return _WIDTH[self.version] - _BITS[self.version]
