"""Clients of services: get, set, call and watch, with and without asyncio; the list of running services."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Self

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import (
    ClosedError,
    CodecError,
    CommandFailed,
    NoSuchService,
    RequestRejected,
    ServiceError,
    ServiceTimeout,
)
from ..runtime.config import Secret
from ..text import JsonMapping
from ..transport.channels import ServiceStreams
from .events import ALL_SERVICES, ERROR, FAILED, LOST, READ, RESULT, Event, Value, service_tag

DEFAULT_TIMEOUT_S: Final = 5.0
_PING_TIMEOUT_S: Final = 1.0
_READY_TIMEOUT_S: Final = 10.0
# Longest single wait for messages: a waiting thread checks its deadline after it.
_POLL_S: Final = 0.05
_RESEND_S: Final = 1.0
_RETRY_S: Final = 0.001
_BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """A running service, from its reply to a ping."""

    tag: str
    """The tag on which it takes commands."""
    name: str
    """Its name."""
    instance: str | None
    """Which one of several with this name; None if it is the only one."""
    pid: int
    """The number of its process."""

    def to_json(self) -> JsonMapping:
        """The identity as JSON."""
        return asdict(self)


class ServiceClient:
    """A client of one service: `tp.service("recorder").set("rate", 10.0)`.

    Several threads may share it. `aio` has the same methods for asyncio.
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
        # The upper half of a correlation id identifies this client: its mailbox keeps only such replies.
        correlation_high = secrets.randbits(31) | 1
        self._next_id = correlation_high << 32
        self._trace_id = trace_id
        self._needs_token: frozenset[str] | None = None
        self._changed = threading.Condition()
        self._replies: dict[int, list[Event]] = {}
        self._is_polled = False
        self._mailbox = self._open_mailbox(correlation_high)
        self._control = _native.Publication(conductor, self._streams.control_channel, self._streams.control)
        self._wait_ready()

    def _now(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _open_mailbox(self, correlation_high: int | None = None) -> _native.Mailbox:
        tags = [self.tag, f"{self.tag}:*"]
        return _native.Mailbox(
            self._conductor, self._streams.status_channel, self._streams.status, tags, correlation_high
        )

    def _wait_ready(self) -> None:
        deadline = self._now() + _READY_TIMEOUT_S
        while not (self._mailbox.is_ready and self._control.is_ready):
            if self._now() > deadline:
                failure = self._control.failure
                if failure is not None:
                    raise ServiceError(
                        f"the media driver refuses stream {self._streams.control} of "
                        f"{self._streams.control_channel}: {failure}; check that its filesystem has space"
                    )
                raise ServiceTimeout(
                    f"the media driver opened no streams within {_READY_TIMEOUT_S:g} s; check that it runs"
                )
            self._clock.sleep(_RETRY_S)

    # --- requests

    def get(self, name: str, *, timeout: float | None = None) -> Value:
        """The value of a property."""
        # A service of an earlier version replies with the name alone.
        return self._ask(name, None, (name + READ, name), timeout).value

    def set(self, name: str, value: Value, *, timeout: float | None = None) -> Value:
        """Sets a property. Returns the accepted value. Raises RequestRejected with the reason."""
        if value is None:
            raise RequestRejected(f"{name} cannot be set to None; use a value of the property's type")
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
        """Calls a command: `call("count", times=3)` or `call("wait", {"timeout": 3})`. Returns its result."""
        key = name.removesuffix("()") + "()"
        all_arguments = {**(arguments or {}), **more}
        if self._token is not None and key in self._commands_with_token(timeout):
            all_arguments.setdefault("token", self._token)
        try:
            text = json.dumps(all_arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestRejected(f"the arguments of {key} cannot be written as JSON: {error}") from None
        reply = self._ask(key, text, (key + RESULT, key + FAILED), timeout)
        if reply.key.endswith(FAILED):
            raise CommandFailed(f"{self.tag} {key}: {reply.value!s}")
        return self._json_of(reply)

    def _json_of(self, reply: Event) -> Any:
        try:
            return json.loads(str(reply.value))
        except (ValueError, RecursionError):
            raise CommandFailed(
                f"{self.tag} replied with {reply.key}, whose value is not JSON; check its version"
            ) from None

    def _commands_with_token(self, timeout: float | None) -> frozenset[str]:
        """The commands that need a token. Other commands must not get it: every subscriber could read it."""
        if self._needs_token is None:
            reply = self._ask("describe()", "{}", (f"describe(){RESULT}",), timeout)
            try:
                commands = self._json_of(reply)["commands"]
                self._needs_token = frozenset(
                    f"{n}()" for n, command in commands.items() if command["needs_token"]
                )
            except (TypeError, KeyError, AttributeError):
                raise CommandFailed(
                    f"{self.tag} does not list the commands that need a token; check its version"
                ) from None
        return self._needs_token

    def ping(self, *, timeout: float | None = None) -> ServiceIdentity:
        """Name, instance and process id of the service."""
        identity = _identity(self._ask("ping()", None, (f"ping(){RESULT}",), timeout))
        if identity is None:
            raise CommandFailed(f"{self.tag} replied to ping() without a process id; check its version")
        return identity

    def watch(self, name: str | None = None, *, timeout: float | None = None) -> Generator[Event, None, None]:
        """Yields the service's events on the status stream from now on: all, or those of one property or
        command.

        Ends after `timeout` seconds without an event; without a timeout it does not end.
        """
        mailbox = self._open_mailbox()
        try:
            yield from _events(mailbox, name, timeout)
        finally:
            mailbox.close()

    @property
    def aio(self) -> AsyncServiceClient:
        """The same client for asyncio."""
        return AsyncServiceClient(self)

    # --- sending and waiting

    def _ask(self, key: str, value: Value, final: tuple[str, ...], timeout: float | None) -> Event:
        """Sends a request and waits for a reply with one of the `final` keys.

        Repeats the request until the first reply: a service that has just started, or whose subscription
        rested, gets it too. The service runs it once, by its correlation id.
        """
        limit = self.timeout if timeout is None else timeout
        deadline = self._now() + limit
        with self._changed:
            self._next_id += 1
            request = Event(self.tag, key, value, self._next_id, self._trace_id)
            self._replies[request.correlation_id] = []
        resend_at, is_accepted = self._now(), False
        try:
            while (now := self._now()) < deadline:
                if not is_accepted and now >= resend_at:
                    self._send(request, deadline)
                    resend_at = now + _RESEND_S
                for event in self._collect(request.correlation_id, deadline - now):
                    if event.key == key + ERROR:
                        raise RequestRejected(f"{self.tag} rejected {key}: {event.value!s}")
                    if event.key in final:
                        return event
                    is_accepted = True
        finally:
            with self._changed:
                del self._replies[request.correlation_id]
        if is_accepted:
            raise ServiceTimeout(
                f"{self.tag} accepted {key}, but did not finish it within {limit} s; use a longer timeout"
            )
        raise self._no_reply(key, limit)

    def _send(self, request: Event, deadline: float) -> None:
        # Encoded again, with a new timestamp: a service ignores requests that are older than itself.
        while (outcome := self._control.offer(request.encode(self._clock))) != "sent":
            # Without a closed mailbox, a closed stream means that the media driver is restarting.
            if outcome == "closed" and self._mailbox.closed:
                raise ClosedError("this client, or its context, is closed; open a new one")
            if self._now() >= deadline:
                if outcome == "not_connected":
                    raise self._not_found()
                raise ServiceTimeout(
                    f"the control stream did not accept {request.key} in time ({outcome}); try again"
                )
            self._clock.sleep(_RETRY_S)

    def _collect(self, correlation_id: int, timeout: float) -> list[Event]:
        """Replies to one request. One of the waiting threads reads the stream for all of them."""
        with self._changed:
            if replies := self._replies[correlation_id]:
                self._replies[correlation_id] = []
                return replies
            if self._is_polled:
                self._changed.wait(min(timeout, _POLL_S))
                return []
            self._is_polled = True
        try:
            messages = self._mailbox.take(_BATCH, min(timeout, _POLL_S))
        finally:
            with self._changed:
                self._is_polled = False
                self._changed.notify_all()
        with self._changed:
            for event in _decoded(messages):
                if event.correlation_id in self._replies:
                    self._replies[event.correlation_id].append(event)
            self._changed.notify_all()
        return []

    def _no_reply(self, key: str, limit: float) -> NoSuchService | ServiceTimeout:
        """The error for a slow service, or for a missing service; a ping decides."""
        if key != "ping()":
            try:
                self.ping(timeout=min(_PING_TIMEOUT_S, max(limit, 0.1)))
            except (NoSuchService, ServiceTimeout):
                return self._not_found()
            return ServiceTimeout(
                f"{self.tag} is running, but did not reply to {key} within {limit} s; try again"
            )
        return self._not_found()

    def _not_found(self) -> NoSuchService:
        return NoSuchService(
            f"no service {self.tag} replies on this media driver: it does not run, or is busy; "
            "tensorpool service ls lists the services"
        )

    def close(self) -> None:
        """Closes the client's streams."""
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
    """`ServiceClient` for asyncio: waits on a thread and does not block the event loop.

    Cancellation ends the wait; the request itself ends with its timeout.
    """

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def get(self, name: str, *, timeout: float | None = None) -> Value:
        """As `ServiceClient.get`."""
        return await asyncio.to_thread(self._client.get, name, timeout=timeout)

    async def set(self, name: str, value: Value, *, timeout: float | None = None) -> Value:
        """As `ServiceClient.set`."""
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
        """As `ServiceClient.call`."""
        return await asyncio.to_thread(self._client.call, name, arguments, timeout=timeout, **more)

    async def ping(self, *, timeout: float | None = None) -> ServiceIdentity:
        """As `ServiceClient.ping`."""
        return await asyncio.to_thread(self._client.ping, timeout=timeout)

    async def watch(self, name: str | None = None) -> AsyncIterator[Event]:
        """As `ServiceClient.watch`, without a timeout."""
        mailbox = self._client._open_mailbox()
        try:
            while not mailbox.closed:
                for event in _decoded(await asyncio.to_thread(mailbox.take, _BATCH, 2 * _POLL_S)):
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
) -> list[ServiceIdentity]:
    """The services that reply to a ping within `timeout` seconds, by name and instance."""
    mailbox = _native.Mailbox(conductor, streams.status_channel, streams.status, ["service:*"])
    control = _native.Publication(conductor, streams.control_channel, streams.control)
    correlation_id = secrets.randbits(62) | 1
    request = Event(ALL_SERVICES, "ping()", None, correlation_id).encode(clock)
    services: dict[str, ServiceIdentity] = {}
    try:
        deadline = clock.monotonic_ns() / 1e9 + timeout
        is_sent = False
        while (remaining := deadline - clock.monotonic_ns() / 1e9) > 0:
            if not is_sent:
                is_sent = mailbox.is_connected and control.offer(request) == "sent"
            for event in _decoded(mailbox.take(_BATCH, min(remaining, _POLL_S))):
                if event.correlation_id != correlation_id or event.key != f"ping(){RESULT}":
                    continue
                if (identity := _identity(event)) is not None:
                    services[f"{event.tag} {event.value!s}"] = identity
    finally:
        mailbox.close()
        control.close()
    return sorted(services.values(), key=lambda service: (service.tag, service.pid))


def _identity(event: Event) -> ServiceIdentity | None:
    """The result of a ping; None if it is malformed, as services of other programs may be."""
    try:
        reply = json.loads(str(event.value))
    except (ValueError, RecursionError):
        return None
    if not isinstance(reply, dict) or type(pid := reply.get("pid")) is not int:
        return None
    # Only the process id is needed. The tag has the names too, for a service that does not repeat them.
    _, tag_name, tag_instance = f"{event.tag}::".split(":", 2)
    name = reply.get("name", tag_name)
    instance = reply.get("instance", tag_instance.rstrip(":") or None)
    if not isinstance(name, str) or not isinstance(instance, str | None):
        return None
    return ServiceIdentity(event.tag, name, instance, pid)


def watch_all(
    conductor: _native.Conductor, *, streams: ServiceStreams, timeout: float | None = None
) -> Generator[Event, None, None]:
    """Yields all events of the status stream: the record of accepted commands."""
    mailbox = _native.Mailbox(conductor, streams.status_channel, streams.status, [])
    try:
        yield from _events(mailbox, None, timeout)
    finally:
        mailbox.close()


def _events(mailbox: _native.Mailbox, name: str | None, timeout: float | None) -> Iterator[Event]:
    lost = 0
    while not mailbox.closed:
        messages = mailbox.take(_BATCH, 1e9 if timeout is None else timeout)
        if not messages:
            return
        if (total_lost := mailbox.counters().overflowed) != lost:
            # A record with missing events must say so.
            yield Event(ALL_SERVICES, LOST, total_lost - lost)
            lost = total_lost
        yield from (event for event in _decoded(messages) if _concerns(event, name))


def _concerns(event: Event, name: str | None) -> bool:
    return name is None or event.key == name or event.key.startswith((f"{name}.", f"{name}()"))


def _decoded(messages: list[bytes]) -> Iterator[Event]:
    """The events of messages. Malformed messages of other programs are skipped."""
    for message in messages:
        try:
            yield Event.decode(message)
        except CodecError:
            continue
