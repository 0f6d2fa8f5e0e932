"""HTTP requests to the metrics endpoint and their responses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.metrics.server import MAX_REQUEST, HttpResponse, is_complete, is_known_host, respond


def resources(path: str) -> HttpResponse | None:
    return HttpResponse(200, b"the page") if path == "/metrics" else None


def request(line: str, *fields: str, hosts: tuple[str, ...] = ()) -> HttpResponse:
    return respond("\r\n".join([line, *fields, "", ""]).encode(), resources, hosts)


def test_get_returns_the_page_its_length_and_closes() -> None:
    encoded = request("GET /metrics?x=1 HTTP/1.1", "Host: localhost:9464").encode()
    head, _, body = encoded.partition(b"\r\n\r\n")
    assert body == b"the page"
    assert b"HTTP/1.1 200 OK" in head
    assert b"Content-Length: 8" in head
    assert b"Connection: close" in head


def test_head_returns_the_length_and_no_body() -> None:
    encoded = request("HEAD /metrics HTTP/1.1", "Host: localhost").encode()
    assert encoded.endswith(b"\r\n\r\n")
    assert b"Content-Length: 8" in encoded


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /other HTTP/1.1", 404),
        ("GET /metrics/ HTTP/1.1", 404),
        ("GET /../metrics HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
        ("GET /metrics", 400),
        ("GET  /metrics HTTP/1.1", 400),
        ("GET /metrics HTTP/2", 400),
        ("GET /métrics HTTP/1.1", 400),
        ("", 400),
    ],
)
def test_other_requests_are_rejected_with_their_status(line: str, status: int) -> None:
    assert request(line, "Host: 127.0.0.1").status == status


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:9464",
        "LOCALHOST.",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]:9464",
        "[::1]",
        "10.1.2.3:80",
    ],
)
def test_host_may_be_an_address_or_localhost(host: str) -> None:
    assert is_known_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:9464",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost:x",
        "[::1",
        "[::1]x",
        "127.0.0.1:99999",
        # Python refuses to convert so many digits.
        "localhost:" + "9" * 5000,
        "[::1]:" + "9" * 5000,
        "a b",
        "lab-7",
    ],
)
def test_host_with_a_foreign_name_is_rejected(host: str) -> None:
    assert not is_known_host(host)
    assert request("GET /metrics HTTP/1.1", f"Host: {host}").status == 421


def test_host_may_be_a_configured_name() -> None:
    assert is_known_host("Lab-7:9464", ("lab-7",))
    assert request("GET /metrics HTTP/1.1", "Host: lab-7:9464", hosts=("lab-7",)).status == 200


def test_request_without_a_host_or_with_two_is_rejected() -> None:
    assert request("GET /metrics HTTP/1.1").status == 421
    assert request("GET /metrics HTTP/1.1", "Host: localhost", "host: evil.example").status == 400
    assert request("GET /metrics HTTP/1.1", "Host : localhost").status == 400


def test_request_over_the_size_limit_is_rejected() -> None:
    long = b"GET /" + b"x" * MAX_REQUEST
    assert is_complete(long)
    assert respond(long, resources).status == 431
    assert not is_complete(b"GET / HTTP/1.1\r\nHost: localhost\r\n")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_get_a_response(noise: bytes) -> None:
    assert respond(noise + b"\r\n\r\n", resources).status in (200, 400, 404, 405, 421)
