"""Network ports of this machine."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

__all__ = ["free_ports", "listening"]

#: The first port that is tried, and the file that says which ports the system gives to connections by itself.
_FIRST = 20_000
_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Free ports, all different.

    They lie below those that the system gives to connections. Such a connection would keep a server from starting on
    its port, or from starting again after it was lost.
    """
    draw = random.SystemRandom()
    with ExitStack() as stack:
        return [_bound(stack.enter_context(socket.socket()), draw) for _ in range(count)]


def _bound(one: socket.socket, draw: random.Random) -> int:
    """Bind a socket to a free port."""
    try:
        last = int(_GIVEN.read_text().split()[0])
    except (OSError, ValueError):
        last = 0
    for _ in range(1000 if last > _FIRST else 0):
        port = draw.randrange(_FIRST, last)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port
    one.bind(("127.0.0.1", 0))
    return int(one.getsockname()[1])


def listening(port: int) -> bool:
    """Whether a process listens on a port."""
    with socket.socket() as one:
        one.settimeout(1.0)
        return one.connect_ex(("127.0.0.1", port)) == 0
