"""The other side of a service: get, set, call, watch."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ClosedError, CodecError, CommandFailed, NoSuchService, RequestRejected, ServiceTimeout
from ..runtime.config import Secret
from ..transport.channels import ServiceStreams
from .events import ALL_SERVICES, ERROR, FAILED, LOST, RESULT, Event, Value, service_tag

DEFAULT_TIMEOUT_S = 5.0
_PING_TIMEOUT_S = 1.0
_READY_TIMEOUT_S = 10.0
_SLICE_S = 0.05
_RESEND_S = 1.0


class ServiceClient:
    """Speaks to one service: `tp.service("recorder").set("rate", 10.0)`.

    Safe to use from several threads. `aio` has the same methods for asyncio.
    """

    def __init__(
        self,
        conductor: _native.Conductor,
        name: str,
        *,
        instance: str | None = None,
        token: str | Secret | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        trace_id: int | None = None,
        streams: ServiceStreams | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.tag = service_tag(name, instance)
        self.timeout = timeout
        self._clock = clock
        self._token = token.reveal() if isinstance(token, Secret) else token
        self._conductor = conductor
        self._streams = streams or ServiceStreams()
        # The upper half is this client's own: only answers to it are kept for it.
        self._high = secrets.randbits(31) | 1
        self._next_id = self._high << 32
        self._trace_id = trace_id
        self._needs_token: frozenset[str] | None = None
        self._changed = threading.Condition()
        self._expected: dict[int, list[Event]] = {}
        self._someone_reads = False
        self._mailbox = self._open_mailbox(self._high)
        self._control = _native.Publication(conductor, self._streams.channel, self._streams.control)
        self._wait_ready()

    def _now(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _open_mailbox(self, correlation_high: int | None = None) -> _native.Mailbox:
        tags = [self.tag, f"{self.tag}:*"]
        return _native.Mailbox(
            self._conductor, self._streams.channel, self._streams.status, tags, correlation_high
        )

    def _wait_ready(self) -> None:
        deadline = self._now() + _READY_TIMEOUT_S
        while not (self._mailbox.is_ready and self._control.is_ready):
            if self._now() > deadline:
                raise ServiceTimeout("the media driver gave no streams; check that it runs")
            self._clock.sleep(0.001)

    # --- what people do with a service

    def get(self, name: str, *, timeout: float | None = None) -> Value:
        """The value of a property."""
        return self._ask(name, None, (name,), timeout).value

    def set(self, name: str, value: Value, *, timeout: float | None = None) -> Value:
        """Sets a property; gives the value that was accepted. Raises Rejected with the reason."""
        if value is None:
            raise RequestRejected(f"{name} cannot be set to nothing")
        return self._ask(name, value, (name,), timeout).value

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        timeout: float | None = None,
        **more: Any,
    ) -> Any:
        """Calls a command, as in `call("count", times=3)` or `call("wait", {"timeout": 3})`: its result."""
        key = name.removesuffix("()") + "()"
        given = {**(arguments or {}), **more}
        if self._token is not None and key in self._commands_with_token(timeout):
            given.setdefault("token", self._token)
        try:
            text = json.dumps(given)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestRejected(f"the arguments of {key} are no JSON: {error}") from None
        answer = self._ask(key, text, (key + RESULT, key + FAILED), timeout)
        if answer.key.endswith(FAILED):
            raise CommandFailed(f"{self.tag} {key}: {answer.value!s}")
        return self._json_of(answer)

    def _json_of(self, answer: Event) -> Any:
        try:
            return json.loads(str(answer.value))
        except (ValueError, RecursionError):
            raise CommandFailed(f"{self.tag} answered with {answer.key}, and that is no JSON") from None

    def _commands_with_token(self, timeout: float | None) -> frozenset[str]:
        """The commands that need a token; it goes to no other."""
        if self._needs_token is None:
            answer = self._ask("describe()", "{}", (f"describe(){RESULT}",), timeout)
            try:
                commands = self._json_of(answer)["commands"]
                self._needs_token = frozenset(
                    f"{n}()" for n, command in commands.items() if command["needs_token"]
                )
            except (TypeError, KeyError, AttributeError):
                raise CommandFailed(f"{self.tag} does not say which commands need a token") from None
        return self._needs_token

    def ping(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Who answers to the name."""
        answer = self._ask("ping()", None, (f"ping(){RESULT}",), timeout)
        found = _presence(answer)
        if found is None:
            raise CommandFailed(f"{self.tag} does not say who it is")
        return found

    def watch(self, name: str | None = None, *, timeout: float | None = None) -> Generator[Event, None, None]:
        """What the service says on the status stream from now on: all, or one property or command.

        Ends after `timeout` seconds of silence; without one, never by itself.
        """
        mailbox = self._open_mailbox()
        try:
            yield from _events(mailbox, name, timeout)
        finally:
            mailbox.close()

    @property
    def aio(self) -> AsyncServiceClient:
        """The same for asyncio."""
        return AsyncServiceClient(self)

    # --- asking and waiting

    def _ask(self, key: str, value: Value, final: tuple[str, ...], timeout: float | None) -> Event:
        """Sends a request and waits for the event that settles it.

        Sent again now and then until it is heard of: a service that just starts, or was put back by the
        media driver, does not miss it, and does it once.
        """
        limit = self.timeout if timeout is None else timeout
        deadline = self._now() + limit
        with self._changed:
            self._next_id += 1
            request = Event(self.tag, key, value, self._next_id, self._trace_id)
            self._expected[request.correlation_id] = []
        again_at, heard = self._now(), False
        try:
            while (now := self._now()) < deadline:
                if not heard and now >= again_at:
                    self._send(request, deadline)
                    again_at = now + _RESEND_S
                for event in self._collect(request.correlation_id, deadline - now):
                    if event.key == key + ERROR:
                        raise RequestRejected(f"{self.tag} refused {key}: {event.value!s}")
                    if event.key in final:
                        return event
                    heard = True
        finally:
            with self._changed:
                del self._expected[request.correlation_id]
        if heard:
            raise ServiceTimeout(f"{self.tag} accepted {key} and is not done within {limit} s")
        raise self._no_answer(key, limit)

    def _send(self, request: Event, deadline: float) -> None:
        # Stamped each time: a service that has started since takes nothing that is older than itself.
        while (outcome := self._control.offer(request.encode(self._clock))) != "sent":
            # A stream that is closed under a client that is not: the media driver went away, and comes back.
            if outcome == "closed" and self._mailbox.closed:
                raise ClosedError("this client, or its context, is closed")
            if self._now() >= deadline:
                if outcome == "not_connected":
                    raise self._nobody()
                raise ServiceTimeout(f"the control stream did not take {request.key} in time ({outcome})")
            self._clock.sleep(0.001)

    def _collect(self, correlation_id: int, timeout: float) -> list[Event]:
        """Answers to one request. One waiting thread reads the stream for all that wait."""
        with self._changed:
            if found := self._expected[correlation_id]:
                self._expected[correlation_id] = []
                return found
            if self._someone_reads:
                self._changed.wait(min(timeout, _SLICE_S))
                return []
            self._someone_reads = True
        try:
            messages = self._mailbox.take(64, min(timeout, _SLICE_S))
        finally:
            with self._changed:
                self._someone_reads = False
                self._changed.notify_all()
        with self._changed:
            for event in _decoded(messages):
                if event.correlation_id in self._expected:
                    self._expected[event.correlation_id].append(event)
            self._changed.notify_all()
        return []

    def _no_answer(self, key: str, limit: float) -> NoSuchService | ServiceTimeout:
        """Tells a service that is slow from one that is not there."""
        if key != "ping()":
            try:
                self.ping(timeout=min(_PING_TIMEOUT_S, max(limit, 0.1)))
            except (NoSuchService, ServiceTimeout):
                return self._nobody()
            return ServiceTimeout(
                f"{self.tag} did not answer {key} within {limit} s; it is there, so ask again"
            )
        return self._nobody()

    def _nobody(self) -> NoSuchService:
        return NoSuchService(
            f"nobody answers to {self.tag} on this media driver: it does not run, or is busy "
            "(tensorpool service ls)"
        )

    def close(self) -> None:
        self._mailbox.close()
        self._control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncServiceClient:
    """`ServiceClient` for asyncio: the waiting is done on a thread, the loop stays free.

    Cancelling stops the waiting here; the request itself ends with its timeout.
    """

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def get(self, name: str, *, timeout: float | None = None) -> Value:
        return await asyncio.to_thread(self._client.get, name, timeout=timeout)

    async def set(self, name: str, value: Value, *, timeout: float | None = None) -> Value:
        return await asyncio.to_thread(self._client.set, name, value, timeout=timeout)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        timeout: float | None = None,
        **more: Any,
    ) -> Any:
        return await asyncio.to_thread(self._client.call, name, arguments, timeout=timeout, **more)

    async def ping(self, *, timeout: float | None = None) -> dict[str, Any]:
        return await asyncio.to_thread(self._client.ping, timeout=timeout)

    async def watch(self, name: str | None = None) -> AsyncIterator[Event]:
        mailbox = self._client._open_mailbox()
        try:
            while not mailbox.closed:
                for event in _decoded(await asyncio.to_thread(mailbox.take, 64, 2 * _SLICE_S)):
                    if _concerns(event, name):
                        yield event
        finally:
            mailbox.close()


