"""Metadata that a producer publishes: attributes, name, tags, element type and blobs (wire §10.3).

`SourceDescription` is pure: changes in, messages out. `ProducerMetadata` publishes these messages: at once,
and then by the conductor thread once a period, so that consumers that subscribe later receive them too.
"""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from .. import _native
from ..attributes.extension_types import CARRIERS, DTYPE_KEY, Extension, extension, name_of
from ..attributes.metadata import BLOBS_KEY, TAGS_KEY, attribute
from ..errors import ClosedError, UnsupportedDtype
from ..sbe import Attribute, DataSourceAnnounce, DataSourceMeta
from ..units import MAX_U32, NULL_U32

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_ATTRIBUTES: Final = 0xFFFE
_MAX_NAME_BYTES: Final = 1024
# 0 means no metadata.
_MAX_VERSION: Final = MAX_U32
MAX_BLOB_BYTES: Final = 128 << 20
_MAX_BLOB_TYPE: Final = NULL_U32
# Blobs are repeated once in this many metadata periods.
_BLOB_PERIODS: Final = 10
_READY_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.001
# Fits through every channel whose media driver has Aeron's smallest sensible terms.
_SAFE_MESSAGE_BYTES: Final = 128 << 10
_RESERVED_KEYS: Final = {
    TAGS_KEY: "ctx.producer(..., tags=)",
    DTYPE_KEY: "ctx.producer(..., dtype=)",
    BLOBS_KEY: "set_blob",
}
# Held only while metadata changes; publishing a frame takes no lock here.
_change_lock = threading.RLock()


class SourceDescription:
    """The metadata of one source. `version` is 0 until there is any."""

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
        self.attributes: dict[str, object] = {}
        self.name, self.summary = _check_name(name or ""), _check_summary(summary or "")
        self.fixed_dtype: str | None = None
        self.extension: Extension | None = None
        self._tags = [attribute(TAGS_KEY, list(tags))] if tags else []
        self._attributes: list[Attribute] = []
        self._dtype: list[Attribute] = []
        self._blobs: dict[str, int] | None = None
        self._timestamp_ns = 0
        self._set_attributes(metadata or {})
        if dtype is not None:
            self.fixed_dtype = name_of(dtype)
            self._set_dtype(self.fixed_dtype)

    def _set_attributes(self, metadata: Mapping[str, Any]) -> bool:
        for key in metadata:
            if key in _RESERVED_KEYS:
                raise ValueError(f"metadata key {key!r} is written by {_RESERVED_KEYS[key]}")
        if len(metadata) > _MAX_ATTRIBUTES:
            raise ValueError(f"{len(metadata)} attributes; a message has room for {_MAX_ATTRIBUTES}")
        encoded = [attribute(key, value) for key, value in metadata.items()]
        changed = encoded != self._attributes
        self._attributes, self.attributes = encoded, dict(metadata)
        return changed

    def _set_dtype(self, name: str) -> None:
        found = extension(name)
        if found is None:
            why = "needs the package ml_dtypes" if name in CARRIERS else "is not in the registry"
            raise UnsupportedDtype(
                f"element type {name} {why}; metadata can carry {', '.join(CARRIERS)}", dtype=name
            )
        self.extension, self._dtype = found, [attribute(DTYPE_KEY, name)]

    def declares(self, name: str) -> bool:
        """Whether frames may have this element type; a type that the producer was opened with stays."""
        return extension(name) is not None and self.fixed_dtype in (None, name)

    def declare(self, name: str, now_ns: int) -> None:
        """Sets the element type of the frames that follow."""
        if self.extension is None or self.extension[1].name != name:
            self._set_dtype(name)
            self.bump(now_ns)

    def change(
        self, metadata: Mapping[str, Any], *, name: str | None, summary: str | None, now_ns: int
    ) -> bool:
        """Replaces the attributes; False, and no new version, if nothing differs."""
        labels = (
            self.name if name is None else _check_name(name),
            self.summary if summary is None else _check_summary(summary),
        )
        changed = self._set_attributes(metadata) or labels != (self.name, self.summary)
        self.name, self.summary = labels
        changed = changed or self.version == 0
        if changed:
            self.bump(now_ns)
        return changed

    def change_blob(self, blob_type: int, has_data: bool, now_ns: int) -> None:
        """Begins a version whose frames have another blob of this type, or none."""
        self.bump(now_ns)
        others = {key: version for key, version in (self._blobs or {}).items() if key != str(blob_type)}
        self._blobs = {**others, str(blob_type): self.version} if has_data else others

    def bump(self, now_ns: int) -> None:
        """Begins a new version."""
        self.version = 1 if self.version >= _MAX_VERSION else self.version + 1
        self._timestamp_ns = now_ns

    def messages(self, stream_id: int) -> tuple[bytes, bytes]:
        """DataSourceAnnounce, whose producer id and epoch are filled in later, and DataSourceMeta."""
        announce = DataSourceAnnounce(
            stream_id=stream_id,
            producer_id=0,
            epoch=0,
            meta_version=self.version,
            # The wire field is ASCII; UTF-8 passes byte for byte.
            name=self.name.encode().decode("ascii", "surrogateescape"),
            summary=self.summary,
        )
        blobs = () if self._blobs is None else (attribute(BLOBS_KEY, self._blobs),)
        meta = DataSourceMeta(
            stream_id=stream_id,
            meta_version=self.version,
            timestamp_ns=self._timestamp_ns,
            attributes=(*self._tags, *self._dtype, *blobs, *self._attributes),
        )
        return announce.encode(), meta.encode()


