"""The metrics endpoint: one thread, few connections, none of them for long.

with MetricsServer("127.0.0.1:9464", page):     # page() gives the text of /metrics
    ...

A stranger can cost it a bounded number of sockets and bytes, and one page a second: scrapes in between get
the same page again.

HOST:PORT of the metrics endpoint. The host is an address of this machine: its own, unless said.

One HTTP request, as little of it as a scrape needs. Pure: bytes in, an answer out.

A page on this machine is within reach of every web page that its users open: a foreign name that was made to
point here (DNS rebinding) is refused by its `Host`. Addresses are let in, since no name stands behind them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import TensorPoolError
from .exposition import CONTENT_TYPE

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9464
"""The one that exporters of OpenTelemetry use for Prometheus."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0: any that is free."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT

    @classmethod
    def parse(cls, text: str) -> Self:
        """`HOST:PORT`, `HOST`, `:PORT` or `PORT`; raises ValueError with the reason."""
        host, port = text.strip(), ""
        if host.isascii() and host.isdecimal():
            host, port = "", host
        elif host.startswith("["):
            host, closing, rest = host[1:].partition("]")
            if not closing or (rest and not rest.startswith(":")):
                raise ValueError(f"{text!r} is no HOST:PORT; an IPv6 address is written as [::1]:9464")
            port = rest[1:]
        elif host.count(":") == 1:
            host, _, port = host.partition(":")
        host = {"": DEFAULT_HOST, "localhost": DEFAULT_HOST}.get(host, host)
        try:
            # No names: a look-up that takes its time, and may say another thing tomorrow.
            found = str(ipaddress.ip_address(host))
        except ValueError:
            raise ValueError(f"{text!r} is no HOST:PORT; HOST is an address, as in 127.0.0.1:9464") from None
        if not port:
            return cls(found)
        if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
            raise ValueError(f"{port!r} is no port; ports are 0 to 65535")
        return cls(found, int(port))

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_fault(text: str) -> str | None:
    """Why a setting is no address; None for one that is."""
    try:
        Address.parse(text)
    except ValueError as error:
        return str(error)
    return None


