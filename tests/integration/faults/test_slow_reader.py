"""A reader that holds a subscription and does not poll stalls nobody, and comes back by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import _native

from .conftest import Environment

WaitUntil = Callable[..., Any]
PER_SECOND = 50_000
# At three quarters of the window of the descriptor stream a reader is asked to keep up, or put to rest.
DESCRIPTORS_UNTIL_REST = 66_000


@pytest.fixture
def driver(place: Environment) -> Any:
    return place.driver()


def test_a_sleeping_reader_stalls_nobody_and_rejoins_with_its_loss_counted(
    place: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil
) -> None:
    producer = place.producer()
    awake = place.consumer()
    sleeper = place.worker()
    sleeper.call("consume", stream_id=place.stream_id)
    wait_until(lambda: sleeper.call("mapped") and awake.call("mapped"))
    # The first frame gives the sleeper a sequence to count from.
    wait_until(lambda: producer.call("offer") == "published" and sleeper.call("take_all"))

    producer.call("offer_always", per_second=PER_SECOND)
    # Put to rest and brought back more than once, without ever a poll.
    wait_until(
        lambda: producer.call("offering")["outcomes"].get("published", 0) > 4 * DESCRIPTORS_UNTIL_REST,
        timeout=90,
    )
    frames_flow(awake)

    def has_slept_through() -> Any:
        sleeper.call("take_all")
        return sleeper.call("consumer_ledger")["dropped"]["rested"]

    rested = wait_until(has_slept_through, timeout=30)
    # Awake again: from here on it hears everything.
    sleeper.call("receive_always")
    frames_flow(sleeper)
    ended = producer.call("stop_offering")
    written = producer.call("producer_ledger")
    wait_until(lambda: sleeper.call("consumer_ledger")["last_seq"] == written["next_seq"] - 1)
    wait_until(lambda: awake.call("consumer_ledger")["last_seq"] == written["next_seq"] - 1)
    sleeper.call("stop_receiving")
    awake.call("stop_receiving")
    late, prompt = sleeper.call("consumer_ledger"), awake.call("consumer_ledger")
    print(
        f"\n{PER_SECOND}/s beside a sleeping reader: {ended['outcomes']}, longest gap "
        f"{1000 * ended['longest_gap_s']:.1f} ms; sleeper counted {rested:,} as rested"
    )

    assert written["balanced"]
    assert written["unpublished"]["back_pressured"] == 0
    assert late["balanced"], late
    assert prompt["balanced"], prompt
    assert prompt["dropped"]["rested"] == 0
    assert prompt["dropped"]["gap"] <= sum(written["unpublished"].values())
    assert late["dropped"]["gap"] == 0


def test_the_same_reader_tethered_as_is_aerons_default_stops_the_stream(
    place: Environment, driver: Any, wait_until: WaitUntil
) -> None:
    """What the test above guards against: this is how it would look."""
    with tp.open(**place.options) as context:
        # A subscription to the descriptors without our `tether=false`, never polled.
        subscription = _native.Subscription(
            context.connection.conductor, "aeron:ipc", context.stream_ids.descriptor
        )
        wait_until(lambda: subscription.is_ready)
        producer = place.producer()
        wait_until(lambda: producer.call("offer") == "published")
        producer.call("offer_always", per_second=PER_SECOND)
        wait_until(
            lambda: producer.call("offering")["outcomes"].get("back_pressured", 0) > PER_SECOND, timeout=60
        )
        stalled = producer.call("offering")
        published = stalled["outcomes"]["published"]
        assert stalled["last"] == "back_pressured"
        # Gone at last: the stream goes on.
        subscription.close()
        other = place.consumer()
        wait_until(lambda: other.call("mapped"))
        wait_until(lambda: producer.call("offering")["outcomes"]["published"] > published + 1000)
        ended = producer.call("stop_offering")
    print(
        f"\n{PER_SECOND}/s beside a tethered reader: {ended['outcomes']}, longest gap "
        f"{1000 * ended['longest_gap_s']:.0f} ms"
    )
    assert ended["longest_gap_s"] > 0.5


@pytest.mark.parametrize("policy", ["stream", "latest"])
def test_a_stopped_process_is_a_sleeping_reader(
    place: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil, policy: str
) -> None:
    """SIGSTOP stops its Aeron client too, so the loss may be the client's; it comes back all the same."""
    producer = place.producer()
    producer.call("offer_always", per_second=PER_SECOND)
    sleeper = place.worker()
    sleeper.call("consume", stream_id=place.stream_id, policy=policy)
    sleeper.call("receive_always")
    awake = place.consumer()
    frames_flow(awake)
    frames_flow(sleeper)
    sleeper.stop()
    before = producer.call("offering")["outcomes"]["published"]
    wait_until(
        lambda: producer.call("offering")["outcomes"]["published"] > before + 2 * DESCRIPTORS_UNTIL_REST,
        timeout=60,
    )
    sleeper.resume()
    last = sleeper.call("consumer_ledger")["last_seq"] or 0
    wait_until(lambda: (sleeper.call("consumer_ledger")["last_seq"] or 0) > last + 50_000, timeout=60)
    producer.call("stop_offering")
    assert producer.call("producer_ledger")["balanced"]
    for consumer in (sleeper, awake):
        receiving = consumer.call("stop_receiving")
        assert receiving["wrong"] == 0
        assert consumer.call("consumer_ledger")["balanced"]
