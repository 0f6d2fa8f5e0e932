"""Requests of the control stream: their limits, responses, and the cache of responses (driver §4). Pure.

Both revisions of an attach are decoded to the same request, which keeps the revision for its response.

`RequestLimiter` decides how many requests a second are handled, and which wait. All clients of a host usually
share one Aeron publication, so the sender of a request is unknown and cannot be limited alone. But a client
repeats a request that got no answer after 100 ms, with the same ids, in either revision. So while requests
come faster than the limit, or reservations pile up, a request is not handled at once but remembered, and
handled when it is repeated. A sender that never repeats gets nothing; a client gets its lease one repetition
later. A sender that repeats faster than a client gets nothing either, but for one repetition a second: else
an untrusted client that sends another's request again and again would keep that one out. One image never gets
all repetitions: a client whose shared log is full has an image of its own. What the driver remembers is
bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from ..errors import CodecError
from ..sbe import decode, read_correlation_id, read_header
from ..sbe.driver import (
    HugepagesPolicy,
    PublishMode,
    Role,
    ShmAttachRequest,
    ShmAttachRequestR2,
    ShmAttachResponse,
    ShmAttachResponseR2,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmDriverShutdown,
    ShmDriverShutdownRequest,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)
from ..sbe.message import MessageHeader
from ..sbe.wire import ControlResponse, PayloadPool, ResponseCode
from ..shm import EpochFiles
from ..shm.epoch_files import HEADER_SLOT_BYTES
from .actions import Action, Send
from .config import MAX_DIMS
from .counters import DriverCounters
from .leases import Lease, Refusal
from .plan import LAYOUT_VERSION

_REQUESTS: Final = (ShmAttachRequest, ShmDetachRequest, ShmLeaseKeepalive, ShmDriverShutdownRequest)
# The driver receives its own messages too, because the stream is shared.
_OWN: Final = (ShmAttachResponse, ShmDetachResponse, ShmDriverShutdown, ShmLeaseRevoked)
_HEADER_BYTES: Final = 8
# Correlation id, stream id, client id and role: an attach of either revision begins with them.
_ATTACH_IDS_END: Final = _HEADER_BYTES + 17
# A later revision may add values to these enums: an unknown value is unsupported, not malformed.
_EXTENSIBLE_ENUMS: Final = frozenset({"publish_mode", "hugepages_policy"})
# A response has to fit one message of the control stream, with any path or reason in its text.
_MAX_TEXT: Final = 1024
MAX_RESPONSES: Final = 4096

Response: TypeAlias = ShmAttachResponse | ShmAttachResponseR2 | ShmDetachResponse | ControlResponse
Key: TypeAlias = tuple[type, int | None, int]
"""Kind of request, client id, correlation id."""


class _Ids(NamedTuple):
    """Numbers of the schema."""

    schema_id: int
    attach: int
    detach: int
    keepalive: int
    shutdown: int
    own: frozenset[int]
    r2_block: int

    @property
    def requests(self) -> tuple[int, ...]:
        """The template ids of all requests."""
        return (self.attach, self.detach, self.keepalive, self.shutdown)


@cache
def _ids() -> _Ids:
    """The numbers, read at first use: every command imports this module, and most need no schema."""
    attach, detach, keepalive, shutdown = (kind.layout().template_id for kind in _REQUESTS)
    return _Ids(
        schema_id=ShmAttachRequest.layout().schema_id,
        attach=attach,
        detach=detach,
        keepalive=keepalive,
        shutdown=shutdown,
        own=frozenset(kind.layout().template_id for kind in _OWN),
        r2_block=ShmAttachRequestR2.layout().block_length,
    )


@dataclass(frozen=True, slots=True)
class Attach:
    """An attach request of either revision."""

    correlation_id: int
    stream_id: int
    client_id: int
    role: Role
    expected_layout_version: int
    max_dims: int
    publish_mode: PublishMode
    pages: HugepagesPolicy
    desired_node: int | None = None
    """The NUMA node for new regions. Only the second revision has it."""
    revision: int = 1

    @property
    def key(self) -> Key:
        """The key of the request in the response cache."""
        return Attach, self.client_id, self.correlation_id


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    """An invalid request: the reason, and the response if its correlation id could be read."""

    reason: str
    response: Response | None = None


Request: TypeAlias = Attach | ShmDetachRequest | ShmLeaseKeepalive | ShmDriverShutdownRequest | InvalidRequest


def is_attach(message: bytes) -> bool:
    """Whether a message is an attach request, valid or not. Reads only its header."""
    if len(message) < _HEADER_BYTES:
        return False
    header, ids = read_header(message), _ids()
    return header.template_id == ids.attach and header.schema_id == ids.schema_id


def read_request(message: bytes) -> Request | None:
    """The request of a message on the control stream; None for a message that is not for a driver.

    Never raises.
    """
    if len(message) < _HEADER_BYTES:
        return InvalidRequest("short")
    header = read_header(message)
    ids = _ids()
    if header.schema_id != ids.schema_id or header.template_id in ids.own:
        return None
    if header.template_id not in ids.requests:
        return InvalidRequest("template")
    try:
        request = decode(message)
    except CodecError as error:
        return _invalid(header, message, error)
    match request:
        case ShmAttachRequest():
            is_required = request.require_hugepages is True
            return Attach(
                request.correlation_id,
                request.stream_id,
                request.client_id,
                request.role,
                request.expected_layout_version,
                request.max_dims,
                request.publish_mode or PublishMode.REQUIRE_EXISTING,
                HugepagesPolicy.HUGEPAGES if is_required else HugepagesPolicy.UNSPECIFIED,
            )
        case ShmAttachRequestR2():
            return Attach(
                request.correlation_id,
                request.stream_id,
                request.client_id,
                request.role,
                request.expected_layout_version,
                0,
                request.publish_mode or PublishMode.REQUIRE_EXISTING,
                request.hugepages_policy,
                desired_node=request.desired_node_id,
                revision=2,
            )
        case ShmDetachRequest() | ShmLeaseKeepalive() | ShmDriverShutdownRequest():
            return request
    raise AssertionError(f"{type(request).__name__} is not a request")


def _invalid(header: MessageHeader, message: bytes, error: CodecError) -> InvalidRequest:
    """An invalid request gets a response if its correlation id can be read (decision 12)."""
    reason = "malformed"
    if error.field == "version":
        reason = "version"
    elif error.field in _EXTENSIBLE_ENUMS and len(message) >= _HEADER_BYTES + header.block_length:
        # The block is complete, so the value is unknown and not truncated.
        reason = "feature"
    code = ResponseCode.INVALID_PARAMS if reason == "malformed" else ResponseCode.UNSUPPORTED
    correlation_id = read_correlation_id(message)
    if correlation_id is None:
        # Keepalives have no correlation id and no response.
        return InvalidRequest(reason if header.template_id == _ids().keepalive else "unanswerable")
    refusal = Refusal(code, str(error))
    if header.template_id == _ids().detach:
        return InvalidRequest(reason, detach_response(correlation_id, refusal))
    if header.template_id == _ids().shutdown:
        return InvalidRequest(reason, shutdown_response(correlation_id, refusal))
    return InvalidRequest(reason, attach_refused(correlation_id, refusal, 2 if _is_r2(header) else 1))


def _is_r2(header: MessageHeader) -> bool:
    return header.block_length == _ids().r2_block


def ascii_text(text: str) -> str:
    """Text for a message: ASCII, of limited length."""
    return text.encode("ascii", "backslashreplace").decode("ascii")[:_MAX_TEXT]


def attach_refused(
    correlation_id: int, refusal: Refusal, revision: int
) -> ShmAttachResponse | ShmAttachResponseR2:
    """The response to a refused attach: correlation id, code and reason; all other fields are null."""
    kind = ShmAttachResponse if revision == 1 else ShmAttachResponseR2
    return kind(correlation_id=correlation_id, code=refusal.code, error_message=ascii_text(refusal.reason))


def attach_granted(
    request: Attach, lease: Lease, files: EpochFiles
) -> ShmAttachResponse | ShmAttachResponseR2:
    """The response to a granted attach: the lease and its regions."""
    granted = {
        "correlation_id": request.correlation_id,
        "code": ResponseCode.OK,
        "lease_id": lease.lease_id,
        "lease_expiry_timestamp_ns": lease.expires_ns,
        "stream_id": lease.stream_id,
        "epoch": files.epoch,
        "layout_version": LAYOUT_VERSION,
        "header_nslots": files.nslots,
        "header_slot_bytes": HEADER_SLOT_BYTES,
        "payload_pools": tuple(
            PayloadPool(
                pool_id=pool.pool_id,
                pool_nslots=files.nslots,
                stride_bytes=pool.stride_bytes,
                region_uri=pool.uri,
            )
            for pool in files.pools
        ),
        "header_region_uri": files.header_uri,
    }
    if request.revision == 1:
        return ShmAttachResponse(max_dims=MAX_DIMS, **granted)  # type: ignore[arg-type]
    return ShmAttachResponseR2(node_id=files.numa_node, **granted)  # type: ignore[arg-type]


def detach_response(correlation_id: int, refusal: Refusal | None) -> ShmDetachResponse:
    """The response to a detach request."""
    code = ResponseCode.OK if refusal is None else refusal.code
    reason = "" if refusal is None else ascii_text(refusal.reason)
    return ShmDetachResponse(correlation_id=correlation_id, code=code, error_message=reason)


def shutdown_response(correlation_id: int, refusal: Refusal | None) -> ControlResponse:
    """The response to a shutdown request."""
    code = ResponseCode.OK if refusal is None else refusal.code
    reason = "" if refusal is None else ascii_text(refusal.reason)
    return ControlResponse(correlation_id=correlation_id, code=code, error_message=reason)


class ResponseCache:
    """The newest responses by request, so that a repeated request is not handled twice (decision 18).

    Every response is appended to the actions. Where there are too many, refusals are forgotten first: any
    client can cause thousands of them, and a repeated request that was refused is refused again. A request
    in progress is forgotten last.
    """

    def __init__(
        self, actions: list[Action], counters: DriverCounters, capacity: int = MAX_RESPONSES
    ) -> None:
        self._actions = actions
        self._counters = counters
        self._capacity = capacity
        self._refused: OrderedDict[Key, Response | None] = OrderedDict()
        self._granted: OrderedDict[Key, Response | None] = OrderedDict()
        self._in_progress: OrderedDict[Key, Response | None] = OrderedDict()

    @property
    def _kinds(self) -> tuple[OrderedDict[Key, Response | None], ...]:
        """In the order in which they are forgotten."""
        return self._refused, self._granted, self._in_progress

    def __len__(self) -> int:
        return sum(map(len, self._kinds))

    def is_repeat(self, key: Key) -> bool:
        """Whether the request is a repetition. Then its response is sent again, if there is one yet."""
        kind = next((kind for kind in self._kinds if key in kind), None)
        if kind is None:
            return False
        self._counters.repeats.add()
        response = kind[key]
        if response is not None:
            self._actions.append(Send(response, is_repeat=True, is_awaited=True))
        return True

    def start(self, key: Key) -> None:
        """Marks a request as in progress, before it has a response."""
        self._put(key, None)

    def forget(self, key: Key) -> None:
        """Forgets the response to a request: a repetition of it is a new request."""
        for kind in self._kinds:
            kind.pop(key, None)

    def respond(self, response: Response, key: Key | None = None, *, is_awaited: bool = False) -> None:
        """Sends a response. Without a key it is not cached. `is_awaited`: as in `Send`."""
        if response.code is not ResponseCode.OK:
            self._counters.rejects[response.code.name.lower()].add()
        if key is not None:
            self._put(key, response)
        _, client_id, _ = key or (None, None, None)
        self._actions.append(Send(response, client_id=client_id, is_awaited=is_awaited))

    def _put(self, key: Key, response: Response | None) -> None:
        self.forget(key)
        if response is None:
            self._in_progress[key] = None
        elif response.code is ResponseCode.OK:
            self._granted[key] = response
        else:
            self._refused[key] = response
        if len(self) > self._capacity:
            next(kind for kind in self._kinds if kind).popitem(last=False)


SECOND_NS: Final = 1_000_000_000
# A repetition that comes sooner is a second copy of a flood, not a client that waited for an answer.
_MIN_REPEAT_NS: Final = 50_000_000
# A request that comes all the time counts as repeated this often.
_MIN_OFTEN_REPEATED_NS: Final = SECOND_NS
# At 100,000 requests a second, those of the last third of a second.
_MAX_REMEMBERED: Final = 32_768
# Repeated requests a second, as a share of the limit: the driver has to stay able to answer them. Those of
# one image are the same share of that.
_REPEAT_SHARE: Final = 2
_MAX_IMAGES: Final = 1024


class RateLimit:
    """A number of events a second. Up to `burst` that were not used are kept for later."""

    def __init__(self, per_second: int, burst: int) -> None:
        self._interval_ns = max(1, SECOND_NS // per_second)
        self._burst_ns = burst * self._interval_ns
        self._next_ns: int | None = None
        """When the next event would be due at a steady rate; before the present while some are left."""

    def take(self, now_ns: int) -> bool:
        """Whether one more event is within the limit. Counts it if so."""
        earliest_ns = now_ns - self._burst_ns
        due_ns = earliest_ns if self._next_ns is None else max(self._next_ns, earliest_ns)
        if due_ns > now_ns:
            return False
        self._next_ns = due_ns + self._interval_ns
        return True


class _ImageLimits(NamedTuple):
    """The limits of one Aeron image."""

    all: RateLimit
    repeats: RateLimit


class _Seen(NamedTuple):
    """When a request that waits came."""

    since_ns: int
    """For the first time, or when it last counted as repeated."""
    last_ns: int


class RequestLimiter:
    """Decides for each request whether it is handled now, or only when it is repeated."""

    def __init__(self, per_second: int, per_image: int) -> None:
        self._per_image = per_image
        self._all = RateLimit(per_second, burst=2 * per_second)
        self._repeats_per_second = max(1, per_second // _REPEAT_SHARE)
        self._repeats = RateLimit(self._repeats_per_second, burst=per_second)
        self._images: OrderedDict[int, _ImageLimits] = OrderedDict()
        self._seen: OrderedDict[int, _Seen] = OrderedDict()
        """The requests that wait, the one that came longest ago first."""

    @property
    def remembered(self) -> int:
        """The number of requests that wait for their repetition."""
        return len(self._seen)

    def admits(self, image: int, now_ns: int, *, is_repetition: bool, is_pressed: bool) -> bool:
        """Whether to handle a request of an Aeron image now. `is_pressed`: reservations have piled up."""
        limits = self._image(image)
        if not is_pressed and limits.all.take(now_ns) and self._all.take(now_ns):
            return True
        return is_repetition and limits.repeats.take(now_ns) and self._repeats.take(now_ns)

    def is_repetition(self, message: bytes, now_ns: int) -> bool:
        """Whether the request came before, and long enough ago. Remembers it: once a request."""
        # The hash differs between processes, and cannot be foreseen.
        key = hash(message[_HEADER_BYTES:_ATTACH_IDS_END])
        seen = self._seen.get(key)
        counts = seen is not None and (
            now_ns - seen.last_ns >= _MIN_REPEAT_NS or now_ns - seen.since_ns >= _MIN_OFTEN_REPEATED_NS
        )
        self._seen[key] = _Seen(now_ns if seen is None or counts else seen.since_ns, now_ns)
        self._seen.move_to_end(key)
        if len(self._seen) > _MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return counts

    def forget_old(self, now_ns: int, max_age_ns: int) -> None:
        """Forgets requests that were not repeated in time, and images that sent none."""
        while self._seen and next(iter(self._seen.values())).last_ns < now_ns - max_age_ns:
            self._seen.popitem(last=False)

    def _image(self, image: int) -> _ImageLimits:
        limits = self._images.get(image)
        if limits is None:
            repeats = max(1, self._repeats_per_second // _REPEAT_SHARE)
            limits = self._images[image] = _ImageLimits(
                RateLimit(self._per_image, burst=2 * self._per_image), RateLimit(repeats, burst=2 * repeats)
            )
            if len(self._images) > _MAX_IMAGES:
                self._images.popitem(last=False)
        self._images.move_to_end(image)
        return limits
