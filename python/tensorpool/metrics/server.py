"""The metrics endpoint: one thread, few connections, none of them for long.

with MetricsServer("127.0.0.1:9464", page):     # page() gives the text of /metrics
    ...

A stranger can cost it a bounded number of sockets and bytes, and one page a second: scrapes in between get
the same page again.
"""

from __future__ import annotations

import contextlib
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
from .address import Address
from .exposition import CONTENT_TYPE
from .requests import LARGEST_REQUEST, Answer, answer, is_whole, words

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


class EndpointTaken(TensorPoolError, OSError):
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

    def _answer(self, path: str) -> Answer | None:
        match path:
            case "/metrics":
                return self._metrics()
            case "/":
                return Answer(200, _INDEX, "text/html; charset=utf-8")
            case "/-/healthy":
                return words(200, "ok")
            case _:
                return None

    def _metrics(self) -> Answer:
        now = self._clock.monotonic_ns()
        if self._cached is None or now - self._cached_ns >= _FRESH_NS:
            try:
                self._cached = self._page().encode()
            except Exception:
                _LOG.exception("the metrics could not be put together")
                return words(500, "the metrics could not be put together; the log says why")
            self._cached_ns = now
        return Answer(200, self._cached, CONTENT_TYPE)


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
        raise EndpointTaken(
            f"metrics cannot be served on {address}: {error.strerror}; choose another: --metrics HOST:PORT",
            address=str(address),
        ) from None
    return listener
