"""The console beside heavy streams, a thousand streams, and its own death: no other process notices it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from benchmarks.pacing import repeating
from tests.e2e.commandline import CommandLine, running
from tests.e2e.console_system import Laboratory, console, detector, laboratory
from tests.integration.console.test_server import receive, receive_frame, send, viewer
from tests.integration.supervisor.load import FIRST, SyntheticSystem
from tests.remote_process import RemoteProcess

DEADLINE_S = 90
WaitUntil = Callable[..., Any]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def lab(aeron_dir: Path, shm_base: Path) -> Iterator[Laboratory]:
    with laboratory(aeron_dir, shm_base) as system:
        yield system


def read_document(websocket: Any, document: dict[str, dict[str, Any]]) -> int:
    """Applies the next update to the document; returns its number of streams."""
    update = receive(websocket, "update")
    for name, rows in update["set"].items():
        for key, members in rows.items():
            document.setdefault(name, {}).setdefault(key, {}).update(members)
    for name, keys in update["remove"].items():
        for key in keys:
            document[name].pop(key, None)
    return len(document.get("streams", {}))


@pytest.mark.long
def test_thousand_streams_are_all_in_the_document(lab: Laboratory) -> None:
    options = {"aeron_dir": str(lab.aeron_dir), "shm_base_dir": str(lab.shm_base)}
    with RemoteProcess(SyntheticSystem) as system, console(lab, period_s=1.0) as server:
        system.call("publish", options=options, streams=1000, consumers=4)
        with viewer(server) as websocket:
            document: dict[str, dict[str, Any]] = {}
            deadline = time.monotonic() + DEADLINE_S
            while read_document(websocket, document) < 1000 and time.monotonic() < deadline:
                pass
            assert len(document["streams"]) == 1000
            while len(document["consumers"]) < 4000 and time.monotonic() < deadline:
                read_document(websocket, document)
            assert len(document["consumers"]) == 4000
            # The ledger of a browser is bounded, mismatches first; the system row has the number of all.
            assert len(document["ledger"]) <= 2000
            # Details of one of them come at once.
            send(websocket, type="select", kind="stream", key=str(FIRST + 999))
            assert len(receive(websocket, "detail")["view"]["consumers"]) == 4
        system.call("close")


@pytest.mark.long
def test_large_frames_at_a_thousand_a_second_are_shown_without_loss_for_others(
    lab: Laboratory, free_stream_id: int
) -> None:
    """4 MiB frames at 1 kHz, or as fast as this machine publishes them: 4 GiB a second."""
    producer = lab.stack.enter_context(
        lab.context.producer(free_stream_id, pools=["4MiB"], nslots=64, name="heavy")
    )
    frame = np.zeros((1024, 2048), np.uint16)
    frame[3, 5] = 54_321
    with (
        console(lab) as server,
        viewer(server) as websocket,
        repeating(lambda: producer.offer(frame), hz=1000),
    ):
        send(websocket, type="watch", watch=1, stream=free_stream_id, view={"max_rows": 512})
        seqs = []
        for _ in range(20):
            header, payload = receive_frame(websocket)
            # Thinned to what a viewer shows, never more than a megabyte of elements.
            assert len(payload) <= 2 << 20
            assert header["nbytes"] == 4 << 20
            seqs.append(int(header["seq"]))
            send(websocket, type="drawn", watch=1)
        assert seqs == sorted(set(seqs))
    ledger = producer.ledger()
    assert not any(ledger.unpublished[reason] for reason in ("back_pressured", "closed"))
    assert not any(ledger.dropped.values())


def test_console_that_is_killed_costs_the_system_nothing(
    lab: Laboratory, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("detector", free_stream_id, detector, 50)
    consumer = lab.consume("detector", "reader")
    commands = CommandLine(lab.aeron_dir, lab.shm_base)
    with running(commands.start("console", "--port", "0", "--json")) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["url"]
        wait_until(lambda: consumer.ledger().received > 20, timeout=DEADLINE_S)
        epoch = consumer.epoch
        process.kill()
        process.wait()
        received = consumer.ledger().received
        wait_until(lambda: consumer.ledger().received > received + 50, timeout=DEADLINE_S)
        # No epoch began, and no frame is lost: the slots suffice for a busy machine.
        assert consumer.epoch == epoch
        assert consumer.ledger().balanced


def test_page_follows_a_driver_that_is_killed_and_comes_back(
    aeron_dir: Path, shm_base: Path, free_stream_id: int
) -> None:
    """The console stays connected to the media driver; a producer of a later epoch is shown again."""
    with tp.MediaDriver(aeron_dir):
        options: dict[str, Any] = {
            "aeron_dir": aeron_dir, "media_driver": "external", "shm_base_dir": shm_base,
        }  # fmt: skip
        with tp.open("standalone", **options) as first:
            lab = Laboratory(first, aeron_dir, shm_base)
            with console(lab) as server, viewer(server) as websocket:
                send(websocket, type="watch", watch=1, stream=free_stream_id, view={})
                epochs = set()
                for _ in range(2):
                    with tp.open("embedded", **options) as driver:
                        part = Laboratory(driver, aeron_dir, shm_base)
                        with part.stack:
                            part.produce("detector", free_stream_id, detector, 50)
                            header: Any = {"kind": "none"}
                            while header["kind"] != "image" or header["epoch"] in epochs:
                                header, _ = receive_frame(websocket)
                                send(websocket, type="drawn", watch=1)
                            epochs.add(header["epoch"])
                assert len(epochs) == 2
