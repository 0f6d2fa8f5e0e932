"""From bytes to requests, and from decisions to answers (driver §4.2, §4.3, §4.6). Pure.

Both revisions of an attach become the same request, which remembers the one it came in: the answer goes
out in that.

Answers that were given, so that a request that comes again gets the same one and nothing is done twice.
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
from .actions import Action, Send
from .counters import DriverCounters
from .leases import Lease, Refusal
from .plan import HEADER_SLOT_BYTES, LAYOUT_VERSION, StreamPlan

_REQUESTS: Final = (ShmAttachRequest, ShmDetachRequest, ShmLeaseKeepalive, ShmDriverShutdownRequest)
# What a driver says itself comes back to it on the shared stream.
_OWN: Final = (ShmAttachResponse, ShmDetachResponse, ShmDriverShutdown, ShmLeaseRevoked)


class _Ids(NamedTuple):
    """The schema's numbers."""

    schema_id: int
    attach: int
    detach: int
    keepalive: int
    shutdown: int
    own: frozenset[int]
    r2_block: int

    @property
    def requests(self) -> tuple[int, ...]:
        return (self.attach, self.detach, self.keepalive, self.shutdown)


@cache
def _ids() -> _Ids:
    """Read from the schema when first needed: every start of a command imports this module."""
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


_HEADER_BYTES: Final = 8
# Values that a later revision may well add: not malformed, only unknown here.
_FEATURES: Final = frozenset({"publish_mode", "hugepages_policy"})
# An answer has to fit one message of the control stream, whatever path or reason it quotes.
_MAX_WORDS: Final = 1024


Answer: TypeAlias = ShmAttachResponse | ShmAttachResponseR2 | ShmDetachResponse | ControlResponse


@dataclass(frozen=True, slots=True)
class Attach:
    """An attach of either revision."""

    correlation_id: int
    stream_id: int
    client_id: int
    role: Role
    expected_layout_version: int
    max_dims: int
    publish_mode: PublishMode
    pages: HugepagesPolicy
    revision: int = 1

    @property
    def key(self) -> tuple[type, int | None, int]:
        """By which a request is known when it comes again."""
        return Attach, self.client_id, self.correlation_id


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    """A request that cannot be used: why, and what to answer if that can be said to anybody."""

    reason: str
    answer: Answer | None = None


Request: TypeAlias = Attach | ShmDetachRequest | ShmLeaseKeepalive | ShmDriverShutdownRequest | InvalidRequest


def read_request(message: bytes) -> Request | None:
    """The request in a message of the control stream; None if it is not for a driver. Never raises."""
    if len(message) < _HEADER_BYTES:
        return InvalidRequest("short")
    header = read_header(message)
    ids = _ids()
    if header.schema_id != ids.schema_id or header.template_id in ids.own:
        return None
    if header.template_id not in ids.requests:
        return InvalidRequest("template")
    try:
        found = decode(message)
    except CodecError as error:
        return _unusable(header, message, error)
    match found:
        case ShmAttachRequest():
            is_required = found.require_hugepages is True
            return Attach(
                found.correlation_id,
                found.stream_id,
                found.client_id,
                found.role,
                found.expected_layout_version,
                found.max_dims,
                found.publish_mode or PublishMode.REQUIRE_EXISTING,
                HugepagesPolicy.HUGEPAGES if is_required else HugepagesPolicy.UNSPECIFIED,
            )
        case ShmAttachRequestR2():
            return Attach(
                found.correlation_id,
                found.stream_id,
                found.client_id,
                found.role,
                found.expected_layout_version,
                0,
                found.publish_mode or PublishMode.REQUIRE_EXISTING,
                found.hugepages_policy,
                revision=2,
            )
        case ShmDetachRequest() | ShmLeaseKeepalive() | ShmDriverShutdownRequest():
            return found
    raise AssertionError(f"{type(found).__name__} has no place here")


