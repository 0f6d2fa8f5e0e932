"""The provider's side of a discovery request: visibility, limits, the request queue, responses, counters.

`provider` reads requests and sends responses; `index` is what is searched; `client_query` is the other side.
Pure: the time is an argument. Requests come from any process, so that each costs a bounded amount of work and
memory, and none of them raises (discovery §5, §8, §12).
"""

from __future__ import annotations

import logging
import re
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from typing import Final, TypeAlias

from ..attributes.tags import IGNORED_TAGS, MAX_TAG_BYTES, MAX_TAGS, error_text, to_wire
from ..errors import CodecError
from ..monitor.reports import AnnounceReader, RejectedMessage
from ..runtime.counters import CounterSet, counter, counters_by, gauge
from ..sbe import DataSourceMeta
from ..sbe.discovery import DiscoveryRequest, DiscoveryResponse, DiscoveryStatus
from ..units import MAX_AERON_STREAM_ID
from .channels import IPC, ResponseRules
from .client_query import Filter
from .config import ProviderSettings, VisibilityRule
from .index import DiscoveryIndex, Entry

_LOG = logging.getLogger(__name__)
_MAX_CACHED: Final = 32
_MAX_CACHED_BYTES: Final = 8 << 20
_MIN_ANNOUNCES: Final = 1024
_ANNOUNCES_A_STREAM: Final = 4
"""Announce, name and attributes of the producer, and metadata of the driver."""
_HEADER: Final = struct.Struct("<HHHH")
"""Block length, template id, schema id, version."""
_REQUEST_ID_AT: Final = 8
"""The request id follows the message header."""
_REQUEST_ID: Final = struct.Struct("<Q")
_ADDRESS: Final = struct.Struct("<QII")
"""Request id, client id, response stream id: the beginning of a request."""
_GROUP: Final = struct.Struct("<HH")
"""Block length and number of entries of a group."""
_TAG_BLOCKS: Final = (0, 4)
"""Block lengths of a tag; peers that count its length prefix write 4, and the same bytes (decision 7)."""
_LENGTH: Final = struct.Struct("<I")
"""Length of text."""
_SECOND_NS: Final = 1_000_000_000
_MAX_CLIENTS: Final = 4096
_MAX_QUEUED: Final = 1024
_MAX_REQUEST_BYTES: Final = 64 << 10
_WARNINGS_HZ: Final = 10

# --- counters

REJECTED: Final = ("malformed", "large", "invalid", "regressed", "full")
"""Why an announce or metadata was ignored. `invalid`: its pools do not have the slot count of its ring.
`regressed`: it is of an older epoch than the fresh one."""
INVALID: Final = ("malformed", "version", "template")
"""Why a message of the request stream is no request."""
REFUSED: Final = ("no_channel", "channel", "stream", "rate", "flood", "busy", "no_room")
"""Why a request was dropped: no response channel, a channel or a stream that is not allowed; too many
of one client, or of all clients; the queue is full; no room for another response channel."""
UNSENT: Final = ("not_connected", "refused", "full")
"""Why a response was dropped: no subscriber, a channel that Aeron refuses, too many responses queued."""


class DiscoveryCounters(CounterSet, name="discovery"):
    """Counters of a provider."""

    streams = gauge("Streams in the index.", unit="streams", aeron=True)
    requests = counter("Requests that were answered.", unit="requests", aeron=True)
    results = counter("Streams in all responses.", unit="streams")
    errors = counter("Requests that were answered with an error.", unit="requests")
    responses = counter("Responses that were sent.", unit="messages", aeron=True)
    refused = counters_by("reason", REFUSED, "Requests that were dropped.", unit="requests", aeron=True)
    invalid = counters_by("reason", INVALID, "Messages that are no requests.", unit="messages", aeron=True)
    unsent = counters_by("reason", UNSENT, "Responses that were dropped.", unit="messages", aeron=True)
    rejected = counters_by("reason", REJECTED, "Announces and metadata ignored.", unit="messages")
    ignored_tags = counters_by(
        "reason", IGNORED_TAGS, "Tags in metadata that cannot be searched for.", unit="tags"
    )
    foreign = counter("Messages on announce streams that are of no known driver.", unit="messages")
    channels = gauge("Response channels that are open.", unit="channels")


# --- announces


