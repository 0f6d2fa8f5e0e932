"""Requests to a provider of discovery: limits, the queue, addresses, replies, and the provider's counters.

`provider` reads requests and sends replies; `responses` makes their content; `client_query` is the client's
side. Pure: the time is an argument. Requests come from any process, so that each costs a bounded amount of
work and memory, and none of them raises (discovery §5, §12).
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from ..attributes.tags import IGNORED_TAGS
from ..errors import CodecError
from ..runtime.counters import CounterSet, counter, counters_by, gauge
from ..sbe.discovery import DiscoveryRequest, DiscoveryResponse
from ..units import MAX_AERON_STREAM_ID
from .channels import IPC, ResponseRules
from .client_query import Filter
from .config import ProviderSettings
from .index import DiscoveryIndex
from .responses import ResponseBuilder, Visibility, error_response

_LOG = logging.getLogger(__name__)
_HEADER: Final = struct.Struct("<HHHH")
"""The members of `_MessageHeader`."""
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


class _MessageHeader(NamedTuple):
    """The header of every SBE message."""

    block_length: int
    template_id: int
    schema_id: int
    version: int


def _read_header(message: bytes) -> _MessageHeader:
    return _MessageHeader(*_HEADER.unpack_from(message))


class _DiscoverySchema(NamedTuple):
    schema_id: int
    request_template: int
    response_template: int


@cache
def _schema() -> _DiscoverySchema:
    """The ids of the schema; read when first needed."""
    request, response = DiscoveryRequest.layout(), DiscoveryResponse.layout()
    return _DiscoverySchema(request.schema_id, request.template_id, response.template_id)


def read_address(message: bytes) -> DiscoveryRequest | None:
    """Request id, client id and response address of a request that cannot be decoded, without its filter;
    None if one of them cannot be read either.

    The ids are at the beginning of the block, the response channel after the tags. A later version keeps them
    there: fields are appended to a block, and the header says how long that is. What another version has in
    their place is not an allowed address.
    """
    block_length = _read_header(message).block_length
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
    return len(message) >= _HEADER.size and _read_header(message).schema_id == _schema().schema_id


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
        template_id = _read_header(message).template_id
        if template_id == _schema().response_template:
            # A client has named the request stream as its response stream.
            return None
        if template_id != _schema().request_template:
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
