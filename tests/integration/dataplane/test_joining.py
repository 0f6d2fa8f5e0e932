"""Where a consumer's ledger of an epoch begins: at the first frame that it could have received (wire §15.4).

Frames that were published after the consumer mapped the regions, and whose descriptors never came, are lost
under `joining`. Frames from before that are not its own: they count outside the span.
"""

from __future__ import annotations

import pytest

from tensorpool import recording
from tests import leaks

DEADLINE_S = 60.0


def drops_of(consumer) -> dict[str, int]:
    return {reason: count for reason, count in consumer.counters().drops.items() if count}


def poll_until(consumer, seq: int) -> list[int]:
    """Polls until the frame `seq` comes; the sequences received."""
    received: list[int] = []

    def has_come() -> bool:
        received.extend(frame.seq for frame in consumer.poll())
        return seq in received

    assert leaks.wait_for(has_come, timeout=DEADLINE_S)
    return received


@pytest.fixture
def map_into(hostile, context, free_stream_id):
    """A producer whose ring holds some frames already, and a consumer that maps it then."""

    def map_into(frames: int):
        producer = hostile()
        for seq in range(frames):
            producer.write(seq)
        consumer = context.consumer(free_stream_id)
        producer.announce_until(lambda: consumer.epoch == producer.epoch)
        return producer, consumer

    return map_into


@pytest.mark.parametrize("before", [0, 3, 20])
@pytest.mark.parametrize("lost", [1, 5, 30])
def test_frames_published_after_mapping_are_charged(map_into, before, lost) -> None:
    producer, consumer = map_into(before)
    for seq in range(before, before + lost):
        producer.write(seq)
    producer.publish(before + lost)
    assert consumer.receive(DEADLINE_S).seq == before + lost
    assert drops_of(consumer) == {"joining": lost}
    assert (consumer.ledger().span, consumer.ledger().balanced) == (lost + 1, True)


def test_frames_from_before_mapping_are_not_charged(map_into) -> None:
    producer, consumer = map_into(20)
    # Aeron lets a subscription begin at the position of the slowest reader: old descriptors come.
    for seq in range(20):
        producer.describe(seq)
    producer.publish(20)
    # The ring held the last 8 of 20 frames, and the 21st overwrote one of those.
    received = poll_until(consumer, 20)
    ledger = consumer.ledger()
    assert received[-1] == 20
    assert ledger.outside["before_joining"] >= 12
    assert (ledger.span, ledger.received, ledger.balanced) == (len(received), len(received), True)
    assert received == list(range(received[0], 21))


def test_account_continues_when_the_epoch_is_mapped_again(map_into, open_context) -> None:
    producer, consumer = map_into(4)
    producer.publish(4)
    assert consumer.receive(DEADLINE_S).seq == 4
    producer.poke_superblock(producer.header, "epoch", 5)
    producer.announce_until(lambda: consumer.epoch is None)
    producer.poke_superblock(producer.header, "epoch", producer.epoch)
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    producer.write(5)
    producer.publish(6)
    assert consumer.receive(DEADLINE_S).seq == 6
    assert drops_of(consumer) == {"gap": 1}


def test_sequences_that_were_never_written_are_not_charged(map_into) -> None:
    # A ring that another host's frames are copied into begins anywhere.
    producer, consumer = map_into(0)
    producer.publish(1_000_001)
    producer.publish(1_000_002)
    assert poll_until(consumer, 1_000_002) == [1_000_001, 1_000_002]
    assert (drops_of(consumer), consumer.ledger().span) == ({}, 2)


def test_forged_first_descriptor_is_counted_only(map_into) -> None:
    producer, consumer = map_into(3)
    producer.describe(9 * 10**18)
    producer.publish(3)
    assert consumer.receive(DEADLINE_S).seq == 3
    assert drops_of(consumer) == {"malformed": 1}


