"""A gate before a registry: it asks for a login, as most do, and can be closed and opened again."""

from __future__ import annotations

import base64
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from crenel.runners.flink.ports import free_ports


class Gate:
    """Passes requests on to a registry, if they come with the login.

    Args:
        behind: The registry's address.
        login: USER:PASSWORD; None to ask for none.
    """

    def __init__(self, behind: str, login: str | None = None) -> None:
        (self._port,) = free_ports(1)
        origin, _, self._path = behind.partition("/apis")
        wanted = None if login is None else "Basic " + base64.b64encode(login.encode()).decode()
        #: The paths that were asked for.
        self.asked: list[str] = []
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def _pass(self) -> None:
                gate.asked.append(self.path)
                if wanted is not None and self.headers.get("Authorization") != wanted:
                    return self._answer(401, b'{"error_code": 401, "message": "Unauthorized"}')
                size = int(self.headers.get("Content-Length") or 0)
                kind = {"Content-Type": self.headers.get("Content-Type", "application/json")}
                request = urllib.request.Request(
                    origin + self.path, self.rfile.read(size) if size else None, kind, method=self.command
                )
                try:
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        return self._answer(answer.status, answer.read())
                except urllib.error.HTTPError as error:
                    return self._answer(error.code, error.read())

            do_GET = do_POST = do_PUT = _pass  # noqa: N815 - names of the library

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._handler = Handler
        self._server: ThreadingHTTPServer | None = None
        self.open()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://localhost:{self._port}/apis{self._path}"

    def open(self) -> None:
        """Let requests in."""
        self._server = ThreadingHTTPServer(("localhost", self._port), self._handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
