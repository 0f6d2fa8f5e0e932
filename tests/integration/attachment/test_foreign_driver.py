"""Clients of a driver of another implementation, which knows the messages of the driver document only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp

from .delegating_driver import DelegatingDriver

DEADLINE_S = 60.0
PERIOD_S = 0.5


@pytest.fixture
def foreign_driver(options, open_context, shm_base: Path, free_stream_id):
    """Starts a foreign driver of one stream with 16 slots of 4 KiB."""

    @contextmanager
    def start(revision: int = 1) -> Iterator[DelegatingDriver]:
        with tp.MediaDriver(options["aeron_dir"]):
            peer = open_context("standalone", media_driver="external", announce_period=PERIOD_S)
            with DelegatingDriver(
                peer, shm_base, free_stream_id, epoch=7, nslots=16, revision=revision
            ) as driver:
                yield driver
            peer.close()

    return start


def test_producer_uses_the_layout_that_a_foreign_driver_offers(
    foreign_driver, open_context, free_stream_id, caplog: pytest.LogCaptureFixture
) -> None:
    with foreign_driver():
        ctx = open_context("driver", media_driver="external", announce_period=PERIOD_S)
        producer = ctx.producer(
            free_stream_id, pools=["256KiB"], nslots=4, name="camera-1", tags=["lab"], metadata={"gain": 2}
        )
        assert (producer.nslots, producer.pools) == (16, (4096,))
        (warning,) = [text for text in caplog.messages if "another implementation" in text]
        assert (
            "it granted 16 slots and pools of 4KiB instead of the requested 4 slots and pools of 256KiB"
            in warning
        )
        consumer = ctx.consumer(free_stream_id)
        assert producer.wait_for_consumer(DEADLINE_S)
        assert producer.offer(np.arange(4)).outcome == "published"
        frame = consumer.receive(DEADLINE_S)
        assert frame.array.tolist() == [0, 1, 2, 3]
        assert frame.meta["gain"] == 2
        with pytest.warns(tp.OfferWarning, match="fits no pool"):
            assert producer.offer(np.zeros(8192, np.uint8)).outcome == "no_pool"
        ctx.close()


def test_producer_logs_nothing_where_a_foreign_driver_offers_the_same(
    foreign_driver, open_context, free_stream_id, caplog: pytest.LogCaptureFixture
) -> None:
    with foreign_driver():
        ctx = open_context("driver", media_driver="external", announce_period=PERIOD_S)
        with ctx.producer(free_stream_id, pools=["4KiB"], nslots=16, name="camera-1") as producer:
            assert producer.epoch == 7
        assert not [text for text in caplog.messages if "another implementation" in text]
        ctx.close()


def test_attach_is_tried_in_the_other_revision_if_nothing_answers(
    foreign_driver, open_context, free_stream_id, monkeypatch: pytest.MonkeyPatch
) -> None:
    with foreign_driver(revision=2):
        monkeypatch.setenv("TENSORPOOL_CONTEXT__ATTACH_TIMEOUT", "30s")
        ctx = open_context("driver", media_driver="external", announce_period=PERIOD_S)
        with ctx.producer(free_stream_id) as producer:
            lease = producer.lease()
            assert lease is not None
            assert (producer.epoch, lease.revision) == (7, 2)
            # The context has learned the revision: its next endpoint asks in it first.
            with ctx.consumer(free_stream_id) as consumer:
                assert consumer.wait_for_producer(DEADLINE_S)
        ctx.close()


def test_attach_error_names_the_revision_that_was_asked_in(
    foreign_driver, open_context, free_stream_id, monkeypatch: pytest.MonkeyPatch
) -> None:
    with foreign_driver(revision=2):
        monkeypatch.setenv("TENSORPOOL_CONTEXT__ATTACH_REVISION", "1")
        monkeypatch.setenv("TENSORPOOL_CONTEXT__ATTACH_TIMEOUT", "100ms")
        ctx = open_context("driver", media_driver="external", announce_period=PERIOD_S)
        with pytest.raises(tp.AttachError, match="asked in revision 1 of") as refused:
            ctx.producer(free_stream_id)
        assert refused.value.code == "NO_ANSWER"
        assert 'attach_revision = "auto"' in str(refused.value)
        ctx.close()
