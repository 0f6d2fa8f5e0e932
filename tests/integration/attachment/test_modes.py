"""The driver of a context: a running, an embedded, or none (driver §2.1, §4.11, §14)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.shm.epoch_files import user_name
from tests.remote_process import RemoteProcess

from .roles import Client

DEADLINE_S = 60.0


@pytest.mark.requirement("driver-14-3")
def test_auto_mode_embeds_a_driver_with_the_standard_layout(
    open_context, free_stream_id, shm_base: Path
) -> None:
    ctx = open_context()
    assert ctx.mode == "auto"
    assert ctx.embeds_driver
    producer, consumer = ctx.producer(free_stream_id), ctx.consumer(free_stream_id)
    assert consumer.wait_for_producer(DEADLINE_S)
    assert producer.offer(np.arange(3)).outcome == "published"
    assert consumer.receive(DEADLINE_S).array.tolist() == [0, 1, 2]
    root = shm_base / f"tensorpool-{user_name()}" / "default" / str(free_stream_id)
    assert (root / str(producer.epoch) / "header.ring").is_file()
    ctx.close()
    assert list(shm_base.iterdir()) == []


def test_second_process_takes_over_when_the_embedded_driver_ends(
    options, open_context, free_stream_id, wait_until
) -> None:
    with RemoteProcess(Client) as first, tp.MediaDriver(options["aeron_dir"]):
        assert first.call("open", media_driver="external", **options)
        ctx = open_context(media_driver="external")
        assert not ctx.embeds_driver
        producer = ctx.producer(free_stream_id, pools=["64KiB"], nslots=4, name="camera")
        epoch = producer.epoch
        first.call("close")
        wait_until(lambda: ctx.embeds_driver and producer.attached)
        assert producer.epoch > epoch
        # The second driver knows the layout that the first one was given.
        assert ctx.consumer(free_stream_id).wait_for_producer(DEADLINE_S)
        with ctx.service("driver") as driver:
            (stream,) = driver.call("streams")
        assert (stream["nslots"], stream["name"]) == (4, "camera")


@pytest.mark.requirement("driver-2.1-1")
def test_second_embedded_driver_is_refused_with_the_holder(options, open_context) -> None:
    with RemoteProcess(Client) as first:
        assert first.call("open", mode="embedded", **options)
        with pytest.raises(tp.DriverAlreadyRunning, match=f"embedded in process {first.pid} ") as held:
            open_context("embedded")
        assert (held.value.pid, held.value.embedded) == (first.pid, True)


@pytest.mark.requirement("driver-2.1-1")
def test_driver_of_another_user_is_found_and_used(options, open_context, tmp_path, free_stream_id) -> None:
    """A second state directory stands for another user: the driver's lock is not visible."""
    with (
        RemoteProcess(Client, env={"XDG_STATE_HOME": str(tmp_path)}) as other,
        tp.MediaDriver(options["aeron_dir"]),
    ):
        assert other.call("open", mode="embedded", media_driver="external", **options)
        ctx = open_context(media_driver="external")
        assert not ctx.embeds_driver
        assert ctx.producer(free_stream_id).attached
        with pytest.raises(tp.DriverAlreadyRunning, match=f"process {other.pid}"):
            open_context("embedded", media_driver="external")


def test_driver_on_another_media_driver_is_an_error(options, open_context, tmp_path) -> None:
    with RemoteProcess(Client) as first:
        assert first.call("open", **options)
        with pytest.raises(tp.DriverAlreadyRunning, match="choose another namespace"):
            open_context(aeron_dir=str(tmp_path / "elsewhere"))


def test_attach_without_a_driver_names_the_remedy(open_context, free_stream_id, monkeypatch) -> None:
    monkeypatch.setenv("TENSORPOOL_CONTEXT__ATTACH_TIMEOUT", "200ms")
    ctx = open_context("driver", media_driver="auto")
    for attach in (ctx.producer, ctx.consumer):
        with pytest.raises(tp.AttachError, match="start one with `tensorpool driver`") as refused:
            attach(free_stream_id)
        assert (refused.value.code, refused.value.stream_id) == ("NO_ANSWER", free_stream_id)
        assert "asked in both revisions" in str(refused.value)


def test_both_revisions_of_the_attach_messages_work(open_context, free_stream_ids, monkeypatch) -> None:
    open_context("embedded")
    for revision in ("1", "2"):
        monkeypatch.setenv("TENSORPOOL_CONTEXT__ATTACH_REVISION", revision)
        ctx, stream_id = open_context("driver"), free_stream_ids()
        producer, consumer = ctx.producer(stream_id), ctx.consumer(stream_id)
        assert consumer.wait_for_producer(DEADLINE_S)
        assert producer.offer(np.arange(3)).outcome == "published"
        assert consumer.receive(DEADLINE_S).shape == (3,)


def test_unknown_mode_is_refused(open_context) -> None:
    with pytest.raises(tp.ConfigError, match="use 'auto', 'driver', 'embedded' or 'standalone'"):
        open_context("clustered")
