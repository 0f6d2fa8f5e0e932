"""The web server of the console: the page, its WebSocket, and the thread that keeps the system model.

Three kinds of threads: the feed polls the monitor and makes documents, a `StreamReader` per watched stream
encodes frames, the event loop only moves bytes. Everything that a request can cause is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from .._native import __version__
from ..context import Context
from ..errors import TensorPoolError
from ..monitor.listener import SystemMonitor
from ..monitor.reports import Notice
from ..monitor.snapshot import Snapshot, without_consumers
from ..text import JsonMapping
from .access import (
    NO_USER,
    PAGE_POLICY,
    SECURITY_HEADERS,
    HostRule,
    OpeningToken,
    Sessions,
    Tokens,
    ViewerRole,
    connection_owner,
)
from .frames import MAX_HZ, StreamReader
from .history import History, HistoryReply, PointReply
from .state import ConsoleOrigin, ConsoleState, detail
from .viewer import MAX_MESSAGE, RequestHandler, ServedFile, Viewer, message_text

DEFAULT_PORT: Final = 8470
MAX_VIEWERS: Final = 64
MAX_HEAD: Final = 16 * 1024
"""Bytes of the address and the headers of a request."""
MAX_READERS: Final = 32
"""Streams that all viewers see at once."""
MAX_HIDDEN: Final = 4096
"""Consumers of the console, past ones too, that it leaves out of the system."""
REQUEST_S: Final = 10.0
"""Within this time a connection has a complete request head."""
CONNECTION: Final = "connection"
"""The entry of a request's state for what is known of its connection."""

_LOG = logging.getLogger(__name__)
_POLL_S: Final = 0.02
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/manifest+json",
}
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Hosts that stand for every address of the machine, and the loopback address among these."""
_OPENING_S: Final = 120.0
_MAX_DIGITS: Final = 9
"""Digits of the number of a job in an address."""
# The script replaces the entry with the token in the browser's history. A refresh may leave it there.
_LANDING_SCRIPT: Final = 'location.replace("/")'
_LANDING: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>TensorPool console</title>'
    f"<script>{_LANDING_SCRIPT}</script>"
    '<noscript><meta http-equiv="refresh" content="0; url=/"></noscript>'
    '<p><a href="/">TensorPool console</a></p></html>'
)
_LANDING_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        f"script-src 'sha256-{b64encode(sha256(_LANDING_SCRIPT.encode()).digest()).decode()}'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_NO_TOKEN: Final = "Open the address that tensorpool console printed: it carries the token."
_WRONG_TOKEN: Final = "The token is wrong. Copy the whole address that tensorpool console printed."


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Where and for whom the console serves."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tokens: Tokens = field(default_factory=Tokens)
    allowed_hosts: Collection[str] = ()
    behind_proxy: bool = False
    certificate: Path | None = None
    private_key: Path | None = None
    max_viewers: int = MAX_VIEWERS
    max_hz: float = MAX_HZ
    period_s: float = 1.0
    recordings: tuple[Path, ...] = ()
    """Directories with recordings, beside those of running recorders; the first one gets new ones."""
    exports: Path | None = None
    """Where exports are kept. None: in a private directory, until the console ends."""
    pipelines: tuple[str, ...] = ()
    """Roots of tables (directories or URIs), and directories of such roots."""
    config: str | None = None
    """The configuration file of the processes that the console starts."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the console."""
        return self.host in ("127.0.0.1", "::1", "localhost")


class Asset(NamedTuple):
    """A file of the page."""

    content: bytes
    media_type: str


def load_assets() -> dict[str, Asset]:
    """All files of the page, by name: no request ever becomes a path of the file system."""
    assets = {}
    for file in resources.files(__package__).joinpath("static").iterdir():
        _, suffix = os.path.splitext(file.name)
        if suffix in _TYPES:
            assets[file.name] = Asset(file.read_bytes(), _TYPES[suffix])
    return assets


# --- the feed


@dataclass(frozen=True, slots=True)
class FeedUpdate:
    """One document, as bytes for every viewer."""

    version: int
    difference: str
    """The message for viewers that have the version before."""