LARGEST_REQUEST: Final = 8192
_END: Final = b"\r\n\r\n"
_PLAIN: Final = "text/plain; charset=utf-8"
_WORDS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_LOCAL: Final = frozenset({"localhost"})


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What goes back; the connection is closed after it."""

    status: int
    body: bytes
    content_type: str = _PLAIN
    allow: str = ""
    head_only: bool = False

    def encode(self) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {_WORDS[self.status]}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.allow:
            lines.append(f"Allow: {self.allow}")
        head = "\r\n".join(lines).encode("ascii") + _END
        return head if self.head_only else head + self.body


def words(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, (text + "\n").encode())


def is_whole(received: bytes) -> bool:
    """Whether there is enough for an answer. Nothing after the head is read: no request here has a body."""
    return _END in received or len(received) > LARGEST_REQUEST


def answer(
    received: bytes, pages: Callable[[str], HttpResponse | None], hosts: Collection[str] = ()
) -> HttpResponse:
    """`pages` gives the answer for a path, None for one that is not there."""
    head, end, _ = received.partition(_END)
    if not end or len(head) > LARGEST_REQUEST:
        return words(431, f"a request has at most {LARGEST_REQUEST} bytes")
    line, *rest = head.split(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not parts[1].isascii():
        return words(400, "this is no HTTP request")
    fields: dict[bytes, bytes] = {}
    for one in rest:
        name, colon, value = one.partition(b":")
        if not colon or not name or name != name.strip() or (name.lower() == b"host" and b"host" in fields):
            return words(400, "this is no HTTP request")
        fields[name.lower()] = value.strip()
    if not host_is_known(fields.get(b"host", b"").decode("latin-1"), hosts):
        return words(421, "this name is not ours; metrics.hosts says which names are")
    if parts[0] not in (b"GET", b"HEAD"):
        return HttpResponse(405, b"only GET and HEAD\n", allow="GET, HEAD")
    path = parts[1].decode("ascii").partition("?")[0]
    found = pages(path) or words(404, "not found; the metrics are at /metrics")
    if parts[0] == b"HEAD":
        return HttpResponse(found.status, found.body, found.content_type, head_only=True)
    return found


def host_is_known(host: str, hosts: Collection[str] = ()) -> bool:
    """Whether a `Host` field names this machine: by an address, as localhost, or by a name that was set."""
    name = host
    if host.startswith("["):
        name, closing, port = host[1:].partition("]")
        if not closing or (port and not _is_port(port)):
            return False
    elif ":" in host:
        name, _, port = host.rpartition(":")
        if not _is_port(":" + port):
            return False
    if name.lower().rstrip(".") in _LOCAL or name.lower() in {one.lower() for one in hosts}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdecimal() and int(text[1:]) < 1 << 16


_LOG = logging.getLogger(__name__)
_MOST_CONNECTIONS: Final = 32
_WAITING: Final = 128
_PATIENCE_NS: Final = 10_000_000_000
_FRESH_NS: Final = 500_000_000
_TURN_S: Final = 1.0
_INDEX: Final = (
    b"<!doctype html><html lang=en><title>TensorPool metrics</title>"
    b'<p>TensorPool: <a href="/metrics">metrics</a> for Prometheus.</html>\n'
)


class AddressInUse(TensorPoolError, OSError):
    """The address cannot be listened on."""

    def __init__(self, message: str, *, address: str) -> None:
        super().__init__(message)
        self.address = address


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    deadline_ns: int
    received: bytearray = field(default_factory=bytearray)
    to_send: memoryview | None = None


class MetricsServer:
    """Serves `page` at /metrics until it is closed."""

    def __init__(
        self,
        address: str | Address,
        page: Callable[[], str],
        *,
        hosts: Collection[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        wanted = Address.parse(address) if isinstance(address, str) else address
        self._page = page
        self._hosts = frozenset(hosts)
        self._clock = clock
        self._connections: dict[socket.socket, _Connection] = {}
        self._cached: bytes | None = None
        self._cached_ns = 0
        self._stopping = False
        self.requests = 0
        self.refused = 0
        self._listener = _listen(wanted)
        port: int = self._listener.getsockname()[1]
        self.address = Address(wanted.host, port)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="tensorpool-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self.address}/metrics"

    def close(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        with contextlib.suppress(OSError):
            os.write(self._woken, b"x")
        self._thread.join()
        self._selector.close()
        self._listener.close()
        os.close(self._wake)
        os.close(self._woken)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- on the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                for key, events in self._selector.select(_TURN_S):
                    self._serve(key.fileobj, events)
                self._drop_the_slow()
        finally:
            for one in list(self._connections.values()):
                self._drop(one)

    def _serve(self, ready: object, events: int) -> None:
        if ready is self._listener:
            self._accept()
            return
        one = self._connections.get(ready) if isinstance(ready, socket.socket) else None
        if one is None:
            return
        try:
            if events & selectors.EVENT_READ:
                self._read(one)
            elif events & selectors.EVENT_WRITE:
                self._write(one)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(one)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            # Gone again, or no descriptors are left: the next turn tries anew, not at full speed.
            self._clock.sleep(0.01)
            return
        if len(self._connections) >= _MOST_CONNECTIONS:
            # The oldest makes room: whoever sits on connections must not shut out who comes to scrape.
            self.refused += 1
            self._drop(next(iter(self._connections.values())))
        peer.setblocking(False)
        self._connections[peer] = _Connection(peer, self._clock.monotonic_ns() + _PATIENCE_NS)
        self._selector.register(peer, selectors.EVENT_READ)

    def _read(self, one: _Connection) -> None:
        part = one.socket.recv(LARGEST_REQUEST + 5 - len(one.received))
        if not part:
            self._drop(one)
            return
        one.received += part
        if is_whole(bytes(one.received)):
            self.requests += 1
            one.to_send = memoryview(answer(bytes(one.received), self._answer, self._hosts).encode())
            self._selector.modify(one.socket, selectors.EVENT_WRITE)
            self._write(one)

    def _write(self, one: _Connection) -> None:
        assert one.to_send is not None, "it is written to once there is an answer"
        one.to_send = one.to_send[one.socket.send(one.to_send) :]
        if not one.to_send:
            # What it still sends would otherwise reset the connection before it has read our answer.
            with contextlib.suppress(OSError):
                one.socket.shutdown(socket.SHUT_WR)
                one.socket.recv(LARGEST_REQUEST)
            self._drop(one)

    def _drop_the_slow(self) -> None:
        now = self._clock.monotonic_ns()
        for one in [one for one in self._connections.values() if one.deadline_ns <= now]:
            self.refused += 1
            self._drop(one)

    def _drop(self, one: _Connection) -> None:
        del self._connections[one.socket]
        self._selector.unregister(one.socket)
        one.socket.close()

    def _answer(self, path: str) -> HttpResponse | None:
        match path:
            case "/metrics":
                return self._metrics()
            case "/":
                return HttpResponse(200, _INDEX, "text/html; charset=utf-8")
            case "/-/healthy":
                return words(200, "ok")
            case _:
                return None

    def _metrics(self) -> HttpResponse:
        now = self._clock.monotonic_ns()
        if self._cached is None or now - self._cached_ns >= _FRESH_NS:
            try:
                self._cached = self._page().encode()
            except Exception:
                _LOG.exception("the metrics could not be put together")
                return words(500, "the metrics could not be put together; the log says why")
            self._cached_ns = now
        return HttpResponse(200, self._cached, CONTENT_TYPE)


def _listen(address: Address) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        # Only against what a server before us has left behind; two at once are refused all the same.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(_WAITING)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise AddressInUse(
            f"metrics cannot be served on {address}: {error.strerror}; choose another: --metrics HOST:PORT",
            address=str(address),
        ) from None
    return listener
