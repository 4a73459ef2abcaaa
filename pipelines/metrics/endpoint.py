"""Where figures are served to Prometheus: an address on the command line, and a page while a run goes on."""

from __future__ import annotations

import argparse
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.metrics.exposition import Family

__all__ = ["Address", "add_argument", "serving"]

#: Whoever can reach an address can read the page, so that nobody else can unless the user says so.
_LOOPBACK = "127.0.0.1"
_MOST_PORT = 65_535
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]]*|\[[0-9A-Fa-f:.%]+\]):)?(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Address:
    """Where the page is served."""

    host: str
    #: 0 for a free port.
    port: int

    @classmethod
    def of(cls, given: str) -> Address:
        """Read `:9108`, `9108`, `0.0.0.0:9108` or `[::1]:9108`.

        Raises:
            argparse.ArgumentTypeError: it is no such address.
        """
        found = _ADDRESS.fullmatch(given)
        if found is None or int(found["port"]) > _MOST_PORT:
            msg = f"must be :PORT, or ADDRESS:PORT, such as :9108 or 0.0.0.0:9108, not {given!r}"
            raise argparse.ArgumentTypeError(msg)
        return cls((found["host"] or "").strip("[]") or _LOOPBACK, int(found["port"]))

    def __str__(self) -> str:
        """The address, as it is in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--metrics",
        metavar="[ADDRESS]:PORT",
        type=Address.of,
        help="serve figures for Prometheus at http://ADDRESS:PORT/metrics; the address is 127.0.0.1 by default",
    )


@contextmanager
def serving(address: Address, collect: Callable[[], Iterable[Family]], say: Callable[[str], None]) -> Iterator[Address]:
    """Serve a page while the context lasts.

    Args:
        address: Where.
        collect: Makes the figures anew for each scrape.
        say: Says where the page is.

    Raises:
        CommandError: nothing can be served there.
    """
    from crenel.pipelines.metrics.page_server import PATH, PageServer  # here: few runs need a server

    try:
        server = PageServer(address.host, address.port, collect)
    except (OSError, OverflowError) as error:
        why = str(error) if isinstance(error, socket.gaierror) or not isinstance(error, OSError) else _why(error)
        msg = f"--metrics: {address} cannot be listened on: {why}. Give another address or port."
        raise CommandError(msg) from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
    thread.start()
    bound = Address(address.host, server.server_address[1])
    try:
        say(f"metrics are at http://{bound}{PATH}")
        yield bound
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _why(error: OSError) -> str:
    return os.strerror(error.errno or 5).lower()
