"""Sealed bridges: a program without the key can neither inject, alter nor repeat a message."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native, sbe
from tensorpool.bridge.seal import KeyFile, add_key, create_key_file, host_number, promote_key, retire_keys
from tensorpool.transport import StreamAddress
from tests.integration.bridge.hosts import DEADLINE_S, Pair, flows, row, settings_of

# Offset of the counter behind an SBE header, a key id, the number of the host and a session.
COUNTER = 8 + 4 + 8 + 8
MAX_AGE_NS = 60_000_000_000


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return create_key_file(tmp_path / "bridge.key").path


def crosses(producer: tp.Producer, consumer: tp.Consumer) -> Callable[[], bool]:
    """Offers a frame at each call; true once a frame that was offered since has arrived."""
    first = producer.next_seq

    def is_received() -> bool:
        producer.offer(np.full(5000, producer.next_seq % 251, np.uint8))
        seqs = []
        for frame in consumer.poll():
            assert (frame.copy() == frame.seq % 251).all()
            seqs.append(frame.seq)
        return any(seq >= first for seq in seqs)

    return is_received


class Wiretap:
    """The messages of the payload stream as they are on the network, and a way to send others."""

    def __init__(self, pair: Pair) -> None:
        self._address = StreamAddress(pair.common()["payload_channel"], 3000)
        self._subscription = pair.there.context.connection.subscription(self._address, tethered=True)
        self._publication = pair.here.context.connection.publication(self._address)
        self._wait_until = pair.wait_until

    def poll(self) -> list[bytes]:
        return self._subscription.poll(1024)

    def send(self, message: bytes) -> None:
        self._wait_until(lambda: self._publication.offer(message) == "sent", timeout=DEADLINE_S)


def test_sealed_bridge_delivers_frames_and_metadata(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any], key_file: Path
):
    source, dest = free_stream_ids(), free_stream_ids()
    tap = Wiretap(pair)
    producer = pair.here.context.producer(source, pools=["64KiB"], nslots=16, metadata={"serial": "A1"})
    ends = pair.connect(source, dest, key_file=str(key_file))
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    wait_until(lambda: consumer.metadata, timeout=DEADLINE_S)
    assert consumer.metadata is not None
    assert consumer.metadata["serial"] == "A1"
    for size in (0, 1, 1000, 40_000):
        sent = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
        producer.offer(sent)
        assert consumer.receive(DEADLINE_S).copy().tobytes() == sent.tobytes()
    assert row(ends[1])["refused"] == {}
    wait_until(lambda: (row(ends[1])["ledger"] or {}).get("published") == 4, timeout=DEADLINE_S)
    # Nothing on the network can be read: neither a chunk nor a piece of a payload.
    messages = tap.poll()
    assert messages
    assert all(int.from_bytes(message[4:6], "little") == 922 for message in messages)
    assert not any(sent.tobytes()[:16] in message for message in messages)
    assert row(ends[0])["fallback_uri"] is None


def test_injected_messages_are_rejected_by_reason(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any], key_file: Path
):
    source, dest = free_stream_ids(), free_stream_ids()
    tap = Wiretap(pair)
    producer = pair.here.context.producer(source, pools=["64KiB"], nslots=16)
    ends = pair.connect(source, dest, key_file=str(key_file), forward_metadata=False)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    producer.offer(np.full(100, 7, np.uint8))
    consumer.receive(DEADLINE_S)
    [chunk] = wait_until(tap.poll, timeout=DEADLINE_S)
    later = (int.from_bytes(chunk[COUNTER : COUNTER + 8], "little") + 1000).to_bytes(8, "little")
    altered = chunk[:COUNTER] + later + chunk[COUNTER + 8 :]
    flipped = altered[:-20] + bytes([altered[-20] ^ 1]) + altered[-19:]
    plain = sbe.BridgeFrameChunk(
        stream_id=source,
        epoch=producer.epoch or 0,
        seq=1,
        chunk_index=0,
        chunk_count=1,
        chunk_offset=0,
        chunk_length=100,
        payload_length=100,
        header_included=True,
        header_bytes=bytes(256),
        payload_bytes=bytes(100),
    ).encode()
    foreign = _native.BridgeSealer(_native.BridgeKeys([b"?" * 32], 0), "payload").seal(plain)
    keys = list(KeyFile.read(key_file).keys)
    control_sealer = _native.BridgeSealer(_native.BridgeKeys(keys, 0), "control")
    receiving_host = _native.BridgeKeys(keys, host_number(pair.there.context.aeron_dir))
    expected: dict[str, int] = {}
    for message, reason in (
        (chunk, "replayed"),
        (altered, "altered"),
        (flipped, "altered"),
        (plain, "unsealed"),
        (foreign, "wrong_key"),
        # A message of the control stream is none of the payload stream, though its key is right.
        (control_sealer.seal(plain), "altered"),
        # What the receiving host has sealed itself, in a bridge of the other direction.
        (_native.BridgeSealer(receiving_host, "payload").seal(plain), "reflected"),
        (chunk[:30], "malformed"),
    ):
        tap.send(message)
        expected[reason] = expected.get(reason, 0) + 1
        wait_until(lambda: row(ends[1])["refused"] == expected, timeout=DEADLINE_S)
    assert row(ends[1])["delivered"] == 1
    wait_until(crosses(producer, consumer), timeout=DEADLINE_S)
    assert row(ends[1])["refused"] == expected


def test_message_that_is_sent_back_to_its_host_is_rejected(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any], key_file: Path
):
    """Both directions have the same stream ids and the same key: only the host distinguishes them."""
    source, dest = free_stream_ids(), free_stream_ids()
    tap = Wiretap(pair)
    producer = pair.here.context.producer(source, pools=["64KiB"], nslots=16)
    ends = pair.connect(source, dest, key_file=str(key_file), forward_metadata=False)
    # The bridge of the other direction, at the end that sends in this one. Its sender is not needed.
    channel = pair.common()["metadata_channel"]
    receiver = pair.here.bridge(
        settings_of(
            instance_id="back",
            direction="receive",
            payload_channel=channel,
            control_channel=channel,
            mappings=[{"source_stream_id": source, "dest_stream_id": dest}],
            key_file=str(key_file),
            forward_metadata=False,
        )
    )
    attacker = pair.there.context.connection.publication(StreamAddress(channel, 3000))
    wait_until(lambda: flows(*ends, producer), timeout=DEADLINE_S)
    producer.offer(np.full(100, 7, np.uint8))
    [chunk] = wait_until(tap.poll, timeout=DEADLINE_S)
    wait_until(lambda: attacker.offer(chunk) == "sent", timeout=DEADLINE_S)
    wait_until(lambda: row(receiver)["refused"] == {"reflected": 1}, timeout=DEADLINE_S)
    attacker.close()


@pytest.mark.parametrize(("sends", "reason"), [(True, "sealed"), (False, "unsealed")])
def test_ends_must_agree_on_sealing(
    pair: Pair,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
    key_file: Path,
    sends: bool,
    reason: str,
):
    source, dest = free_stream_ids(), free_stream_ids()
    mapping = {"source_stream_id": source, "dest_stream_id": dest}
    table = pair.common(mappings=[mapping])
    keys = {"key_file": str(key_file)}
    receiver = pair.there.bridge(
        settings_of(instance_id="there", direction="receive", **table, **({} if sends else keys))
    )
    pair.here.bridge(settings_of(instance_id="here", direction="send", **table, **(keys if sends else {})))
    producer = pair.here.context.producer(source, pools=["4KiB"])
    wait_until(lambda: row(receiver)["refused"].get(reason, 0) > 1, timeout=DEADLINE_S)
    producer.offer(np.zeros(100, np.uint8))
    assert row(receiver)["refused"].keys() == {reason}
    assert row(receiver)["source_epoch"] is None, "no announce was accepted"


def test_keys_change_while_frames_flow(
    pair: Pair,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
    key_file: Path,
    tmp_path: Path,
):
    source, dest = free_stream_ids(), free_stream_ids()
    there = tmp_path / "there.key"
    shutil.copy2(key_file, there)
    mapping = {"source_stream_id": source, "dest_stream_id": dest}
    table = pair.common(mappings=[mapping])
    receiver = pair.there.bridge(
        settings_of(instance_id="there", direction="receive", key_file=str(there), **table)
    )
    sender = pair.here.bridge(
        settings_of(instance_id="here", direction="send", key_file=str(key_file), **table)
    )
    producer = pair.here.context.producer(source, pools=["64KiB"], nslots=16)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(sender, receiver, producer, consumer), timeout=DEADLINE_S)
    first = sender.key_ids
    for step in (add_key, promote_key, retire_keys):
        step(key_file)
        # The sender may read its file before the receiver does.
        wait_until(lambda: sender.key_ids == KeyFile.read(key_file).ids, timeout=DEADLINE_S)
        shutil.copy2(key_file, there)
        wait_until(lambda: receiver.key_ids == sender.key_ids, timeout=DEADLINE_S)
        wait_until(crosses(producer, consumer), timeout=DEADLINE_S)
    assert not set(first) & set(sender.key_ids)
    assert row(receiver)["refused"] == {}


def test_unusable_key_file_keeps_the_keys_in_use(
    pair: Pair,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
    key_file: Path,
    caplog: pytest.LogCaptureFixture,
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["64KiB"], nslots=16)
    ends = pair.connect(source, dest, key_file=str(key_file))
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    key_file.chmod(0o644)
    key_file.write_text("no key")
    wait_until(lambda: "the keys in use stay in use" in caplog.text, timeout=DEADLINE_S)
    wait_until(crosses(producer, consumer), timeout=DEADLINE_S)