class IndexUpdater:
    """Updates the index with the announces and metadata of one driver's streams.

    `accepts` decides by stream id which messages are this driver's.
    """

    def __init__(
        self,
        index: DiscoveryIndex,
        instance_id: str,
        counters: DiscoveryCounters,
        accepts: Callable[[int], bool] = lambda stream_id: True,
    ) -> None:
        self._index = index
        self._instance_id = instance_id
        self._counters = counters
        self._reader = AnnounceReader(accepts)
        self._warnings = TokenBucket(_WARNINGS_HZ, _WARNINGS_HZ, 0)

    def on_message(self, message: bytes, now_ns: int) -> bool:
        """Takes a message. False: it is about no stream of this driver. Never raises."""
        event = self._reader.read(message)
        if event is None:
            return False
        if isinstance(event, RejectedMessage):
            self._counters.rejected[event.reason].add()
            return True
        result = self._index.observe(self._instance_id, event, now_ns)
        if result.is_rejection:
            self._counters.rejected[str(result)].add()
        elif isinstance(event, DataSourceMeta):
            self._report_ignored_tags(event, now_ns)
        if self._reader.cached_messages > _ANNOUNCES_A_STREAM * max(len(self._index), _MIN_ANNOUNCES):
            # Streams end, and messages may name any id: what is dropped here is decoded once more.
            self._reader.clear()
        return True

    def _report_ignored_tags(self, meta: DataSourceMeta, now_ns: int) -> None:
        """Counts and logs tags that are not in the index. Repeated metadata does not come here."""
        ignored = self._index.ignored_tags(self._instance_id, meta)
        for reason, count in ignored.items():
            self._counters.ignored_tags[reason].add(count)
        # Any process can publish metadata, each time with other tags.
        if ignored and self._warnings.take(now_ns):
            _LOG.warning(
                "stream %d of driver %r: %s of its tags cannot be searched for; a stream has up to %d tags "
                "of up to %d bytes",
                meta.stream_id,
                self._instance_id,
                ", ".join(f"{count} ({reason})" for reason, count in ignored.items()),
                MAX_TAGS,
                MAX_TAG_BYTES,
            )


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


# --- limits


class TokenBucket:
    """Gains `rate_hz` tokens a second, up to `burst`; each request takes one."""

    __slots__ = ("_burst_ns", "_cost_ns", "_saved_ns", "_updated_ns")

    def __init__(self, rate_hz: int, burst: int, now_ns: int) -> None:
        self._cost_ns = _SECOND_NS // rate_hz
        self._burst_ns = burst * self._cost_ns
        self._saved_ns = self._burst_ns
        self._updated_ns = now_ns

    def take(self, now_ns: int) -> bool:
        """Takes a token; False if there is none."""
        self._saved_ns = min(self._burst_ns, self._saved_ns + max(0, now_ns - self._updated_ns))
        self._updated_ns = now_ns
        if self._saved_ns < self._cost_ns:
            return False
        self._saved_ns -= self._cost_ns
        return True


class ClientLimits:
    """A bucket for each of the last few thousand client ids. Clients choose their own ids: `RequestQueue` has
    a limit for all clients together, too."""

    def __init__(self, rate_hz: int, burst: int, *, max_clients: int = _MAX_CLIENTS) -> None:
        self._rate_hz = rate_hz
        self._burst = burst
        self._max_clients = max_clients
        self._buckets: OrderedDict[int, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client_id: int, now_ns: int) -> bool:
        """Takes a token of a client; False if it has none."""
        bucket = self._buckets.get(client_id)
        if bucket is None:
            bucket = self._buckets[client_id] = TokenBucket(self._rate_hz, self._burst, now_ns)
            if len(self._buckets) > self._max_clients:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(client_id)
        return bucket.take(now_ns)


# --- requests


@dataclass(frozen=True, slots=True)
class Reply:
    """An encoded response and its address."""

    channel: str
    stream_id: int
    request_id: int
    message: bytes


@cache
def _schema() -> tuple[int, int, int]:
    """Schema id, and the template ids of request and response; read when first needed."""
    request, response = DiscoveryRequest.layout(), DiscoveryResponse.layout()
    return request.schema_id, request.template_id, response.template_id


def read_address(message: bytes) -> DiscoveryRequest | None:
    """Request id, client id and response address of a request that cannot be decoded, without its filter;
    None if one of them cannot be read either.

    The ids are at the beginning of the block, the response channel after the tags. A later version keeps them
    there: fields are appended to a block, and the header says how long that is. What another version has in
    their place is not an allowed address.
    """
    block_length = _HEADER.unpack_from(message)[0]
    if block_length < _ADDRESS.size or len(message) < _HEADER.size + block_length:
        return None
    request_id, client_id, response_stream_id = _ADDRESS.unpack_from(message, _HEADER.size)
    try:
        position = _HEADER.size + block_length
        entry_length, entries = _GROUP.unpack_from(message, position)
        if entry_length not in _TAG_BLOCKS:
            return None
        position += _GROUP.size
        for _ in range(entries):
            position += _LENGTH.size + _LENGTH.unpack_from(message, position)[0]
        length = _LENGTH.unpack_from(message, position)[0]
    except struct.error:
        return None
    channel = message[position + _LENGTH.size :][:length]
    if len(channel) != length or not channel.isascii():
        return None
    return DiscoveryRequest(
        request_id=request_id,
        client_id=client_id,
        response_stream_id=response_stream_id,
        response_channel=channel.decode("ascii"),
    )