def _unusable(header: MessageHeader, message: bytes, error: CodecError) -> InvalidRequest:
    """Decision 12: answered while its correlation id can be read, and counted by reason."""
    reason = "malformed"
    if error.field == "version":
        reason = "version"
    elif error.field in _FEATURES and len(message) >= _HEADER_BYTES + header.block_length:
        # Not merely cut off there.
        reason = "feature"
    code = ResponseCode.INVALID_PARAMS if reason == "malformed" else ResponseCode.UNSUPPORTED
    correlation_id = read_correlation_id(message)
    if correlation_id is None:
        # Keepalives have none: nobody waits for an answer to them.
        return InvalidRequest(reason if header.template_id == _ids().keepalive else "unanswerable")
    refusal = Refusal(code, str(error))
    if header.template_id == _ids().detach:
        return InvalidRequest(reason, detach_answer(correlation_id, refusal))
    if header.template_id == _ids().shutdown:
        return InvalidRequest(reason, shutdown_answer(correlation_id, refusal))
    return InvalidRequest(reason, attach_refused(correlation_id, refusal, 2 if _is_r2(header) else 1))


def _is_r2(header: MessageHeader) -> bool:
    return header.block_length == _ids().r2_block


def ascii_text(text: str) -> str:
    """Text as the wire holds it: ASCII, and not without end."""
    return text.encode("ascii", "backslashreplace").decode("ascii")[:_MAX_WORDS]


def attach_refused(
    correlation_id: int, refusal: Refusal, revision: int
) -> ShmAttachResponse | ShmAttachResponseR2:
    """Everything but correlation id, code and reason is null."""
    kind = ShmAttachResponse if revision == 1 else ShmAttachResponseR2
    return kind(correlation_id=correlation_id, code=refusal.code, error_message=ascii_text(refusal.reason))


def attach_granted(
    request: Attach, lease: Lease, plan: StreamPlan, files: EpochFiles
) -> ShmAttachResponse | ShmAttachResponseR2:
    """Every field that a client needs."""
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
            PayloadPool(pool_id=pool_id, pool_nslots=files.nslots, stride_bytes=stride, region_uri=uri)
            for pool_id, stride, uri in files.pools
        ),
        "header_region_uri": files.header_uri,
    }
    if request.revision == 1:
        return ShmAttachResponse(max_dims=plan.max_dims, **granted)  # type: ignore[arg-type]
    # Memory is not bound to a node, so there is none to name.
    return ShmAttachResponseR2(node_id=None, **granted)  # type: ignore[arg-type]


def detach_answer(correlation_id: int, refusal: Refusal | None) -> ShmDetachResponse:
    code = ResponseCode.OK if refusal is None else refusal.code
    reason = "" if refusal is None else ascii_text(refusal.reason)
    return ShmDetachResponse(correlation_id=correlation_id, code=code, error_message=reason)


def shutdown_answer(correlation_id: int, refusal: Refusal | None) -> ControlResponse:
    code = ResponseCode.OK if refusal is None else refusal.code
    reason = "" if refusal is None else ascii_text(refusal.reason)
    return ControlResponse(correlation_id=correlation_id, code=code, error_message=reason)


MAX_ANSWERS: Final = 4096

Key: TypeAlias = tuple[type, int | None, int]
"""Kind of request, client id, correlation id."""


class ResponseCache:
    """The newest ones, by who asked what (decision 18). Each goes out as an action."""

    def __init__(self, actions: list[Action], counters: DriverCounters, most: int = MAX_ANSWERS) -> None:
        self._actions = actions
        self._counters = counters
        self._most = most
        self._kept: OrderedDict[Key, Answer | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def is_repeat(self, key: Key) -> bool:
        """Whether it came before; then it gets the answer that it got, if there is one already."""
        if key not in self._kept:
            return False
        self._counters.repeats.add()
        answer = self._kept[key]
        if answer is not None:
            self._actions.append(Send(answer, is_repeat=True))
        return True

    def begin(self, key: Key) -> None:
        """It is being worked on: no second time."""
        self._keep(key, None)

    def give(self, answer: Answer, key: Key | None = None) -> None:
        """Without a key it is not kept: nobody knows who asked."""
        if answer.code is not ResponseCode.OK:
            self._counters.rejects[answer.code.name.lower()].add()
        if key is not None:
            self._keep(key, answer)
        self._actions.append(Send(answer))

    def _keep(self, key: Key, answer: Answer | None) -> None:
        self._kept[key] = answer
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