class SystemFeed:
    """The thread that polls the monitor and makes a document a period."""

    def __init__(
        self,
        context: Context,
        *,
        hidden_ids: Callable[[], set[int]],
        on_update: Callable[[FeedUpdate], None],
        period_s: float,
    ) -> None:
        self._monitor = SystemMonitor(context.connection)
        self._hidden_ids = hidden_ids
        self._on_update = on_update
        self._period_s = period_s
        self._lock = threading.Lock()
        self._state = ConsoleState(
            ConsoleOrigin(socket.gethostname(), str(context.aeron_dir), __version__, os.getpid())
        )
        self._history = History()
        self._whole: tuple[int, str] = (0, "")
        self._notices: deque[Notice] = deque(maxlen=256)
        self._received_s = time.monotonic()
        self.snapshot = Snapshot(0)
        """The newest snapshot, for any thread."""
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console-feed", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and the monitor."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._monitor.close()

    def add_notice(self, notice: Notice) -> None:
        """Puts an event of the console itself on the record."""
        self._notices.append(notice)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._is_closed.wait(_POLL_S):
            try:
                if self._monitor.poll():
                    self._received_s = time.monotonic()
            except TensorPoolError as error:
                _LOG.warning("the console cannot read the system: %s", error)
            now = time.monotonic()
            if now >= due:
                due = max(due + self._period_s, now)
                try:
                    self._update()
                except Exception:
                    # Without this thread every page would be old for ever, and no log would say why.
                    _LOG.exception("the console could not show the system in this period")

    def _update(self) -> None:
        while self._notices:
            self._monitor.model.observe(self._notices.popleft(), time.monotonic_ns())
        hidden_ids = self._hidden_ids()
        snapshot = without_consumers(self._monitor.snapshot(), hidden_ids)
        ledger = self._monitor.ledger_rows()
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            change = self._state.update(snapshot, ledger, now_ms, hidden_ids)
            self._history.add(snapshot, now_ms)
            self.snapshot = snapshot
            version = self._state.version
        message = {
            "type": "update",
            "version": version,
            "base": version - 1,
            "silent_s": round(time.monotonic() - self._received_s, 1),
            "set": change.changed,
            "remove": change.removed,
        }
        self._on_update(FeedUpdate(version, message_text(message)))

    def whole(self) -> tuple[int, str]:
        """Version and message of the whole document; made once for all viewers that need it."""
        with self._lock:
            if self._whole[0] != self._state.version:
                message = {
                    "type": "update",
                    "version": self._state.version,
                    "base": None,
                    "silent_s": round(time.monotonic() - self._received_s, 1),
                    "set": self._state.document,
                    "remove": {},
                }
                self._whole = (self._state.version, message_text(message))
            return self._whole

    def read_history(self, track: str, span: str) -> HistoryReply:
        """Samples of a track."""
        with self._lock:
            return self._history.read(track, span)

    def newest_point(self, track: str) -> PointReply | None:
        """The last sample of a track."""
        with self._lock:
            return self._history.newest(track)

    def detail(self, kind: str, key: str) -> JsonMapping | None:
        """Everything that is known about one thing; None if it is not there."""
        return detail(self.snapshot, kind, key)


# --- connections


