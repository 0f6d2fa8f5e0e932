"""A driver that grants leases and announces, and leaves the activity timestamps to the producer (driver §3).

It shares no code with the real driver: it answers attach requests on the control stream from one set of
region files, and announces them. Nothing else refreshes their superblocks.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tensorpool as tp
from tensorpool.errors import CodecError
from tensorpool.sbe import ClockDomain, PayloadPool, ShmPoolAnnounce, decode
from tensorpool.sbe.driver import (
    Role,
    ShmAttachRequest,
    ShmAttachRequestR2,
    ShmAttachResponse,
    ShmAttachResponseR2,
)
from tensorpool.sbe.message import Message
from tensorpool.sbe.wire import ResponseCode
from tensorpool.shm import EpochSpec, PoolSpec, create_epoch
from tests import leaks
from tests.remote_process import Background

DEADLINE_S = 60.0
POLL_S = 0.005
LEASE_NS = 60_000_000_000


class DelegatingDriver:
    """One stream with one epoch. Leases do not end. It knows one revision of the attach messages."""

    def __init__(
        self,
        context: tp.Context,
        base: Path,
        stream_id: int,
        *,
        epoch: int,
        nslots: int,
        revision: int = 1,
    ) -> None:
        self.stream_id, self.epoch, self.nslots = stream_id, epoch, nslots
        self._revision = revision
        self._base = base
        files = create_epoch(
            EpochSpec(base, "default", stream_id, epoch, nslots, [PoolSpec(1, 4096)], user="foreign")
        )
        self._header_uri = files.header_uri
        self._pools = tuple(
            PayloadPool(pool_id=pool_id, pool_nslots=nslots, stride_bytes=stride, region_uri=uri)
            for pool_id, stride, uri in files.pools
        )
        self._period_s = context.connection.announce_period_ns / 1e9
        connection, ids = context.connection, context.stream_ids
        self._answers = connection.publication(ids.control)
        self._requests = connection.subscription(ids.control, tethered=True)
        self._announces = connection.publication(ids.announce)
        self._producer_id = 0
        self._leases = 0

    def __enter__(self) -> Self:
        handles = (self._answers, self._requests, self._announces)
        assert leaks.wait_for(lambda: all(handle.is_ready for handle in handles), timeout=DEADLINE_S)
        self._serving = Background(self._serve)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._serving.stop()
        for handle in (self._answers, self._requests, self._announces):
            handle.close()
        leaks.remove(self._base / "tensorpool-foreign")

    def _serve(self, stop: threading.Event) -> None:
        announce_at = 0.0
        while not stop.wait(POLL_S):
            for message in self._requests.poll(64):
                self._answer(message)
            if time.monotonic() >= announce_at:
                self._announces.offer(self._announce().encode())
                announce_at = time.monotonic() + self._period_s

    def _answer(self, message: bytes) -> None:
        try:
            request: Message = decode(message)
        except CodecError:
            return
        known = ShmAttachRequest if self._revision == 1 else ShmAttachRequestR2
        if not isinstance(request, known) or request.stream_id != self.stream_id:
            return
        self._leases += 1
        if request.role is Role.PRODUCER:
            self._producer_id = request.client_id
        granted: dict[str, Any] = {
            "correlation_id": request.correlation_id,
            "code": ResponseCode.OK,
            "lease_id": self._leases,
            "lease_expiry_timestamp_ns": time.monotonic_ns() + LEASE_NS,
            **self._regions(),
        }
        response: Message = (
            ShmAttachResponse(max_dims=8, **granted)
            if self._revision == 1
            else ShmAttachResponseR2(node_id=None, **granted)
        )
        self._answers.offer(response.encode())

    def _announce(self) -> ShmPoolAnnounce:
        return ShmPoolAnnounce(
            producer_id=self._producer_id,
            announce_timestamp_ns=time.monotonic_ns(),
            announce_clock_domain=ClockDomain.MONOTONIC,
            **self._regions(),
        )

    def _regions(self) -> dict[str, Any]:
        """The fields that responses and announces share."""
        return {
            "stream_id": self.stream_id,
            "epoch": self.epoch,
            "layout_version": 1,
            "header_nslots": self.nslots,
            "header_slot_bytes": 256,
            "payload_pools": self._pools,
            "header_region_uri": self._header_uri,
        }