@pytest.mark.parametrize("before", [0, 20])
def test_recorder_has_the_same_gap(hostile, context, free_stream_id, tmp_path, wait_until, before) -> None:
    root = tmp_path / "recording"
    producer = hostile()
    for seq in range(before):
        producer.write(seq)
    with context.record(root, streams=[free_stream_id], buffer="8MiB", keep_free=0) as recorder:

        def is_mapped() -> bool:
            producer.announce()
            return any(event.kind == "mapped" for event in context.events(0.0))

        wait_until(is_mapped)
        for seq in range(max(before - 15, 0)):
            producer.describe(seq)
        for seq in range(before, before + 5):
            producer.write(seq)
        producer.publish(before + 5)
        wait_until(lambda: recorder.stats().rows == 1)
    with recording.open(root) as opened:
        (ledger,) = opened.ledger(free_stream_id)
    assert (ledger.first_seq, ledger.last_seq, ledger.rows) == (before, before + 5, 1)
    assert (ledger.gaps, ledger.balanced) == ({"joining": 5}, True)


@pytest.mark.parametrize("read", [0, 3])
def test_frames_that_were_not_read_before_their_epoch_ended_are_charged(map_into, hostile, read) -> None:
    producer, consumer = map_into(0)
    for seq in range(read):
        producer.publish(seq)
        assert consumer.receive(DEADLINE_S).seq == seq
    for seq in range(read, 5):
        producer.write(seq)
    successor = hostile(epoch=producer.epoch + 1)
    successor.announce_until(lambda: consumer.epoch == successor.epoch)
    # A descriptor that comes after its epoch is not counted a second time.
    producer.describe(4)
    successor.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    ledger = consumer.ledger()
    assert (ledger.span, ledger.received, ledger.balanced) == (6, read + 1, True)
    assert drops_of(consumer) == {"ended": 5 - read}


def test_frames_of_the_next_epoch_in_the_same_regions_are_not_charged_to_the_last(map_into, hostile) -> None:
    """A driver gives regions that no producer has used to its first producer, under the next epoch."""
    producer, consumer = map_into(0)
    producer.poke_superblock(producer.header, "epoch", producer.epoch + 1)
    for seq in range(5):
        producer.write(seq)
    successor = hostile(epoch=producer.epoch + 1)
    successor.announce_until(lambda: consumer.epoch == successor.epoch)
    successor.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    assert (drops_of(consumer), consumer.ledger().span) == ({}, 1)


def test_unread_frames_of_a_mirror_are_charged_from_the_first_that_it_held(map_into, hostile) -> None:
    producer, consumer = map_into(0)
    for seq in range(1_000_001, 1_000_004):
        producer.write(seq)
    successor = hostile(epoch=producer.epoch + 1)
    successor.announce_until(lambda: consumer.epoch == successor.epoch)
    successor.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    assert drops_of(consumer) == {"ended": 3}


@pytest.mark.parametrize("stray", [0, 1 << 60 | 3])
def test_stray_commit_word_hides_no_loss_at_the_beginning(map_into, stray) -> None:
    producer, consumer = map_into(0)
    for seq in range(30):
        producer.write(seq)
    # Neither the newest slot nor the oldest.
    producer.write_word(25 % producer.nslots, stray)
    producer.publish(30)
    assert consumer.receive(DEADLINE_S).seq == 30
    assert drops_of(consumer) == {"joining": 30}


def test_recorder_has_the_unread_end_of_an_epoch_as_a_gap(
    hostile, context, free_stream_id, tmp_path, wait_until
) -> None:
    root = tmp_path / "recording"
    producer = hostile()
    with context.record(root, streams=[free_stream_id], buffer="8MiB", keep_free=0) as recorder:

        def is_mapped(owner) -> bool:
            owner.announce()
            return any(event.kind == "mapped" and event.epoch == owner.epoch for event in context.events(0.0))

        wait_until(lambda: is_mapped(producer))
        producer.publish(0)
        wait_until(lambda: recorder.stats().rows == 1)
        for seq in range(1, 5):
            producer.write(seq)
        successor = hostile(epoch=producer.epoch + 1)
        wait_until(lambda: is_mapped(successor))
        # They come too late, and are not recorded a second time.
        for seq in range(1, 5):
            producer.describe(seq)
        successor.publish(0)
        wait_until(lambda: recorder.stats().rows == 2)
    with recording.open(root) as opened:
        first, second = opened.ledger(free_stream_id)
    assert (first.first_seq, first.last_seq, first.rows, first.gaps) == (0, 4, 1, {"ended": 4})
    assert (second.rows, second.gaps) == (1, {})
    assert (first.balanced, second.balanced) == (True, True)
