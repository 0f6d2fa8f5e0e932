"""Who sees what (discovery §8, §12). Pure.

Client ids are chosen by the clients, so this is tidiness, not security: a client id is never taken for proof
of who asks, and being able to see a stream grants nothing.

From a question to its answer (discovery §5). Pure.

While the index stands still, the same question has the same answer: the last few are kept as bytes, and only
the request's id is written anew.

What a provider of discovery counts.

How often somebody may ask. Pure: the time is handed in.

Messages of the request stream, from strangers: which are questions, and where their answers go. Pure.

Nothing a stranger sends costs more than a bounded amount of work and memory, and none of it raises.
"""

from __future__ import annotations

import logging
import re
import struct
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from typing import Final, TypeAlias

from ..attributes.tags import error_text, to_wire
from ..errors import CodecError
from ..runtime.counters import CounterSet, counter, counters_by, gauge
from ..sbe.discovery import DiscoveryRequest, DiscoveryResponse, DiscoveryStatus
from .channels import IPC, ResponseRules
from .config import ProviderSettings, VisibilityRule
from .index import DiscoveryIndex, Entry

View: TypeAlias = tuple[int, ...] | None
"""The rules that hold for a client; None where there are no rules at all."""


class Visibility:
    """The rules, ready for use. A stream is visible to a client if one rule fits both."""

    def __init__(self, rules: Sequence[VisibilityRule] = ()) -> None:
        self._rules = tuple(_Rule(one) for one in rules)

    @property
    def has_rules(self) -> bool:
        return bool(self._rules)

    def view_of(self, client_id: int) -> View:
        """Clients of the same view see the same."""
        if not self._rules:
            return None
        return tuple(number for number, one in enumerate(self._rules) if one.is_for(client_id))

    def shows(self, view: View, entry: Entry) -> bool:
        return view is None or any(self._rules[number].shows(entry) for number in view)


class _Rule:
    def __init__(self, rule: VisibilityRule) -> None:
        self._clients = rule.clients
        self._streams = rule.streams
        self._drivers, self._names, self._tags = map(_pattern, (rule.drivers, rule.names, rule.tags))

    def is_for(self, client_id: int) -> bool:
        return not self._clients or any(client_id in one for one in self._clients)

    def shows(self, entry: Entry) -> bool:
        if self._streams and not any(entry.stream_id in one for one in self._streams):
            return False
        if self._drivers and not self._drivers.match(entry.driver.instance_id):
            return False
        if self._names and not self._names.match(entry.words.name):
            return False
        return self._tags is None or any(self._tags.match(tag) for tag in entry.words.tags)


def _pattern(globs: Sequence[str]) -> re.Pattern[str] | None:
    """Case counts. Written by people, compared with text as the wire has it."""
    return re.compile("|".join(translate(to_wire(one)) for one in globs)) if globs else None


_MAX_KEPT: Final = 32
_MAX_KEPT_BYTES: Final = 8 << 20
# Behind the message header.
_REQUEST_ID_AT: Final = 8
_REQUEST_ID: Final = struct.Struct("<Q")

_Key: TypeAlias = tuple[int | None, int | None, int | None, str, frozenset[str], View]


@dataclass(frozen=True, slots=True)
class Filter:
    """What somebody looks for: all of it has to fit (discovery §5.1). Text is as the wire has it."""

    stream_id: int | None = None
    producer_id: int | None = None
    data_source_id: int | None = None
    name: str = ""
    tags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: DiscoveryRequest) -> Filter:
        return cls(
            request.stream_id,
            request.producer_id,
            request.data_source_id,
            request.data_source_name,
            # A tag that is named twice counts once; one without letters is not given at all.
            frozenset(one.tag for one in request.tags if one.tag),
        )

    def fits(self, entry: Entry) -> bool:
        return (
            self.stream_id in (None, entry.stream_id)
            and self.producer_id in (None, entry.producer_id)
            and self.data_source_id in (None, entry.words.data_source_id)
            and self.name in ("", entry.words.name)
            and self.tags.issubset(entry.words.tags)
        )

    @property
    def kinds(self) -> str:
        """Which filters there are, and nothing of what is in them: for logs."""
        given = [
            ("stream", self.stream_id is not None),
            ("producer", self.producer_id is not None),
            ("source", self.data_source_id is not None),
            ("name", bool(self.name)),
            (f"{len(self.tags)} tags", bool(self.tags)),
        ]
        return ", ".join(kind for kind, is_given in given if is_given) or "nothing"


