"""The metrics endpoint: address, HTTP requests and responses, and the server.

with MetricsServer("127.0.0.1:9464", page):     # page() returns the text of /metrics
    ...

The server is one thread of its own. A client can cost it a bounded number of sockets and bytes, and one new
page every half second: scrapes in between get the previous page again.

Every web page that a user opens on this machine can send requests to the endpoint. The `Host` field exposes
those that use a foreign name which resolves to this machine (DNS rebinding): such requests are rejected.
Addresses are accepted, because no name was resolved for them. Prometheus' client library has a WSGI
application for the same page; it checks no Host and limits neither connections nor time.

The page is Prometheus' text format 0.0.4. It is hand-made for speed: with the library's own `generate_latest`
a page of 1,000 streams and 4,000 consumers takes 2.3 times as long, on a thread that competes with the
supervisor's for the interpreter. The library
formats the labels of every sample; here the samples of a stream or consumer share one label set, which is
formatted once. Tests read the page with the library's parser and compare it with the library's own text.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import math
import os
import selectors
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import TensorPoolError
from ..units import INT64_LIMIT

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL: Final = 128
"""Characters of a label value. Names on the wire may be longer; every sample carries its labels."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def label_text(value: object) -> str:
    """A label value: at most `MAX_LABEL` characters, and encodable as UTF-8."""
    text = str(value)[:MAX_LABEL]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class _Labels(NamedTuple):
    values: dict[str, str]
    text: str


def render(families: Iterable[Metric]) -> str:
    """The page of these counters and gauges."""
    formatted: dict[int, _Labels] = {}
    return "".join(line for family in families for line in _lines(family, formatted))


def _lines(family: Metric, formatted: dict[int, _Labels]) -> Iterator[str]:
    # The library's counters carry their name without the suffix.
    name = f"{family.name}_total" if family.type == "counter" else family.name
    yield f"# HELP {name} {family.documentation.translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {name} {family.type}\n"
    for sample in family.samples:
        labels = formatted.get(id(sample.labels))
        if labels is None:
            # The entry holds the label set: its id stays unique until the page is complete.
            labels = formatted[id(sample.labels)] = _Labels(sample.labels, _label_pairs(sample.labels))
        yield f"{name}{labels.text} {number(sample.value)}\n"