class ConsoleProtocol(H11Protocol):
    """A connection that ends after `REQUEST_S` without a request, and earlier when others need its place.

    uvicorn limits how many connections are served and how long one is kept after a response. It waits without
    limit for the rest of a request that has begun: some hundred connections that send half a line would keep
    every browser out.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, object],
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


# --- the server


class ConsoleServer:
    """The console of the system around a context. `serve` blocks; `start` and `close` use a thread."""

    def __init__(
        self,
        context: Context,
        options: ConsoleOptions | None = None,
        *,
        handlers: Callable[[ConsoleServer], Mapping[str, RequestHandler]] = lambda _: {},
    ) -> None:
        self.options = options or ConsoleOptions()
        self.context = context
        self._socket = _listen(self.options.host, self.options.port)
        self.port: int = self._socket.getsockname()[1]
        self.sessions = Sessions(self.port, self.options.tokens)
        self.rule = HostRule(
            self.port,
            is_secure=self.options.certificate is not None,
            names=frozenset(name.lower() for name in self.options.allowed_hosts),
            is_loopback=self.options.is_loopback,
            behind_proxy=self.options.behind_proxy,
        )
        self._assets = load_assets()
        self._viewers: set[Viewer] = set()
        self._readers: dict[int, StreamReader] = {}
        self._hidden: dict[int, None] = {}
        """Ids of the console's own consumers, oldest first."""
        self._hidden_lock = threading.Lock()
        self.update: FeedUpdate | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._opening: OpeningToken | None = None
        self.workers = ThreadPoolExecutor(4, "console-worker")
        self.files: dict[int, ServedFile] = {}
        """Files that jobs have made, by the number of the job."""
        self.on_close: list[Callable[[], None]] = []
        """What ends together with the server."""
        try:
            self.feed = SystemFeed(
                context,
                hidden_ids=self.own_consumers,
                on_update=self._on_update,
                period_s=self.options.period_s,
            )
        except BaseException:
            self._socket.close()
            raise
        self.handlers = handlers(self)

    def url(self, role: ViewerRole | None = None) -> str:
        """The address to open, with the token of a role; the one that may do most by default."""
        tokens, names = self.options.tokens, tuple(self.options.allowed_hosts)
        token = tokens.watch if role is ViewerRole.WATCH or tokens.steer is None else tokens.steer
        if names and self.options.behind_proxy:
            return f"https://{names[0]}/?token={token}"
        host = self.options.host
        if host in _ANY_ADDRESS:
            host = names[0] if names else _own_address(host)
        return self._address(host, token)

    def opening_url(self) -> str:
        """The address to start a browser with, as an argument that all users of this machine can read."""
        self._opening = OpeningToken(os.geteuid(), time.monotonic() + _OPENING_S)
        host = self.options.host
        return self._address(_ANY_ADDRESS.get(host, host), self._opening.token)

    def _address(self, host: str, token: str) -> str:
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.rule.is_secure else 'http'}://{host}:{self.port}/?token={token}"

    @property
    def viewers(self) -> int:
        """The number of connected browsers."""
        return len(self._viewers)

    # --- running

    def serve(self) -> None:
        """Serves until SIGINT or SIGTERM, or until `close` is called by another thread."""
        # uvicorn's own log would print the token of an opened address.
        config = uvicorn.Config(
            self._app(),
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="websockets-sansio",
            ws_max_size=MAX_MESSAGE,
            ws_max_queue=16,
            ws_ping_interval=10.0,
            ws_ping_timeout=20.0,
            ws_per_message_deflate=False,
            limit_concurrency=4 * self.options.max_viewers,
            h11_max_incomplete_event_size=MAX_HEAD,
            http=ConsoleProtocol,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
            server_header=False,
            proxy_headers=False,
            ssl_certfile=self.options.certificate,
            ssl_keyfile=self.options.private_key,
            ssl_version=ssl.PROTOCOL_TLS_SERVER,
        )
        self._uvicorn = uvicorn.Server(config)
        try:
            asyncio.run(self._uvicorn.serve(sockets=[self._socket]))
        finally:
            self._ready.set()
            self._socket.close()
            self.feed.close()
            for end in self.on_close:
                end()
            self.workers.shutdown()

    def start(self) -> None:
        """Serves on a thread; returns when the page can be opened."""
        self._thread = threading.Thread(target=self.serve, name="console-server", daemon=True)
        self._thread.start()
        self._ready.wait(30.0)

    def close(self) -> None:
        """Ends the server and its threads."""
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> ConsoleServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- state that viewers share

    def _on_update(self, update: FeedUpdate) -> None:
        """Runs on the feed's thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._publish, update)

    def _publish(self, update: FeedUpdate) -> None:
        self.update = update
        for viewer in self._viewers:
            viewer.wake()

    def own_consumers(self) -> set[int]:
        """Ids of the console's own consumers. Runs on the feed's thread."""
        for reader in list(self._readers.values()):
            self.hide(reader)
        # A copy: the event loop adds others while the feed reads it.
        with self._hidden_lock:
            return set(self._hidden)

    def hide(self, reader: StreamReader) -> None:
        """Remembers the ids of a reader, until so many newer ones exist that nothing mentions it any more."""
        with self._hidden_lock:
            for number in tuple(reader.consumer_ids):
                self._hidden.pop(number, None)
                self._hidden[number] = None
            while len(self._hidden) > MAX_HIDDEN:
                del self._hidden[next(iter(self._hidden))]

    def reader(self, stream_id: int) -> StreamReader:
        """The reader of a stream, which all its viewers share."""
        reader = self._readers.get(stream_id)
        if reader is None:
            if len(self._readers) >= MAX_READERS:
                raise ValueError(f"the console reads {MAX_READERS} streams at once; close another one first")
            reader = StreamReader(self.context, stream_id, max_hz=self.options.max_hz)
            self._readers[stream_id] = reader
        return reader

    async def release(self, reader: StreamReader, number: int) -> None:
        """Ends a view; a reader without views ends too."""
        if reader.remove(number) and self._readers.get(reader.stream_id) is reader:
            del self._readers[reader.stream_id]
            self.hide(reader)
            await asyncio.get_running_loop().run_in_executor(None, reader.close)

    # --- requests

    def _app(self) -> ASGIApp:
        app = Starlette(
            routes=[
                Route("/", self._page),
                WebSocketRoute("/ws", self._websocket),
                Route("/job/{number}", self._job_file),
                Route("/{name}", self._asset),
            ],
            lifespan=self._lifespan,
        )
        return _Gate(app, self.rule)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self.feed.start()
        self._ready.set()
        try:
            yield
        finally:
            self._loop = None
            for reader in list(self._readers.values()):
                await asyncio.get_running_loop().run_in_executor(None, reader.close)

    def _role(self, connection: HTTPConnection) -> ViewerRole | None:
        session = self.sessions.read(connection.cookies)
        if session is None:
            return None
        # The cookie first: a wrong one must not make the console read the kernel's tables.
        user = self._user(connection)
        # Root can read the cookie and the tokens anyway; a tunnel of root's is as good as the user's own.
        if user == session.user or (user == 0 and session.user is not None):
            return session.role
        return None

    def _user(self, connection: HTTPConnection) -> int | None:
        """The user whose connection this is, as cookies are bound to; None if cookies are bound to none.

        All who use a proxy have its connections. Without /proc the user is not known.
        """
        if not self.options.is_loopback or self.options.behind_proxy:
            return None
        # Once per connection: its end does not change, and the table of a large host has many lines.
        known: dict[str, int | None] = connection.scope.get("state", {}).get(CONNECTION, {})
        if "user" not in known:
            known["user"] = self._owner(connection)
        return known["user"]

    def _owner(self, connection: HTTPConnection) -> int | None:
        """The user of the other end of a connection by the kernel's table; None if there is no table."""
        client, is_readable = connection.client, False
        if client is None:
            return NO_USER
        # The kernel may leave out a line of a table that changes while it is read.
        for name in ("tcp", "tcp6") * 3:
            with contextlib.suppress(OSError):
                table = Path("/proc/self/net", name).read_text("ascii").splitlines()
                is_readable = True
                owner = connection_owner(table, (client.host, client.port), self.port)
                if owner is not None:
                    return owner
        return NO_USER if is_readable else None

    async def _page(self, request: Request) -> Response:
        token = request.query_params.get("token")
        if token is not None:
            role = self.options.tokens.role(token) or self._opening_role(request, token)
            if role is None:
                return PlainTextResponse(_WRONG_TOKEN, 403)
            # The address without the token: it must not stay in the history or in a Referer.
            response: Response = RedirectResponse("/", 303)
            if request.headers.get("sec-fetch-site") == "cross-site":
                # After a link on a page of another site a redirect is still that site's navigation, and a
                # strict cookie is not sent. One that this page begins is the console's own.
                response = HTMLResponse(_LANDING, headers={"Content-Security-Policy": _LANDING_POLICY})
            response.set_cookie(
                self.sessions.name,
                self.sessions.value(role, self._user(request)),
                httponly=True,
                samesite="strict",
                secure=self.rule.needs_secure_cookie(request.headers.get("host", "")),
                path="/",
            )
            return response
        if self._role(request) is None:
            return PlainTextResponse(_NO_TOKEN, 401)
        return self._file("index.html")

    def _opening_role(self, request: Request, token: str) -> ViewerRole | None:
        """The role of a browser that the console itself has started."""
        opening = self._opening
        # The secret first: a wrong one must not make the console read the kernel's tables.
        if opening is None or not opening.is_valid(token, time.monotonic()):
            return None
        if self._owner(request) != opening.user:
            return None
        return ViewerRole.WATCH if self.options.tokens.steer is None else ViewerRole.STEER

    async def _asset(self, request: Request) -> Response:
        if self._role(request) is None:
            return PlainTextResponse(_NO_TOKEN, 401)
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        asset = self._assets.get(name)
        if asset is None:
            return PlainTextResponse("There is no such file.", 404)
        return Response(asset.content, media_type=asset.media_type)

    async def _job_file(self, request: Request) -> Response:
        """A file that a job has made. Its number is not a path, and its name is the console's."""
        if self._role(request) is None:
            return PlainTextResponse(_NO_TOKEN, 401)
        # Not a converter of the route: that one runs before the role is known, and fails for many digits.
        number = request.path_params["number"]
        is_number = len(number) <= _MAX_DIGITS and number.isascii() and number.isdecimal()
        file = self.files.get(int(number)) if is_number else None
        if file is None or not file.path.is_file():
            return PlainTextResponse("There is no such file any more.", 404)
        if file.is_page:
            headers = {"Content-Security-Policy": PAGE_POLICY}
            return FileResponse(file.path, media_type="text/html", headers=headers)
        return FileResponse(file.path, media_type="application/octet-stream", filename=file.name)

    async def _websocket(self, websocket: WebSocket) -> None:
        role = self._role(websocket)
        # A page always sends its Origin; a program without one has no business here.
        if role is None or websocket.headers.get("origin") is None:
            await websocket.close(4401)
            return
        if len(self._viewers) >= self.options.max_viewers:
            await websocket.accept()
            await websocket.close(4429, "too many viewers")
            return
        await websocket.accept()
        client = websocket.client
        viewer = Viewer(self, websocket, role, "?" if client is None else f"{client.host}:{client.port}")
        self._viewers.add(viewer)
        try:
            await viewer.run()
        finally:
            self._viewers.discard(viewer)


