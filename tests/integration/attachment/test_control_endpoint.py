"""Where clients find a driver, and who chooses paths (driver §3, §4.11)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.driver import read_holder
from tensorpool.sbe import PublishMode, Role, ShmAttachRequest, ShmAttachResponse, decode
from tests.remote_process import RemoteProcess

from .roles import Client

DEADLINE_S = 60.0
CONTROL = 1777


@pytest.mark.requirement("driver-4.11-1")
def test_embedded_driver_answers_at_the_well_known_endpoint(
    options: dict[str, Any],
    open_context: Callable[..., tp.Context],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    """A tool that knows only the endpoint of the documents: stream 1000 on aeron:ipc."""
    with RemoteProcess(Client) as program:
        assert program.call("open", mode="embedded", **options)
        conductor = open_context("standalone", media_driver="external").connection.conductor
        out = _native.Publication(conductor, "aeron:ipc", 1000)
        answers = _native.Subscription(conductor, "aeron:ipc?tether=false", 1000)
        wait_until(lambda: out.is_connected and answers.is_connected)
        request = ShmAttachRequest(
            correlation_id=1,
            stream_id=free_stream_id,
            client_id=7,
            role=Role.CONSUMER,
            publish_mode=PublishMode.EXISTING_OR_CREATE,
        )
        wait_until(lambda: out.offer(request.encode()) == "sent")
        received: list[Any] = []

        def answer() -> ShmAttachResponse | None:
            received.extend(decode(message) for message in answers.poll())
            return next((each for each in received if isinstance(each, ShmAttachResponse)), None)

        response = wait_until(answer)
        assert (response.correlation_id, response.stream_id) == (1, free_stream_id)
        assert response.lease_id is not None
        out.close()
        answers.close()


@pytest.mark.requirement("driver-4.11-2")
def test_control_endpoint_is_found_by_configuration(
    options: dict[str, Any],
    open_context: Callable[..., tp.Context],
    shm_base: Path,
    free_stream_id: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENSORPOOL_AERON__CONTROL_STREAM_ID", str(CONTROL))
    open_context("embedded")
    with open_context("driver").producer(free_stream_id) as producer:
        assert producer.epoch is not None
    # The driver's lock contains its control endpoint, for tools.
    holder = read_holder(shm_base, "default")
    assert holder is not None
    assert (holder.control_stream_id, holder.aeron_dir) == (CONTROL, options["aeron_dir"])
    monkeypatch.delenv("TENSORPOOL_AERON__CONTROL_STREAM_ID")
    monkeypatch.setenv("TENSORPOOL_CONTEXT__ATTACH_TIMEOUT", "100ms")
    elsewhere = open_context("driver")
    with pytest.raises(tp.AttachError, match="no driver answers on control stream 1000"):
        elsewhere.producer(free_stream_id)


@pytest.mark.requirement("driver-3-1")
def test_clients_neither_create_nor_choose_paths(
    options: dict[str, Any],
    open_context: Callable[..., tp.Context],
    shm_base: Path,
    tmp_path: Path,
    free_stream_id: int,
) -> None:
    """Their base directory differs from the driver's: they create nothing, and map what it says."""
    own = tmp_path / "own"
    own.mkdir()
    with RemoteProcess(Client) as program:
        assert program.call("open", mode="embedded", **options)
        ctx = open_context("driver", shm_base_dir=str(own), allowed_base_dirs=[own, shm_base])
        producer, consumer = ctx.producer(free_stream_id), ctx.consumer(free_stream_id)
        assert producer.wait_for_consumer(DEADLINE_S)
        assert consumer.wait_for_producer(DEADLINE_S)
        assert producer.offer(np.arange(3)).outcome == "published"
        assert consumer.receive(DEADLINE_S).shape == (3,)
        with ctx.service("driver") as driver:
            (stream,) = driver.call("streams")
        mapped = {
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if line.endswith((".pool", "header.ring"))
        }
        assert {str(Path(path).parent) for path in mapped} == {stream["directory"]}
        assert stream["directory"].startswith(f"{shm_base}/")
        assert os.listdir(own) == []
        # Every file below the driver's base is in the directory of the one epoch that it reports.
        files = {str(path.parent) for path in shm_base.rglob("*") if path.is_file()}
        assert files == {stream["directory"]}
        ctx.close()