@dataclass(frozen=True, slots=True)
class Response:
    """A response as bytes, and what it says."""

    message: bytes
    status: DiscoveryStatus
    count: int


def error_response(request_id: int, why: str) -> bytes:
    """ERROR, with no results and a few words."""
    return DiscoveryResponse(
        request_id=request_id, status=DiscoveryStatus.ERROR, error_message=error_text(why)
    ).encode()


def too_large(request_id: int, size: int, most: int) -> bytes:
    return error_response(
        request_id, f"the answer takes {size} bytes, and the response channel {most}; narrow the filter"
    )


class ResponseBuilder:
    """Looks into the index, as far as the one who asks may see it."""

    def __init__(self, index: DiscoveryIndex, visibility: Visibility, *, max_results: int) -> None:
        self._index = index
        self._visibility = visibility
        self._max_results = max_results
        self._kept: OrderedDict[_Key, Response] = OrderedDict()
        self._kept_bytes = 0
        self._generation = -1

    def answer(self, request: DiscoveryRequest, now_ns: int) -> Response:
        self._index.expire(now_ns)
        wanted, view = Filter.of(request), self._visibility.view_of(request.client_id)
        key = (wanted.stream_id, wanted.producer_id, wanted.data_source_id, wanted.name, wanted.tags, view)
        if self._generation != self._index.generation:
            self._forget()
        found = self._kept.get(key)
        if found is None:
            found = self._look(wanted, view, now_ns)
            self._keep(key, found)
        else:
            self._kept.move_to_end(key)
        return Response(_addressed(found.message, request.request_id), found.status, found.count)

    def _look(self, wanted: Filter, view: View, now_ns: int) -> Response:
        candidates = self._index.candidates(now_ns, name=wanted.name, stream_id=wanted.stream_id)
        # What one may not see counts for nothing, not even against the cap (decision 24).
        found = [one for one in candidates if wanted.fits(one) and self._visibility.shows(view, one)]
        if len(found) > self._max_results:
            why = (
                f"{len(found)} streams fit, and an answer has at most {self._max_results}; narrow the filter"
            )
            return Response(error_response(0, why), DiscoveryStatus.ERROR, 0)
        status = DiscoveryStatus.OK
        if not found and self._visibility.has_rules:
            # The same for what is hidden and for what is not there.
            status = DiscoveryStatus.NOT_FOUND
        results = tuple(one.result() for one in found)
        message = DiscoveryResponse(request_id=0, status=status, results=results).encode()
        return Response(message, status, len(found))

    def _keep(self, key: _Key, answer: Response) -> None:
        self._kept[key] = answer
        self._kept_bytes += len(answer.message)
        while len(self._kept) > _MAX_KEPT or (self._kept_bytes > _MAX_KEPT_BYTES and len(self._kept) > 1):
            self._kept_bytes -= len(self._kept.popitem(last=False)[1].message)

    def _forget(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0
        self._generation = self._index.generation


def _addressed(message: bytes, request_id: int) -> bytes:
    rest = _REQUEST_ID_AT + _REQUEST_ID.size
    return message[:_REQUEST_ID_AT] + _REQUEST_ID.pack(request_id) + message[rest:]


REJECTED: Final = ("malformed", "large", "invalid", "regressed", "full")
"""Why an announce or metadata was passed over. `invalid`: its pools do not fit its ring. `regressed`: of an
older epoch than the one that is alive."""
UNUSABLE: Final = ("malformed", "version", "template")
"""Why a message on the request stream is no question."""
REFUSED: Final = ("no_channel", "channel", "stream", "rate", "flood", "busy", "no_room")
"""Why a question was dropped: no response channel, one that is not allowed, a stream that is not; too many of
one client, or of all; too many that wait; no room for another response channel."""
UNSENT: Final = ("unheard", "refused", "full")
"""Why an answer was dropped: nobody listened, Aeron has no such channel, too many waited."""


class DiscoveryCounters(CounterSet, name="discovery"):
    """What a provider has heard, was asked and has said."""

    streams = gauge("Streams that are known.", unit="streams", aeron=True)
    questions = counter("Questions that were answered.", unit="requests", aeron=True)
    results = counter("Streams in all answers.", unit="streams")
    errors = counter("Questions that were answered with an error.", unit="requests")
    answers = counter("Answers that went out.", unit="messages", aeron=True)
    refused = counters_by("reason", REFUSED, "Questions that were dropped.", unit="requests", aeron=True)
    unusable = counters_by("reason", UNUSABLE, "Messages that are no questions.", unit="messages", aeron=True)
    unsent = counters_by("reason", UNSENT, "Answers that were dropped.", unit="messages", aeron=True)
    unheard = counters_by("reason", REJECTED, "Announces and metadata passed over.", unit="messages")
    foreign = counter("Messages on announce streams that are nobody's here.", unit="messages")
    channels = gauge("Response channels that are open.", unit="channels")


_SECOND_NS: Final = 1_000_000_000
_MAX_CLIENTS: Final = 4096


class TokenBucket:
    """Fills with `rate_hz` tokens a second, up to `burst`; each question takes one."""

    __slots__ = ("_at_ns", "_burst_ns", "_cost_ns", "_saved_ns")

    def __init__(self, rate_hz: int, burst: int, now_ns: int) -> None:
        self._cost_ns = _SECOND_NS // rate_hz
        self._burst_ns = burst * self._cost_ns
        self._saved_ns = self._burst_ns
        self._at_ns = now_ns

    def take(self, now_ns: int) -> bool:
        self._saved_ns = min(self._burst_ns, self._saved_ns + max(0, now_ns - self._at_ns))
        self._at_ns = now_ns
        if self._saved_ns < self._cost_ns:
            return False
        self._saved_ns -= self._cost_ns
        return True


class ClientLimits:
    """A bucket for each client id, for the last few thousand of them. Ids are self-chosen, so that a
    limit for all together stands beside it."""

    def __init__(self, rate_hz: int, burst: int, *, most: int = _MAX_CLIENTS) -> None:
        self._rate_hz = rate_hz
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[int, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client_id: int, now_ns: int) -> bool:
        bucket = self._buckets.get(client_id)
        if bucket is None:
            bucket = self._buckets[client_id] = TokenBucket(self._rate_hz, self._burst, now_ns)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(client_id)
        return bucket.take(now_ns)


_LOG = logging.getLogger(__name__)
_HEADER: Final = struct.Struct("<HHHH")
_MAX_STREAM_ID: Final = (1 << 31) - 1
_MAX_WAITING: Final = 1024
_MAX_REQUEST_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and where it goes."""

    channel: str
    stream_id: int
    request_id: int
    message: bytes


@cache
def _schema() -> tuple[int, int, int]:
    """Schema id, and the templates of question and answer; read when first needed."""
    request, response = DiscoveryRequest.layout(), DiscoveryResponse.layout()
    return request.schema_id, request.template_id, response.template_id


def is_discovery(message: bytes) -> bool:
    """By the schema id alone: on a shared stream others are left alone (discovery §4.2)."""
    return len(message) >= _HEADER.size and _HEADER.unpack_from(message)[2] == _schema()[0]


class RequestQueue:
    """What is asked of one provider, and what it has to say."""

    def __init__(
        self,
        index: DiscoveryIndex,
        settings: ProviderSettings,
        counters: DiscoveryCounters,
        *,
        reserved: frozenset[int] = frozenset(),
        now_ns: int,
    ) -> None:
        """`reserved`: streams of `aeron:ipc` that belong to others, where no answer goes."""
        self._settings = settings
        self._counters = counters
        self._reserved = reserved
        self._rules = ResponseRules(settings.responses)
        self._answers = ResponseBuilder(index, Visibility(settings.rules), max_results=settings.max_results)
        self._clients = ClientLimits(settings.rate_hz, settings.burst)
        self._all = TokenBucket(settings.total_rate_hz, settings.total_rate_hz, now_ns)
        self._waiting: deque[bytes] = deque()
        self._seen = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, message: bytes, now_ns: int) -> None:
        """Takes a message of our schema; it is looked at in its turn."""
        if not self._all.take(now_ns):
            self._counters.refused["flood"].add()
        elif len(self._waiting) >= _MAX_WAITING or len(message) > _MAX_REQUEST_BYTES:
            self._counters.refused["busy"].add()
        else:
            self._waiting.append(message)

    def take(self, now_ns: int, limit: int) -> Iterator[Reply]:
        """Answers to as many questions; others wait."""
        for _ in range(min(limit, len(self._waiting))):
            reply = self.on_message(self._waiting.popleft(), now_ns)
            if reply is not None:
                yield reply

    def on_message(self, message: bytes, now_ns: int) -> Reply | None:
        """The answer to one message; None if there is none."""
        _, template, response_template = _schema()
        if _HEADER.unpack_from(message)[1] == response_template:
            # Somebody has asked to be answered on the request stream.
            return None
        if _HEADER.unpack_from(message)[1] != template:
            self._counters.unusable["template"].add()
            return None
        try:
            request = DiscoveryRequest.decode(message)
        except CodecError as error:
            # Where its answer would go cannot be read, or is another version's to say.
            self._counters.unusable["version" if error.field == "version" else "malformed"].add()
            return None
        return self._on_request(request, now_ns)

    def _on_request(self, request: DiscoveryRequest, now_ns: int) -> Reply | None:
        refusal, channel = self._addressed(request)
        if refusal is None and not self._clients.take(request.client_id, now_ns):
            refusal = "rate"
        if refusal is not None:
            self._counters.refused[refusal].add()
            return None
        if request.response_stream_id == 0:
            self._counters.errors.add()
            why = "response_stream_id is 0: say where you listen"
            return Reply(channel, 0, request.request_id, error_response(request.request_id, why))
        answer = self._answers.answer(request, now_ns)
        self._counters.questions.add()
        self._counters.results.add(answer.count)
        self._log(request, answer.status.name, answer.count)
        return Reply(channel, request.response_stream_id, request.request_id, answer.message)

    def _addressed(self, request: DiscoveryRequest) -> tuple[str | None, str]:
        """Why it goes nowhere, or the channel that its answer goes to."""
        if not request.response_channel:
            return "no_channel", ""
        channel = self._rules.channel(request.response_channel)
        if channel is None:
            return "channel", ""
        stream_id = request.response_stream_id
        if stream_id > _MAX_STREAM_ID or (channel == IPC and stream_id in self._reserved):
            return "stream", ""
        return None, channel

    def _log(self, request: DiscoveryRequest, status: str, count: int) -> None:
        """A sample, by kinds and numbers: what people look for is their own affair (discovery §13)."""
        every = self._settings.log_every
        self._seen += 1
        if every and self._seen % every == 0:
            _LOG.info(
                "question %d, one in %d: client %d asked by %s: %s, %d streams",
                self._seen,
                every,
                request.client_id,
                Filter.of(request).kinds,
                status,
                count,
            )