def find_services(
    conductor: _native.Conductor,
    *,
    timeout: float = 1.0,
    streams: ServiceStreams,
    clock: Clock = SYSTEM_CLOCK,
) -> list[dict[str, Any]]:
    """Everybody who answers a ping within `timeout` seconds, by name and instance."""
    mailbox = _native.Mailbox(conductor, streams.channel, streams.status, ["service:*"])
    control = _native.Publication(conductor, streams.channel, streams.control)
    correlation_id = secrets.randbits(62) | 1
    question = Event(ALL_SERVICES, "ping()", None, correlation_id).encode(clock)
    found: dict[str, dict[str, Any]] = {}
    try:
        deadline = clock.monotonic_ns() / 1e9 + timeout
        asked = False
        while (remaining := deadline - clock.monotonic_ns() / 1e9) > 0:
            if not asked:
                asked = mailbox.is_connected and control.offer(question) == "sent"
            for event in _decoded(mailbox.take(64, min(remaining, _SLICE_S))):
                if event.correlation_id != correlation_id or event.key != f"ping(){RESULT}":
                    continue
                if (one := _presence(event)) is not None:
                    found[f"{event.tag} {event.value!s}"] = {"tag": event.tag, **one}
    finally:
        mailbox.close()
        control.close()
    return sorted(found.values(), key=lambda s: (s["tag"], s["pid"]))