def is_discovery(message: bytes) -> bool:
    """Whether the schema id is discovery's: messages of other schemas share the stream (discovery §4.2)."""
    return len(message) >= _HEADER.size and _HEADER.unpack_from(message)[2] == _schema()[0]


class RequestQueue:
    """The requests to one provider, and its replies."""

    def __init__(
        self,
        index: DiscoveryIndex,
        settings: ProviderSettings,
        counters: DiscoveryCounters,
        *,
        reserved: frozenset[int] = frozenset(),
        now_ns: int,
    ) -> None:
        """`reserved`: streams of `aeron:ipc` that have other uses, where no response may go."""
        self._settings = settings
        self._counters = counters
        self._reserved = reserved
        self._rules = ResponseRules(settings.responses)
        self.responses = ResponseBuilder(
            index,
            Visibility(settings.rules),
            max_results=settings.max_results,
            explicit_denial=settings.explicit_denial,
        )
        self.clients = ClientLimits(settings.rate_hz, settings.burst)
        self._all_clients = TokenBucket(settings.total_rate_hz, settings.total_rate_hz, now_ns)
        self._queue: deque[bytes] = deque()
        self._answered = 0

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, message: bytes, now_ns: int) -> None:
        """Adds a message of discovery's schema."""
        if not self._all_clients.take(now_ns):
            self._counters.refused["flood"].add()
        elif len(self._queue) >= _MAX_QUEUED or len(message) > _MAX_REQUEST_BYTES:
            self._counters.refused["busy"].add()
        else:
            self._queue.append(message)

    def take(self, now_ns: int, limit: int) -> Iterator[Reply]:
        """The replies to the next `limit` messages."""
        for _ in range(min(limit, len(self._queue))):
            reply = self.on_message(self._queue.popleft(), now_ns)
            if reply is not None:
                yield reply

    def on_message(self, message: bytes, now_ns: int) -> Reply | None:
        """The reply to a message; None for a message that gets none."""
        _, request_template, response_template = _schema()
        template_id = _HEADER.unpack_from(message)[1]
        if template_id == response_template:
            # A client has named the request stream as its response stream.
            return None
        if template_id != request_template:
            self._counters.invalid["template"].add()
            return None
        try:
            request = DiscoveryRequest.decode(message)
        except CodecError as error:
            is_other_version = error.field == "version"
            self._counters.invalid["version" if is_other_version else "malformed"].add()
            reason = f"the request is {'of another version' if is_other_version else 'malformed'}: {error}"
            if error.field == "data_source_name":
                reason += "; a request without a name ends with a name of length 0"
            return self._on_undecodable(message, reason, now_ns)
        return self._on_request(request, now_ns)

    def _on_undecodable(self, message: bytes, reason: str, now_ns: int) -> Reply | None:
        """An ERROR for a request that cannot be decoded, but whose address can be read (decision 12)."""
        request = read_address(message)
        if request is None:
            return None
        refusal, channel = self._address(request)
        if refusal is None and not self.clients.take(request.client_id, now_ns):
            refusal = "rate"
        if refusal is not None:
            self._counters.refused[refusal].add()
            return None
        self._counters.errors.add()
        return Reply(
            channel,
            request.response_stream_id,
            request.request_id,
            error_response(request.request_id, reason),
        )

    def _on_request(self, request: DiscoveryRequest, now_ns: int) -> Reply | None:
        refusal, channel = self._address(request)
        if refusal is None and not self.clients.take(request.client_id, now_ns):
            refusal = "rate"
        if refusal is not None:
            self._counters.refused[refusal].add()
            return None
        if request.response_stream_id == 0:
            self._counters.errors.add()
            reason = "response_stream_id is 0: use the stream on which you receive responses"
            return Reply(channel, 0, request.request_id, error_response(request.request_id, reason))
        response = self.responses.respond(request, now_ns)
        self._counters.requests.add()
        self._counters.results.add(response.count)
        self._log(request, response.status.name, response.count)
        return Reply(channel, request.response_stream_id, request.request_id, response.message)

    def _address(self, request: DiscoveryRequest) -> tuple[str | None, str]:
        """Why no response is sent, or the channel for it."""
        if not request.response_channel:
            return "no_channel", ""
        channel = self._rules.channel(request.response_channel)
        if channel is None:
            return "channel", ""
        stream_id = request.response_stream_id
        if stream_id > MAX_AERON_STREAM_ID or (channel == IPC and stream_id in self._reserved):
            return "stream", ""
        return None, channel

    def _log(self, request: DiscoveryRequest, status: str, count: int) -> None:
        """Logs a sample of requests without names and tags, which may be private (discovery §13)."""
        every = self._settings.log_every
        self._answered += 1
        if every and self._answered % every == 0:
            _LOG.info(
                "request %d, logged one in %d: client %d, filter on %s: %s, %d streams",
                self._answered,
                every,
                request.client_id,
                Filter.from_request(request).kinds,
                status,
                count,
            )
