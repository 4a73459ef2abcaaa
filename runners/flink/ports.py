"""Network ports of this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack

__all__ = ["free_ports", "listening"]


def free_ports(count: int) -> list[int]:
    """Free ports, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def listening(port: int) -> bool:
    """Whether a process listens on a port."""
    with socket.socket() as one:
        one.settimeout(1.0)
        return one.connect_ex(("127.0.0.1", port)) == 0
