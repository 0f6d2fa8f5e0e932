"""A service: properties and commands behind a tag, and everything it accepted on the status stream.

`handle` is pure: an event in, the events to publish out. Reading and writing the streams is the agent's
part (`agent.py`).

Requests that were answered, so that one that comes again is answered again and not done again.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..errors import CodecError, ConfigError, RequestRejected
from ..runtime.config import Secret
from .declarations import Command, Property, command, parse_arguments
from .events import ALL_SERVICES, ERROR, FAILED, RESULT, Event, Value, service_tag

_MAX_REQUESTS = 1024
_MAX_BYTES = 4 << 20


class ReplyCache:
    """The last requests by their correlation id, bounded in number and in bytes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[bytes, list[Event], int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def recall(self, event: Event) -> list[Event] | None:
        """The answers to this very request; None if it is new. Raises nothing: a stranger under a known id
        is new too, and is refused by its own answer."""
        known = self._kept.get(event.correlation_id)
        if known is None or not event.correlation_id:
            return None
        if known[0] == _content(event):
            return known[1]
        why = f"correlation id {event.correlation_id} was used for another request"
        tag = known[1][0].tag if known[1] else event.tag
        return [Event(tag, event.key + ERROR, why, event.correlation_id)]

    def keep(self, event: Event, replies: list[Event]) -> None:
        if not event.correlation_id:
            return
        content = _content(event)
        size = len(content) + sum(map(_size, replies))
        self._kept[event.correlation_id] = (content, replies, size)
        self._bytes += size
        while self._kept and (len(self._kept) > _MAX_REQUESTS or self._bytes > _MAX_BYTES):
            _, (_, _, gone) = self._kept.popitem(last=False)
            self._bytes -= gone


def _size(reply: Event) -> int:
    try:
        return len(reply.encode())
    except CodecError:
        # The author's value has no place on the wire; whoever publishes the answer says so.
        return 0


def _content(event: Event) -> bytes:
    """What makes a request that request: everything but when it was sent."""
    return replace(event, timestamp_ns=1).encode()


_log = logging.getLogger(__name__)


class Service:
    """Derive from it, declare `Property` members and `@command` methods, and run it on a context.

    class Counter(Service, name="counter"):
        step = Property(1, minimum=1, maximum=100, doc="How far one call counts.")
        total = Property(0, writable=False)

        @command
        def count(self) -> int:
            self.total += self.step
            return self.total
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
                        raise TypeError(f"property {member_name!r}: every service has something of that name")
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
            raise ConfigError("an empty token would protect nothing; give none, or a real one")
        self._values: dict[str, Any] = {}
        self._answered = ReplyCache()
        self._told: deque[Event] = deque()

    @property
    def name(self) -> str:
        return self._name

    def use_token(self, token: Secret | None) -> None:
        """The configured token, unless it was given one of its own."""
        self._token = self._token or token

    @property
    def tags(self) -> list[str]:
        """What it listens to: its name, its own instance, and what is asked of all."""
        return list(dict.fromkeys([service_tag(self._name), self.tag, ALL_SERVICES]))

    # --- what every service can be asked

    @command
    def ping(self) -> dict[str, Any]:
        """Answers with who it is."""
        return {"name": self._name, "instance": self.instance, "pid": os.getpid()}

    @command
    def describe(self) -> dict[str, Any]:
        """Its properties and commands, with their types, limits and docs."""
        return {
            "properties": {name: p.description() for name, p in self._properties.items()},
            "commands": {name: c.description() for name, c in self._commands.items()},
        }

    # --- events in, events out

    def handle(self, event: Event) -> Iterator[Event]:
        """What to publish for an event from the control stream, each as soon as it is known: the echo of a
        command before it runs. Never raises: what goes wrong is part of the answer."""
        before = self._answered.recall(event)
        if before is not None:
            yield from before
            return
        replies = []
        for reply in self._answer(event):
            replies.append(reply)
            yield reply
        self._answered.keep(event, replies)
        yield from self.tell()

    def tell(self) -> Iterator[Event]:
        """Changes that the service made itself since the last look."""
        while self._told:
            yield self._told.popleft()

    def _assign(self, declared: Property[Any], value: Any) -> None:
        before = self._values.get(declared.name, declared.default)
        if not _is_same(before, value):
            self._values[declared.name] = value
            self._told.append(Event(self.tag, declared.name, value))

    def _answer(self, event: Event) -> Iterator[Event]:
        try:
            if event.key.endswith("()"):
                yield from self._call(event)
            else:
                yield self._access(event)
        except RequestRejected as error:
            yield self._reply(event, event.key + ERROR, str(error))
        except Exception as error:
            _log.exception("%s: %s went wrong", self.tag, event.key)
            yield self._reply(event, event.key + ERROR, f"{type(error).__name__}: {error}")

    def _reply(self, event: Event, key: str, value: Value) -> Event:
        if isinstance(value, str):
            # An error's text may hold anything; what is no text is shown as a question mark.
            value = value.encode("utf-8", "replace").decode("utf-8")
        return Event(self.tag, key, value, event.correlation_id, event.trace_id)

    def _access(self, event: Event) -> Event:
        """Reads a property, or sets it; the answer is what it is now."""
        declared = self._properties.get(event.key)
        if declared is None:
            raise RequestRejected(
                f"no property {event.key!r}; there are {', '.join(self._properties) or 'none'}"
            )
        if event.value is not None:
            if event.tag == ALL_SERVICES:
                raise RequestRejected("properties are set by name, not for all services at once")
            if not declared.writable:
                raise RequestRejected(f"{event.key} is read-only")
            value = declared.check(event.value)
            self.before_set(event.key, value)
            self._values[event.key] = value
            try:
                self.on_set(event.key, value)
            except Exception:
                # It was accepted, and the echo must say so.
                _log.exception("%s: on_set for %s went wrong", self.tag, event.key)
        return self._reply(event, event.key, declared.__get__(self, type(self)))

    def _call(self, event: Event) -> Iterator[Event]:
        name = event.key.removesuffix("()")
        declared = self._commands.get(name)
        if declared is None:
            raise RequestRejected(
                f"no command {event.key!r}; there are {', '.join(f'{n}()' for n in self._commands)}"
            )
        if event.tag == ALL_SERVICES and name not in ("ping", "describe"):
            raise RequestRejected(f"{event.key} is called by name, not for all services at once")
        arguments = parse_arguments(event.value)
        self._check_token(declared, arguments.pop("token", None))
        bound = declared.bind(self, arguments)
        # The echo is the record of what was accepted; the token is not part of it.
        yield self._reply(event, event.key, json.dumps(arguments))
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
                f"{declared.name}() needs a token, and this service has none configured; "
                "give it one (token in [service] of its configuration) and start it again"
            )
        if not isinstance(given, str) or not self._token.matches(given):
            raise RequestRejected(f"{declared.name}() needs the service's token: TENSORPOOL_TOKEN, or token=")

    # --- for the service's author

    def before_set(self, name: str, value: Any) -> None:
        """Called before a client's value is taken; raise Rejected to refuse it."""

    def on_set(self, name: str, value: Any) -> None:
        """Called after a client has set a property."""


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)
