"""The HTTP server that Prometheus scrapes. It serves one page, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from crenel.pipelines.metrics.exposition import CONTENT_TYPE, Family, text

__all__ = ["PATH", "PageServer"]

PATH = "/metrics"
#: Seconds that a client has to say what it wants.
_PATIENCE = 10.0


class PageServer(ThreadingHTTPServer):
    """Serves a page.

    Args:
        host: The address.
        port: The port; 0 for a free one.
        collect: Makes the figures anew for each scrape.

    Raises:
        OSError: it cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False
    #: A port that another program listens on is refused all the same.
    allow_reuse_address = True

    def __init__(self, host: str, port: int, collect: Callable[[], Iterable[Family]]) -> None:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self.collect = collect
        super().__init__((str(place[0]), int(place[1])), _Page)

    def server_bind(self) -> None:
        """Bind, without a look-up of the host's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away is no error of the run."""


class _Page(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "crenel"
    sys_version = ""
    timeout = _PATIENCE

    def do_GET(self) -> None:
        """Answer with the page."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer with the head of the page."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(404)
            return
        page = text(self.server.collect()).encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if body:
            self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: scrapes are not worth a line."""
