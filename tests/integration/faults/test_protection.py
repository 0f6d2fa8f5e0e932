"""Protection against user errors, and their error messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base) as context:
        yield context


def open_embedded(directory: Path) -> None:
    """Opens a context with an embedded media driver."""
    tp.open(aeron_dir=directory, connect_timeout=0.5)


@pytest.mark.parametrize("start", [open_embedded, tp.MediaDriver])
def test_media_driver_refuses_a_directory_with_other_files(
    tmp_path: Path, start: Callable[[Path], object]
) -> None:
    """Aeron removes all files of its directory at start and end."""
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "thesis.txt").write_text("years")
    with pytest.raises(tp.MediaDriverError, match=r"thesis\.txt is no file of a media driver"):
        start(documents)
    assert (documents / "thesis.txt").read_text() == "years"


def test_media_driver_accepts_leftovers_of_another(aeron_dir: Path) -> None:
    aeron_dir.mkdir()
    (aeron_dir / "publications").mkdir()
    with tp.MediaDriver(aeron_dir):
        assert (aeron_dir / "cnc.dat").exists()


def test_stream_id_below_two_base_directories_is_two_streams(
    ctx: tp.Context, aeron_dir: Path, tmp_path: Path, free_stream_ids: Callable[[], int]
) -> None:
    stream_id = free_stream_ids()
    with (
        ctx.producer(stream_id, pools=[64]),
        tp.open(aeron_dir=aeron_dir, shm_base_dir=tmp_path) as other,
        other.producer(stream_id, pools=[64]),
        pytest.raises(tp.StreamBusy),
    ):
        other.producer(stream_id, pools=[64])


def test_invalid_namespace_creates_no_files(tmp_path: Path, user_state_dir: Path, aeron_dir: Path) -> None:
    for name in (str(tmp_path / "climb"), "../x", ".hidden", "", "a/b", "x" * 65):
        if name:
            with pytest.raises(tp.ConfigError, match="namespace"):
                tp.open(aeron_dir=aeron_dir, namespace=name)
    assert not (tmp_path / "climb").exists()
    assert list(user_state_dir.rglob("*")) == []


@pytest.mark.parametrize("name", ["connect_timeout", "driver_timeout", "announce_period"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_invalid_durations_are_rejected_by_name(aeron_dir: Path, name: str, value: float) -> None:
    with pytest.raises(tp.ConfigError, match=name):
        tp.open(aeron_dir=aeron_dir, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"nslots": 6}, "power of two"),
        ({"nslots": -1}, "power of two"),
        ({"nslots": "8"}, "power of two"),
        ({"pools": "640KiB"}, "the next that fits is 1048576"),
        ({"pools": []}, "at least one"),
        ({"descriptor_stream_id": 1 << 31}, "descriptor stream id"),
        ({"descriptor_stream_id": 0}, "descriptor stream id"),
    ],
)
def test_invalid_producer_settings_name_a_valid_value(
    ctx: tp.Context, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(tp.ConfigError, match=expected):
        ctx.producer(10_000, **options)
    with pytest.raises(tp.ConfigError, match="stream id"):
        ctx.producer("5")  # type: ignore[arg-type]


def test_claim_shapes_are_integers_or_tuples(ctx: tp.Context, free_stream_ids: Callable[[], int]) -> None:
    with ctx.producer(free_stream_ids(), pools="4KiB") as producer:
        with producer.claim(100, "u1") as slot:
            assert slot.array.shape == (100,)
        for shape in (-1, (3, -1), "ab", (2.5,)):
            with pytest.raises(ValueError, match="use whole numbers from 0 on"):
                producer.claim(shape, "u1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="would lose its mask"):
            producer.offer(np.ma.masked_equal([1, 2, 3], 2))


def test_offers_after_close_are_counted(ctx: tp.Context, free_stream_ids: Callable[[], int]) -> None:
    producer = ctx.producer(free_stream_ids(), pools=[64])
    producer.close()
    with pytest.warns(tp.OfferWarning, match="is closed"):
        assert producer.offer(b"x").outcome == tp.Outcome.CLOSED
    ledger = producer.ledger()
    assert ledger.dropped["after_close"] == 1
    assert ledger.balanced


def test_receive_times_out_while_other_streams_are_busy(
    ctx: tp.Context, free_stream_ids: Callable[[], int]
) -> None:
    """All producers share one descriptor stream: descriptors of other streams must not delay a timeout."""
    busy, idle = free_stream_ids(), free_stream_ids()
    with ctx.producer(busy, pools=[64]) as producer, ctx.consumer(idle) as consumer:
        assert producer.wait_for_consumer(30)
        for _ in range(20_000):
            producer.offer(b"x")
        began = time.monotonic()
        assert consumer.receive_or_none(0.0) is None
        with pytest.raises(tp.ReceiveTimeout):
            consumer.receive(0.2)
        assert time.monotonic() - began < 30


def test_copy_is_writable_and_keeps_the_axis_order(
    ctx: tp.Context, free_stream_ids: Callable[[], int]
) -> None:
    stream_id = free_stream_ids()
    with ctx.producer(stream_id, pools=["4KiB"]) as producer, ctx.consumer(stream_id, timeout=30) as frames:
        assert frames.wait_for_producer(30)
        original = np.asfortranarray(np.arange(12, dtype="i4").reshape(3, 4))
        assert producer.offer(original)
        copy = next(frames).copy()
        assert copy.flags.f_contiguous
        copy[0, 0] = 99
        assert copy.tolist()[1:] == original.tolist()[1:]
        assert producer.offer(np.zeros((0, 3)))
        assert next(frames).copy().shape == (0, 3)


def test_orderly_end_removes_lock_files(aeron_dir: Path, shm_base: Path, user_state_dir: Path) -> None:
    with tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx, ctx.producer(7, pools=[64]):
        assert len(list(user_state_dir.rglob("*.lock"))) == 2
    assert list(user_state_dir.rglob("*.lock")) == []
