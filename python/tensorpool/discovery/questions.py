"""Messages of the request stream, from strangers: which are questions, and where their answers go. Pure.

Nothing a stranger sends costs more than a bounded amount of work and memory, and none of it raises.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from ..errors import CodecError
from ..sbe.discovery import DiscoveryRequest, DiscoveryResponse
from .answers import Answers, Filter, error_response
from .config import ProviderSettings
from .counters import DiscoveryCounters
from .endpoints import IPC, ResponseRules
from .index import DiscoveryIndex
from .limits import Bucket, ClientLimits
from .visibility import Visibility

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


class Questions:
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
        self._answers = Answers(index, Visibility(settings.rules), max_results=settings.max_results)
        self._clients = ClientLimits(settings.rate_hz, settings.burst)
        self._all = Bucket(settings.total_rate_hz, settings.total_rate_hz, now_ns)
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
