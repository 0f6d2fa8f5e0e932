"""What a producer says of itself: attributes, name, tags, element type, and the version that counts them.

Pure: changes in, messages out. `describing.py` has the producer that sends them.

The part of a producer that tells of itself: attributes, element types, blobs.

What is said is sent at once and then again and again by the conductor's thread, so that whoever comes later
knows it within a period.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from .. import _native
from ..attributes.dtypes import CARRIERS, DTYPE_KEY, Extension, extension, name_of
from ..attributes.metadata import BLOBS_KEY, TAGS_KEY, attribute
from ..errors import ClosedError, UnsupportedDtype
from ..sbe import Attribute, DataSourceAnnounce, DataSourceMeta

_MAX_ATTRIBUTES: Final = 0xFFFE
_MAX_NAME_BYTES: Final = 1024
_OURS: Final = {
    TAGS_KEY: "ctx.producer(..., tags=)",
    DTYPE_KEY: "ctx.producer(..., dtype=)",
    BLOBS_KEY: "set_blob",
}


class SourceDescription:
    """The words of one source. `version` is 0 until something was said."""

    def __init__(
        self,
        *,
        name: str | None = None,
        summary: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.version = 0
        self.given: dict[str, Any] = {}
        self.name, self.summary = _name(name or ""), _summary(summary or "")
        self.fixed_dtype: str | None = None
        self.extension: Extension | None = None
        self._tags = [attribute(TAGS_KEY, list(tags))] if tags else []
        self._user: list[Attribute] = []
        self._dtype: list[Attribute] = []
        self._blobs: dict[str, int] | None = None
        self._timestamp_ns = 0
        self._set_user(metadata or {})
        if dtype is not None:
            self.fixed_dtype = name_of(dtype)
            self._set_dtype(self.fixed_dtype)

    def _set_user(self, metadata: Mapping[str, Any]) -> bool:
        for key in metadata:
            if key in _OURS:
                raise ValueError(f"metadata key {key!r} is written by {_OURS[key]}")
        if len(metadata) > _MAX_ATTRIBUTES:
            raise ValueError(f"{len(metadata)} attributes; a message has room for {_MAX_ATTRIBUTES}")
        made = [attribute(key, value) for key, value in metadata.items()]
        changed = made != self._user
        self._user, self.given = made, dict(metadata)
        return changed

    def _set_dtype(self, name: str) -> None:
        found = extension(name)
        if found is None:
            why = "needs the package ml_dtypes" if name in CARRIERS else "has no place in the registry"
            raise UnsupportedDtype(
                f"element type {name} {why}; carried by metadata are {', '.join(CARRIERS)}", dtype=name
            )
        self.extension, self._dtype = found, [attribute(DTYPE_KEY, name)]

    def declares(self, name: str) -> bool:
        """Whether frames may be of that type; what was fixed at the start stays."""
        return extension(name) is not None and self.fixed_dtype in (None, name)

    def declare(self, name: str, now_ns: int) -> None:
        if self.extension is None or self.extension[1].name != name:
            self._set_dtype(name)
            self.bump(now_ns)

    def change(
        self, metadata: Mapping[str, Any], *, name: str | None, summary: str | None, now_ns: int
    ) -> bool:
        """Another set of attributes; what is the same needs no version of its own."""
        named = (
            self.name if name is None else _name(name),
            self.summary if summary is None else _summary(summary),
        )
        changed = self._set_user(metadata) or named != (self.name, self.summary)
        self.name, self.summary = named
        changed = changed or self.version == 0
        if changed:
            self.bump(now_ns)
        return changed

    def change_blob(self, blob_type: int, is_there: bool, now_ns: int) -> None:
        """Frames of the next version go with another blob, or with none of that type."""
        self.bump(now_ns)
        rest = {key: at for key, at in (self._blobs or {}).items() if key != str(blob_type)}
        self._blobs = {**rest, str(blob_type): self.version} if is_there else rest

    def bump(self, now_ns: int) -> None:
        # 0 is none, and all ones is null on the wire.
        self.version = 1 if self.version >= 0xFFFF_FFFE else self.version + 1
        self._timestamp_ns = now_ns

    def messages(self, stream_id: int) -> tuple[bytes, bytes]:
        """The announce, whose producer and epoch are filled in when it is sent, and the attributes."""
        announce = DataSourceAnnounce(
            stream_id=stream_id,
            producer_id=0,
            epoch=0,
            meta_version=self.version,
            # Carried byte for byte, so that a name may have any letters.
            name=self.name.encode().decode("ascii", "surrogateescape"),
            summary=self.summary,
        )
        blobs = () if self._blobs is None else (attribute(BLOBS_KEY, self._blobs),)
        meta = DataSourceMeta(
            stream_id=stream_id,
            meta_version=self.version,
            timestamp_ns=self._timestamp_ns,
            attributes=(*self._tags, *self._dtype, *blobs, *self._user),
        )
        return announce.encode(), meta.encode()


def _name(name: str) -> str:
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"a name of {len(name)} letters is too long; use {_MAX_NAME_BYTES} bytes at most")
    return name


def _summary(summary: str) -> str:
    if not summary.isascii() or len(summary) > _MAX_NAME_BYTES:
        raise ValueError(f"summary {summary!r}: use plain ASCII text of at most {_MAX_NAME_BYTES} letters")
    return summary


MAX_BLOB_BYTES: Final = 128 << 20
_READY_S: Final = 5.0
_BLOBS_EVERY: Final = 10
# What fits through every channel whose media driver has Aeron's smallest sensible terms.
_SAFE_MESSAGE_BYTES: Final = 128 << 10
# Held for moments, at a change: frames never take it.
_changes = threading.RLock()


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Where and how often a source tells of itself."""

    channel: str
    stream_id: int
    period_ns: int

    def bulletin(self, producer: _native.Producer) -> _native.Bulletin:
        return _native.Bulletin(
            producer,
            self.channel,
            self.stream_id,
            period_ns=self.period_ns,
            blob_period_ns=_BLOBS_EVERY * self.period_ns,
        )


