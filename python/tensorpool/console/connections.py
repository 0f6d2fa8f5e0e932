"""HTTP connections of the console: how long one may go without a request, and which one gives way.

uvicorn limits how many connections are served and how long one is kept after a response. It waits without
limit for the rest of a request that has begun: some hundred connections that send half a line would keep
every browser out.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

REQUEST_S: Final = 10.0
"""Within this time a connection has a complete request head."""
CONNECTION: Final = "connection"
"""The entry of a request's state for what is known of its connection."""


class ConsoleProtocol(H11Protocol):
    """A connection that ends after `REQUEST_S` without a request, and earlier when others need its place."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        # uvicorn copies the state for each request, and hands it to a WebSocket: the entry is shared by all.
        super().__init__(config, server_state, {**app_state, CONNECTION: {}}, _loop)
        self._request_timer: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Gives the connection its time, and a place if another has no request."""
        super().connection_made(transport)
        self._start_timer()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads what came; the time ends with a complete head, and not with each byte."""
        # Here too: those that had a request when this one connected may have none by now.
        self._make_room()
        super().data_received(data)
        if not self._is_idle or self.transport.get_protocol() is not self:
            self._stop_timer()
        elif self._request_timer is None:
            # uvicorn's own timer, which ran since the last response, ends with the first byte.
            self._start_timer()

    def on_response_complete(self) -> None:
        """Counts the connection as idle from here."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _start_timer(self) -> None:
        self._request_timer = self.loop.call_later(REQUEST_S, self._abort)

    def _stop_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _abort(self) -> None:
        # A transport that is closed first sends what it has: that takes for ever if the client does not read.
        self.connections.discard(self)
        self.transport.abort()

    def _make_room(self) -> None:
        """Ends the oldest connections without a request; if all have one, the oldest that do not read."""
        # uvicorn counts this connection too, and refuses a request at the limit.
        excess = 0 if self.limit_concurrency is None else len(self.connections) + 1 - self.limit_concurrency
        if excess <= 0:
            return
        others = [c for c in self.connections if isinstance(c, ConsoleProtocol) and c is not self]
        others = [c for c in others if c._is_idle or c.flow.write_paused]
        for other in sorted(others, key=lambda c: (not c._is_idle, c._idle_since))[:excess]:
            other._abort()
