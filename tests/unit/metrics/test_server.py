"""The metrics server over real sockets."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tensorpool.clock import ManualClock
from tensorpool.metrics import server as server_module
from tensorpool.metrics.server import (
    CONTENT_TYPE,
    MAX_CONNECTIONS,
    Address,
    AddressInUse,
    HttpResponse,
    MetricsServer,
)

TIMEOUT_S = 60


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with MetricsServer("127.0.0.1:0", lambda: "frames_total 1\n") as server:
        yield server


def get(server: MetricsServer, path: str = "/metrics") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://{server.address}{path}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection((server.address.host, server.address.port), timeout=TIMEOUT_S)


def is_closed(peer: socket.socket) -> bool:
    """Whether the server closes the connection, or resets it because it had unread bytes."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def test_metrics_have_the_content_type_of_prometheus(server: MetricsServer) -> None:
    assert get(server) == (200, CONTENT_TYPE, "frames_total 1\n")
    assert get(server, "/-/healthy")[0] == 200
    assert "/metrics" in get(server, "/")[2]
    assert get(server, "/favicon.ico")[0] == 404


def test_page_larger_than_any_buffer_arrives_complete() -> None:
    page = "x" * (20 << 20)
    with MetricsServer("127.0.0.1:0", lambda: page) as server:
        assert get(server)[2] == page


def test_loopback_is_the_default_and_ipv6_works() -> None:
    assert Address.parse("9464").is_loopback
    with MetricsServer("[::1]:0", lambda: "x 1\n") as server:
        assert server.url.startswith("http://[::1]:")
        assert get(server)[0] == 200


def test_address_in_use_raises_an_error_with_a_remedy(server: MetricsServer) -> None:
    with pytest.raises(AddressInUse, match="choose another") as caught:
        MetricsServer(str(server.address), lambda: "")
    assert caught.value.address == str(server.address)


def test_idle_connections_do_not_lock_out_a_scraper(server: MetricsServer) -> None:
    idle = [connect(server) for _ in range(3 * MAX_CONNECTIONS)]
    try:
        assert get(server)[0] == 200
        assert server.refused > 0
    finally:
        for connection in idle:
            connection.close()


def test_idle_connections_do_not_interrupt_a_scraper_that_reads() -> None:
    page = "x" * (20 << 20)
    with MetricsServer("127.0.0.1:0", lambda: page) as server, ExitStack() as stack:
        scraper = stack.enter_context(connect(server))
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = len(scraper.recv(1))
        for _ in range(3 * MAX_CONNECTIONS):
            stack.enter_context(connect(server))
        while data := scraper.recv(1 << 20):
            received += len(data)
        assert received > len(page)
        assert server.refused > 0


def test_clients_that_do_not_read_do_not_lock_out_a_scraper(wait_until: Callable[..., object]) -> None:
    page = "x" * (8 << 20)
    with MetricsServer("127.0.0.1:0", lambda: page) as server, ExitStack() as stack:
        for number in range(2 * MAX_CONNECTIONS):
            stalled = stack.enter_context(connect(server))
            stalled.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until(lambda number=number: server.requests > number)
        # The request arrives late: newer connections do not take its place as long as others do not read.
        late = stack.enter_context(connect(server))
        for _ in range(MAX_CONNECTIONS // 4):
            stack.enter_context(connect(server))
        wait_until(lambda: server.refused > MAX_CONNECTIONS + MAX_CONNECTIONS // 4)
        late.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert late.recv(64).startswith(b"HTTP/1.1 200")


def test_request_with_a_port_of_thousands_of_digits_is_rejected_and_the_next_is_answered(
    server: MetricsServer,
) -> None:
    with connect(server) as peer:
        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost:" + b"9" * 5000 + b"\r\n\r\n")
        assert peer.recv(64).startswith(b"HTTP/1.1 421")
    assert get(server)[0] == 200


def test_unforeseen_errors_of_requests_end_only_these_and_are_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()

    def fail(*_: object) -> HttpResponse:
        raise ValueError("unforeseen")

    def request(server: MetricsServer) -> None:
        with connect(server) as peer:
            peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert is_closed(peer)

    with MetricsServer("127.0.0.1:0", lambda: "x 1\n", clock=clock) as server:
        monkeypatch.setattr(server_module, "respond", fail)
        for _ in range(3):
            request(server)
        assert len(caplog.records) == 1
        clock.advance(60)
        request(server)
        assert len(caplog.records) == 2
        monkeypatch.undo()
        assert get(server)[0] == 200


def test_slow_connection_is_closed(wait_until: Callable[..., object]) -> None:
    clock = ManualClock()
    with MetricsServer("127.0.0.1:0", lambda: "", clock=clock) as server, connect(server) as slow:
        slow.sendall(b"GET /metrics")
        wait_until(lambda: server.connections)
        clock.advance(60)
        assert is_closed(slow)
        assert server.refused == 1


def test_frequent_scrapes_get_the_same_page() -> None:
    clock = ManualClock()
    threads: list[str] = []

    def page() -> str:
        threads.append(threading.current_thread().name)
        return f"frames_total {len(threads)}\n"

    with MetricsServer("127.0.0.1:0", page, clock=clock) as server:
        assert [get(server)[2] for _ in range(3)] == ["frames_total 1\n"] * 3
        clock.advance(1)
        assert get(server)[2] == "frames_total 2\n"


def test_failed_collection_is_a_500_and_the_next_succeeds() -> None:
    outcomes: Iterator[Exception | str] = iter([ValueError("no"), "x 1\n"])

    def page() -> str:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with MetricsServer("127.0.0.1:0", page) as server:
        assert get(server)[0] == 500
        assert get(server)[2] == "x 1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9464", Address("127.0.0.1", 9464)),
        (":1234", Address("127.0.0.1", 1234)),
        ("localhost:1", Address("127.0.0.1", 1)),
        ("0.0.0.0", Address("0.0.0.0", 9464)),
        ("[::]:80", Address("::", 80)),
        ("::1", Address("::1", 9464)),
    ],
)
def test_address_parses_all_forms(text: str, expected: Address) -> None:
    assert Address.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["lab-7:9464", "127.0.0.1:x", "127.0.0.1:70000", ":" + "9" * 5000, "[::1", "1.2.3", "a:b:c"]
)
def test_invalid_address_is_rejected_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not (HOST:PORT|a port)"):
        Address.parse(text)
