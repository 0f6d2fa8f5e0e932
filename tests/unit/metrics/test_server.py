"""The endpoint, over real sockets."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tensorpool.clock import ManualClock
from tensorpool.metrics import CONTENT_TYPE, Address, AddressInUse, MetricsServer
from tensorpool.metrics.server import _MOST_CONNECTIONS

PATIENCE_S = 60


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with MetricsServer("127.0.0.1:0", lambda: "frames_total 1\n") as found:
        yield found


def get(server: MetricsServer, path: str = "/metrics") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://{server.address}{path}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection((server.address.host, server.address.port), timeout=PATIENCE_S)


def ended(peer: socket.socket) -> bool:
    """Whether the server closes it: quietly, or by a reset if bytes of ours had not been read yet."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def test_metrics_come_with_the_content_type_of_prometheus(server: MetricsServer) -> None:
    assert get(server) == (200, CONTENT_TYPE, "frames_total 1\n")
    assert get(server, "/-/healthy")[0] == 200
    assert "/metrics" in get(server, "/")[2]
    assert get(server, "/favicon.ico")[0] == 404


def test_a_page_larger_than_any_buffer_arrives_whole() -> None:
    page = "x" * (20 << 20)
    with MetricsServer("127.0.0.1:0", lambda: page) as server:
        assert get(server)[2] == page


def test_the_loopback_is_the_default_and_ipv6_works() -> None:
    assert Address.parse("9464").is_loopback
    with MetricsServer("[::1]:0", lambda: "x 1\n") as server:
        assert server.url.startswith("http://[::1]:")
        assert get(server)[0] == 200


def test_an_address_in_use_is_an_error_that_says_what_to_do(server: MetricsServer) -> None:
    with pytest.raises(AddressInUse, match="choose another") as caught:
        MetricsServer(str(server.address), lambda: "")
    assert caught.value.address == str(server.address)


def test_who_sits_on_connections_does_not_shut_out_who_scrapes(server: MetricsServer) -> None:
    idle = [connect(server) for _ in range(3 * _MOST_CONNECTIONS)]
    try:
        assert get(server)[0] == 200
        assert server.refused > 0
    finally:
        for one in idle:
            one.close()


def test_who_is_slow_is_let_go(wait_until: Callable[..., object]) -> None:
    clock = ManualClock()
    with MetricsServer("127.0.0.1:0", lambda: "", clock=clock) as server, connect(server) as slow:
        slow.sendall(b"GET /metrics")
        wait_until(lambda: server._connections)
        clock.advance(60)
        assert ended(slow)
        assert server.refused == 1


def test_a_scrape_in_between_gets_the_same_page_again() -> None:
    clock, made = ManualClock(), []

    def page() -> str:
        made.append(threading.current_thread().name)
        return f"frames_total {len(made)}\n"

    with MetricsServer("127.0.0.1:0", page, clock=clock) as server:
        assert [get(server)[2] for _ in range(3)] == ["frames_total 1\n"] * 3
        clock.advance(1)
        assert get(server)[2] == "frames_total 2\n"


def test_a_page_that_cannot_be_made_is_an_error_and_the_next_one_may_be_fine() -> None:
    outcomes: Iterator[Exception | str] = iter([ValueError("no"), "x 1\n"])

    def page() -> str:
        found = next(outcomes)
        if isinstance(found, Exception):
            raise found
        return found

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
def test_addresses_as_people_write_them(text: str, expected: Address) -> None:
    assert Address.parse(text) == expected


@pytest.mark.parametrize("text", ["lab-7:9464", "127.0.0.1:x", "127.0.0.1:70000", "[::1", "1.2.3", "a:b:c"])
def test_what_is_no_address_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (HOST:PORT|port)"):
        Address.parse(text)
