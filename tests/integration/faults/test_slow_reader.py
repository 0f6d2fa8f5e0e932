"""A reader that does not poll its subscription: it blocks no other client, and recovers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import _native

from .conftest import Environment

WaitUntil = Callable[..., Any]
PER_SECOND = 50_000
# Aeron rests an untethered reader that is behind by three quarters of the window of the descriptor stream.
DESCRIPTORS_UNTIL_REST = 66_000


@pytest.fixture
def driver(environment: Environment) -> Any:
    return environment.driver()


def test_reader_that_does_not_poll_is_rested_and_counts_its_loss(
    environment: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil
) -> None:
    producer = environment.producer()
    fast = environment.consumer()
    slow = environment.worker()
    slow.call("consume", stream_id=environment.stream_id)
    wait_until(lambda: slow.call("mapped") and fast.call("mapped"))
    # The slow reader counts lost frames from the first one it receives.
    wait_until(lambda: producer.call("offer") == "published" and slow.call("poll_all"))

    producer.call("offer_always", per_second=PER_SECOND)
    # Aeron rests the reader and reconnects it several times without a poll.
    wait_until(
        lambda: producer.call("offering")["outcomes"].get("published", 0) > 4 * DESCRIPTORS_UNTIL_REST,
        timeout=90,
    )
    frames_flow(fast)

    def rested_frames() -> Any:
        slow.call("poll_all")
        return slow.call("consumer_ledger")["dropped"]["rested"]

    rested = wait_until(rested_frames, timeout=30)
    # From here on the slow reader receives all frames.
    slow.call("receive_always")
    frames_flow(slow)
    ended = producer.call("stop_offering")
    written = producer.call("producer_ledger")
    wait_until(lambda: slow.call("consumer_ledger")["last_seq"] == written["next_seq"] - 1)
    wait_until(lambda: fast.call("consumer_ledger")["last_seq"] == written["next_seq"] - 1)
    slow.call("stop_receiving")
    fast.call("stop_receiving")
    slow_ledger, fast_ledger = slow.call("consumer_ledger"), fast.call("consumer_ledger")
    print(
        f"\n{PER_SECOND}/s with a slow reader: {ended['outcomes']}, longest gap "
        f"{1000 * ended['longest_gap_s']:.1f} ms; it counted {rested:,} as rested"
    )

    assert written["balanced"]
    # A media driver that gets no processor for a while rests no reader: that costs few frames. A reader that
    # holds the producer back costs nearly all.
    unpublished = sum(written["unpublished"].values())
    assert written["unpublished"]["back_pressured"] <= ended["outcomes"]["published"] // 20
    assert slow_ledger["balanced"], slow_ledger
    assert fast_ledger["balanced"], fast_ledger
    assert fast_ledger["dropped"]["rested"] == 0
    assert fast_ledger["dropped"]["gap"] <= unpublished
    assert slow_ledger["dropped"]["gap"] <= unpublished


def test_tethered_reader_that_does_not_poll_blocks_the_stream(
    environment: Environment, driver: Any, wait_until: WaitUntil
) -> None:
    """Shows the failure that the test above guards against."""
    with tp.open(**environment.options) as context:
        # A subscription to the descriptors with `tether=true`, never polled.
        subscription = _native.Subscription(
            context.connection.conductor, "aeron:ipc?tether=true", context.stream_ids.descriptor
        )
        wait_until(lambda: subscription.is_ready)
        producer = environment.producer()
        wait_until(lambda: producer.call("offer") == "published")
        producer.call("offer_always", per_second=PER_SECOND)
        wait_until(
            lambda: producer.call("offering")["outcomes"].get("back_pressured", 0) > PER_SECOND, timeout=60
        )
        stalled = producer.call("offering")
        published = stalled["outcomes"]["published"]
        assert stalled["last"] == "back_pressured"
        # The stream continues without the reader.
        subscription.close()
        other = environment.consumer()
        wait_until(lambda: other.call("mapped"))
        wait_until(lambda: producer.call("offering")["outcomes"]["published"] > published + 1000)
        ended = producer.call("stop_offering")
    print(
        f"\n{PER_SECOND}/s with a tethered reader: {ended['outcomes']}, longest gap "
        f"{1000 * ended['longest_gap_s']:.0f} ms"
    )
    assert ended["longest_gap_s"] > 0.5


@pytest.mark.parametrize("policy", ["stream", "latest"])
def test_stopped_reader_blocks_no_other_and_recovers(
    environment: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil, policy: str
) -> None:
    """SIGSTOP also stops the Aeron client, so the media driver may drop the client; it recovers in both
    cases."""
    producer = environment.producer()
    producer.call("offer_always", per_second=PER_SECOND)
    slow = environment.worker()
    slow.call("consume", stream_id=environment.stream_id, policy=policy)
    slow.call("receive_always")
    fast = environment.consumer()
    frames_flow(fast)
    frames_flow(slow)
    slow.stop()
    before = producer.call("offering")["outcomes"]["published"]
    wait_until(
        lambda: producer.call("offering")["outcomes"]["published"] > before + 2 * DESCRIPTORS_UNTIL_REST,
        timeout=60,
    )
    slow.resume()
    last = slow.call("consumer_ledger")["last_seq"] or 0
    wait_until(lambda: (slow.call("consumer_ledger")["last_seq"] or 0) > last + 50_000, timeout=60)
    producer.call("stop_offering")
    assert producer.call("producer_ledger")["balanced"]
    for consumer in (slow, fast):
        receiving = consumer.call("stop_receiving")
        assert receiving["wrong"] == 0
        assert consumer.call("consumer_ledger")["balanced"]
