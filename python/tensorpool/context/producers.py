"""`ctx.producer()`: on a driver, or alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy.typing as npt

from .. import _native
from ..client import (
    LeasedProducer,
    Producer,
    SourceDescription,
    StandaloneProducer,
    TracedLeasedProducer,
    TracedProducer,
    TracedStandaloneProducer,
    TraceIds,
    Tracer,
)
from ..client.lease import attach_error
from ..driver import DEFAULT_NSLOTS
from ..errors import CommandFailed, ConfigError, NoSuchService, RequestRejected, ServiceTimeout
from ..shm import parse_pools
from ..transport import SHARED_CHANNEL, descriptor_channel
from .endpoints import WithEndpoints, checked_stream_id


class WithProducers(WithEndpoints):
    """The part of a context that gives out producers."""

    namespace: str
    _base: Path
    _descriptor_term_bytes: int
    _trace_ids: TraceIds

    @overload
    def producer(
        self,
        stream_id: int,
        *,
        pools: Sequence[str | int] | str | int | None = None,
        nslots: int | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        dtype: npt.DTypeLike | None = None,
        descriptor_stream_id: int | None = None,
        metadata_stream_id: int | None = None,
        publish_timestamps: bool = False,
        prefault: bool = True,
        require_hugepages: bool = False,
        own_streams: bool = True,
        traces: Literal[True],
    ) -> TracedProducer: ...
    @overload
    def producer(
        self,
        stream_id: int,
        *,
        pools: Sequence[str | int] | str | int | None = None,
        nslots: int | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        dtype: npt.DTypeLike | None = None,
        descriptor_stream_id: int | None = None,
        metadata_stream_id: int | None = None,
        publish_timestamps: bool = False,
        prefault: bool = True,
        require_hugepages: bool = False,
        own_streams: bool = True,
        traces: bool = False,
    ) -> Producer: ...
    def producer(
        self,
        stream_id: int,
        *,
        pools: Sequence[str | int] | str | int | None = None,
        nslots: int | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        dtype: npt.DTypeLike | None = None,
        descriptor_stream_id: int | None = None,
        metadata_stream_id: int | None = None,
        publish_timestamps: bool = False,
        prefault: bool = True,
        require_hugepages: bool = False,
        own_streams: bool = True,
        traces: bool = False,
    ) -> Producer:
        """The producer of `stream_id`: a stream has one at a time.

        `pools` are the size classes of payloads (`["64KiB", "1MiB"]`), `nslots` how many frames a reader
        may lag behind before they are overwritten: a power of two. What is not given is as the driver has it
        for this stream. All memory is allocated now. `traces` gives every frame a trace id and lets
        `offer(array, parents=[frame, …])` tell of its lineage. `require_hugepages`: on huge pages or not at
        all. `own_streams=False`: consumers that ask for streams of their own are declined. Raises AttachError
        if the driver says no.

        `name`, `tags` and `metadata` travel to every consumer (see `producer.set_metadata`). `dtype` says
        that frames are of a type that the wire has no number for, as in "float16"; where there is metadata,
        the first array of such a type says so too.
        """
        self._check_open()
        checked_stream_id(stream_id)
        terms, first = self._metadata_terms(metadata_stream_id), None
        if name is not None or tags or metadata is not None or dtype is not None:
            first = SourceDescription(name=name, tags=tags, metadata=metadata, dtype=dtype)
        if nslots is not None:
            _checked_nslots(nslots)
        common: dict[str, Any] = {
            "descriptor_channel": descriptor_channel(self._descriptor_term_bytes),
            "descriptor_stream_id": self._descriptor_stream(descriptor_stream_id),
            "publish_timestamps": publish_timestamps,
            "streams": self._streams if own_streams else replace(self._streams, channels=()),
            "prefault": prefault,
        }
        producer: Producer
        if self.mode == "standalone":
            kind = TracedStandaloneProducer if traces else StandaloneProducer
            producer = kind.create(
                self._conductor,
                stream_id,
                base=self._base,
                namespace=self.namespace,
                nslots=nslots or DEFAULT_NSLOTS,
                pools=parse_pools(pools),
                announce_period_ns=self._announce_period_ns,
                **common,
            )
        else:
            if not (pools is None and nslots is None and name is None and not tags):
                self._provision(stream_id, pools, nslots, name, tags)
            self._learn_period()
            leased = TracedLeasedProducer if traces else LeasedProducer
            producer = leased.attach(
                self._conductor, stream_id, self._terms, require_hugepages=require_hugepages, **common
            )
        if isinstance(producer, TracedProducer):
            producer.tracer = Tracer(self._trace_ids, self._control_publication())
        self._ready(producer)
        try:
            producer._start_describing(terms, first)
        except BaseException:
            producer.close()
            raise
        return producer

    def _control_publication(self) -> _native.Publication:
        """For words of a frame's lineage."""
        return _native.Publication(self._conductor, SHARED_CHANNEL, self.stream_ids.control)

    def _provision(
        self,
        stream_id: int,
        pools: Sequence[str | int] | str | int | None,
        nslots: int | None,
        name: str | None,
        tags: Sequence[str],
    ) -> None:
        """Tells the driver the layout of a stream that the producer is about to attach to."""
        wanted: dict[str, Any] = {"stream_id": stream_id}
        if pools is not None:
            wanted["pools"] = [stride for _, stride in parse_pools(pools)]
        if nslots is not None:
            wanted["nslots"] = nslots
        if name is not None:
            wanted["name"] = name
        if tags:
            wanted["tags"] = list(tags)
        try:
            with self.service("driver", timeout=self._terms.attach_timeout_ns / 1e9) as driver:
                driver.call("provision", wanted)
        except (RequestRejected, CommandFailed) as error:
            raise attach_error(stream_id, "REJECTED", str(error), self._terms) from None
        except (NoSuchService, ServiceTimeout):
            raise attach_error(stream_id, "NO_ANSWER", "", self._terms) from None


def _checked_nslots(nslots: Any) -> int:
    if not isinstance(nslots, int) or not 0 < nslots <= 1 << 20 or nslots & (nslots - 1):
        raise ConfigError(f"nslots {nslots!r}: use a power of two from 1 to 1048576, as in 8")
    return nslots