class _Gate:
    """Refuses requests with a foreign Host or Origin before anything else, and adds the security headers."""

    def __init__(self, app: ASGIApp, rule: HostRule) -> None:
        self._app = app
        self._rule = rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = list(message.get("headers", []))
                present = {name.lower() for name, _ in headers}
                for header, text in SECURITY_HEADERS.items():
                    if (name := header.lower().encode()) not in present:
                        headers.append((name, text.encode()))
                message = {**message, "headers": headers}
            await send(message)

        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == "host"]
        origins = [value for name, value in headers if name == "origin"]
        host = hosts[0] if len(hosts) == 1 else None
        fault = self._rule.host_fault(host) if size <= MAX_HEAD else f"the request has over {MAX_HEAD} bytes"
        for origin in origins:
            fault = fault or self._rule.origin_fault(origin, host)
        if fault is None:
            await self._app(scope, receive, send_with_headers)
        elif scope["type"] == "http":
            status = 403 if size <= MAX_HEAD else 431
            await PlainTextResponse(fault, status)(scope, receive, send_with_headers)
        else:
            await send({"type": "websocket.close", "code": 4403})


def _own_address(any_address: str) -> str:
    """The address of this machine towards others; no packet is sent. Loopback if it has no other."""
    family, other = (socket.AF_INET6, "2001:db8::1") if ":" in any_address else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))
        except OSError:
            return _ANY_ADDRESS[any_address]
        address: str = probe.getsockname()[0]
        return address


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener
