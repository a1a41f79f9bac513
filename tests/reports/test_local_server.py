"""A web server for one reader: what it answers, and what it refuses."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import pytest

from edgesim.core.errors import ConfigError
from edgesim.reports.html.local_server import Resource, serving

PAGE = Resource("<h1>café</h1>", "text/html")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server with one page."""
    with serving({"/": PAGE}) as address:
        yield urlsplit(address).port or 0


def asked(port: int, path: str = "/", method: str = "GET", **headers: str) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return connection.getresponse()


def test_a_page_is_sent_once_and_again_only_if_it_has_changed() -> None:
    resources = {"/": PAGE}
    with serving(resources) as address:
        port = urlsplit(address).port or 0
        first = asked(port)
        assert (first.status, first.read().decode()) == (200, PAGE.text)
        assert first.headers["Content-Type"] == "text/html; charset=utf-8"
        again = asked(port, If_None_Match=first.headers["ETag"])
        assert (again.status, again.read()) == (304, b"")
        resources["/"] = Resource("new", "text/html")
        changed = asked(port, If_None_Match=first.headers["ETag"])
        assert (changed.status, changed.read()) == (200, b"new")


def test_the_page_may_load_nothing_from_elsewhere_and_stand_in_no_frame(port: int) -> None:
    for path in ("/", "/nothing"):
        headers = asked(port, path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
        assert (
            headers["X-Content-Type-Options"] == "nosniff" and headers["Cross-Origin-Resource-Policy"] == "same-origin"
        )


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:{}", 200), ("localhost:{}", 200), ("127.0.0.1", 421), ("evil.example:{}", 421), ("", 421),
     ("127.0.0.1.evil.example:{}", 421), ("0.0.0.0:{}", 421), ("localhost:{}@evil.example", 421)],
)  # fmt: skip
def test_another_host_is_refused(port: int, host: str, status: int) -> None:
    """A page whose name leads to this machine after a while (DNS rebinding) sends its own name."""
    assert asked(port, Host=host.format(port)).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "PATCH"])
def test_only_get_is_answered(port: int, method: str) -> None:
    assert asked(port, method=method).status == 501


@pytest.mark.parametrize(
    "path", ["/../etc/passwd", "//etc/passwd", "/%2e%2e/", "/?x=1", "/report.py", "http://evil.example/", "*"]
)
def test_no_path_leads_elsewhere(port: int, path: str) -> None:
    answer = asked(port, path)
    assert answer.status in (404, 421) and b"evil" not in answer.read()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nHost: evil\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET /",
        b"\x00\r\n\r\n",
    ],
)
def test_a_malformed_request_gets_no_page(port: int, request_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request_.replace(b"{}", str(port).encode()))
        connection.shutdown(socket.SHUT_WR)
        assert b"caf" not in connection.makefile("rb").read()
    assert asked(port).status == 200


def test_it_listens_to_this_machine_alone(port: int) -> None:
    """A free port of another address of the loopback network does not answer, as no wildcard address is bound."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=10)


def test_a_port_that_is_taken_is_an_error(port: int) -> None:
    says = f"--port: {port} cannot be used: Address already in use (0: a free port)"
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"), serving({}, port):
        pass
