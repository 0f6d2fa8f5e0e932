"""Limits of a receiver: the length of chunks and the time of an assembly, with chunks made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tensorpool import sbe
from tensorpool.bridge import BridgeAgent
from tensorpool.sbe import ShmPoolAnnounce
from tensorpool.sbe.wire import PayloadPool
from tensorpool.transport import StreamAddress
from tests.integration.bridge.hosts import DEADLINE_S, Pair, row, settings_of

MTU = 1408
EPOCH = 7


class HandmadeSender:
    """A sender that announces a stream and sends chunks of any length."""

    def __init__(self, pair: Pair, stream_id: int, *parameters: str) -> None:
        connection, channels = pair.here.context.connection, pair.common()
        self._stream_id = stream_id
        self.control = connection.publication(StreamAddress(channels["control_channel"], 3001))
        self.payload = connection.publication(
            StreamAddress("|".join((channels["payload_channel"], *parameters)), 3000)
        )
        pair.wait_until(lambda: self.control.is_connected and self.payload.is_connected, timeout=DEADLINE_S)

    def announce(self) -> None:
        uri = "shm:file?path=/dev/shm/tensorpool-none"
        pool = PayloadPool(pool_id=1, pool_nslots=8, stride_bytes=1 << 20, region_uri=uri)
        message = ShmPoolAnnounce(
            stream_id=self._stream_id,
            producer_id=1,
            epoch=EPOCH,
            announce_timestamp_ns=1,
            announce_clock_domain=sbe.ClockDomain.MONOTONIC,
            layout_version=1,
            header_nslots=8,
            header_slot_bytes=256,
            payload_pools=(pool,),
            header_region_uri=uri,
        )
        assert self.control.offer(message.encode()) == "sent"

    def send(self, seq: int, index: int, count: int, offset: int, length: int, total: int) -> str:
        chunk = sbe.BridgeFrameChunk(
            stream_id=self._stream_id,
            epoch=EPOCH,
            seq=seq,
            chunk_index=index,
            chunk_count=count,
            chunk_offset=offset,
            chunk_length=length,
            payload_length=total,
            header_included=False,
            header_bytes=b"",
            payload_bytes=bytes(length),
        )
        return self.payload.offer(chunk.encode())


def receiver_of(pair: Pair, source: int, dest: int, **settings: Any) -> BridgeAgent:
    mapping = {"source_stream_id": source, "dest_stream_id": dest}
    table = pair.common(mappings=[mapping], forward_metadata=False, integrity=False, **settings)
    return pair.there.bridge(settings_of(instance_id="there", direction="receive", **table))


@pytest.mark.requirement("bridge-5.2-20")
@pytest.mark.parametrize(
    ("settings", "bound"),
    [({}, MTU - 128), ({"mtu_bytes": 1376}, 1376 - 128), ({"chunk_bytes": 100}, 100)],
)
def test_chunks_longer_than_the_mtu_allows_are_rejected(
    pair: Pair,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
    settings: dict[str, int],
    bound: int,
):
    source, dest = free_stream_ids(), free_stream_ids()
    receiver = receiver_of(pair, source, dest, **settings)
    wait_until(receiver.is_ready, timeout=DEADLINE_S)
    sender = HandmadeSender(pair, source)
    for length, rejected in ((bound + 1, 1), (bound, 1), (5 * MTU, 2), (60_000, 3)):
        before = row(receiver)["chunks_ignored"].get("before_announce", 0)
        assert sender.send(length, 1, 2, 0, length, 100_000) == "sent"

        def is_counted(rejected: int = rejected, before: int = before, length: int = length) -> bool:
            is_accepted = row(receiver)["chunks_ignored"].get("before_announce", 0) > before
            # A message in many fragments is given up before it is complete.
            refused = row(receiver)["refused"]
            total = refused.get("chunk_too_long", 0) + refused.get("fragments", 0)
            return total == rejected and is_accepted == (length == bound)

        wait_until(is_counted, timeout=DEADLINE_S)


@pytest.mark.requirement("bridge-5.3a-3")
def test_assembly_timeout_is_a_setting(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    profile = {"name": "small", "nslots": 8, "pools": ["1MiB"]}
    receivers = []
    for number, timeout_ms in enumerate((50, 60_000)):
        mapping = {"source_stream_id": source, "dest_stream_id": dest + 1000 * number, "profile": "small"}
        table = pair.common(
            mappings=[mapping],
            profiles=[profile],
            forward_metadata=False,
            integrity=False,
            assembly_timeout_ms=timeout_ms,
        )
        receivers.append(
            pair.there.bridge(settings_of(instance_id=f"there-{number}", direction="receive", **table))
        )
    wait_until(
        lambda: all(row(receiver)["destination"] == "attached" for receiver in receivers), timeout=DEADLINE_S
    )
    wait_until(lambda: all(receiver.is_ready() for receiver in receivers), timeout=DEADLINE_S)
    sender = HandmadeSender(pair, source)
    sender.announce()
    wait_until(
        lambda: all(row(receiver)["source_epoch"] == str(EPOCH) for receiver in receivers), timeout=DEADLINE_S
    )
    # The second of two chunks: both receivers wait for the first.
    assert sender.send(0, 1, 2, 500, 500, 1000) == "sent"
    quick, patient = receivers
    wait_until(lambda: row(quick)["incomplete"] == {"timeout": 1}, timeout=DEADLINE_S)
    assert row(patient)["chunks"] == 1
    assert row(patient)["incomplete"] == {}
