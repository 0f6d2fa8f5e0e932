"""Lossy networks: whole frames are dropped, no byte is wrong, and every frame is counted."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.bridge import BridgeAgent
from tensorpool.bridge import receiver as bridge_receiver
from tests.integration.bridge.hosts import DEADLINE_S, Pair, channel, flows, row, settings_of
from tests.integration.bridge.lossy_relay import Impairments, LossyRelay

FRAME_BYTES = 40_000


def content(seq: int, size: int = FRAME_BYTES) -> np.ndarray:
    return ((np.arange(size, dtype=np.uint32) * 7 + seq * 31) >> 2).astype(np.uint8)


@dataclass
class BridgedStream:
    """A stream that is bridged over a lossy relay."""

    producer: tp.Producer
    consumer: tp.Consumer
    sender: BridgeAgent
    receiver: BridgeAgent
    relay: LossyRelay
    wait_until: Callable[..., Any]
    seqs: list[int] = field(default_factory=list)

    def send(self, count: int) -> None:
        """Offers frames one at a time, each when the previous one is sent.

        A frame overwritten at the source would be dropped by the sender, not by the network.
        """
        for _ in range(count):
            self.producer.offer(content(self.producer.next_seq))
            deadline = time.monotonic() + DEADLINE_S
            while row(self.sender)["published"] < self.producer.next_seq:
                assert time.monotonic() < deadline, row(self.sender)
                time.sleep(0.0005)
            self.receive()

    def receive(self) -> list[int]:
        """Sequences received so far; checks every byte."""
        for frame in self.consumer.poll(1024):
            with frame:
                assert np.array_equal(frame.array, content(frame.seq)), frame.seq
            self.seqs.append(frame.seq)
        return self.seqs

    def settle(self, sent: int) -> dict[str, Any]:
        """Waits until the ledger includes all sent frames and no assembly is left."""

        def reported() -> Any:
            ledger = row(self.receiver)["ledger"]
            return ledger if ledger is not None and ledger["published"] == sent else None

        self.wait_until(reported, timeout=DEADLINE_S)
        last, unchanged = (-1, -1), 0

        def is_quiet() -> bool:
            nonlocal last, unchanged
            now = (row(self.receiver)["chunks"], row(self.receiver)["delivered"])
            unchanged, last = unchanged + 1 if now == last else 0, now
            time.sleep(0.4)
            # Two samples: a busy machine may delay chunks for one.
            return unchanged >= 2

        self.wait_until(is_quiet, timeout=DEADLINE_S)
        ledger: dict[str, Any] = row(self.receiver)["ledger"]
        return ledger


@contextmanager
def bridged_stream(
    pair: Pair,
    ids: Callable[[], int],
    impairments: Impairments,
    *,
    seed: int = 1,
    reliable: bool = True,
    relayed: str = "payload",
    received_too: Sequence[dict[str, int]] = (),
    **settings: Any,
) -> Iterator[BridgedStream]:
    source, dest = ids(), ids()
    payload, control, _ = pair.ports
    mapping = {"source_stream_id": source, "dest_stream_id": dest}
    common = {
        "forward_metadata": False,
        "mappings": [mapping],
        **settings,
    }
    with LossyRelay(payload if relayed == "payload" else control, impairments, seed) as relay:
        ports = {"payload": payload, "control": control, relayed: relay.port}
        extra = () if reliable else ("reliable=false",)
        receiver = pair.there.bridge(
            settings_of(
                instance_id="there",
                direction="receive",
                payload_channel=channel(payload, *extra),
                control_channel=channel(control),
                **(common | {"mappings": [mapping, *received_too]}),
            )
        )
        sender = pair.here.bridge(
            settings_of(
                instance_id="here",
                direction="send",
                payload_channel=channel(ports["payload"]),
                control_channel=channel(ports["control"]),
                **common,
            )
        )
        producer = pair.here.context.producer(source, pools=["64KiB"], nslots=256)
        consumer = pair.there.context.consumer(dest)
        pair.wait_until(lambda: flows(sender, receiver, producer, consumer), timeout=DEADLINE_S)
        yield BridgedStream(producer, consumer, sender, receiver, relay, pair.wait_until)
        # The bridges close before the relay that connects them.
        for host in (pair.here, pair.there):
            host.bridges[-1].close()


@pytest.mark.requirement("bridge-5.3-1")
@pytest.mark.parametrize("loss", [0.001, 0.01, 0.05])
def test_reliable_channel_recovers_lost_datagrams(
    pair: Pair, free_stream_ids: Callable[[], int], loss: float
):
    with bridged_stream(pair, free_stream_ids, Impairments(drop=loss), assembly_timeout_ms=5000) as bridged:
        bridged.send(100)
        bridged.wait_until(lambda: row(bridged.receiver)["delivered"] == 100, timeout=DEADLINE_S)
        ledger = bridged.settle(100)
        assert bridged.receive() == list(range(100))
        assert ledger["dropped"] == {"sender": 0, "network": 0, "receiver": 0}
        assert bridged.relay.passed > 100 * FRAME_BYTES // 1280


@pytest.mark.requirement("bridge-5.3-1")
@pytest.mark.parametrize("loss", [0.001, 0.01, 0.05])
def test_unreliable_channel_drops_whole_frames(pair: Pair, free_stream_ids: Callable[[], int], loss: float):
    with bridged_stream(pair, free_stream_ids, Impairments(drop=loss), reliable=False) as bridged:
        bridged.send(200)
        ledger = bridged.settle(200)
        seqs = bridged.receive()
        delivered = row(bridged.receiver)["delivered"]
        assert len(seqs) == delivered
        assert seqs == sorted(set(seqs))
        assert ledger["delivered"] == delivered
        assert ledger["dropped"] == {"sender": 0, "network": 200 - delivered, "receiver": 0}
        assert ledger["exact"]
        if loss > 0.001:
            assert bridged.relay.dropped > 0
            assert delivered < 200


@pytest.mark.requirement("bridge-5.2-17", "bridge-5.2-18")
def test_reordered_and_repeated_datagrams_lose_no_frame(pair: Pair, free_stream_ids: Callable[[], int]):
    impairments = Impairments(reorder=0.05, repeat=0.05)
    with bridged_stream(pair, free_stream_ids, impairments, assembly_timeout_ms=5000) as bridged:
        bridged.send(100)
        bridged.wait_until(lambda: row(bridged.receiver)["delivered"] == 100, timeout=DEADLINE_S)
        assert bridged.receive() == list(range(100))
        assert bridged.relay.reordered > 0 < bridged.relay.repeated


def test_default_settings_reject_corrupt_datagrams(pair: Pair, free_stream_ids: Callable[[], int]):
    with bridged_stream(pair, free_stream_ids, Impairments(corrupt=0.01)) as bridged:
        bridged.send(200)
        ledger = bridged.settle(200)
        seqs = bridged.receive()
        rejected = row(bridged.receiver)["refused"]["checksum"]
        assert rejected == bridged.relay.corrupted > 0
        assert ledger["dropped"]["network"] == 200 - len(seqs) > 0
        assert ledger["dropped"]["sender"] == ledger["dropped"]["receiver"] == 0


@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize(
    "seed", [pytest.param(1), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))]
)
def test_all_impairments_drop_whole_frames_and_count_them(
    pair: Pair, free_stream_ids: Callable[[], int], seed: int, reliable: bool
):
    impairments = Impairments(drop=0.01, repeat=0.02, reorder=0.02, corrupt=0.005, delay_s=0.001 * seed)
    with bridged_stream(pair, free_stream_ids, impairments, seed=seed, reliable=reliable) as bridged:
        bridged.send(100)
        ledger = bridged.settle(100)
        seqs = bridged.receive()
        assert seqs == sorted(set(seqs))
        assert ledger["exact"]
        assert ledger["delivered"] == len(seqs) == 100 - sum(ledger["dropped"].values())
        assert ledger["dropped"]["sender"] == 0 <= ledger["dropped"]["network"]
        assert bridged.relay.corrupted > 0


def test_long_disconnection_drops_only_its_frames(pair: Pair, free_stream_ids: Callable[[], int]):
    with bridged_stream(pair, free_stream_ids, Impairments()) as bridged:
        bridged.send(20)
        bridged.wait_until(lambda: row(bridged.receiver)["delivered"] == 20, timeout=DEADLINE_S)
        bridged.relay.disconnect()
        bridged.send(20)
        time.sleep(0.5)
        bridged.relay.reconnect()

        def recovers() -> bool:
            bridged.send(1)
            return bool(row(bridged.receiver)["delivered"] > 25)

        bridged.wait_until(recovers, timeout=DEADLINE_S)
        sent = bridged.producer.next_seq
        ledger = bridged.settle(sent)
        delivered = row(bridged.receiver)["delivered"]
        assert len(bridged.receive()) == delivered
        assert ledger["published"] == sent
        assert ledger["delivered"] == delivered
        assert sum(ledger["dropped"].values()) == sent - delivered


def later(frame: bytes) -> bytes:
    """A data frame that takes a place 32 KiB later, between two others."""
    return (
        frame[:8] + (int.from_bytes(frame[8:12], "little") + 32_768 + 32).to_bytes(4, "little") + frame[12:]
    )


def with_lengths(length: int) -> Callable[[bytes], bytes]:
    """Such a frame, whose payload reads as headers of frames of this length, wherever one begins."""

    def forge(frame: bytes) -> bytes:
        # A datagram may have several frames: the first one alone.
        payload_bytes = -(-int.from_bytes(frame[:4], "little") // 32) * 32 - 32
        header = struct.pack("<iBBHi20x", length, 0, 0xC0, 1, 0)
        return later(frame[:32] + header * (payload_bytes // 32))

    return forge


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(later, id="moved"),
        *(pytest.param(with_lengths(length), id=hex(length)) for length in (1, 1 << 24, 0x7FFF_FFFF)),
    ],
)
def test_stream_that_a_changed_header_has_stopped_is_opened_again(
    pair: Pair, free_stream_ids: Callable[[], int], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, forge: Callable[[bytes], bytes],
) -> None:  # fmt: skip
    monkeypatch.setattr(bridge_receiver, "MIN_PATIENCE_NS", 2_000_000_000)
    with bridged_stream(pair, free_stream_ids, Impairments()) as bridged:
        bridged.send(5)
        bridged.relay.forge = forge

        def continues() -> bool:
            bridged.producer.offer(content(bridged.producer.next_seq))
            return "is opened again" in caplog.text and bridged.receive()[-1] > sent

        sent = bridged.producer.next_seq
        bridged.wait_until(continues, timeout=DEADLINE_S)
        # The frames between are counted, and every later one arrives.
        last = bridged.producer.next_seq
        bridged.send(5)
        ledger = bridged.settle(last + 5)
        seqs = bridged.receive()
        assert seqs[-5:] == list(range(last, last + 5))
        assert ledger["exact"]
        assert ledger["delivered"] == len(seqs) == last + 5 - sum(ledger["dropped"].values())
        assert ledger["dropped"]["network"] > 0


@pytest.mark.parametrize("beside", ["rubbish", "source"])
def test_stopped_stream_is_opened_again_beside_a_session_that_runs(
    pair: Pair, free_stream_ids: Callable[[], int], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, beside: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(bridge_receiver, "MIN_PATIENCE_NS", 2_000_000_000)
    payload, control, _ = pair.ports
    other, other_dest = free_stream_ids(), free_stream_ids()
    mapping = {"source_stream_id": other, "dest_stream_id": other_dest}
    with bridged_stream(pair, free_stream_ids, Impairments(), received_too=[mapping]) as bridged:
        settings = settings_of(
            instance_id="beside",
            direction="send",
            payload_channel=channel(payload),
            control_channel=channel(control),
            forward_metadata=False,
            mappings=[mapping],
        )
        offer: Callable[[], object]
        if beside == "source":
            sender = pair.here.bridge(settings)
            running = pair.here.context.producer(other, pools=["64KiB"], nslots=256)
            pair.wait_until(lambda: row(sender)["connected"] and running.is_connected, timeout=DEADLINE_S)
            offer = partial(running.offer, content(0))
        else:
            conductor = pair.here.context.connection.conductor
            publication = _native.Publication(conductor, channel(payload), settings.payload_stream_id)
            pair.wait_until(lambda: publication.offer(b"rubbish") == "sent", timeout=DEADLINE_S)
            offer = partial(publication.offer, b"rubbish")
        bridged.send(5)
        bridged.relay.forge = later

        def continues() -> bool:
            offer()
            bridged.producer.offer(content(bridged.producer.next_seq))
            return "is opened again" in caplog.text and bridged.receive()[-1] > sent

        sent = bridged.producer.next_seq
        bridged.wait_until(continues, timeout=DEADLINE_S)
        if beside == "source":
            assert row(bridged.receiver, 1)["delivered"] > 0


def overlapping(frame: bytes) -> bytes:
    """A data frame that begins within itself: the one behind it has no place any more."""
    forged = with_lengths(0x7FFF_FFFF)(frame)
    return forged[:8] + (int.from_bytes(frame[8:12], "little") + 32).to_bytes(4, "little") + forged[12:]


def test_metadata_stream_that_a_changed_header_has_stopped_is_opened_again(
    pair: Pair, free_stream_ids: Callable[[], int], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(bridge_receiver, "MIN_PATIENCE_NS", 2_000_000_000)
    monkeypatch.setattr(bridge_receiver, "SILENCE_NS", 1_000_000_000)
    source, dest = free_stream_ids(), free_stream_ids()
    settings = pair.common(mappings=[{"source_stream_id": source, "dest_stream_id": dest}])
    with LossyRelay(pair.ports[2], Impairments()) as relay:
        pair.there.bridge(settings_of(instance_id="there", direction="receive", **settings))
        settings["metadata_channel"] = channel(relay.port)
        pair.here.bridge(settings_of(instance_id="here", direction="send", **settings))
        producer = pair.here.context.producer(source, pools=["4KiB"], metadata={"serial": "A1"})
        consumer = pair.there.context.consumer(dest)

        def serial() -> object:
            return (consumer.metadata or {}).get("serial")

        pair.wait_until(lambda: serial() == "A1", timeout=DEADLINE_S)
        caplog.set_level(logging.DEBUG, logger=bridge_receiver.__name__)
        relay.forge = overlapping
        pair.wait_until(lambda: relay.forge is None, timeout=DEADLINE_S)
        producer.set_metadata({"serial": "B2"})
        pair.wait_until(lambda: serial() == "B2", timeout=DEADLINE_S)
        assert "is opened again" in caplog.text
        for host in (pair.here, pair.there):
            host.bridges[-1].close()


def test_control_stream_that_a_changed_header_has_stopped_is_opened_again(
    pair: Pair, free_stream_ids: Callable[[], int], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(bridge_receiver, "MIN_PATIENCE_NS", 2_000_000_000)
    with bridged_stream(pair, free_stream_ids, Impairments(), relayed="control") as bridged:
        bridged.send(5)
        bridged.settle(5)
        bridged.relay.forge = overlapping
        caplog.set_level(logging.INFO)

        def continues() -> bool:
            bridged.send(1)
            return "is opened again" in caplog.text and bridged.relay.forge is None

        bridged.wait_until(continues, timeout=DEADLINE_S)
        # All frames arrived meanwhile, and the ledger says so again.
        sent = bridged.producer.next_seq
        ledger = bridged.settle(sent)
        assert bridged.receive() == list(range(sent))
        assert ledger["exact"]
        assert ledger["delivered"] == sent