def _label_pairs(labels: dict[str, str]) -> str:
    pairs = [f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def number(value: float) -> str:
    """A value as Prometheus reads it; whole numbers without exponent, which people read more easily."""
    value = float(value)
    if value.is_integer() and abs(value) < INT64_LIMIT:
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9464
"""The port that OpenTelemetry's exporters use for Prometheus."""
MAX_REQUEST: Final = 8192
"""Bytes of a request's head."""
MAX_CONNECTIONS: Final = 32

_LOG = logging.getLogger(__name__)
_BACKLOG: Final = 128
_CONNECTION_NS: Final = 10_000_000_000
_PAGE_NS: Final = 500_000_000
_LOG_NS: Final = 60_000_000_000
_SELECT_S: Final = 1.0
_HEAD_END: Final = b"\r\n\r\n"
_TEXT: Final = "text/plain; charset=utf-8"
_LOCAL_NAMES: Final = frozenset({"localhost"})
_INDEX: Final = (
    b"<!doctype html><html lang=en><title>TensorPool metrics</title>"
    b'<p>TensorPool: <a href="/metrics">metrics</a> for Prometheus.</html>\n'
)


@dataclass(frozen=True, slots=True)
class Address:
    """An address of this machine and a port. Port 0: any free port."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses `HOST:PORT`, `HOST`, `:PORT` or `PORT`; raises ValueError with the reason."""
        host, port = text.strip(), ""
        if host.isascii() and host.isdecimal():
            host, port = "", host
        elif host.startswith("["):
            host, closing, rest = host[1:].partition("]")
            if not closing or (rest and not rest.startswith(":")):
                raise ValueError(f"{text!r} is not HOST:PORT; an IPv6 address is written as [::1]:9464")
            port = rest[1:]
        elif host.count(":") == 1:
            host, _, port = host.partition(":")
        host = {"": DEFAULT_HOST, "localhost": DEFAULT_HOST}.get(host, host)
        try:
            # Names are not resolved: that may take long, and the result may change.
            address = str(ipaddress.ip_address(host))
        except ValueError:
            raise ValueError(f"{text!r} is not HOST:PORT; HOST is an address, as in 127.0.0.1:9464") from None
        if not port:
            return cls(address)
        if not _is_port(port):
            raise ValueError(f"{port!r} is not a port; ports are 0 to 65535")
        return cls(address, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_fault(text: str) -> str | None:
    """Why a setting is not an address; None for a valid one."""
    try:
        Address.parse(text)
    except ValueError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response; the server closes the connection after it."""

    status: int
    body: bytes
    content_type: str = _TEXT
    allow: str = ""
    head_only: bool = False

    def encode(self) -> bytes:
        """The bytes to send."""
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.allow:
            lines.append(f"Allow: {self.allow}")
        head = "\r\n".join(lines).encode("ascii") + _HEAD_END
        return head if self.head_only else head + self.body


def text_response(status: int, text: str) -> HttpResponse:
    """A response of one line of text."""
    return HttpResponse(status, (text + "\n").encode())


def is_complete(received: bytes) -> bool:
    """Whether the request's head was received, or is too long. No request here has a body."""
    return _HEAD_END in received or len(received) > MAX_REQUEST


def respond(
    received: bytes, resources: Callable[[str], HttpResponse | None], hosts: Collection[str] = ()
) -> HttpResponse:
    """The response to a request. Pure. `resources` returns that of a path, None for an unknown path."""
    head, end, _ = received.partition(_HEAD_END)
    if not end or len(head) > MAX_REQUEST:
        return text_response(431, f"a request has at most {MAX_REQUEST} bytes")
    line, *rest = head.split(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3:
        return text_response(400, "this is not an HTTP request")
    method, target, version = parts
    if not version.startswith(b"HTTP/1.") or not target.isascii():
        return text_response(400, "this is not an HTTP request")
    fields: dict[bytes, bytes] = {}
    for header in rest:
        name, colon, value = header.partition(b":")
        if not colon or not name or name != name.strip() or (name.lower() == b"host" and b"host" in fields):
            return text_response(400, "this is not an HTTP request")
        fields[name.lower()] = value.strip()
    if not is_known_host(fields.get(b"host", b"").decode("latin-1"), hosts):
        return text_response(421, "this host name is not accepted; metrics.hosts lists the accepted names")
    if method not in (b"GET", b"HEAD"):
        return HttpResponse(405, b"only GET and HEAD\n", allow="GET, HEAD")
    path = target.decode("ascii").partition("?")[0]
    response = resources(path) or text_response(404, "not found; the metrics are at /metrics")
    if method == b"HEAD":
        return HttpResponse(response.status, response.body, response.content_type, head_only=True)
    return response


def is_known_host(host: str, hosts: Collection[str] = ()) -> bool:
    """Whether a `Host` field names this machine: by an address, as localhost, or by a configured name."""
    name = host
    if host.startswith("["):
        name, closing, port = host[1:].partition("]")
        if not closing or (port and not (port.startswith(":") and _is_port(port[1:]))):
            return False
    elif ":" in host:
        name, _, port = host.rpartition(":")
        if not _is_port(port):
            return False
    if name.lower().rstrip(".") in _LOCAL_NAMES or name.lower() in {known.lower() for known in hosts}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_port(digits: str) -> bool:
    # The length first: Python refuses to convert text of thousands of digits.
    return len(digits) < 6 and digits.isascii() and digits.isdecimal() and int(digits) < 1 << 16


class AddressInUse(TensorPoolError, OSError):
    """The server cannot listen on the address."""

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
        requested = Address.parse(address) if isinstance(address, str) else address
        self._page = page
        self._hosts = frozenset(hosts)
        self._clock = clock
        self._connections: dict[socket.socket, _Connection] = {}
        self._cached_page: bytes | None = None
        self._cached_ns = 0
        self._closing = False
        self._fault_ns: int | None = None
        """When the log last had an unforeseen error."""
        self.requests = 0
        self.refused = 0
        self._listener = _listen(requested)
        port: int = self._listener.getsockname()[1]
        self.address = Address(requested.host, port)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="tensorpool-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL that Prometheus scrapes."""
        return f"http://{self.address}/metrics"

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    def close(self) -> None:
        """Ends the thread and closes all sockets."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")
        self._thread.join()
        self._selector.close()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- on the server's thread

    def _run(self) -> None:
        try:
            while not self._closing:
                ready = self._selector.select(_SELECT_S)
                # The listener last: a new connection takes the place of none whose request has arrived.
                for key, events in sorted(ready, key=lambda pair: pair[0].fileobj is self._listener):
                    self._serve(key.fileobj, events)
                self._drop_expired()
        finally:
            for connection in list(self._connections.values()):
                self._drop(connection)

    def _serve(self, ready: object, events: int) -> None:
        connection = self._connections.get(ready) if isinstance(ready, socket.socket) else None
        try:
            if ready is self._listener:
                self._accept()
            elif connection is not None and events & selectors.EVENT_READ:
                self._read(connection)
            elif connection is not None and events & selectors.EVENT_WRITE:
                self._write(connection)
        except BlockingIOError:
            pass
        except Exception as error:
            # An error in one request must not end the thread that serves all others.
            if not isinstance(error, OSError):
                self._log_fault()
            if connection is not None:
                self._drop(connection)

    def _log_fault(self) -> None:
        # Any client may be able to cause it again and again: the log must not fill the disk.
        now = self._clock.monotonic_ns()
        if self._fault_ns is None or now - self._fault_ns >= _LOG_NS:
            self._fault_ns = now
            _LOG.exception("a request to the metrics failed; others of the next minute are not logged")

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            # The peer has closed, or no file descriptors are left: a pause keeps the retries from spinning.
            self._clock.sleep(0.01)
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            # Neither clients that send no request nor those that do not read their response may lock out a
            # scraper: the oldest of the kind that has more connections is dropped.
            self.refused += 1
            waiting = [c for c in self._connections.values() if c.to_send is None]
            answered = [c for c in self._connections.values() if c.to_send is not None]
            self._drop(max(waiting, answered, key=len)[0])
        peer.setblocking(False)
        self._connections[peer] = _Connection(peer, self._clock.monotonic_ns() + _CONNECTION_NS)
        self._selector.register(peer, selectors.EVENT_READ)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(MAX_REQUEST + 5 - len(connection.received))
        if not data:
            self._drop(connection)
            return
        connection.received += data
        request = bytes(connection.received)
        if is_complete(request):
            self.requests += 1
            connection.to_send = memoryview(respond(request, self._resource, self._hosts).encode())
            self._selector.modify(connection.socket, selectors.EVENT_WRITE)
            self._write(connection)

    def _write(self, connection: _Connection) -> None:
        assert connection.to_send is not None, "written only after the request was received"
        connection.to_send = connection.to_send[connection.socket.send(connection.to_send) :]
        if not connection.to_send:
            # Unread bytes would reset the connection before the client has read the response.
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_WR)
                connection.socket.recv(MAX_REQUEST)
            self._drop(connection)

    def _drop_expired(self) -> None:
        now = self._clock.monotonic_ns()
        for connection in [c for c in self._connections.values() if c.deadline_ns <= now]:
            self.refused += 1
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        # An error may come from anywhere, even from a connection that is only half dropped.
        self._connections.pop(connection.socket, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _resource(self, path: str) -> HttpResponse | None:
        match path:
            case "/metrics":
                return self._metrics()
            case "/":
                return HttpResponse(200, _INDEX, "text/html; charset=utf-8")
            case "/-/healthy":
                return text_response(200, "ok")
            case _:
                return None

    def _metrics(self) -> HttpResponse:
        now = self._clock.monotonic_ns()
        if self._cached_page is None or now - self._cached_ns >= _PAGE_NS:
            try:
                self._cached_page = self._page().encode()
            except Exception:
                _LOG.exception("the metrics could not be collected")
                return text_response(500, "the metrics could not be collected; the log has the reason")
            self._cached_ns = now
        return HttpResponse(200, self._cached_page, CONTENT_TYPE)


def _listen(address: Address) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        # Allows an address that a closed server has just used; two servers at once are still refused.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise AddressInUse(
            f"metrics cannot be served on {address}: {error.strerror}; choose another: --metrics HOST:PORT",
            address=str(address),
        ) from None
    return listener
