"""One browser: what it has, what is sent next, what it may request, and the jobs that it starts.

A viewer that does not read is sent nothing more: updates are replaced by newer ones, frames wait until
the browser reports that it has drawn the last one, and a viewer that takes no bytes for a while is closed.
Everything that a viewer can cause is bounded. Runs on the event loop; requests run on worker threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypedDict

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from .._native import __version__
from ..errors import RequestRejected, TensorPoolError
from ..text import JsonMapping, safe_text
from .access import ViewerRole
from .frames import FrameView, StreamReader, Watch

if TYPE_CHECKING:
    from .server import ConsoleServer

MAX_MESSAGE: Final = 64 * 1024
"""Bytes of a message from a browser."""
MAX_WATCHES: Final = 4
"""Streams that one viewer sees at once."""

_LOG = logging.getLogger(__name__)
_SEND_S: Final = 20.0
"""A viewer that takes no bytes for so long is closed."""
_MESSAGES_PER_S: Final = 200.0
_HEAVY_MESSAGE: Final = 10.0
"""What a message counts whose answer is made on the event loop, in milliseconds."""
MAX_OPEN_REQUESTS: Final = 8
"""Requests whose replies the browser has not taken yet: what they hold in memory is bounded by it."""
_MAX_QUEUED: Final = 32
"""Messages that wait for a browser. More of its own messages are read when it has taken some."""


Reply: TypeAlias = Mapping[str, object]
"""The reply to any request, for JSON. `actions.py` has a class for the reply to each of its requests."""


class RequestHandler(Protocol):
    """Answers a request of a viewer, on a worker thread; raises TensorPoolError with the reason."""

    def __call__(self, viewer: Viewer, arguments: JsonMapping) -> Reply | bytes:
        """The reply: JSON, or a binary message."""
        ...


@dataclass(frozen=True, slots=True)
class _Queued:
    """A message that waits for the browser."""

    message: str | bytes
    ends_request: bool


class Viewer:
    """One browser: what it has, what is sent next, and what it may request."""

    def __init__(self, console: ConsoleServer, websocket: WebSocket, role: ViewerRole, address: str) -> None:
        self.role = role
        self.address = address
        self._console = console
        self._websocket = websocket
        self._wake = asyncio.Event()
        self._version = 0
        self._queue: deque[_Queued] = deque()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._frames: deque[bytes] = deque()
        self._selected: tuple[str, str] | None = None
        self._track: str | None = None
        self._sent_track_version = 0
        self._watches: dict[int, StreamReader] = {}
        self._requests = 0
        self._allowance = _MESSAGES_PER_S
        self._allowance_s = time.monotonic()

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def queue(self, message: Mapping[str, object] | bytes, *, ends_request: bool = False) -> None:
        """Sends a message as soon as the viewer can take it; a viewer that takes none is closed.

        A request is open until its reply has been sent.
        """
        self._queue.append(
            _Queued(message if isinstance(message, bytes) else message_text(message), ends_request)
        )
        if len(self._queue) >= _MAX_QUEUED:
            self._has_room.clear()
        self._wake.set()

    def deliver_frame(self, message: bytes) -> None:
        """Takes an encoded frame. There are never more than the viewer has credit for."""
        self._frames.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Sends and receives until either side ends."""
        hello = {
            "type": "hello",
            "role": str(self.role),
            "version": __version__,
            "max_hz": self._console.options.max_hz,
            "period_s": self._console.options.period_s,
        }
        self.queue(hello)
        tasks = [asyncio.create_task(self._send_all()), asyncio.create_task(self._receive_all())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (WebSocketDisconnect, TimeoutError, RuntimeError, OSError) as error:
            _LOG.debug("viewer %s: %s", self.address, error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for number in list(self._watches):
                await self._unwatch(number)
            if self._websocket.client_state is WebSocketState.CONNECTED:
                with contextlib.suppress(RuntimeError, OSError):
                    await self._websocket.close(1011)

    # --- sending

    async def _send_all(self) -> None:
        feed = self._console.feed
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                queued = self._queue.popleft()
                await self._send(queued.message)
                self._requests -= queued.ends_request
                if len(self._queue) < _MAX_QUEUED:
                    self._has_room.set()
            update = self._console.update
            if update is not None and update.version > self._version:
                if self._version and update.version == self._version + 1:
                    self._version, text = update.version, update.difference
                else:
                    self._version, text = feed.whole()
                await self._send(text)
                await self._send_selected()
            while self._frames:
                await self._send(self._frames.popleft())

    async def _send_selected(self) -> None:
        if self._selected is not None:
            kind, key = self._selected
            view = self._console.feed.detail(kind, key)
            await self._send(message_text({"type": "detail", "kind": kind, "key": key, "view": view}))
        if self._track is not None and (point := self._console.feed.newest_point(self._track)) is not None:
            await self._send(message_text({"type": "point", **point}))

    async def _send(self, message: str | bytes) -> None:
        send: Callable[[Any], Awaitable[None]] = (
            self._websocket.send_bytes if isinstance(message, bytes) else self._websocket.send_text
        )
        await asyncio.wait_for(send(message), _SEND_S)

    # --- receiving

    async def _receive_all(self) -> None:
        while True:
            # A browser that asks and does not read must not fill the memory with answers.
            await self._has_room.wait()
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if not self._is_allowed():
                await self._websocket.close(1008, "too many messages")
                return
            fault = await self._on_message(message.get("text"))
            if fault is not None:
                await self._websocket.close(1003, fault)
                return

    def _is_allowed(self) -> bool:
        """A bucket of messages that refills: a page sends far fewer."""
        now = time.monotonic()
        self._allowance = min(_MESSAGES_PER_S, self._allowance + (now - self._allowance_s) * _MESSAGES_PER_S)
        self._allowance_s = now
        self._allowance -= 1
        return self._allowance >= 0

    async def _on_message(self, text: str | None) -> str | None:
        """Takes a message; returns why it is refused."""
        if text is None or len(text) > MAX_MESSAGE:
            return "messages are short JSON texts"
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return "not JSON"
        if not isinstance(message, dict):
            return "not a JSON object"
        try:
            match message.get("type"):
                case "select":
                    self._allowance -= _HEAVY_MESSAGE
                    self._selected = _selection(message)
                    self._version_changed()
                case "track":
                    self._allowance -= _HEAVY_MESSAGE
                    self._select_track(message)
                case "watch":
                    await self._watch(message)
                case "unwatch":
                    await self._unwatch(_number(message, "watch"))
                case "drawn":
                    if (reader := self._watches.get(_number(message, "watch"))) is not None:
                        reader.on_drawn(self._watch_number(_number(message, "watch")))
                case "ask":
                    self._ask(message)
                case _:
                    return "unknown type of message"
        except (TensorPoolError, KeyError, TypeError, ValueError) as error:
            about = {"about": message.get("type"), "watch": message.get("watch")}
            self.queue({"type": "error", "error": safe_text(str(error)), **about})
        return None

    def _version_changed(self) -> None:
        """Sends the details of the selection at once, not only with the next document."""
        if self._selected is not None:
            kind, key = self._selected
            self.queue(
                {"type": "detail", "kind": kind, "key": key, "view": self._console.feed.detail(kind, key)}
            )

    def _select_track(self, message: JsonMapping) -> None:
        track, span = message.get("track"), message.get("span", "minutes")
        if track is not None and not (isinstance(track, str) and len(track) <= 32):
            raise ValueError("track is `system` or the id of a stream")
        if span not in ("minutes", "hours"):
            raise ValueError("span is minutes or hours")
        self._track = track if span == "minutes" else None
        if track is not None:
            self.queue({"type": "history", **self._console.feed.read_history(track, span)})

    def _watch_number(self, number: int) -> int:
        """The number of a view among those of all viewers."""
        return id(self) * MAX_WATCHES * 1024 + number

    async def _watch(self, message: JsonMapping) -> None:
        number, stream_id = _number(message, "watch"), _number(message, "stream")
        hz = message.get("hz", self._console.options.max_hz)
        if not isinstance(hz, int | float) or not math.isfinite(hz) or not hz >= 0.1:
            raise ValueError("hz is a number of frames a second, 0.1 or more")
        hz = min(float(hz), self._console.options.max_hz)
        view = FrameView.from_json(message.get("view") or {})
        reader = self._watches.get(number)
        if reader is not None and reader.stream_id == stream_id:
            reader.change(self._watch_number(number), view, hz)
            return
        if reader is not None:
            await self._unwatch(number)
        if len(self._watches) >= MAX_WATCHES:
            raise ValueError(f"a viewer sees {MAX_WATCHES} streams at once; close another one first")
        loop = asyncio.get_running_loop()

        def deliver(encoded: bytes) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.deliver_frame, encoded)

        reader = self._console.reader(stream_id)
        self._watches[number] = reader
        reader.add(Watch(self._watch_number(number), stream_id, deliver, view, hz, shown_number=number))

    async def _unwatch(self, number: int) -> None:
        reader = self._watches.pop(number, None)
        if reader is not None:
            await self._console.release(reader, self._watch_number(number))

    def _ask(self, message: JsonMapping) -> None:
        number, what = _number(message, "id"), message.get("what")
        handler = self._console.handlers.get(what) if isinstance(what, str) else None
        arguments = message.get("arguments") or {}
        if handler is None or not isinstance(arguments, dict):
            self.queue({"type": "reply", "id": number, "error": "the console has no such request"})
            return
        if self._requests >= MAX_OPEN_REQUESTS:
            self.queue({"type": "reply", "id": number, "error": "too many requests at once; try again"})
            return
        self._requests += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._console.workers, partial(handler, self, arguments))
        future.add_done_callback(partial(self._on_reply, number))

    def _on_reply(self, number: int, future: asyncio.Future[Reply | bytes]) -> None:
        reply: dict[str, object] = {"type": "reply", "id": number}
        try:
            result = future.result()
        except (TensorPoolError, OSError, KeyError, TypeError, ValueError) as error:
            reply["error"] = safe_text(str(error) or repr(error))
        except asyncio.CancelledError:
            return
        except Exception:
            # A request without a reply would leave the page waiting.
            _LOG.exception("a request of the viewer %s failed", self.address)
            reply["error"] = "the console failed here; its log has the reason"
        else:
            if isinstance(result, bytes):
                self.queue(result)
            reply["result"] = {} if isinstance(result, bytes) else result
        self.queue(reply, ends_request=True)


