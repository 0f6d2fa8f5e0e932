"""`latest()` and the policy "latest": older frames count as skipped."""

from __future__ import annotations

import numpy as np
import pytest

import tensorpool as tp

DEADLINE_S = 60.0


def test_latest_returns_the_newest_frame_and_skips_the_others(stream) -> None:
    for value in range(5):
        stream.producer.offer(np.full(1, value))
    assert stream.consumer.wait(DEADLINE_S)
    frame = stream.consumer.latest()
    assert frame is not None
    assert (frame.seq, frame.array[0]) == (4, 4)
    ledger = stream.consumer.ledger()
    assert (ledger.received, ledger.dropped["skipped"], ledger.span, ledger.balanced) == (1, 4, 5, True)
    assert stream.consumer.latest() is None


def test_skipped_frames_may_be_overwritten(stream) -> None:
    for value in range(100):
        stream.producer.offer(np.full(1, value))
    assert stream.consumer.wait(DEADLINE_S)
    frame = stream.consumer.latest()
    assert frame is not None
    assert frame.seq == 99
    dropped = {name: n for name, n in stream.consumer.ledger().dropped.items() if n}
    assert dropped == {"skipped": 99}


@pytest.mark.parametrize("method", ["receive", "iterate"])
def test_policy_latest_returns_the_newest_frame_of_every_wait(connect, method) -> None:
    stream = connect(consumer={"policy": "latest"})
    for round_ in range(3):
        for value in range(4):
            stream.producer.offer(np.full(1, value + 4 * round_))
        assert stream.consumer.wait(DEADLINE_S)
        frame = stream.consumer.receive(DEADLINE_S) if method == "receive" else next(stream.consumer)
        assert frame.array[0] == 3 + 4 * round_
    ledger = stream.consumer.ledger()
    assert (ledger.received, ledger.dropped["skipped"], ledger.balanced) == (3, 9, True)


def test_unknown_policy_is_refused(context, free_stream_id) -> None:
    with pytest.raises(tp.ConfigError, match="'stream' or 'latest'"):
        context.consumer(free_stream_id, policy="newest")


def test_newest_frame_may_be_dropped(mapped) -> None:
    hostile, consumer = mapped
    for seq in range(3):
        hostile.publish(seq)
    hostile.publish(3, tensor__dtype=12)
    assert consumer.wait(DEADLINE_S)
    assert consumer.latest() is None
    ledger = consumer.ledger()
    assert (ledger.dropped["skipped"], ledger.dropped["dtype"], ledger.balanced) == (3, 1, True)
    hostile.publish(4)
    assert consumer.receive(DEADLINE_S).seq == 4


def test_ledger_balances_after_latest_with_a_regressed_sequence(mapped) -> None:
    hostile, consumer = mapped
    for seq in (13, 14, 2):
        hostile.publish(seq)
    assert consumer.wait(DEADLINE_S)
    assert consumer.latest() is None
    ledger = consumer.ledger()
    assert (ledger.span, ledger.received, ledger.outside["regressed"], ledger.balanced) == (2, 0, 1, True)
