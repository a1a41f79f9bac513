"""A web server for one reader on this machine: it answers GET requests to the loopback address with fixed resources."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from edgesim.core.errors import ConfigError

LOOPBACK = "127.0.0.1"
_PORT_OF_WEB = 80  # which browsers leave out of the Host
_PATIENCE_S = 10.0  # for a request that does not end
# plotly writes its own style sheets into the page.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; img-src data: blob:; "
    "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Resource:
    """A text and its media type, such as "text/html"."""

    text: str
    kind: str

    @cached_property
    def content(self) -> bytes:
        """The text in UTF-8."""
        return self.text.encode()

    @cached_property
    def tag(self) -> str:
        """Entity tag: equal for equal texts."""
        return f'"{sha256(self.content).hexdigest()[:32]}"'


@contextmanager
def serving(resources: Mapping[str, Resource], port: int = 0) -> Iterator[str]:
    """Serve resources by their paths, such as "/", and yield the address of the server.

    Entries may be replaced meanwhile. Only requests of this machine are accepted. Their Host must be the loopback
    address or localhost, as a page from elsewhere could otherwise read the answers (DNS rebinding). No path leads to a
    file. `port`: 0 for a free one. Raises ConfigError if the port cannot be used.
    """
    try:
        server = _LoopbackServer((LOOPBACK, port), _Answer)
    except OSError as error:
        raise ConfigError(f"--port: {port} cannot be used: {error.strerror} (0: a free port)") from error
    server.resources = resources
    behind = "" if server.server_port == _PORT_OF_WEB else f":{server.server_port}"
    server.hosts = {f"{name}{behind}" for name in (LOOPBACK, "localhost")}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class _LoopbackServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    resources: Mapping[str, Resource]
    hosts: set[str]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, unless a reader has gone away."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Answer(BaseHTTPRequestHandler):
    """Answer to a request. Methods without a `do_` function, all but GET, are refused with status 501."""

    server: _LoopbackServer
    server_version, sys_version = "edgesim", ""
    timeout = _PATIENCE_S

    def parse_request(self) -> bool:
        """Read the request, and refuse one to another host."""
        if not super().parse_request():
            return False
        if self.headers.get_all("Host", []) in [[host] for host in self.server.hosts]:
            return True
        self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "This page has another address")
        return False

    def do_GET(self) -> None:
        """Send a resource, or status 304 if the reader has it already."""
        found = self.server.resources.get(self.path)
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        is_known = self.headers.get("If-None-Match") == found.tag
        self.send_response(HTTPStatus.NOT_MODIFIED if is_known else HTTPStatus.OK)
        self.send_header("ETag", found.tag)
        if not is_known:
            self.send_header("Content-Type", f"{found.kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(found.content)))
        self.end_headers()
        if not is_known:
            self.wfile.write(found.content)

    def end_headers(self) -> None:
        """Send the headers that each answer has."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Keep quiet about requests."""