def _check_name(name: str) -> str:
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"a name of {len(name)} characters is too long; use {_MAX_NAME_BYTES} bytes at most")
    return name


def _check_summary(summary: str) -> str:
    if not summary.isascii() or len(summary) > _MAX_NAME_BYTES:
        raise ValueError(f"summary {summary!r}: use ASCII text of at most {_MAX_NAME_BYTES} characters")
    return summary


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """The stream and the period of a producer's metadata."""

    channel: str
    stream_id: int
    period_ns: int

    def open_publisher(self, producer: _native.Producer) -> _native.MetadataPublisher:
        """Starts to publish for `producer`: before there is metadata, an announce without name."""
        return _native.MetadataPublisher(
            producer,
            self.channel,
            self.stream_id,
            period_ns=self.period_ns,
            blob_period_ns=_BLOB_PERIODS * self.period_ns,
        )


class ProducerMetadata:
    """The metadata of one producer, and its publisher, which opens with `start` or with the first change."""

    def __init__(self, producer: _native.Producer, options: MetadataOptions) -> None:
        # Weak: the producer has this object, and a producer without references must be closed at once.
        self._producer_ref = weakref.ref(producer)
        self._options = options
        self._description: SourceDescription | None = None
        self._publisher: _native.MetadataPublisher | None = None
        self._was_ready = False
        self._republished_blobs: Mapping[int, tuple[int, bytes]] = {}
        self._closed = False

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes that were set."""
        return {} if self._description is None else dict(self._description.attributes)

    @property
    def name(self) -> str | None:
        """The name of the source; None if it has none."""
        return None if self._description is None else self._description.name or None

    def start(self, description: SourceDescription | None) -> None:
        """Publishes the metadata that the producer was opened with. Without any, its announce is published
        alone (wire §10.3.1), and no caller waits for that."""
        with _change_lock:
            if description is None:
                self._create_publisher().publish_undescribed()
                return
            description.bump(time.monotonic_ns())
            self._publish(description)

    def set_attributes(self, attributes: Mapping[str, Any], *, name: str | None, summary: str | None) -> int:
        """Replaces the attributes; returns the metadata version."""
        with _change_lock:
            draft = self._draft()
            if draft.change(attributes, name=name, summary=summary, now_ns=time.monotonic_ns()):
                self._publish(draft)
            return draft.version

    def set_blob(self, blob_type: int, data: Buffer | npt.NDArray[Any] | None) -> int:
        """Replaces the blob of a type; None removes it. Returns the metadata version."""
        if not 0 <= blob_type <= _MAX_BLOB_TYPE:
            raise ValueError(f"blob type {blob_type}: use 0 to {_MAX_BLOB_TYPE}")
        content = None if data is None else _to_bytes(data)
        with _change_lock:
            draft = self._draft()
            draft.change_blob(blob_type, content is not None, time.monotonic_ns())
            publisher = self._open_publisher()
            if content is None:
                publisher.remove_blob(blob_type)
            else:
                publisher.put_blob(blob_type, draft.version, content)
            self._publish(draft)
            return draft.version

    def republish(
        self, version: int, announce: bytes, meta: bytes, blobs: Mapping[int, tuple[int, bytes]]
    ) -> None:
        """Publishes messages and blobs of another source unchanged."""
        with _change_lock:
            publisher = self._open_publisher()
            for blob_type in self._republished_blobs.keys() - blobs.keys():
                publisher.remove_blob(blob_type)
            for blob_type, (blob_version, content) in blobs.items():
                if self._republished_blobs.get(blob_type) != (blob_version, content):
                    publisher.put_blob(blob_type, blob_version, content)
            self._republished_blobs = dict(blobs)
            publisher.publish(announce, meta)
            self._producer().describe(version)

    def declare_dtype(self, name: str) -> bool:
        """Publishes an element type that has no number on the wire; False if the metadata excludes it."""
        with _change_lock:
            if self._description is None or not self._description.declares(str(name)):
                return False
            draft = self._draft()
            draft.declare(str(name), time.monotonic_ns())
            self._publish(draft)
            return True

    def _draft(self) -> SourceDescription:
        """A copy to change, which replaces the description once it is published."""
        return SourceDescription() if self._description is None else copy.copy(self._description)

    def _publish(self, description: SourceDescription) -> None:
        producer = self._producer()
        announce, meta = description.messages(producer.stream_id)
        publisher = self._open_publisher()
        max_bytes = publisher.max_message_length or _SAFE_MESSAGE_BYTES
        if len(meta) > max_bytes:
            raise ValueError(
                f"{len(meta)} bytes of metadata; a message has room for {max_bytes}: use set_blob"
            )
        publisher.publish(announce, meta)
        # After the messages, so that no frame of this version precedes them.
        producer.describe(description.version, description.extension)
        self._description = description

    def _producer(self) -> _native.Producer:
        producer = self._producer_ref()
        if producer is None:
            raise ClosedError("the producer of this metadata is closed")
        return producer

    def _open_publisher(self) -> _native.MetadataPublisher:
        if self._closed:
            raise ClosedError("this producer is closed and publishes no metadata")
        publisher = self._create_publisher()
        deadline = time.monotonic() + _READY_TIMEOUT_S
        # Not an error: the messages are sent as soon as the media driver registers the publication.
        while not (publisher.is_ready or self._was_ready) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._was_ready = True
        return publisher

    def _create_publisher(self) -> _native.MetadataPublisher:
        if self._publisher is None:
            self._publisher = self._options.open_publisher(self._producer())
        return self._publisher

    def close(self) -> None:
        """Stops publishing."""
        self._closed = True
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()


def _to_bytes(data: Buffer | npt.NDArray[Any]) -> bytes | memoryview:
    plain: Any = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data
    view = memoryview(plain)
    if view.nbytes > MAX_BLOB_BYTES:
        raise ValueError(f"a blob of {view.nbytes} bytes; consumers keep up to {MAX_BLOB_BYTES}")
    # A cast needs at least one element.
    return view.cast("B") if view.nbytes else b""
