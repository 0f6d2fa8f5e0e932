"""Frames that are lost by a mistake: a warning once, an error with `strict=True`, and pools that fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.context import driver_host

DEADLINE_S = 60.0
LARGE = np.zeros(6 << 20, np.uint8)


def test_frame_that_fits_no_pool_warns_once_and_names_the_pool(open_context, free_stream_id) -> None:
    producer = open_context().producer(free_stream_id, pools=["64KiB"])
    with pytest.warns(tp.OfferWarning, match=rf'producer\({free_stream_id}, pools=\["8MiB"\]\)') as caught:
        assert producer.offer(LARGE).outcome == "no_pool"
    # The warning is at the line of the offer.
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert producer.offer(LARGE).outcome == "no_pool"
    assert producer.ledger().dropped["no_pool"] == 2


def test_offer_on_a_closed_producer_warns_once(open_context, free_stream_id) -> None:
    producer = open_context().producer(free_stream_id, pools=["64KiB"])
    producer.close()
    with pytest.warns(tp.OfferWarning, match="is closed; open another with ctx.producer") as caught:
        outcomes = [producer.offer(np.zeros(4)).outcome for _ in range(3)]
    assert (outcomes, len(caught)) == (["closed"] * 3, 1)


def test_strict_offer_raises_where_a_claim_is_refused(open_context, free_stream_id) -> None:
    producer = open_context().producer(free_stream_id, pools=["64KiB"], nslots=1)
    with pytest.raises(tp.OfferRefused, match=r'pools=\["8MiB"\]') as refused:
        producer.offer(LARGE, strict=True)
    assert refused.value.outcome == "no_pool"
    with producer.claim(4, "uint8"), pytest.raises(tp.OfferRefused, match="claimed") as refused:
        producer.offer(np.zeros(4), strict=True)
    assert refused.value.outcome == "slot_claimed"
    # No consumer is no mistake: the frame is in the ring.
    assert producer.offer(np.zeros(4), strict=True).outcome == "not_connected"
    producer.close()
    with pytest.raises(tp.OfferRefused, match="closed"):
        producer.offer(np.zeros(4), strict=True)


@pytest.mark.parametrize("call", ["offer", "claim"])
def test_default_pools_follow_the_first_frame(
    open_context: Callable[..., tp.Context], free_stream_id: int, call: str
) -> None:
    context = open_context()
    producer, consumer = context.producer(free_stream_id), context.consumer(free_stream_id)
    assert consumer.wait_for_producer(DEADLINE_S)
    before = producer.pools
    if call == "offer":
        producer.offer(LARGE, strict=True)
    else:
        with producer.claim(len(LARGE), "uint8") as slot:
            slot.array[:] = 0
    assert producer.pools == (*before, 8 << 20)
    # The frame may precede the new mapping of the consumer.
    assert producer.wait_for_consumer(DEADLINE_S)
    assert consumer.wait_for_producer(DEADLINE_S)
    while consumer.receive_or_none(0.2) is None:
        producer.offer(LARGE, strict=True)
    ledger = producer.ledger()
    assert not any(ledger.dropped.values())


def test_pool_of_a_large_first_frame_gets_fewer_slots_than_an_earlier_program_chose(
    open_context: Callable[..., tp.Context], free_stream_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_host, "FITTED_POOL_BYTES", 64 << 20)
    context = open_context()
    # The driver keeps this layout of the stream: 256 slots of 8 MiB would be two GiB.
    context.producer(free_stream_id, pools=["4KiB"], nslots=256).close()
    producer = context.producer(free_stream_id)
    assert producer.nslots == 256
    producer.offer(LARGE, strict=True)
    assert (producer.pools, producer.nslots) == ((4096, 8 << 20), 8)


def test_pools_that_were_chosen_are_kept(open_context, free_stream_id) -> None:
    producer = open_context().producer(free_stream_id, pools=["64KiB"])
    epoch = producer.epoch
    with pytest.raises(tp.ClaimRefused, match=r'pools=\["8MiB"\]'):
        producer.claim(len(LARGE), "uint8")
    assert (producer.pools, producer.epoch) == ((64 << 10,), epoch)


def test_pools_stay_after_the_first_frame(open_context, free_stream_id) -> None:
    producer = open_context().producer(free_stream_id)
    epoch = producer.epoch
    producer.offer(np.zeros(4))
    with pytest.warns(tp.OfferWarning, match="fits no pool"):
        producer.offer(LARGE)
    assert producer.epoch == epoch
