"""What the endpoint answers, and to whom."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.metrics.server import LARGEST_REQUEST, HttpResponse, answer, host_is_known, is_whole


def pages(path: str) -> HttpResponse | None:
    return HttpResponse(200, b"the page") if path == "/metrics" else None


def ask(line: str, *fields: str, hosts: tuple[str, ...] = ()) -> HttpResponse:
    return answer("\r\n".join([line, *fields, "", ""]).encode(), pages, hosts)


def test_a_page_is_got_with_its_length_and_the_connection_ends() -> None:
    found = ask("GET /metrics?x=1 HTTP/1.1", "Host: localhost:9464").encode()
    head, _, body = found.partition(b"\r\n\r\n")
    assert body == b"the page"
    assert b"HTTP/1.1 200 OK" in head
    assert b"Content-Length: 8" in head
    assert b"Connection: close" in head


def test_head_gets_the_length_and_no_body() -> None:
    found = ask("HEAD /metrics HTTP/1.1", "Host: localhost").encode()
    assert found.endswith(b"\r\n\r\n")
    assert b"Content-Length: 8" in found


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
def test_everything_else_is_refused_by_its_proper_number(line: str, status: int) -> None:
    assert ask(line, "Host: 127.0.0.1").status == status


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
def test_this_machine_is_known_by_its_addresses_and_as_localhost(host: str) -> None:
    assert host_is_known(host)


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
        "a b",
        "lab-7",
    ],
)
def test_a_foreign_name_that_points_here_is_refused(host: str) -> None:
    assert not host_is_known(host)
    assert ask("GET /metrics HTTP/1.1", f"Host: {host}").status == 421


def test_names_that_were_set_are_let_in() -> None:
    assert host_is_known("Lab-7:9464", ("lab-7",))
    assert ask("GET /metrics HTTP/1.1", "Host: lab-7:9464", hosts=("lab-7",)).status == 200


def test_a_request_without_a_host_or_with_two_is_refused() -> None:
    assert ask("GET /metrics HTTP/1.1").status == 421
    assert ask("GET /metrics HTTP/1.1", "Host: localhost", "host: evil.example").status == 400
    assert ask("GET /metrics HTTP/1.1", "Host : localhost").status == 400


def test_a_request_is_no_larger_than_it_may_be() -> None:
    long = b"GET /" + b"x" * LARGEST_REQUEST
    assert is_whole(long)
    assert answer(long, pages).status == 431
    assert not is_whole(b"GET / HTTP/1.1\r\nHost: localhost\r\n")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_whatever_comes_is_answered(noise: bytes) -> None:
    assert answer(noise + b"\r\n\r\n", pages).status in (200, 400, 404, 405, 421)
