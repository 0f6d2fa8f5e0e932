"""From a question to its answer (discovery §5). Pure.

While the index stands still, the same question has the same answer: the last few are kept as bytes, and only
the request's id is written anew.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, TypeAlias

from ..attributes.tags import error_text
from ..sbe.discovery import DiscoveryRequest, DiscoveryResponse, DiscoveryStatus
from .entries import Entry
from .index import DiscoveryIndex
from .visibility import View, Visibility

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
class Answer:
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


class Answers:
    """Looks into the index, as far as the one who asks may see it."""

    def __init__(self, index: DiscoveryIndex, visibility: Visibility, *, max_results: int) -> None:
        self._index = index
        self._visibility = visibility
        self._max_results = max_results
        self._kept: OrderedDict[_Key, Answer] = OrderedDict()
        self._kept_bytes = 0
        self._generation = -1

    def answer(self, request: DiscoveryRequest, now_ns: int) -> Answer:
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
        return Answer(_addressed(found.message, request.request_id), found.status, found.count)

    def _look(self, wanted: Filter, view: View, now_ns: int) -> Answer:
        candidates = self._index.candidates(now_ns, name=wanted.name, stream_id=wanted.stream_id)
        # What one may not see counts for nothing, not even against the cap (decision 24).
        found = [one for one in candidates if wanted.fits(one) and self._visibility.shows(view, one)]
        if len(found) > self._max_results:
            why = (
                f"{len(found)} streams fit, and an answer has at most {self._max_results}; narrow the filter"
            )
            return Answer(error_response(0, why), DiscoveryStatus.ERROR, 0)
        status = DiscoveryStatus.OK
        if not found and self._visibility.has_rules:
            # The same for what is hidden and for what is not there.
            status = DiscoveryStatus.NOT_FOUND
        results = tuple(one.result() for one in found)
        message = DiscoveryResponse(request_id=0, status=status, results=results).encode()
        return Answer(message, status, len(found))

    def _keep(self, key: _Key, answer: Answer) -> None:
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
