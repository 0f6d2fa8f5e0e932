"""The producer of one stream: the native producer with its regions, metadata, traces and reports.

`offer` and `claim` are native methods. They call Python only for trace ids and for new element types.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from .. import _native
from ..cuda import SlotWriter, open_api, parse_device
from ..cuda.slots import writer_for
from ..errors import ClosedError, ForkedError, FrameChangedWarning, OfferWarning
from ..shm.ownership import OwnedRegions
from ..transport import Connection
from .lease import LeaseOptions
from .ledger import ProducerLedger
from .metadata import MetadataOptions, ProducerMetadata, SourceDescription
from .options import PerConsumerStreams, ProducerOptions, descriptor_stream_id
from .tracing import Tracer

if TYPE_CHECKING:
    from typing_extensions import Buffer

_POLL_S = 0.002
# Held only while the first tensor of a device is offered.
_slot_writer_lock = threading.Lock()


class Producer(_native.Producer):
    """Writes tensors into the ring of a stream and publishes a descriptor of each.

    `offer` copies an array; `claim` returns a slot to write into. Neither waits for a consumer: the returned
    outcome says whether the frame was published. `set_metadata` and `set_blob` describe the frames. Safe to
    use from several threads.

    With `traces=True` frames carry trace ids, and `offer(array, parents=[frame, …])` publishes which frames
    a frame was made from.
    """

    # Defaults of the class: `close` may run on a producer whose construction was interrupted.
    owned_regions: OwnedRegions | None = None
    """The regions of this producer; None while a driver owns them."""
    tracer: Tracer | None = None
    """Chooses trace ids; None without `traces=True`."""
    reporter: _native.StatusReporter | None = None
    """Publishes status reports until the producer is closed; None if it publishes none."""
    owner: object = None
    """The context of this producer: a program that keeps only the producer keeps the context open."""
    closed: bool = False
    """Whether the producer was closed."""
    fit_pools: Callable[[int], bool] | None = None
    """Gets the stream a pool for frames of this many bytes; None if the user chose the pools."""
    _metadata: ProducerMetadata | None = None
    _slot_writer: SlotWriter | None = None
    _source_stream_ids: frozenset[int] = frozenset()

    @classmethod
    def open(
        cls,
        connection: Connection,
        stream_id: int,
        options: ProducerOptions,
        *,
        descriptor_channel: str,
        streams: PerConsumerStreams,
        metadata: MetadataOptions | None = None,
        lease: LeaseOptions | None = None,
        owned_regions: OwnedRegions | None = None,
    ) -> Self:
        """A producer in memory of a driver (`lease`), or in its own (`owned_regions`, then its to remove)."""
        try:
            producer = cls.__new__(
                cls,
                connection,
                stream_id,
                options,
                descriptor_channel=descriptor_channel,
                descriptor_stream_id=descriptor_stream_id(options, connection.stream_ids),
                grants=streams.grants(connection.report_period_ns),
                owned_regions=owned_regions,
                lease=lease,
            )
        except BaseException:
            if owned_regions is not None:
                owned_regions.remove()
            raise
        producer.owned_regions = owned_regions
        if options.device is not None:
            try:
                producer._slot_writer = SlotWriter(open_api(parse_device(options.device)), open_api)
                producer.set_device(producer._slot_writer)
            except BaseException:
                producer.close()
                raise
        if metadata is not None:
            producer._metadata = ProducerMetadata(producer, metadata)
        return producer

    def publish_description(self, description: SourceDescription | None) -> None:
        """Publishes the metadata that the producer was opened with, or that it has none; called once its
        handle is registered."""
        self._open_metadata().start(description)

    def ledger(self) -> ProducerLedger:
        """Counts of all committed frames: published, or not and why."""
        return ProducerLedger.from_counters(self.counters())

    @property
    def source_name(self) -> str | None:
        """The name under which the frames are published; None if they have none."""
        return None if self._metadata is None else self._metadata.name

    @property
    def attached(self) -> bool:
        """Whether there is memory to write into. A producer that lost its lease requests it again."""
        return self.epoch is not None

    @property
    def nslots(self) -> int | None:
        """Slots of the header ring: the frames that a consumer may lag behind. None without memory."""
        if self.owned_regions is not None:
            return self.owned_regions.files.nslots
        lease = self.lease()
        return None if lease is None else lease.nslots

    @property
    def pools(self) -> tuple[int, ...]:
        """Sizes of the payload pools in bytes, smallest first. Empty without memory."""
        if self.owned_regions is not None:
            return tuple(sorted(pool.stride_bytes for pool in self.owned_regions.files.pools))
        lease = self.lease()
        return tuple(sorted((lease and lease.strides) or ()))

    def wait_for_consumer(self, timeout: float = 10.0) -> bool:
        """Waits until a consumer subscribes; False if none did within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self.is_connected:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def set_metadata(
        self, attributes: Mapping[str, Any], *, name: str | None = None, summary: str | None = None
    ) -> int:
        """Replaces the attributes of the frames that follow.

        Text, numbers, lists and dicts, numpy arrays and bytes keep their type; `(format, bytes)` is for any
        other format. Consumers read them as `frame.meta`, for each frame those of its own version. Returns
        the version, which stays if nothing changes. Use `set_blob` for large tables.
        """
        return self._open_metadata().set_attributes(attributes, name=name, summary=summary)

    def set_blob(self, blob_type: int, data: Buffer | npt.NDArray[Any] | None) -> int:
        """Attaches `data` to the frames that follow: a flat field, a mask, a large table.

        `blob_type` is a number that producer and consumers agree on. Blobs are sent in chunks with a
        checksum, and repeated for consumers that subscribe later; `consumer.blob(blob_type, frame)` returns
        them. None removes the blob. Returns the metadata version.
        """
        return self._open_metadata().set_blob(blob_type, data)

    def republish_metadata(
        self, version: int, announce: bytes, meta: bytes, blobs: Mapping[int, tuple[int, bytes]]
    ) -> None:
        """Publishes the metadata messages of another source unchanged, as a replay or a bridge does.

        `announce` and `meta` are messages of this stream; producer id and epoch of the announce are filled
        in. `blobs` are by type, with the version at which each was set.
        """
        self._open_metadata().republish(version, announce, meta, blobs)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The attributes that were set."""
        return {} if self._metadata is None else self._metadata.attributes

    def _open_metadata(self) -> ProducerMetadata:
        if self._metadata is None:
            raise ClosedError("this producer has no metadata stream; get one from ctx.producer(...)")
        return self._metadata

    def _declare_dtype(self, name: str) -> bool:
        """Called by the native `offer` before an array whose element type has no number on the wire.

        False if the metadata does not declare this type.
        """
        return self._metadata is not None and self._metadata.declare_dtype(name)

    def _fit_pools(self, nbytes: int) -> bool:
        """Called by the native `offer` and `claim` for a frame that fits no pool. True: try again.

        Only before the first frame: a later change of the pools would begin a new epoch, and consumers would
        lose frames.
        """
        fit, self.fit_pools = self.fit_pools, None
        return fit is not None and not self.next_seq and fit(nbytes)

    def _warn_refused(self, message: str) -> None:
        """Called by the native `offer` for the first frame that is lost for a reason of the user's."""
        warnings.warn(message, OfferWarning, stacklevel=2)

    def _warn_changed(self, seq: int) -> None:
        """Called by the native methods, in Python's development mode, for a frame that was changed."""
        message = (
            f"frame {seq} of stream {self.stream_id} was changed after its commit, so consumers may have "
            "received other values; a view of slot.array, or a tensor over it, was written later: write only "
            "until the commit, and keep array.copy() of what you need"
        )
        warnings.warn(message, FrameChangedWarning, stacklevel=2)

    def _offer_from_device(
        self,
        tensor: object,
        timestamp_ns: int | None,
        dtype: object,
        meta_version: int | None,
        trace_id: int,
        parents: Iterable[_native.Frame | int] | None,
        keep_strides: bool,
        strict: bool,
    ) -> _native.OfferResult:
        """Called by the native `offer` for a tensor in the memory of a GPU."""
        writer = self._slot_writer
        if writer is None:
            with _slot_writer_lock:
                if self.closed:
                    # A writer that is opened now would never be closed.
                    return self._refuse("closed", int(getattr(tensor, "nbytes", 0)), strict)
                if self._slot_writer is None:
                    self._slot_writer = writer_for(tensor)
                writer = self._slot_writer
        return writer.offer(
            self,
            tensor,
            timestamp_ns=timestamp_ns,
            dtype=dtype,
            meta_version=meta_version,
            trace_id=trace_id,
            parents=parents,
            keep_strides=keep_strides,
            refuse=lambda outcome, nbytes: self._refuse(outcome, nbytes, strict),
        )

    def __repr__(self) -> str:
        if self.closed:
            return f"<Producer stream={self.stream_id} closed>"
        name = f" name={self.source_name!r}" if self.source_name else ""
        epoch = "no lease" if self.epoch is None else f"epoch={self.epoch}"
        return f"<Producer stream={self.stream_id}{name} {epoch} {self.ledger()}>"

    def _trace_id_from(
        self, parents: Iterable[_native.Frame | int], given_id: int = 0
    ) -> tuple[int, list[int]]:
        """Called by the native `offer` and `claim` of a producer with traces.

        The trace id of the frame, and the trace ids that a TraceLinkSet must name. `given_id` is the trace id
        that the caller chose; 0 for none.
        """
        if self.tracer is None:
            raise ClosedError("this producer has no tracer; get one from ctx.producer(..., traces=True)")
        parents = tuple(parents)
        for parent in parents:
            if not isinstance(parent, int) and parent.stream_id not in self._source_stream_ids:
                self.report_source(parent.stream_id)
        return self.tracer.trace_id_from(parents, given_id)

    def report_source(self, stream_id: int) -> None:
        """Adds `stream_id` to the streams that, by this producer's status report, it is made from."""
        # Raises ForkedError: the reports are those of the parent.
        self.counters()
        if self.reporter is not None:
            self.reporter.add_source(stream_id)
            self._source_stream_ids |= {stream_id}

    def _publish_links(self, epoch: int, seq: int, trace_id: int, parents: list[int]) -> None:
        """Called by the native `offer`, and by the commit of a slot, once the frame has its sequence."""
        if self.tracer is not None:
            self.tracer.publish_links(self.stream_id, epoch, seq, trace_id, parents)

    def close(self) -> None:
        """Stops publishing, gives up the lease, and removes regions that this producer owns.

        Consumers can still read what they have mapped.
        """
        if self._slot_writer is not None:
            # Frames that a CUDA stream commits are published before the producer ends.
            self._slot_writer.finish()
        try:
            super().close()
        except FrameChangedWarning:
            # Warnings are errors in this program: nothing stays open for that.
            self._close_parts()
            raise
        self._close_parts()

    def _close_parts(self) -> None:
        self.closed = True
        reporter, self.reporter = self.reporter, None
        for part in (self._metadata, reporter):
            if part is not None:
                part.close()
        if self._slot_writer is not None:
            self._slot_writer.close()
        if self.owned_regions is not None:
            self.owned_regions.remove()
        if self.tracer is not None:
            self.tracer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the producer belongs to the parent process: there is nothing to close.
        with suppress(ForkedError):
            self.close()

    def __del__(self) -> None:
        # Without a close the conductor would keep the producer and its memory as long as the context.
        with suppress(ForkedError):
            self.close()