def message_text(message: Mapping[str, object]) -> str:
    """A message as JSON that every browser reads: NaN and infinity, which JSON lacks, become text."""
    try:
        return json.dumps(message, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(message), separators=(",", ":"), allow_nan=False)


def _without_nan(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _without_nan(item) for name, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def _number(message: JsonMapping, name: str) -> int:
    value = message.get(name)
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise ValueError(f"{name} is a whole number")
    return value


def _selection(message: JsonMapping) -> tuple[str, str] | None:
    kind, key = message.get("kind"), message.get("key")
    if kind is None:
        return None
    if not (isinstance(kind, str) and isinstance(key, str) and len(kind) + len(key) <= 512):
        raise ValueError("kind and key are texts")
    return kind, key


# --- jobs: work that takes longer than a request


class JobReply(TypedDict):
    """A job as a browser shows it."""

    job: int
    kind: str
    root: str
    title: str
    done: float
    total: float
    note: str
    result: Reply | None
    error: str
    running: bool


@dataclass(slots=True)
class ConsoleJob:
    """Work that takes long, with its progress."""

    number: int
    kind: str
    """`verify`, `export`, `report`, `record` or `replay`."""
    root: str
    title: str
    done: float = 0
    total: float = 0
    note: str = ""
    result: Reply | None = None
    error: str = ""
    is_ended: bool = False
    """A viewer has ended it."""
    process: subprocess.Popen[str] | None = None
    thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has neither a result nor an error."""
        return self.result is None and not self.error

    def progress(self, done: float, total: float) -> None:
        """Takes the progress of a worker; ends the work if a viewer wants that."""
        self.done, self.total = done, total
        if self.is_ended:
            raise RequestRejected("ended by a viewer")

    def end(self) -> None:
        """Asks the work to end. A process ends in good order: a recorder writes what it has received."""
        self.is_ended = True
        if self.process is not None and self.process.poll() is None:
            # Not SIGINT: a console that runs in the background may have it ignored, and its children too.
            self.process.send_signal(signal.SIGTERM)

    def to_json(self) -> JobReply:
        """The job as a browser shows it."""
        return {
            "job": self.number,
            "kind": self.kind,
            "root": self.root,
            "title": self.title,
            "done": self.done,
            "total": self.total,
            "note": self.note,
            "result": self.result,
            "error": self.error,
            "running": self.is_running,
        }


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file that was made for a browser."""

    path: Path
    name: str
    is_page: bool = False
    """A page with scripts of its own: shown in a sandbox, where it has no access to the console."""


class _ReplayLine(TypedDict, total=False):
    """The members of a line of `tensorpool replay --json` that a job shows."""

    done: float | None
    frames: int
    rate_hz: float


def follow_process(job: ConsoleJob, errors: IO[str]) -> None:
    """Reads the progress of a process until it ends; runs on a thread of its own."""
    process = job.process
    assert process is not None
    last: _ReplayLine = {}
    with errors, contextlib.ExitStack() as stack:
        if process.stdout is not None:
            lines = stack.enter_context(process.stdout)
            for line in lines:
                # Another line than one of progress must not end this thread: the job would never end.
                with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                    last = json.loads(line)
                    job.done, job.total = last.get("done") or 0, 1
                    job.note = f"{last['frames']:,} frames, {last['rate_hz']:.0f} Hz"
        status = process.wait()
        errors.seek(0)
        lines_of_error = errors.read()[-4000:].strip().splitlines()
    # A process that is ended before it handles signals exits by the signal.
    if status not in (0, -signal.SIGTERM):
        job.error = safe_text(lines_of_error[-1] if lines_of_error else f"it ended with status {status}")
        return
    job.done = job.total = 1
    job.result = {"frames": last.get("frames")}
