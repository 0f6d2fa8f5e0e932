"""The console's server over real sockets: who gets in, what viewers receive, and what they cannot cause."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import tensorpool as tp
from tensorpool.console import frames
from tensorpool.console import server as server_module
from tensorpool.console.access import ViewerRole
from tensorpool.console.frames import unpack_message
from tensorpool.console.history import History
from tensorpool.console.server import ConsoleServer
from tensorpool.console.viewer import (
    MAX_MESSAGE,
    MAX_OPEN_REQUESTS,
    MAX_WATCHES,
    Reply,
    RequestHandler,
    Viewer,
)
from tensorpool.text import JsonMapping
from tests.e2e.console_system import Laboratory, console, detector, laboratory, spectrum

DEADLINE_S = 60
WaitUntil = Callable[..., None]


@pytest.fixture
def lab(aeron_dir: Path, shm_base: Path) -> Iterator[Laboratory]:
    with laboratory(aeron_dir, shm_base) as system:
        yield system


@pytest.fixture
def server(lab: Laboratory) -> Iterator[ConsoleServer]:
    with console(lab, period_s=0.2) as running:
        yield running


def get(
    server: ConsoleServer, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request; the path is sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.putrequest(method, path, skip_host="host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


def session(server: ConsoleServer, role: ViewerRole = ViewerRole.STEER) -> str:
    """The cookie that a token is exchanged for."""
    status, headers, _ = get(server, server.url(role).partition(str(server.port))[2])
    assert (status, headers["location"]) == (303, "/")
    return headers["set-cookie"].partition(";")[0]


@contextmanager
def viewer(
    server: ConsoleServer, cookie: str | None = None, origin: str | None = "own", **options: Any
) -> Iterator[ClientConnection]:
    own = f"http://127.0.0.1:{server.port}"
    headers = {"Cookie": session(server) if cookie is None else cookie}
    if origin is not None:
        headers["Origin"] = own if origin == "own" else origin
    with connect(
        f"ws://127.0.0.1:{server.port}/ws", additional_headers=headers, compression=None, max_size=None,
        open_timeout=DEADLINE_S, **options,
    ) as websocket:  # fmt: skip
        yield websocket


def receive(websocket: ClientConnection, wanted: str) -> Any:
    """The next message of a type; other messages are skipped."""
    while True:
        message = websocket.recv(timeout=DEADLINE_S)
        if isinstance(message, str) and (content := json.loads(message))["type"] == wanted:
            return content


def receive_frame(websocket: ClientConnection) -> tuple[Any, bytes]:
    """The next frame: header and elements."""
    while True:
        message = websocket.recv(timeout=DEADLINE_S)
        if isinstance(message, bytes):
            return unpack_message(message)


def send(websocket: ClientConnection, **message: Any) -> None:
    websocket.send(json.dumps(message))


# --- who gets in


def test_token_is_exchanged_for_a_strict_cookie(server: ConsoleServer) -> None:
    status, headers, body = get(server, server.url().partition(str(server.port))[2])
    assert (status, body) == (303, b"")
    cookie = headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    token = server.url().partition("=")[2]
    assert token not in headers["set-cookie"]
    status, headers, body = get(server, "/", cookie=headers["set-cookie"].partition(";")[0])
    assert status == 200
    assert b"TensorPool" in body
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers


def test_no_token_and_wrong_token_are_refused(server: ConsoleServer) -> None:
    assert get(server, "/")[0] == 401
    assert get(server, "/main.js")[0] == 401
    assert get(server, "/?token=")[0] == get(server, "/?token=wrong")[0] == 403
    assert "set-cookie" not in get(server, "/?token=wrong")[1]
    wrong = session(server).partition("=")[0] + "=wrong"
    assert get(server, "/", cookie=wrong)[0] == 401
    for cookie in ("", wrong):
        with pytest.raises(InvalidStatus), viewer(server, cookie):
            pass


def test_browser_is_started_with_a_token_of_this_user(
    server: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All users can read the arguments of the browser's process."""
    path = server.opening_url().partition(str(server.port))[2]
    assert server.options.tokens.watch not in path
    assert str(server.options.tokens.steer) not in path
    status, headers, _ = get(server, path)
    assert status == 303
    with viewer(server, headers["set-cookie"].partition(";")[0]) as websocket:
        assert receive(websocket, "hello")["role"] == "steer"
    monkeypatch.setattr(server_module, "connection_owner", lambda *_: os.geteuid() + 1)
    assert get(server, path)[0] == 403
    monkeypatch.undo()
    # A later one replaces it.
    server.opening_url()
    assert get(server, path)[0] == 403
    # A wrong token costs no look at the kernel's tables.
    looks: list[object] = []
    monkeypatch.setattr(server_module, "connection_owner", lambda *_: looks.append(1))
    assert get(server, path)[0] == 403
    assert not looks