class DescribedProducer(_native.Producer):
    """A producer that can say what its frames are."""

    _metadata_terms: MetadataOptions | None = None
    _description: SourceDescription | None = None
    _bulletin: _native.Bulletin | None = None
    _reporter: _native.Reporter | None = None
    _repeated_blobs: Mapping[int, tuple[int, bytes]] = {}

    def set_metadata(
        self, attributes: Mapping[str, Any], *, name: str | None = None, summary: str | None = None
    ) -> int:
        """Says what frames from here on are: these attributes in place of those before.

        Text, numbers, lists and dicts, numpy arrays and bytes go as what they are, `(format, bytes)` in any
        other format. Consumers see them as `frame.meta`, each frame those of its own version. Returns the
        version; the same attributes again keep it. Large tables go by `set_blob`.
        """
        with _changes:
            said = self._draft()
            if said.change(attributes, name=name, summary=summary, now_ns=time.monotonic_ns()):
                self._say(said)
            return said.version

    def set_blob(self, blob_type: int, data: Buffer | npt.NDArray[Any] | None) -> int:
        """Says that frames from here on go with `data`: a flat field, a mask, a large table.

        `blob_type` is a number that both sides agree on. Sent in chunks, checked, and repeated for those who
        come later; `consumer.blob(blob_type, frame)` gives it. None takes it back. Returns the version.
        """
        if not 0 <= blob_type < 1 << 32:
            raise ValueError(f"blob type {blob_type}: use 0 to 4294967295")
        content = None if data is None else _bytes_of(data)
        with _changes:
            said = self._draft()
            said.change_blob(blob_type, content is not None, time.monotonic_ns())
            bulletin = self._board()
            if content is None:
                bulletin.remove_blob(blob_type)
            else:
                bulletin.put_blob(blob_type, said.version, content)
            self._say(said)
            return said.version

    def repeat_words(
        self, version: int, announce: bytes, meta: bytes, blobs: Mapping[int, tuple[int, bytes]]
    ) -> None:
        """Says what another source said, word for word: for whoever passes frames on, as a replay does.

        `announce` and `meta` are messages of this stream; the announce's producer and epoch are filled in.
        `blobs` are by type, with the version at which each was set.
        """
        with _changes:
            bulletin = self._board()
            for blob_type in self._repeated_blobs.keys() - blobs.keys():
                bulletin.remove_blob(blob_type)
            for blob_type, (at, content) in blobs.items():
                if self._repeated_blobs.get(blob_type) != (at, content):
                    bulletin.put_blob(blob_type, at, content)
            self._repeated_blobs = dict(blobs)
            bulletin.put(announce, meta)
            self.describe(version)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The attributes that were set."""
        return {} if self._description is None else dict(self._description.given)

    def _start_describing(self, terms: MetadataOptions, first: SourceDescription | None) -> None:
        """Called once, when the producer is ready; `first` is what it was opened with."""
        self._metadata_terms = terms
        if first is not None:
            with _changes:
                first.bump(time.monotonic_ns())
                self._say(first)

    def _declare_dtype(self, name: str) -> bool:
        """An array of a type without a number is about to be sent. False if metadata does not tell of it."""
        with _changes:
            if self._description is None or not self._description.declares(str(name)):
                return False
            said = self._draft()
            said.declare(str(name), time.monotonic_ns())
            self._say(said)
            return True

    def _draft(self) -> SourceDescription:
        """What is said now, to be changed; it takes its place once it is said."""
        return SourceDescription() if self._description is None else copy.copy(self._description)

    def _say(self, said: SourceDescription) -> None:
        announce, meta = said.messages(self.stream_id)
        bulletin = self._board()
        room = bulletin.max_message_length or _SAFE_MESSAGE_BYTES
        if len(meta) > room:
            raise ValueError(f"{len(meta)} bytes of metadata; a message has room for {room}: use set_blob")
        bulletin.put(announce, meta)
        # After the words, so that no frame comes before them.
        self.describe(said.version, said.extension)
        self._description = said

    def _board(self) -> _native.Bulletin:
        if self._bulletin is None:
            if self._metadata_terms is None:
                raise ClosedError("this producer has no metadata stream; get one from ctx.producer(...)")
            self._bulletin = self._metadata_terms.bulletin(self)
            deadline = time.monotonic() + _READY_S
            while not self._bulletin.is_ready and time.monotonic() < deadline:
                time.sleep(0.001)
        return self._bulletin

    def close(self) -> None:
        """Stops; nothing is said any more."""
        super().close()
        bulletin, self._bulletin, self._metadata_terms = self._bulletin, None, None
        reporter, self._reporter = self._reporter, None
        for said in (bulletin, reporter):
            if said is not None:
                said.close()


def _bytes_of(data: Buffer | npt.NDArray[Any]) -> bytes | memoryview:
    plain: Any = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data
    view = memoryview(plain)
    if view.nbytes > MAX_BLOB_BYTES:
        raise ValueError(f"a blob of {view.nbytes} bytes; consumers keep up to {MAX_BLOB_BYTES}")
    # A cast needs at least one element.
    return view.cast("B") if view.nbytes else b""