def _presence(event: Event) -> dict[str, Any] | None:
    """Who answered a ping; None if that cannot be read: it may be anybody's service."""
    try:
        found = json.loads(str(event.value))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("pid")) is int else None


def watch_all(
    conductor: _native.Conductor, *, streams: ServiceStreams, timeout: float | None = None
) -> Generator[Event, None, None]:
    """Everything on the status stream: the record of what services accepted."""
    mailbox = _native.Mailbox(conductor, streams.channel, streams.status, [])
    try:
        yield from _events(mailbox, None, timeout)
    finally:
        mailbox.close()


def _events(mailbox: _native.Mailbox, name: str | None, timeout: float | None) -> Iterator[Event]:
    lost = 0
    while not mailbox.closed:
        messages = mailbox.take(64, 1e9 if timeout is None else timeout)
        if not messages:
            return
        if (now_lost := mailbox.counters()["overflowed"]) != lost:
            # A record with a hole in it must say so.
            yield Event(ALL_SERVICES, LOST, now_lost - lost)
            lost = now_lost
        yield from (event for event in _decoded(messages) if _concerns(event, name))


def _concerns(event: Event, name: str | None) -> bool:
    return name is None or event.key == name or event.key.startswith((f"{name}.", f"{name}()"))


def _decoded(messages: list[bytes]) -> Iterator[Event]:
    """What can be read; the rest is someone else's fault and not ours to stumble over."""
    for message in messages:
        try:
            yield Event.decode(message)
        except CodecError:
            continue