def test_cookie_is_good_for_connections_of_its_user_only(
    server: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers send it to all ports of a host, and so to pages of other users of this machine."""
    cookie = session(server)
    assert get(server, "/", cookie=cookie)[0] == 200
    for owner, status in ((os.getuid() + 1, 401), (None, 401), (0, 200), (os.getuid(), 200)):
        monkeypatch.setattr(server_module, "connection_owner", lambda *_, owner=owner: owner)
        assert get(server, "/", cookie=cookie)[0] == get(server, "/main.js", cookie=cookie)[0] == status
        if status == 401:
            with pytest.raises(InvalidStatus), viewer(server, cookie):
                pass
    # A user who was given the token has a cookie of his own, and a process that hides its end has none.
    monkeypatch.setattr(server_module, "connection_owner", lambda *_: os.getuid() + 1)
    other = session(server)
    assert get(server, "/", cookie=other)[0] == 200
    monkeypatch.undo()
    assert get(server, "/", cookie=other)[0] == (200 if os.getuid() == 0 else 401)
    # The table is read once per connection, and not at all for a wrong cookie.
    looks: list[object] = []

    def look(*_: object) -> int:
        looks.append(1)
        return os.getuid()

    monkeypatch.setattr(server_module, "connection_owner", look)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    for sent in (cookie + "x", cookie, cookie):
        connection.request("GET", "/", headers={"Cookie": sent})
        assert connection.getresponse().read()
        assert len(looks) == (0 if sent != cookie else 1)
    connection.close()


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"behind_proxy": True}])
def test_cookie_is_bound_to_no_user_where_connections_are_not_the_browsers_own(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    with console(lab, **options) as server:
        cookie = session(server)
        monkeypatch.setattr(server_module, "connection_owner", lambda *_: os.getuid() + 1)
        assert get(server, "/", cookie=cookie)[0] == 200


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({}, "http://127.0.0.1:{port}/"),
        ({"host": "::1"}, "http://[::1]:{port}/"),
        ({"host": "0.0.0.0", "allowed_hosts": ("lab.example",)}, "http://lab.example:{port}/"),
        ({"allowed_hosts": ("lab.example",), "behind_proxy": True}, "https://lab.example/"),
    ],
)
def test_printed_address_can_be_opened_where_it_is_read(
    lab: Laboratory, options: dict[str, Any], address: str
) -> None:
    with console(lab, **options) as server:
        assert server.url().partition("?")[0] == address.format(port=server.port)
        proxied = options.get("behind_proxy", False)
        host = "lab.example" if proxied else server.url().split("/")[2]
        if options.get("host") != "::1":
            _, headers, _ = get(server, server.url().rpartition("/")[2].join(("/", "")), host=host)
            assert ("Secure" in headers["set-cookie"]) is proxied


def test_address_of_every_interface_is_one_of_this_machine(lab: Laboratory) -> None:
    with console(lab, host="0.0.0.0") as server:
        host = server.url().split("/")[2].partition(":")[0]
        assert not ipaddress.ip_address(host).is_unspecified
        assert get(server, "/", host=f"{host}:{server.port}")[0] == 401


def test_other_host_is_refused_even_with_a_session(server: ConsoleServer) -> None:
    cookie = session(server)
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1:1", "10.1.2.3"):
        status, headers, body = get(server, "/", host=host, cookie=cookie)
        assert status == 403, host
        assert b"Host" in body
        assert "content-security-policy" in headers
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
    with connection:
        twice = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nHost: evil\r\nCookie: {cookie}\r\n\r\n"
        connection.sendall(twice.encode())
        assert connection.recv(64).split()[1] in (b"400", b"403")


def test_other_origin_is_refused_even_with_a_session(server: ConsoleServer) -> None:
    cookie = session(server)
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{server.port}", "http://127.0.0.1:1"):
        assert get(server, "/", origin=origin, cookie=cookie)[0] == 403
        with pytest.raises(InvalidStatus), viewer(server, cookie, origin):
            pass
    # A page always sends its origin.
    with pytest.raises(InvalidStatus), viewer(server, cookie, None):
        pass


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py", "/static/main.js", "/..%2fserver.py",
        "/%2e%2e/server.py", "/main.js/../../server.py",
        "//etc/passwd", "/main.js%00.txt", "/__init__.py", "/.", "/C:\\windows",
    ],
)  # fmt: skip
def test_path_tricks_find_no_file(server: ConsoleServer, path: str) -> None:
    status, _, body = get(server, path, cookie=session(server))
    assert status in (400, 404)
    assert b"import" not in body
    assert b"root:" not in body


def test_other_methods_and_long_requests_are_refused(server: ConsoleServer) -> None:
    cookie = session(server)
    assert get(server, "/", method="POST", cookie=cookie)[0] == 405
    assert get(server, "/", method="DELETE", cookie=cookie)[0] == 405
    assert get(server, "/", cookie=cookie, x_long="x" * 100_000)[0] in (400, 431)


def test_number_of_a_job_is_bounded_and_read_after_the_role(
    server: ConsoleServer, caplog: pytest.LogCaptureFixture
) -> None:
    paths = ["/job/" + "9" * 5000, "/job/x", "/job/-1", "/job/1e3"]
    assert [get(server, path)[0] for path in paths] == [401] * 4
    cookie = session(server)
    assert [get(server, path, cookie=cookie)[0] for path in paths] == [404] * 4
    assert not [record for record in caplog.records if record.exc_info]


@contextmanager
def half_requests(server: ConsoleServer, first: bytes, count: int) -> Iterator[list[socket.socket]]:
    """Connections that send `first`, and no end of a head."""
    with ExitStack() as stack:
        peers = []
        for _ in range(count):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), DEADLINE_S))
            peer.sendall(first)
            peers.append(peer)
        yield peers


@pytest.mark.parametrize(
    "kind", ["nothing", "half a head", "half of the second head", "body that never comes"]
)
def test_connections_without_a_request_do_not_keep_others_out(lab: Laboratory, kind: str) -> None:
    with console(lab, max_viewers=4) as server:
        whole = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        first = {
            "nothing": "",
            "half a head": "GET / HT",
            "half of the second head": whole + "\r\nGET / HT",
            "body that never comes": whole + "Content-Length: 100000\r\n\r\nx",
        }[kind].encode()
        cookie = session(server)
        with viewer(server, cookie) as websocket, half_requests(server, first, 60) as peers:
            for peer in peers if first.startswith(b"GET / HTTP/1.1") else []:
                with suppress(ConnectionError):
                    peer.recv(64)
            for _ in range(20):
                assert get(server, "/", cookie=cookie)[0] == 200
            # A page that is open stays so.
            receive(websocket, "update")


@pytest.mark.parametrize("requests", [0, 1])
def test_connection_ends_when_its_head_stays_incomplete(
    server: ConsoleServer, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    monkeypatch.setattr(server_module, "REQUEST_S", 0.5)
    whole = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    cookie = session(server)
    with viewer(server, cookie) as websocket, socket.socket() as peer:
        peer.settimeout(DEADLINE_S)
        peer.connect(("127.0.0.1", server.port))
        for _ in range(requests):
            peer.sendall(whole)
            assert peer.recv(4096).startswith(b"HTTP/1.1 401")
        # A byte now and then gives it no more time.
        started = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() < started + DEADLINE_S:
                peer.sendall(b"G")
                time.sleep(0.1)
        assert time.monotonic() < started + DEADLINE_S / 2
        # The time ends with the head: a page that is open stays so.
        receive(websocket, "update")
        receive(websocket, "update")


# --- what viewers receive


def test_viewer_gets_the_document_and_then_differences(
    lab: Laboratory, server: ConsoleServer, free_stream_id: int
) -> None:
    lab.produce("detector", free_stream_id, detector, 20)
    with viewer(server) as websocket:
        assert receive(websocket, "hello")["role"] == "steer"
        document: dict[str, dict[str, Any]] = {}
        version = None
        while document.get("streams", {}).get(str(free_stream_id), {}).get("state") != "live":
            update = receive(websocket, "update")
            assert update["base"] is None if version is None else update["base"] == version
            version = update["version"]
            for name, rows in update["set"].items():
                for key, members in rows.items():
                    document.setdefault(name, {}).setdefault(key, {}).update(members)
        assert document["streams"][str(free_stream_id)]["name"] == "detector"
        send(websocket, type="select", kind="stream", key=str(free_stream_id))
        view = receive(websocket, "detail")["view"]
        assert (view["name"], view["nslots"]) == ("detector", 16)
        send(websocket, type="track", track=str(free_stream_id), span="minutes")
        history = receive(websocket, "history")
        assert len(history["at"]) == len(history["series"]["rate"])
        assert receive(websocket, "point")["track"] == str(free_stream_id)


def test_frames_carry_true_values_and_wait_for_the_viewer(
    lab: Laboratory, server: ConsoleServer, free_stream_id: int
) -> None:
    lab.produce("detector", free_stream_id, detector, 200)
    with viewer(server) as websocket:
        send(websocket, type="watch", watch=3, stream=free_stream_id, view={})
        seqs = []
        for _ in range(2):
            header, payload = receive_frame(websocket)
            elements = np.frombuffer(payload, "<u2").reshape(header["rows"], header["columns"])
            assert (header["watch"], header["elements"], elements[3, 5]) == (3, "u16", 54_321)
            seqs.append(int(header["seq"]))
        # Both frames are unanswered: the next one comes only after the browser has drawn one.
        for _ in range(5):
            receive(websocket, "update")
        send(websocket, type="drawn", watch=3)
        header, _ = receive_frame(websocket)
        assert int(header["seq"]) > seqs[-1] + 10
        send(
            websocket,
            type="watch",
            watch=3,
            stream=free_stream_id,
            view={"top": 2, "left": 4, "height": 3, "width": 4},
        )
        send(websocket, type="drawn", watch=3)
        while header["top"] != 2:
            header, payload = receive_frame(websocket)
            send(websocket, type="drawn", watch=3)
        assert np.frombuffer(payload, "<u2").reshape(3, 4)[1, 1] == 54_321


def test_view_that_changes_on_a_quiet_stream_is_sent_again(
    lab: Laboratory, server: ConsoleServer, free_stream_id: int
) -> None:
    producer = lab.stack.enter_context(lab.context.producer(free_stream_id, pools=["64KiB"], nslots=8))
    image = np.arange(100 * 100, dtype=np.uint16).reshape(100, 100)
    with viewer(server) as websocket:
        send(websocket, type="watch", watch=1, stream=free_stream_id, view={})
        stop = threading.Event()

        def offer() -> None:
            while not stop.wait(0.1):
                producer.offer(image)

        thread = threading.Thread(target=offer)
        thread.start()
        receive_frame(websocket)
        stop.set()
        thread.join()
        for _ in range(3):
            send(websocket, type="drawn", watch=1)
        send(websocket, type="watch", watch=1, stream=free_stream_id, view={"top": 50, "height": 1})
        header: Any = {"top": 0}
        while header["top"] != 50:
            header, payload = receive_frame(websocket)
        np.testing.assert_array_equal(np.frombuffer(payload, "<u2"), image[50])


def test_odd_frames_carry_the_reason_for_not_being_shown(
    lab: Laboratory, server: ConsoleServer, free_stream_id: int
) -> None:
    lab.produce("empty", free_stream_id, lambda _: np.zeros((0, 4), np.uint8), 20)
    with viewer(server) as websocket:
        send(websocket, type="watch", watch=1, stream=free_stream_id, view={})
        header, payload = receive_frame(websocket)
        assert (header["kind"], payload) == ("none", b"")
        assert "no elements" in header["why"]


def test_error_in_one_frame_or_period_does_not_end_those_that_follow(
    lab: Laboratory, server: ConsoleServer, free_stream_id: int, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """An unforeseen exception is logged; the threads of the console continue."""
    failed: list[str] = []

    def fail_once(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name not in failed:
                failed.append(name)
                raise RuntimeError("unforeseen")
            return function(*arguments)

        return call

    monkeypatch.setattr(frames, "encode_frame", fail_once("frame", frames.encode_frame))
    monkeypatch.setattr(History, "add", fail_once("period", History.add))
    lab.produce("detector", free_stream_id, detector, 50)
    with viewer(server) as websocket:
        send(websocket, type="watch", watch=1, stream=free_stream_id, view={})
        header, _ = receive_frame(websocket)
        assert (header["kind"], header["why"]) == ("none", "unforeseen")
        send(websocket, type="drawn", watch=1)
        assert receive_frame(websocket)[0]["kind"] == "image"
        receive(websocket, "update")
    assert sorted(failed) == ["frame", "period"]
    assert sorted(record.message.partition(" to ")[0] for record in caplog.records) == [
        "the console could not show the system in this period", "the console failed",
    ]  # fmt: skip
    # The records hold the frame by their tracebacks.
    caplog.clear()


def test_consumers_of_the_console_that_are_left_out_are_bounded(server: ConsoleServer) -> None:
    for number in range(server_module.MAX_HIDDEN + 10):
        server.hide(cast(Any, SimpleNamespace(consumer_ids={number})))
    assert server.own_consumers() == set(range(10, server_module.MAX_HIDDEN + 10))


def test_console_does_not_show_itself(
    lab: Laboratory, server: ConsoleServer, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("spectrum", free_stream_id, spectrum, 50)
    with viewer(server) as websocket:
        send(websocket, type="watch", watch=1, stream=free_stream_id, view={})
        receive_frame(websocket)
        for _ in range(10):
            receive(websocket, "update")

        # Its hellos are on the wire; the snapshot and the list of the departed leave them out.
        def readers() -> int:
            stream = server.feed.snapshot.stream(free_stream_id)
            return -1 if stream is None else len(stream.consumers)

        wait_until(lambda: readers() == 0, timeout=DEADLINE_S)
    text = server.feed.whole()[1]
    document = json.loads(text)["set"]
    assert document["consumers"] == {}
    assert not any(row["kind"] == "consumer" for row in document["gone"].values())


# --- what viewers cannot cause


@pytest.mark.parametrize("message", ["not json", "[]", "{}", '{"type": "shutdown"}', "[" * 5000])
def test_senseless_message_ends_the_connection(server: ConsoleServer, message: str) -> None:
    with viewer(server) as websocket:
        receive(websocket, "hello")
        websocket.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            receive(websocket, "never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003


def test_oversized_and_binary_messages_end_the_connection(server: ConsoleServer) -> None:
    for message, code in (("x" * (MAX_MESSAGE + 1), 1009), (b"\0" * 16, 1003)):
        with viewer(server) as websocket:
            receive(websocket, "hello")
            websocket.send(message)
            with pytest.raises(ConnectionClosed) as closed:
                receive(websocket, "never")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == code


def test_flood_of_messages_ends_the_connection(server: ConsoleServer) -> None:
    with viewer(server) as websocket:
        receive(websocket, "hello")
        with suppress(ConnectionClosed):
            for _ in range(5000):
                send(websocket, type="drawn", watch=1)
        with pytest.raises(ConnectionClosed) as closed:
            receive(websocket, "never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize(
    "message", [{"type": "track", "track": "system"}, {"type": "select", "kind": "stream", "key": "5"}]
)
def test_few_messages_that_cost_much_end_the_connection(
    server: ConsoleServer, message: dict[str, str]
) -> None:
    """Their answers are made on the event loop, which all viewers share."""
    with viewer(server) as websocket:
        receive(websocket, "hello")
        with suppress(ConnectionClosed):
            for _ in range(100):
                send(websocket, **message)
        with pytest.raises(ConnectionClosed) as closed:
            receive(websocket, "never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_bad_values_are_answered_and_change_nothing(server: ConsoleServer) -> None:
    with viewer(server) as websocket:
        for message in (
            {"type": "watch", "watch": 1, "stream": "x"},
            {"type": "watch", "watch": 1, "stream": 5, "hz": -1},
            {"type": "watch", "watch": 1, "stream": 5, "view": {"top": -5}},
            {"type": "select", "kind": 3, "key": 4},
            {"type": "track", "track": "x" * 100},
        ):
            websocket.send(json.dumps(message))
            assert receive(websocket, "error")["error"]
        send(websocket, type="ask", id=9, what="no-such-request")
        assert "no such request" in receive(websocket, "reply")["error"]


def test_number_of_viewers_and_of_streams_is_bounded(
    lab: Laboratory, free_stream_ids: Callable[[], int]
) -> None:
    with console(lab, max_viewers=2) as small, viewer(small) as first, viewer(small) as second:
        receive(first, "hello"), receive(second, "hello")
        with viewer(small) as third, pytest.raises(ConnectionClosed) as closed:
            receive(third, "hello")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4429
        for number in range(MAX_WATCHES + 1):
            send(first, type="watch", watch=number, stream=free_stream_ids(), view={})
        assert "at once" in receive(first, "error")["error"]


@contextmanager
def viewer_that_does_not_read(server: ConsoleServer) -> Iterator[Callable[..., None]]:
    """A browser that sends messages and reads nothing. Yields the function that sends one."""
    request = (
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: http://127.0.0.1:{server.port}\r\n"
        f"Cookie: {session(server)}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with socket.socket() as stalled:
        stalled.settimeout(DEADLINE_S)
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", server.port))
        stalled.sendall(request.encode())

        def send_masked(**message: Any) -> None:
            text = json.dumps(message).encode()
            assert len(text) < 126
            # A frame with a mask of zeros.
            stalled.sendall(bytes([0x81, 0x80 | len(text)]) + bytes(4) + text)

        yield send_masked


def test_viewer_that_stops_reading_does_not_hold_up_others(
    lab: Laboratory, server: ConsoleServer, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("detector", free_stream_id, detector, 100)
    with viewer(server) as good:
        with viewer_that_does_not_read(server) as send_stalled:
            wait_until(lambda: server.viewers == 2, timeout=DEADLINE_S)
            send_stalled(type="watch", watch=1, stream=free_stream_id, view={})
            send(good, type="watch", watch=1, stream=free_stream_id, view={})
            first, _ = receive_frame(good)
            for _ in range(50):
                send(good, type="drawn", watch=1)
                header, _ = receive_frame(good)
            assert int(header["seq"]) > int(first["seq"])
        wait_until(lambda: server.viewers == 1, timeout=DEADLINE_S)


def test_answers_that_a_viewer_does_not_read_are_bounded(lab: Laboratory, wait_until: WaitUntil) -> None:
    """A request stays open until its reply is sent: one who only asks gets a few answers prepared."""
    answered = []

    def large(viewer: Viewer, arguments: JsonMapping) -> bytes:
        answered.append(arguments)
        return bytes(8 << 20)

    def small(viewer: Viewer, arguments: JsonMapping) -> Reply:
        return {}

    handlers: dict[str, RequestHandler] = {"large": large, "small": small}
    with console(lab, handlers=lambda _: handlers) as server, viewer(server) as good:
        with viewer_that_does_not_read(server) as send_stalled:
            for number in range(30):
                for _ in range(4):
                    send_stalled(type="ask", id=number, what="large")
                send(good, type="ask", id=number, what="small")
                assert receive(good, "reply")["id"] == number
            # One answer is on its way, and some parts of it in the buffers of the kernel.
            assert 1 <= len(answered) <= MAX_OPEN_REQUESTS + 2
        wait_until(lambda: server.viewers == 1, timeout=DEADLINE_S)


def test_fifty_viewers_see_one_stream(
    lab: Laboratory, server: ConsoleServer, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("spectrum", free_stream_id, spectrum, 50)
    cookie, seen = session(server), []

    def watch() -> None:
        with viewer(server, cookie) as websocket:
            send(websocket, type="watch", watch=1, stream=free_stream_id, view={})
            for _ in range(5):
                receive_frame(websocket)
                send(websocket, type="drawn", watch=1)
            seen.append(receive(websocket, "update")["version"])

    threads = [threading.Thread(target=watch) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 50
    wait_until(lambda: server.viewers == 0, timeout=DEADLINE_S)


def test_stream_is_shown_again_after_its_driver_was_replaced(
    aeron_dir: Path, shm_base: Path, free_stream_id: int
) -> None:
    """The producer's context ends, and another one with another driver takes the stream over."""
    with tp.MediaDriver(aeron_dir):
        lab = Laboratory(None, aeron_dir, shm_base)  # type: ignore[arg-type]
        with console(lab, period_s=0.2) as server, viewer(server) as websocket:
            send(websocket, type="watch", watch=1, stream=free_stream_id, view={})
            epochs = set()
            for _ in range(2):
                with tp.open(
                    "embedded", aeron_dir=aeron_dir, media_driver="external", shm_base_dir=shm_base
                ) as ctx:
                    lab = Laboratory(ctx, aeron_dir, shm_base)
                    with lab.stack:
                        lab.produce("detector", free_stream_id, detector, 50)
                        header: Any = {"epoch": None}
                        while header["epoch"] is None or header["epoch"] in epochs:
                            header, _ = receive_frame(websocket)
                            send(websocket, type="drawn", watch=1)
                        epochs.add(header["epoch"])
            assert len(epochs) == 2
