"""Recorders, exports, replays and reports that a browser starts: confirmed, on the record, with progress."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import ClientConnection

import tensorpool as tp
from tensorpool.console.access import ViewerRole
from tensorpool.console.server import ConsoleServer
from tensorpool.console.viewer import ServedFile
from tests.e2e.console_system import Laboratory, console, detector, laboratory
from tests.integration.console.test_actions import ask, notices
from tests.integration.console.test_server import get, session, viewer
from tests.unit.pipeline.conftest import arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.report.sample_tables import pipeline

DEADLINE_S = 90
WaitUntil = Callable[..., Any]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def lab(aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laboratory]:
    # For the processes that the console starts.
    monkeypatch.setenv("TENSORPOOL_SHM__BASE_DIR", str(shm_base))
    with laboratory(aeron_dir, shm_base) as system:
        yield system


@contextmanager
def steering(lab: Laboratory, **options: Any) -> Iterator[tuple[ConsoleServer, ClientConnection]]:
    """A console, and a viewer that may give orders."""
    with console(lab, period_s=0.2, **options) as server, viewer(server) as websocket:
        yield server, websocket


def order(websocket: ClientConnection, action: str, **arguments: Any) -> Any:
    """Prepares and confirms an order; returns its sentence and its result, or why it is refused."""
    prepared = ask(websocket, "prepare", action=action, **arguments)
    if isinstance(prepared, str):
        return prepared
    done = ask(websocket, "confirm", number=prepared["number"])
    return done if isinstance(done, str) else (prepared["text"], done["result"])


def job(websocket: ClientConnection, number: int) -> Any:
    return ask(websocket, "job", job=number)


def finished(websocket: ClientConnection, number: int) -> Any:
    """The job, if it has ended."""
    state = job(websocket, number)
    assert not state["error"], state
    return None if state["running"] else state


def name_of(server: ConsoleServer, stream_id: int) -> str:
    """The name of a stream, once the console knows it."""
    stream = server.feed.snapshot.stream(stream_id)
    return "" if stream is None else stream.name


def record(lab: Laboratory, root: Path, stream_id: int, rows: int, wait_until: WaitUntil) -> None:
    with lab.context.record(root, streams=[stream_id]) as recorder:
        wait_until(lambda: recorder.stats().rows >= rows, timeout=DEADLINE_S)


def test_recorder_is_started_and_ended_by_a_browser(
    lab: Laboratory, tmp_path: Path, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("detector", free_stream_id, detector, 50)
    with steering(lab, recordings=(tmp_path,)) as (server, websocket):
        wait_until(lambda: name_of(server, free_stream_id) == "detector", timeout=DEADLINE_S)
        text, started = order(websocket, "record", name="run-7", streams=[free_stream_id])
        assert text == f"Record detector into {tmp_path / 'run-7'} until it is ended."
        # A process of its own, which the model of the system shows.
        assert started["pid"] != os.getpid()
        wait_until(
            lambda: [r.pid for r in server.feed.snapshot.recorders if r.rows] == [started["pid"]],
            timeout=DEADLINE_S,
        )
        (row,) = ask(websocket, "recordings")["recordings"]
        assert (row["state"], row["recorder"]) == ("recording", "service:recorder:run-7")
        assert "exists already" in order(websocket, "record", name="run-7", streams=[free_stream_id])
        text, _ = order(websocket, "end", job=started["job"])
        assert text == "End: record run-7."
        wait_until(lambda: finished(websocket, started["job"]), timeout=DEADLINE_S)
        wait_until(lambda: len(notices(server)) == 2, timeout=DEADLINE_S)
    with tp.recording.open(tmp_path / "run-7") as recording:
        (ledger,) = recording.ledger(free_stream_id)
        assert ledger.balanced
        assert ledger.rows > 0


def test_recorder_continues_when_the_console_ends(
    lab: Laboratory, tmp_path: Path, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("detector", free_stream_id, detector, 50)
    with steering(lab, recordings=(tmp_path,)) as (server, websocket):
        wait_until(lambda: server.feed.snapshot.stream(free_stream_id) is not None, timeout=DEADLINE_S)
        _, started = order(websocket, "record", name="run", streams=[free_stream_id])
        wait_until(lambda: any(r.rows for r in server.feed.snapshot.recorders), timeout=DEADLINE_S)
        rows = max(recorder.rows for recorder in server.feed.snapshot.recorders)
    with steering(lab, recordings=(tmp_path,)) as (server, websocket):
        wait_until(
            lambda: any(r.pid == started["pid"] and r.rows > rows for r in server.feed.snapshot.recorders),
            timeout=DEADLINE_S,
        )
        # The new console controls it as any recorder, by its service.
        text, _ = order(websocket, "service", tag="service:recorder:run", name="stop", value={})
        assert text == "Call stop() of recorder:run."
        wait_until(
            lambda: [r.state for r in server.feed.snapshot.recorders] == ["stopped"], timeout=DEADLINE_S
        )
        os.kill(started["pid"], signal.SIGINT)
        wait_until(lambda: not Path("/proc", str(started["pid"])).exists(), timeout=DEADLINE_S)


def test_export_is_downloaded_and_equals_the_recording(
    lab: Laboratory, tmp_path: Path, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("detector", free_stream_id, detector, 50)
    root = tmp_path / "run"
    record(lab, root, free_stream_id, 10, wait_until)
    with steering(lab, recordings=(tmp_path,)) as (server, websocket):
        text, started = order(websocket, "export", root=str(root), stream=free_stream_id, form="npy")
        assert text == f"Export {free_stream_id} (detector) of {root} as npy."
        done = wait_until(lambda: finished(websocket, started["job"]), timeout=DEADLINE_S)
        assert done["done"] == done["total"] == done["result"]["frames"]
        assert get(server, f"/job/{started['job']}")[0] == 401
        status, headers, body = get(server, f"/job/{started['job']}", cookie=session(server))
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        assert headers["content-disposition"].startswith("attachment")
        frames = np.load(io.BytesIO(body))
        with tp.recording.open(root) as recording:
            assert np.array_equal(frames, recording.frames(free_stream_id).stack())
        assert "--exports DIR" in order(
            websocket, "export", root=str(root), stream=free_stream_id, form="zarr"
        )
        assert get(server, "/job/99", cookie=session(server))[0] == 404
    kept = tmp_path / "kept"
    kept.mkdir()
    with steering(lab, recordings=(tmp_path,), exports=kept) as (server, websocket):
        _, started = order(websocket, "export", root=str(root), stream=free_stream_id, form="parquet")
        done = wait_until(lambda: finished(websocket, started["job"]), timeout=DEADLINE_S)
        assert Path(done["result"]["path"]).parent == kept
    assert Path(done["result"]["path"]).is_file()


def test_replay_publishes_under_other_ids_with_progress(
    lab: Laboratory, tmp_path: Path, free_stream_ids: Callable[[], int], wait_until: WaitUntil
) -> None:
    stream_id, other_id = free_stream_ids(), free_stream_ids()
    lab.produce("detector", stream_id, detector, 50)
    root = tmp_path / "run"
    record(lab, root, stream_id, 100, wait_until)
    with steering(lab, recordings=(tmp_path,)) as (server, websocket):
        wait_until(
            lambda: (s := server.feed.snapshot.stream(stream_id)) is not None and s.producer is not None,
            timeout=DEADLINE_S,
        )
        assert f"stream {stream_id} has a producer" in order(websocket, "replay", root=str(root))
        text, started = order(websocket, "replay", root=str(root), first_id=other_id, loop=True)
        assert text == (
            f"Replay {root} at 1 times its speed, again and again: {stream_id} (detector) as {other_id}."
        )
        with lab.context.consumer(other_id) as consumer:
            assert consumer.receive(DEADLINE_S).array[3, 5] == 54_321
        wait_until(lambda: job(websocket, started["job"])["done"] > 0, timeout=DEADLINE_S)
        assert "frames" in job(websocket, started["job"])["note"]
        order(websocket, "end", job=started["job"])
        done = wait_until(lambda: finished(websocket, started["job"]), timeout=DEADLINE_S)
        assert done["result"]["frames"] > 0
        wait_until(lambda: len(notices(server)) == 2, timeout=DEADLINE_S)


def test_failed_process_has_a_reason(
    lab: Laboratory,
    tmp_path: Path,
    free_stream_id: int,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab.produce("detector", free_stream_id, detector, 50)
    root = tmp_path / "run"
    record(lab, root, free_stream_id, 5, wait_until)
    with steering(lab, recordings=(tmp_path,)) as (_, websocket):
        monkeypatch.setenv("TENSORPOOL_CONTEXT__MODE", "nonsense")
        _, started = order(websocket, "replay", root=str(root), first_id=free_stream_id + 50_000)
        wait_until(lambda: not job(websocket, started["job"])["running"], timeout=DEADLINE_S)
        assert "nonsense" in job(websocket, started["job"])["error"]


def test_viewer_that_only_watches_starts_nothing(
    lab: Laboratory, tmp_path: Path, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("detector", free_stream_id, detector, 50)
    root = tmp_path / "run"
    record(lab, root, free_stream_id, 5, wait_until)
    with console(lab, period_s=0.2, recordings=(tmp_path,)) as server:
        with viewer(server, session(server, ViewerRole.WATCH)) as websocket:
            orders: dict[str, dict[str, Any]] = {
                "record": {"name": "run-2", "streams": [free_stream_id]},
                "export": {"root": str(root), "stream": free_stream_id, "form": "npy"},
                "replay": {"root": str(root)},
                "end": {"job": 1},
            }
            for action, arguments in orders.items():
                assert "only watches" in order(websocket, action, **arguments)
            # A check only reads.
            started = ask(websocket, "verify", root=str(root))
            done = wait_until(lambda: finished(websocket, started["job"]), timeout=DEADLINE_S)
            assert done["result"]["ok"]
        assert notices(server) == []


@pytest.mark.parametrize(
    ("action", "arguments", "why"),
    [
        ("record", {"name": "../x", "streams": [1]}, "name is a file name"),
        ("record", {"name": "x", "streams": []}, "streams are 1 to"),
        ("record", {"name": "x", "streams": [12345]}, "no stream 12345"),
        ("export", {"root": "/etc", "stream": 1, "form": "npy"}, "no such recording"),
        ("replay", {"root": "/etc"}, "no such recording"),
        ("end", {"job": 77}, "no such job"),
        ("format", {}, "no such order"),
    ],
)
def test_senseless_order_is_refused(
    lab: Laboratory, tmp_path: Path, action: str, arguments: Any, why: str
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with steering(lab, recordings=(runs,)) as (_, websocket):
        assert why in order(websocket, action, **arguments)
    assert list(runs.iterdir()) == []


def test_page_of_a_report_has_an_origin_of_its_own(lab: Laboratory, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("<p>report</p>")
    with console(lab) as server:
        server.files[1] = ServedFile(page, page.name, is_page=True)
        status, headers, body = get(server, "/job/1", cookie=session(server))
        assert (status, body) == (200, b"<p>report</p>")
        # Scripts of the page run without the console's cookie, and reach nothing.
        assert headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert json.dumps(headers).count("content-security-policy") == 1


def test_pipeline_shows_stages_tables_rows_and_its_report(
    lab: Laboratory, tmp_path: Path, wait_until: WaitUntil
) -> None:
    root = tmp_path / "tables" / "night"
    made = pipeline(root, streams=(10_000, 10_001), seconds=10)
    with console(lab, pipelines=(str(root.parent),)) as server:
        cookie = session(server, ViewerRole.WATCH)
        with viewer(server, cookie) as websocket:
            (row,) = ask(websocket, "pipelines")["pipelines"]
            assert (row["root"], row["error"], row["is_running"]) == (str(root), "", False)
            assert row["stages"].keys() == {"bronze", "silver", "align", "gold"}
            tables = {table["name"]: table for table in row["tables"]}
            assert tables["silver/frames"]["rows"] == sum(made.frames.values())
            sample = ask(websocket, "table", root=str(root), table="bronze/frames")
            assert "stream_id" in sample["columns"]
            assert 0 < len(sample["rows"]) <= 20
            assert len(sample["rows"][0]) == len(sample["columns"])
            assert "no table" in ask(websocket, "table", root=str(root), table="../../etc")
            assert "no such pipeline" in ask(websocket, "table", root="/etc", table="bronze/frames")
            # A report only reads: any viewer may ask for it.
            started = ask(websocket, "report", root=str(root))
            done = wait_until(lambda: finished(websocket, started["job"]), timeout=DEADLINE_S)
            assert done["result"]["frames"] == sum(made.frames.values())
        status, headers, body = get(server, f"/job/{started['job']}", cookie=cookie)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b"<html" in body
