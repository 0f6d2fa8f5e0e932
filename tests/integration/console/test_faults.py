"""The console beside heavy streams, a thousand streams, and its own death: no other process notices it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from benchmarks.pacing import repeating
from tensorpool.console.server import ConsoleServer
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
def test_large_frames_at_a_thousand_a_second_are_shown_and_cost_the_producer_nothing(
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
        # No epoch began, and no frame is lost: the slots are enough for a busy machine.
        assert consumer.epoch == epoch
        assert consumer.ledger().balanced


@pytest.mark.leaves_files("the driver is killed")
def test_page_follows_a_driver_that_is_killed_and_comes_back(
    aeron_dir: Path, shm_base: Path, tmp_path: Path, free_stream_id: int, wait_until: WaitUntil
) -> None:
    """The driver's process gets SIGKILL. Meanwhile it is grey; frames of the next epoch are shown."""
    commands = CommandLine(aeron_dir, shm_base)
    config = tmp_path / "driver.toml"
    config.write_text('[driver]\nany_stream = true\n[aeron]\nmedia_driver = "external"\n')

    @contextmanager
    def driver(name: str) -> Iterator[subprocess.Popen[str]]:
        ready = tmp_path / name
        with running(
            commands.start("driver", "--config", str(config), "--ready-file", str(ready))
        ) as process:
            wait_until(ready.exists, timeout=DEADLINE_S)
            yield process
            process.terminate()
            process.wait(DEADLINE_S)

    def next_frame(websocket: Any, epochs: set[str]) -> None:
        """Waits for a frame of an epoch that was not shown yet."""
        header: Any = {"kind": "none"}
        while header["kind"] != "image" or header["epoch"] in epochs:
            header, _ = receive_frame(websocket)
            send(websocket, type="drawn", watch=1)
        epochs.add(header["epoch"])

    def gone(server: ConsoleServer) -> list[str]:
        return [row["kind"] for row in json.loads(server.feed.whole()[1])["set"]["gone"].values()]

    with ExitStack() as stack:
        stack.enter_context(tp.MediaDriver(aeron_dir))
        first = stack.enter_context(driver("first"))
        ctx = stack.enter_context(
            tp.open("driver", aeron_dir=aeron_dir, media_driver="external", shm_base_dir=shm_base)
        )
        lab = Laboratory(ctx, aeron_dir, shm_base)
        stack.enter_context(lab.stack)
        lab.produce("detector", free_stream_id, detector, 50)
        server = stack.enter_context(console(lab))
        websocket = stack.enter_context(viewer(server))
        send(websocket, type="watch", watch=1, stream=free_stream_id, view={})
        epochs: set[str] = set()
        next_frame(websocket, epochs)
        wait_until(lambda: server.feed.snapshot.drivers, timeout=DEADLINE_S)
        first.kill()
        first.wait()
        wait_until(lambda: "driver" in gone(server), timeout=DEADLINE_S)
        with driver("second"):
            next_frame(websocket, epochs)
            wait_until(lambda: "driver" not in gone(server), timeout=DEADLINE_S)
            assert server.viewers == 1
            lab.stack.close()
            ctx.close()
