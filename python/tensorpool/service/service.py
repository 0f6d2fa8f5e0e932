"""The base class of services, and the cache of their replies (service §6).

`Service.handle` is pure: it takes an event and returns the events to publish. The agent (`agent.py`) reads
and writes the streams.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, TypedDict

import numpy as np

from ..errors import CodecError, ConfigError, RequestRejected
from ..runtime.config import Secret
from .declarations import (
    Command,
    CommandDescription,
    Property,
    PropertyDescription,
    command,
    parse_arguments,
)
from .events import ALL_SERVICES, ERROR, FAILED, READ, RESULT, Event, Value, service_tag

_MAX_REQUESTS: Final = 1024
_MAX_BYTES: Final = 4 << 20
_log = logging.getLogger(__name__)


class PingReply(TypedDict):
    """The reply to `ping()`."""

    name: str
    instance: str | None
    pid: int


class ServiceDescription(TypedDict):
    """The reply to `describe()`."""

    properties: dict[str, PropertyDescription]
    commands: dict[str, CommandDescription]


class _HandledRequest(NamedTuple):
    content: bytes
    replies: list[Event]
    size_bytes: int


class ReplyCache:
    """The replies to recent requests by correlation id, so that a repeated request does not run again.

    Bounded in number and in bytes; the oldest requests are removed first.
    """

    def __init__(self) -> None:
        self._handled: OrderedDict[int, _HandledRequest] = OrderedDict()
        self.nbytes = 0
        """Bytes of the requests and replies."""

    def __len__(self) -> int:
        return len(self._handled)

    def get(self, event: Event) -> list[Event] | None:
        """The replies to this request; None for a new one. Another request with a known id is rejected."""
        handled = self._handled.get(event.correlation_id)
        if handled is None or not event.correlation_id:
            return None
        if handled.content == _content(event):
            return handled.replies
        reason = f"correlation id {event.correlation_id} was used for another request"
        tag = handled.replies[0].tag if handled.replies else event.tag
        return [Event(tag, event.key + ERROR, reason, event.correlation_id)]

    def put(self, event: Event, replies: list[Event]) -> None:
        """Adds a request and its replies. Requests without a correlation id are not cached."""
        if not event.correlation_id:
            return
        content = _content(event)
        size = len(content) + sum(map(_size, replies))
        self._handled[event.correlation_id] = _HandledRequest(content, replies, size)
        self.nbytes += size
        while self._handled and (len(self._handled) > _MAX_REQUESTS or self.nbytes > _MAX_BYTES):
            _, removed = self._handled.popitem(last=False)
            self.nbytes -= removed.size_bytes


def _size(reply: Event) -> int:
    try:
        return len(reply.encode())
    except CodecError:
        # The service's value cannot be encoded; the agent reports that when it publishes the reply.
        return 0


def _content(event: Event) -> bytes:
    """The request without its time of sending: a repetition has the same content."""
    return replace(event, timestamp_ns=1).encode()


class Service:
    """Base class of services: declare `Property` members and `@command` methods, and run it on a context.

        class Counter(Service, name="counter"):
            step = Property(1, minimum=1, maximum=100, doc="Increment of one call.")
            total = Property(0, writable=False)

            @command
            def count(self) -> int:
                self.total += self.step
                return self.total

    `ctx.serve(Counter())` runs it on a thread of its own, `ctx.run(Counter())` on this one until Ctrl-C.
    """

    _name: ClassVar[str] = ""
    _properties: ClassVar[dict[str, Property[Any]]] = {}
    _commands: ClassVar[dict[str, Command]] = {}

    def __init_subclass__(cls, *, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is not None:
            service_tag(name)
            cls._name = name
        cls._properties, cls._commands = {}, {}
        for ancestor in reversed(cls.__mro__):
            for member_name, member in vars(ancestor).items():
                if isinstance(member, Property):
                    if hasattr(Service, member_name):
                        raise TypeError(
                            f"property {member_name!r}: the base class Service has a member of that name; "
                            "rename the property"
                        )
                    cls._properties[member_name] = member
                elif (declared := getattr(member, "__tensorpool_command__", None)) is not None:
                    cls._commands[member_name] = declared

    def __init__(self, *, instance: str | None = None, token: str | Secret | None = None) -> None:
        if not self._name:
            raise TypeError(
                f"{type(self).__name__} has no name: class {type(self).__name__}(Service, name=...)"
            )
        self.tag = service_tag(self._name, instance)
        self.instance = instance
        self._token = Secret(token) if isinstance(token, str) else token
        if self._token is not None and not self._token.reveal():
            raise ConfigError("the token is empty; pass None, or a token that is not empty")
        self._values: dict[str, Value] = {}
        self._replies = ReplyCache()
        self._own_events: deque[Event] = deque()

    @property
    def name(self) -> str:
        """The name of the service, without the instance."""
        return self._name

    def use_token(self, token: Secret | None) -> None:
        """Sets the configured token, unless the service was created with a token."""
        self._token = self._token or token

    @property
    def tags(self) -> list[str]:
        """The tags of events for this service: its name, its instance, and the tag of all services."""
        return list(dict.fromkeys([service_tag(self._name), self.tag, ALL_SERVICES]))

    # --- commands of every service

    @command(reads=True)
    def ping(self) -> PingReply:
        """Returns name, instance and process id."""
        return {"name": self._name, "instance": self.instance, "pid": os.getpid()}

    @command(reads=True)
    def describe(self) -> ServiceDescription:
        """Returns the properties and commands with their types, limits and docs."""
        return {
            "properties": {name: p.description() for name, p in self._properties.items()},
            "commands": {name: c.description() for name, c in self._commands.items()},
        }

    # --- events in, events out

    def handle(self, event: Event) -> Iterator[Event]:
        """Yields the events to publish for an event of the control stream, each as soon as it is known: the
        echo of a command comes before the command runs. Never raises: errors are replies."""
        cached = self._replies.get(event)
        if cached is not None:
            yield from cached
            return
        replies = []
        for reply in self._handle_new(event):
            replies.append(reply)
            yield reply
        self._replies.put(event, replies)
        yield from self.take_events()

    def add_event(self, key: str, value: Value) -> None:
        """Queues an event of the service itself, for the next `take_events`. May be called on any thread."""
        self._own_events.append(Event(self.tag, key, value))

    def take_events(self) -> Iterator[Event]:
        """Yields and removes the events that the service itself added since the last call."""
        while self._own_events:
            yield self._own_events.popleft()

    def _assign(self, declared: Property[Any], value: Any) -> None:
        before = self._values.get(declared.name, declared.default)
        if not _is_same(before, value):
            self._values[declared.name] = value
            self.add_event(declared.name, value)

    def _handle_new(self, event: Event) -> Iterator[Event]:
        try:
            if event.key.endswith("()"):
                yield from self._call(event)
            else:
                yield self._access(event)
        except RequestRejected as error:
            yield self._reply(event, event.key + ERROR, str(error))
        except Exception as error:
            _log.exception("%s: %s failed", self.tag, event.key)
            yield self._reply(event, event.key + ERROR, f"{type(error).__name__}: {error}")

    def _reply(self, event: Event, key: str, value: Value) -> Event:
        if isinstance(value, str):
            # The text of an error may contain surrogates, which UTF-8 cannot encode: they become "?".
            value = value.encode("utf-8", "replace").decode("utf-8")
        return Event(self.tag, key, value, event.correlation_id, event.trace_id)

    def _access(self, event: Event) -> Event:
        """Reads or sets a property; the reply is its present value, and its key says which of both it was."""
        declared = self._properties.get(event.key)
        if declared is None:
            raise RequestRejected(
                f"no property {event.key!r}; the properties are {', '.join(self._properties) or 'none'}"
            )
        is_read = event.value is None
        if not is_read:
            if event.tag == ALL_SERVICES:
                raise RequestRejected(
                    "properties cannot be set for all services at once; use a service's name"
                )
            if not declared.writable:
                raise RequestRejected(f"{event.key} is read-only")
            value = declared.check(event.value)
            self.before_set(event.key, value)
            self._values[event.key] = value
            try:
                self.on_set(event.key, value)
            except Exception:
                # The value was accepted, and the echo must say so.
                _log.exception("%s: on_set for %s failed", self.tag, event.key)
        key = event.key + (READ if is_read else "")
        return self._reply(event, key, declared.__get__(self, type(self)))

    def _call(self, event: Event) -> Iterator[Event]:
        name = event.key.removesuffix("()")
        declared = self._commands.get(name)
        if declared is None:
            raise RequestRejected(
                f"no command {event.key!r}; the commands are {', '.join(f'{n}()' for n in self._commands)}"
            )
        if event.tag == ALL_SERVICES and name not in ("ping", "describe"):
            raise RequestRejected(
                f"{event.key} cannot be called for all services at once; use a service's name"
            )
        arguments = parse_arguments(event.value)
        self._check_token(declared, arguments.pop("token", None))
        bound = declared.bind(self, arguments)
        # The echo is the record of the accepted command; it must not contain the token.
        yield self._reply(event, event.key + (READ if declared.reads else ""), json.dumps(arguments))
        try:
            result = json.dumps(declared.method(*bound.args, **bound.kwargs))
        except RequestRejected as error:
            yield self._reply(event, event.key + FAILED, str(error))
        except Exception as error:
            _log.exception("command %s failed", event.key)
            yield self._reply(event, event.key + FAILED, f"{type(error).__name__}: {error}")
        else:
            yield self._reply(event, event.key + RESULT, result)

    def _check_token(self, declared: Command, given: object) -> None:
        if not declared.needs_token:
            return
        if self._token is None:
            raise RequestRejected(
                f"{declared.name}() needs a token, and this service has no token; set token in [service] of "
                "its configuration and start it again"
            )
        if not isinstance(given, str) or not self._token.matches(given):
            raise RequestRejected(f"{declared.name}() needs the service's token: TENSORPOOL_TOKEN, or token=")

    # --- hooks for subclasses

    def before_set(self, name: str, value: Any) -> None:
        """Called before a client's value is set; raise RequestRejected to refuse it."""

    def on_set(self, name: str, value: Any) -> None:
        """Called after a client has set a property."""


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return bool(np.array_equal(first, second))
    return bool(first == second)
