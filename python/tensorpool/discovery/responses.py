"""Responses of a provider of discovery: which streams a client may see, and the response to a request.

Pure: the time is an argument. Requests come from any process, so that each costs a bounded amount of work and
memory (discovery §5, §8, §12).
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Final, TypeAlias

from ..attributes.tags import error_text, to_wire
from ..sbe.discovery import DiscoveryRequest, DiscoveryResponse, DiscoveryStatus
from .client_query import Filter
from .config import VisibilityRule
from .index import DiscoveryIndex, Entry

_MAX_CACHED: Final = 32
_MAX_CACHED_BYTES: Final = 8 << 20
_REQUEST_ID_AT: Final = 8
"""The request id follows the message header."""
_REQUEST_ID: Final = struct.Struct("<Q")

# --- visibility

RuleSet: TypeAlias = tuple[int, ...] | None
"""The numbers of the rules that apply to a client; None where there are no rules."""


class Visibility:
    """Visibility rules (discovery §8, §12). A stream is visible to a client if one rule matches both.

    Not a security boundary: clients choose their own ids, and seeing a stream gives no right to it.
    """

    def __init__(self, rules: Sequence[VisibilityRule] = ()) -> None:
        self._rules = tuple(_Rule(rule) for rule in rules)

    @property
    def has_rules(self) -> bool:
        """Whether any stream may be hidden."""
        return bool(self._rules)

    def rules_for(self, client_id: int) -> RuleSet:
        """The rules of a client. Clients with the same rules see the same streams."""
        if not self._rules:
            return None
        return tuple(number for number, rule in enumerate(self._rules) if rule.applies_to(client_id))

    def is_visible(self, rules: RuleSet, entry: Entry) -> bool:
        """Whether one of the rules matches the entry."""
        return rules is None or any(self._rules[number].matches(entry) for number in rules)


class _Rule:
    def __init__(self, rule: VisibilityRule) -> None:
        self._clients = rule.clients
        self._streams = rule.streams
        self._drivers, self._names, self._tags = map(_pattern, (rule.drivers, rule.names, rule.tags))

    def applies_to(self, client_id: int) -> bool:
        return not self._clients or any(client_id in id_range for id_range in self._clients)

    def matches(self, entry: Entry) -> bool:
        if self._streams and not any(entry.stream_id in id_range for id_range in self._streams):
            return False
        if self._drivers and not self._drivers.match(entry.driver.instance_id):
            return False
        if self._names and not self._names.match(entry.labels.name):
            return False
        return self._tags is None or any(self._tags.match(tag) for tag in entry.labels.tags)


def _pattern(globs: Sequence[str]) -> re.Pattern[str] | None:
    """Case-sensitive. Globs are written as text and compared with text as on the wire."""
    return re.compile("|".join(translate(to_wire(glob)) for glob in globs)) if globs else None


# --- responses

_CacheKey: TypeAlias = tuple[Filter, RuleSet]


@dataclass(frozen=True, slots=True)
class Response:
    """An encoded response, with its status and number of results."""

    message: bytes
    status: DiscoveryStatus
    count: int


def error_response(request_id: int, reason: str) -> bytes:
    """A response with status ERROR and no results."""
    return DiscoveryResponse(
        request_id=request_id, status=DiscoveryStatus.ERROR, error_message=error_text(reason)
    ).encode()


def too_large(request_id: int, size: int, maximum: int) -> bytes:
    """The error for a response that does not fit the response channel."""
    return error_response(
        request_id,
        f"the response has {size} bytes, and the response channel takes {maximum}; narrow the filter",
    )


def matches(query: Filter, entry: Entry) -> bool:
    """Whether an entry meets all conditions of a filter; names and tags are compared by their bytes."""
    return (
        query.stream_id in (None, entry.stream_id)
        and query.producer_id in (None, entry.producer_id)
        and query.data_source_id in (None, entry.labels.data_source_id)
        and query.name in ("", entry.labels.name)
        and query.tags.issubset(entry.labels.tags)
    )


class ResponseBuilder:
    """Responses from the index, limited to the streams that a client may see.

    As long as the index does not change, equal requests have equal responses: the last few are kept as bytes,
    and only the request id is replaced.
    """

    def __init__(
        self,
        index: DiscoveryIndex,
        visibility: Visibility,
        *,
        max_results: int,
        explicit_denial: bool = False,
    ) -> None:
        """`explicit_denial`: a request that matches hidden streams only is answered with ERROR."""
        self._index = index
        self._visibility = visibility
        self._max_results = max_results
        self._explicit_denial = explicit_denial
        self._cache: OrderedDict[_CacheKey, Response] = OrderedDict()
        self._cached_bytes = 0
        self._generation = -1

    @property
    def cached(self) -> int:
        """The number of cached responses."""
        return len(self._cache)

    @property
    def cached_bytes(self) -> int:
        """The bytes of the cached responses."""
        return self._cached_bytes

    def respond(self, request: DiscoveryRequest, now_ns: int) -> Response:
        """The response to a request."""
        self._index.expire(now_ns)
        query, rules = Filter.from_request(request), self._visibility.rules_for(request.client_id)
        key = (query, rules)
        if self._generation != self._index.generation:
            self._clear_cache()
        response = self._cache.get(key)
        if response is None:
            response = self._build(query, rules, now_ns)
            self._add_to_cache(key, response)
        else:
            self._cache.move_to_end(key)
        message = _with_request_id(response.message, request.request_id)
        return Response(message, response.status, response.count)

    def _build(self, query: Filter, rules: RuleSet, now_ns: int) -> Response:
        candidates = self._index.candidates(now_ns, name=query.name, stream_id=query.stream_id)
        matching = [entry for entry in candidates if matches(query, entry)]
        # Hidden streams do not count, not even against the maximum (decision 24).
        entries = [entry for entry in matching if self._visibility.is_visible(rules, entry)]
        if matching and not entries and self._explicit_denial:
            reason = "no rule of this provider makes the stream visible to this client id; ask its operator"
            return Response(error_response(0, reason), DiscoveryStatus.ERROR, 0)
        if len(entries) > self._max_results:
            count, maximum = len(entries), self._max_results
            reason = f"{count} streams match, and a response has at most {maximum}; narrow the filter"
            return Response(error_response(0, reason), DiscoveryStatus.ERROR, 0)
        status = DiscoveryStatus.OK
        if not entries and self._visibility.has_rules:
            # The same status for a hidden stream and for one that does not exist.
            status = DiscoveryStatus.NOT_FOUND
        results = tuple(entry.to_result() for entry in entries)
        message = DiscoveryResponse(request_id=0, status=status, results=results).encode()
        return Response(message, status, len(entries))

    def _add_to_cache(self, key: _CacheKey, response: Response) -> None:
        self._cache[key] = response
        self._cached_bytes += len(response.message)
        while len(self._cache) > _MAX_CACHED or (
            self._cached_bytes > _MAX_CACHED_BYTES and len(self._cache) > 1
        ):
            self._cached_bytes -= len(self._cache.popitem(last=False)[1].message)

    def _clear_cache(self) -> None:
        self._cache.clear()
        self._cached_bytes = 0
        self._generation = self._index.generation


def _with_request_id(message: bytes, request_id: int) -> bytes:
    rest = _REQUEST_ID_AT + _REQUEST_ID.size
    return message[:_REQUEST_ID_AT] + _REQUEST_ID.pack(request_id) + message[rest:]
