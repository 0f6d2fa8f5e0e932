"""The console in Chromium: what it shows, by pointer and keyboard, on every screen, and what it forbids."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tensorpool as tp
from benchmarks.pacing import repeating
from tensorpool.console import server as server_module
from tensorpool.console.access import Tokens
from tensorpool.console.server import ConsoleServer
from tensorpool.monitor.reports import Notice
from tensorpool.service import Service
from tensorpool.spark.live_source import consumer_label
from tests.browser import Browser, browser, missing
from tests.e2e.console_system import (
    Laboratory,
    console,
    detector,
    full_laboratory,
    laboratory,
    publishing,
    spectrum,
)
from tests.integration.bridge.hosts import Host, Pair, open_host
from tests.integration.supervisor.load import SyntheticSystem
from tests.ports import free_port
from tests.remote_process import RemoteProcess
from tests.unit.pipeline.conftest import arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.report.sample_tables import pipeline

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.timeout(300),
]

DEADLINE_S = 90
WaitUntil = Callable[..., None]


@pytest.fixture
def chromium() -> Iterator[Browser]:
    with browser() as window:
        yield window


@pytest.fixture
def lab(aeron_dir: Path, shm_base: Path, free_stream_ids: Callable[[], int]) -> Iterator[Laboratory]:
    with full_laboratory(aeron_dir, shm_base, free_stream_ids) as system:
        yield system


@pytest.fixture
def server(lab: Laboratory) -> Iterator[ConsoleServer]:
    with console(lab) as running:
        yield running


@pytest.fixture
def full_server(lab: Laboratory, tmp_path: Path, wait_until: WaitUntil) -> Iterator[ConsoleServer]:
    """A console with something in every view: recordings, one of them running, and a pipeline."""
    runs = tmp_path / "runs"
    with lab.context.record(runs / "run-1", streams=[lab.streams["detector"]]) as recorder:
        wait_until(lambda: recorder.stats().rows >= 10, timeout=DEADLINE_S)
    pipeline(tmp_path / "tables" / "night", streams=(10_000,), seconds=3)
    with (
        lab.context.record(runs / "run-2", streams=[lab.streams["spectrum"]]),
        console(lab, recordings=(runs,), pipelines=(str(tmp_path / "tables"),)) as running,
    ):
        yield running


def text(page: Browser, selector: str) -> str:
    """The visible text of an element; nothing if it is not there."""
    shown: str = page.run(f"return document.querySelector({json.dumps(selector)})?.innerText ?? ''")
    return shown


def errors(page: Browser) -> list[str]:
    """Errors of the page's own scripts, and what the content policy blocked."""
    return [entry["message"] for entry in page.log() if entry["level"] == "SEVERE"]


def nodes(page: Browser) -> str:
    """All nodes of the graph, as a screen reader reads them."""
    labels: str = page.run(
        "return [...document.querySelectorAll('.node')].map(n => n.getAttribute('aria-label')).join('\\n')"
    )
    return labels


def accessibility_faults(page: Browser) -> list[tuple[str, list[str]]]:
    """What axe-core finds on the page as it is."""
    source = resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    found: Any = page.devtools(
        "Runtime.evaluate",
        expression=source + ";axe.run(document, {resultTypes: ['violations']}).then(r => JSON.stringify("
        "r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 160))])))",
        awaitPromise=True,
        returnByValue=True,
    )
    return [(rule, places) for rule, places in json.loads(found["result"]["value"])]


def test_graph_shows_the_system_live(
    lab: Laboratory, server: ConsoleServer, chromium: Browser, wait_until: WaitUntil
) -> None:
    chromium.visit(server.url())
    # The token has left the address.
    assert "token" not in chromium.address()
    wait_until(lambda: "4 of 4 live" in text(chromium, "#totals"), timeout=DEADLINE_S)
    wait_until(lambda: "loses" in nodes(chromium), timeout=DEADLINE_S)
    shown = nodes(chromium)
    for name in (
        "detector",
        "camera",
        "spectrum",
        "volume",
        "viewer",
        "archive",
        "slow-fit",
        "driver default",
    ):
        assert name in shown
    # The limiter is drawn on the way to the limited consumer.
    wait_until(
        lambda: chromium.run("return document.querySelectorAll('.limiter').length") == 1, timeout=DEADLINE_S
    )
    # By keyboard: a node gets the focus, Enter shows its details, Escape hides them.
    chromium.run("document.querySelector('.node.stream').focus()")
    chromium.press("Enter", 13)
    wait_until(lambda: "PRODUCER" in text(chromium, "#drawer"), timeout=DEADLINE_S)
    assert "committed" in text(chromium, "#drawer")
    chromium.press("Escape", 27)
    wait_until(lambda: chromium.run("return document.querySelector('#drawer').hidden"), timeout=DEADLINE_S)
    assert errors(chromium) == []


class Shutter(Service, name="shutter"):
    """A service that is no driver, recorder or bridge."""


def test_graph_has_bridges_hosts_limiters_recorders_and_queries(
    aeron_dir: Path, shm_base: Path, tmp_path: Path, free_stream_ids: Callable[[], int], chromium: Browser,
    wait_until: WaitUntil,
) -> None:  # fmt: skip
    pipeline(tmp_path / "tables" / "night", streams=(10_000,), seconds=3)
    detector_id, limited_id, far_id, back_id = (free_stream_ids() for _ in range(4))
    with laboratory(aeron_dir, shm_base) as lab, ExitStack() as stack:
        lab.produce("detector", detector_id, detector, 50)
        lab.consume("detector", consumer_label("1a2b3c4d-0000-4000-8000-000000000000"))
        here = Host("here", lab.context, stack)
        stack.callback((shm_base / "there").rmdir)
        there = open_host("there", Path(f"{aeron_dir}-there"), shm_base / "there", stack)
        ports = [(free_port(), free_port(), free_port()) for _ in range(2)]
        Pair(here, there, ports[0], wait_until).connect(detector_id, far_id)
        far = stack.enter_context(there.context.producer(far_id + 1_000_000, pools=["64KiB"], name="far-eye"))
        stack.enter_context(publishing(far, spectrum, 20))
        Pair(there, here, ports[1], wait_until).connect(far_id + 1_000_000, back_id)
        limiter = stack.enter_context(tp.Limiter(lab.context, detector_id, limited_id, max_rate_hz=5))
        lab.streams["limited"] = limited_id
        lab.consume("limited", "preview")
        stack.enter_context(lab.context.record(tmp_path / "run", streams=[detector_id]))
        service = lab.context.serve(Shutter())
        stack.enter_context(service)
        server = stack.enter_context(console(lab, pipelines=(str(tmp_path / "tables"),)))
        chromium.visit(server.url())
        wanted = (
            "Producer ", "Stream detector: ", "Spark query Spark query 1a2b3c4d: ", "recorder recorder: ",
            "bridge bridge:here: 1 mappings", "bridge bridge:there: 1 mappings", "Limiter limiter: ",
            f"Stream of another host stream {far_id}: 127.0.0.1", "Stream of another host stream ",
            "Consumer preview: ", "driver driver default: ", "Service shutter: ", "Stream far-eye: ",
            "Pipeline, Spark queries pipeline night: at rest",
        )  # fmt: skip
        wait_until(lambda: all(text in nodes(chromium) for text in wanted), timeout=DEADLINE_S)
        # One frame for each host, with its name where it is known.
        frames = "return [...document.querySelectorAll('.graph svg .frame + text')].map(t => t.textContent)"
        assert sorted(chromium.run(frames)) == [
            "another host", "host 127.0.0.1", f"host {socket.gethostname()}",
        ]  # fmt: skip
        # The limiter stands between its streams, at the rates of both.
        wait_until(lambda: re.search(r"Limiter limiter: \d\d.* to [1-5](\.\d)? Hz", nodes(chromium)),
                   timeout=DEADLINE_S)  # fmt: skip
        # No path of the ledger disagrees, also while frames are on their way.
        summary = "return JSON.stringify(tensorpool.connection.document.system[''].paths)"
        wait_until(lambda: "bridge receive" in json.dumps(server.feed.whole()[1]), timeout=DEADLINE_S)
        for _ in range(8):
            version = server.feed.whole()[0]
            wait_until(lambda version=version: server.feed.whole()[0] > version, timeout=DEADLINE_S)
            assert "mismatch" not in chromium.run(summary)
        # A click gives what is known of a service, and the way to its properties.
        chromium.run("tensorpool.select('service', 'service:shutter')")
        wait_until(lambda: "Properties and commands" in text(chromium, "#drawer"), timeout=DEADLINE_S)
        # What has left is grey, and says why.
        service.close()
        limiter.close()
        gone = "return [...document.querySelectorAll('.node.gone')].map(n => n.getAttribute('aria-label'))"
        wait_until(
            lambda: (
                {"service shutter", "consumer limiter"}
                <= {label.split(":")[0].removesuffix(f" to {limited_id}") for label in chromium.run(gone)}
            ),
            timeout=DEADLINE_S,
        )
        assert all(label.partition(": ")[2] for label in chromium.run(gone))
        assert accessibility_faults(chromium) == []
        assert errors(chromium) == []


def test_departed_consumer_is_grey_with_its_reason(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, chromium: Browser, wait_until: WaitUntil
) -> None:
    with laboratory(aeron_dir, shm_base) as lab:
        lab.produce("detector", free_stream_id, detector, 20)
        with console(lab) as server, lab.context.consumer(free_stream_id, label="short-lived") as consumer:
            chromium.visit(server.url())
            consumer.receive(DEADLINE_S)
            wait_until(lambda: "short-lived" in nodes(chromium), timeout=DEADLINE_S)
            consumer.close()
            script = "return document.querySelector('.node.gone')?.getAttribute('aria-label') ?? ''"
            wait_until(lambda: "short-lived" in chromium.run(script), timeout=DEADLINE_S)
            assert any(reason in chromium.run(script) for reason in ("it was closed", "detached"))


def test_pointer_shows_true_sixteen_bit_values(
    lab: Laboratory, server: ConsoleServer, chromium: Browser, wait_until: WaitUntil
) -> None:
    chromium.resize(1200, 800)
    chromium.visit(server.url())
    chromium.run(f"location.hash = '#/frame/{lab.streams['detector']}'")
    wait_until(lambda: "uint16" in text(chromium, ".viewer .side"), timeout=DEADLINE_S)
    place = chromium.run(
        "const v = tensorpool.view, b = v.canvas.getBoundingClientRect(), w = v.window();"
        "const s = b.width / w.width;"
        "return [b.left + (5.5 - w.left) * s, b.top + (3.5 - w.top) * s]"
    )
    chromium.move(*place)
    wait_until(lambda: "row 3, column 5: 54321" in text(chromium, ".over"), timeout=DEADLINE_S)
    # The greatest value is that of one element among 76,800; the scale of all values reaches it.
    wait_until(
        lambda: re.fullmatch(r"9\d\d to 54321, .*", text(chromium, ".viewer .side .muted")),
        timeout=DEADLINE_S,
    )
    # Zoomed in, the server sends the part that is shown, and the value stays.
    for _ in range(6):
        chromium.scroll(place[0], place[1], -120)
    wait_until(
        lambda: chromium.run("const h = tensorpool.view.frame.header; return h.columns < h.width / 2"),
        timeout=DEADLINE_S,
    )
    chromium.move(place[0] + 0.5, place[1])
    wait_until(lambda: "54321" in text(chromium, ".over"), timeout=DEADLINE_S)
    histogram = "return tensorpool.view.histogram.getAttribute('aria-label')"
    assert "Histogram of the shown values: " in chromium.run(histogram)
    # The profiles have names with their ranges.
    profiles = "return [...document.querySelectorAll('.side canvas')].map(c => c.getAttribute('aria-label'))"
    wait_until(
        lambda: re.search(
            r"along row 3: \d+ to 54321.*along column 5: \d+ to 54321", str(chromium.run(profiles))
        ),
        timeout=DEADLINE_S,
    )
    # The crosshair moves by keyboard.
    before = text(chromium, ".over")
    chromium.run("tensorpool.view.canvas.focus()")
    chromium.press("ArrowRight", 39)
    wait_until(lambda: text(chromium, ".over") not in ("", before), timeout=DEADLINE_S)
    assert errors(chromium) == []


def test_every_kind_of_frame_is_drawn(
    lab: Laboratory, server: ConsoleServer, chromium: Browser, wait_until: WaitUntil
) -> None:
    chromium.resize(1200, 800)
    chromium.visit(server.url())
    chromium.run(f"location.hash = '#/frame/{lab.streams['camera']}'")
    wait_until(lambda: "240 \u00d7 320 \u00d7 3" in text(chromium, ".viewer .side"), timeout=DEADLINE_S)
    colours = chromium.run(
        "const v = tensorpool.view, d = v.image.pen.getImageData(0, 0, 320, 240).data;"
        "return [v.frame.elements[0], v.frame.elements[1], d[0], d[1], d[2]]"
    )
    assert colours[2:4] == pytest.approx(colours[:2], abs=1)
    assert colours[4] == pytest.approx(90, abs=1)
    chromium.run(f"location.hash = '#/frame/{lab.streams['spectrum']}'")
    wait_until(lambda: "2048" in text(chromium, ".viewer .side"), timeout=DEADLINE_S)
    wait_until(lambda: chromium.run("return tensorpool.view.lines.length > 5"), timeout=DEADLINE_S)
    chromium.run(f"location.hash = '#/frame/{lab.streams['volume']}'")
    wait_until(lambda: "5 \u00d7 240 \u00d7 320" in text(chromium, ".viewer .side"), timeout=DEADLINE_S)
    chromium.run(
        "const r = document.querySelector('.planes input'); r.value = 4; r.dispatchEvent(new Event('input'))"
    )
    wait_until(lambda: "NaN" in text(chromium, ".viewer .side"), timeout=DEADLINE_S)
    assert "+inf" in text(chromium, ".viewer .side")
    pixel = "return [...tensorpool.view.image.pen.getImageData(1, 1, 1, 1).data]"
    wait_until(lambda: chromium.run(pixel) == [255, 0, 176, 255], timeout=DEADLINE_S)
    assert errors(chromium) == []


def test_frames_of_unexpected_types_do_not_end_the_view(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, chromium: Browser, wait_until: WaitUntil
) -> None:
    """Every frame has another type and another shape; the page shows each, or says why it cannot."""
    frames: list[tuple[np.ndarray[Any, Any], str]] = [
        (np.array([[True, False]]), "line"),
        (np.full((4, 4), np.nan, np.float64), "image"),
        (np.full((4, 4), -np.inf, np.float32), "image"),
        (np.array([np.inf, 1, np.nan], np.float32), "line"),
        (np.full((3, 3), 1 << 62, np.int64), "image"),
        (np.full((3, 3), (1 << 64) - 1, np.uint64), "image"),
        (np.zeros((0, 7), np.uint8), "none"),
        (np.zeros((2, 1, 3, 1, 2, 2), np.int8), "image"),
        (np.array([7], np.uint16), "line"),
        (np.arange(12, dtype=np.int16), "line"),
    ]
    with laboratory(aeron_dir, shm_base) as lab:
        producer = lab.stack.enter_context(lab.context.producer(free_stream_id, pools=["4KiB"], nslots=8))
        with console(lab) as server, ExitStack() as stack:
            chromium.visit(server.url())
            chromium.run(f"location.hash = '#/frame/{free_stream_id}'")
            shown = "const h = tensorpool.view.frame?.header; return h ? [h.type, h.shape, h.kind] : []"
            for frame, kind in frames:
                with repeating(partial(producer.offer, frame), 25):
                    expected = [list(frame.shape), kind]
                    wait_until(
                        lambda expected=expected: chromium.run(shown)[1:] == expected, timeout=DEADLINE_S
                    )
                if kind == "none":
                    assert "no elements" in text(chromium, ".viewer .message")
            # A stream that stops says so: an old frame must not pass for a new one.
            wait_until(lambda: "No new frame for" in text(chromium, ".viewer .stale"), timeout=DEADLINE_S)
            stack.enter_context(repeating(partial(producer.offer, frames[-1][0]), 25))
            wait_until(lambda: chromium.run("return tensorpool.view.stale.hidden"), timeout=DEADLINE_S)
            assert errors(chromium) == []


def test_fingers_zoom_and_a_tap_shows_a_value(
    lab: Laboratory, server: ConsoleServer, chromium: Browser, wait_until: WaitUntil
) -> None:
    chromium.resize(390, 844, is_phone=True)
    chromium.devtools("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    chromium.visit(server.url())
    chromium.run(f"location.hash = '#/frame/{lab.streams['detector']}'")
    wait_until(lambda: "uint16" in text(chromium, ".viewer .side"), timeout=DEADLINE_S)
    x, y = chromium.run(
        "const b = tensorpool.view.canvas.getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2]"
    )

    def touch(kind: str, *places: float) -> None:
        points = [{"x": x + at, "y": y, "id": number} for number, at in enumerate(places)]
        chromium.devtools("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", 0)
    touch("touchEnd")
    wait_until(lambda: re.match(r"row \d+, column \d+: \d+", text(chromium, ".over")), timeout=DEADLINE_S)
    touch("touchStart", -20)
    touch("touchStart", -20, 20)
    for distance in (40, 60, 80):
        touch("touchMove", -distance, distance)
    touch("touchEnd")
    # From 20 pixels to 80 on both sides: a quarter of the frame is left.
    zoomed = chromium.run("return tensorpool.view.window().width")
    assert zoomed == pytest.approx(320 / 4, rel=0.1)
    assert errors(chromium) == []


def test_plots_have_samples_and_marks(
    lab: Laboratory, server: ConsoleServer, free_stream_id: int, chromium: Browser, wait_until: WaitUntil
) -> None:
    chromium.visit(server.url())
    chromium.run(f"location.hash = '#/time/{lab.streams['detector']}'")
    wait_until(lambda: "Hz" in text(chromium, ".plot .value"), timeout=DEADLINE_S)
    history = "const h = tensorpool.view.history; return h ? h.series.rate.filter(v => v !== null).length : 0"
    wait_until(lambda: chromium.run(history) > 8, timeout=DEADLINE_S)
    # What the console found when it started is no event of that time.
    assert chromium.run("return tensorpool.view.plots[0].notices") == []
    assert "Frame rate: " in chromium.run(
        "return document.querySelector('.plot canvas').getAttribute('aria-label')"
    )
    # The system's drops have the reasons of its slow consumer.
    chromium.run("location.hash = '#/time/system'")
    wait_until(
        lambda: chromium.run(
            "return Object.keys(tensorpool.view.history?.series ?? {}).some(n => n.startsWith('drop:'))"
        ),
        timeout=DEADLINE_S,
    )
    # Another producer begins another epoch, an order is given, a consumer comes: each has its mark.
    for _ in range(2):
        lab.context.producer(free_stream_id, pools=["4KiB"], nslots=4).close()
    server.feed.add_notice(Notice("order", None, "Stop the driver. done"))
    lab.consume("detector", "late-comer")
    marks = "return tensorpool.view.plots[0].notices.map(n => n.kind)"
    wait_until(lambda: {"epoch", "order", "consumer"} <= set(chromium.run(marks)), timeout=DEADLINE_S)
    assert errors(chromium) == []


def test_recording_has_its_gaps_epochs_and_any_frame(
    aeron_dir: Path, shm_base: Path, tmp_path: Path, free_stream_id: int, chromium: Browser,
    wait_until: WaitUntil,
) -> None:  # fmt: skip
    with laboratory(aeron_dir, shm_base) as lab:
        with lab.context.record(tmp_path / "run", streams=[free_stream_id]) as recorder:
            # More are left out than the ring holds: a recorder that starts may find its last frames there.
            for recorded, left_out in (((8, 8), 80), ((4,), 0)):
                with lab.context.producer(free_stream_id, pools=["1KiB"], nslots=64, name="eye") as producer:
                    for number, frames in enumerate(recorded):
                        if number:
                            recorder.stop()
                            for _ in range(left_out):
                                producer.offer(np.zeros((4, 4), np.uint8))
                            recorder.start()
                        rows = recorder.stats().rows
                        while recorder.stats().rows < rows + frames:
                            producer.offer(np.zeros((4, 4), np.uint8))
                            time.sleep(0.05)
        with console(lab, recordings=(tmp_path,)) as server:
            chromium.visit(server.url())
            chromium.run("location.hash = '#/recordings'")
            wait_until(lambda: text(chromium, "main").count("rows of") == 2, timeout=DEADLINE_S)
            ask = cast(Callable[..., Any], server.handlers["recording"])
            (stream,) = ask(None, {"root": str(tmp_path / "run")})["streams"]
            assert len(stream["epochs"]) == 2
            epoch, seq, count, reason = max(stream["gaps"], key=lambda gap: gap[2])
            assert count >= 16
            wanted = next(item for item in stream["epochs"] if str(item["epoch"]) == epoch)
            # The red part of the bar is where the gap is, with its reason.
            gap = chromium.run(
                "const g = [...document.querySelectorAll('.track .gap')]"
                f".find(g => g.textContent === '{count} missing: {reason}');"
                "return [Number(g.getAttribute('x')), Number(g.getAttribute('width'))]"
            )
            begin = int(seq) - int(wanted["first_seq"])
            expected = [900 * begin / wanted["span"], 900 * count / wanted["span"]]
            assert gap == pytest.approx(expected, rel=0.01)
            # A slider within the gap shows the frame behind it, and says so.
            chromium.run(
                "const r = [...document.querySelectorAll('.track input')]"
                f".find(r => r.max == {wanted['span'] - 1});"
                f"r.value = {begin + 1}; r.dispatchEvent(new Event('input'))"
            )
            found = f"eye, sequence {int(seq) + count}; {int(seq) + 1} is in a gap"
            wait_until(lambda: found in text(chromium, "main"), timeout=DEADLINE_S)
            assert accessibility_faults(chromium) == []
            assert errors(chromium) == []


def test_ledger_shows_every_path_and_mismatches_in_red(
    lab: Laboratory, server: ConsoleServer, chromium: Browser, wait_until: WaitUntil
) -> None:
    chromium.visit(server.url())
    chromium.run("location.hash = '#/ledger'")
    wait_until(
        lambda: "slow-fit" in text(chromium, "main") and "producer" in text(chromium, "main"),
        timeout=DEADLINE_S,
    )
    # A mismatch cannot be made on purpose: the page gets the update that one would cause.
    chromium.run(
        "tensorpool.connection.onUpdate({base: 1, silent_s: 0, remove: {}, set: {ledger: {'1|consumer|2':"
        " {stream: 1, path: 'consumer', who: '2', label: 'fit', published: 10, delivered: 8, dropped: {},"
        " waiting: 0, unaccounted: 2, ended: false, verdict: 'mismatch', problem: '2', meaning: ''}}}})"
    )
    assert text(chromium, "main tbody tr").startswith("stream 1\tconsumer\tfit 2\tmismatch")
    assert chromium.run("return document.querySelector('main tbody tr').className") == "bad"


def test_page_reconnects_and_shows_that_its_data_are_old(
    lab: Laboratory, chromium: Browser, wait_until: WaitUntil
) -> None:
    with console(lab) as first:
        chromium.visit(first.url())
        wait_until(lambda: text(chromium, "#link") == "live", timeout=DEADLINE_S)
        wait_until(lambda: "4 of 4" in text(chromium, "#totals"), timeout=DEADLINE_S)
        # The socket ends as if the network had failed: the page reconnects by itself.
        chromium.run("tensorpool.connection.socket.close(); window.lost = tensorpool.connection.socket")
        wait_until(
            lambda: chromium.run(
                "const c = tensorpool.connection; return c.socket !== window.lost && c.state === 'live'"
            ),
            timeout=DEADLINE_S,
        )
    wait_until(lambda: "old" in text(chromium, "#old"), timeout=DEADLINE_S)
    assert "4 of 4" in text(chromium, "#totals")


def test_page_follows_a_console_that_was_started_again(
    lab: Laboratory, chromium: Browser, wait_until: WaitUntil
) -> None:
    """With the tokens of a file the page reconnects by itself; with others it says what to do."""
    tokens, port = Tokens(steer="a-token-of-a-file"), free_port()
    with console(lab, tokens=tokens, port=port) as first:
        chromium.visit(first.url())
        wait_until(lambda: text(chromium, "#link") == "live", timeout=DEADLINE_S)
    wait_until(lambda: "reconnects by itself" in text(chromium, "#old"), timeout=DEADLINE_S)
    with console(lab, tokens=tokens, port=port):
        wait_until(lambda: text(chromium, "#link") == "live", timeout=DEADLINE_S)
        assert text(chromium, "#role") == "steering"
    with console(lab, port=port) as third:
        wait_until(lambda: text(chromium, "#link") == "no access", timeout=DEADLINE_S)
        assert "open the address that it printed" in text(chromium, "#old")
        assert accessibility_faults(chromium) == []
        chromium.visit(third.url())
        wait_until(lambda: text(chromium, "#link") == "live", timeout=DEADLINE_S)


def test_link_on_a_page_of_another_site_opens_the_console(
    lab: Laboratory, server: ConsoleServer, chromium: Browser, wait_until: WaitUntil
) -> None:
    """As in a chat: a strict cookie is not sent when another site has begun the navigation."""

    class Chat(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<a id="link" href="{server.url()}">console</a>'.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Prints nothing."""

    chat = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    thread = threading.Thread(target=chat.serve_forever)
    thread.start()
    try:
        chromium.visit(f"http://localhost:{chat.server_address[1]}/")
        entries = chromium.run("return history.length")
        chromium.run("document.getElementById('link').click()")
        wait_until(lambda: "4 of 4 live" in text(chromium, "#totals"), timeout=DEADLINE_S)
        assert "token" not in chromium.address()
        # Nor does the history of the browser keep the token: the console has one entry.
        assert chromium.run("return history.length") <= entries + 1
    finally:
        chat.shutdown()
        thread.join()
        chat.server_close()


@contextmanager
def relay(port: int) -> Iterator[tuple[int, threading.Event]]:
    """Passes bytes on to a port of this machine; while the event is set they vanish, and nothing ends."""
    is_dead, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = [listener]
    threads: list[threading.Thread] = []

    def start(target: Callable[..., None], *arguments: Any) -> None:
        threads.append(threading.Thread(target=target, args=arguments))
        threads[-1].start()

    def copy(source: socket.socket, sink: socket.socket, was_dead: bool) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                if is_dead.is_set():
                    was_dead = True
                if not was_dead:
                    sink.sendall(content)
            if not was_dead:
                sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                outer, _ = listener.accept()
                inner = socket.create_connection(("127.0.0.1", port))
                sockets.extend((outer, inner))
                for pair in ((outer, inner), (inner, outer)):
                    start(copy, *pair, is_dead.is_set())

    start(accept)
    try:
        yield listener.getsockname()[1], is_dead
    finally:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in sockets:
            each.close()


def test_page_gives_up_a_connection_that_has_died_in_silence(
    lab: Laboratory, chromium: Browser, wait_until: WaitUntil
) -> None:
    """As after a sleep, or when a router has forgotten the connection: no side receives its end."""
    with (
        console(lab, allowed_hosts=("localhost",), behind_proxy=True) as server,
        relay(server.port) as (port, is_dead),
    ):
        chromium.visit(f"http://localhost:{port}/?token={server.options.tokens.steer}")
        wait_until(lambda: "4 of 4" in text(chromium, "#totals"), timeout=DEADLINE_S)
        is_dead.set()
        wait_until(lambda: text(chromium, "#link") == "old", timeout=DEADLINE_S)
        wait_until(lambda: text(chromium, "#link") == "reconnecting", timeout=DEADLINE_S)
        is_dead.clear()
        wait_until(lambda: text(chromium, "#link") == "live", timeout=DEADLINE_S)


def test_stream_that_the_console_cannot_show_has_the_reason(
    lab: Laboratory, server: ConsoleServer, chromium: Browser, wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(server_module, "MAX_READERS", 0)
    chromium.visit(server.url())
    chromium.run(f"location.hash = '#/frame/{lab.streams['detector']}'")
    wait_until(lambda: "0 streams at once" in text(chromium, ".viewer .message"), timeout=DEADLINE_S)
    # As soon as there is room the stream is shown.
    monkeypatch.setattr(server_module, "MAX_READERS", 32)
    wait_until(lambda: "uint16" in text(chromium, ".viewer .side"), timeout=DEADLINE_S)
    assert chromium.run("return tensorpool.view.message.hidden")


@pytest.mark.parametrize(
    ("name", "width", "height", "scheme"),
    [
        ("desktop", 1440, 900, "light"),
        ("dark", 1440, 900, "dark"),
        ("phone", 390, 844, "dark"),
        ("wall", 3840, 2160, "dark"),
    ],
)
def test_every_view_fits_the_screen_and_has_names(
    lab: Laboratory, full_server: ConsoleServer, chromium: Browser, wait_until: WaitUntil,
    name: str, width: int, height: int, scheme: str,
) -> None:  # fmt: skip
    server = full_server
    texts = {"recordings": "rows of", "pipelines": "bronze/frames", "services": "COMMANDS"}
    chromium.resize(width, height, is_phone=width < 500)
    chromium.prefer(scheme)
    chromium.visit(server.url())
    wait_until(lambda: "4 of 4 live" in text(chromium, "#totals"), timeout=DEADLINE_S)
    views = chromium.run("return [...tensorpool.tabs.keys()]")
    for view in views:
        hash_ = f"#/frame/{lab.streams['detector']}" if view == "frame" else f"#/{view}"
        chromium.run(f"location.hash = '{hash_}'")
        wait_until(
            lambda view=view: len(main := text(chromium, "main")) > 20 and texts.get(view, "") in main,
            timeout=DEADLINE_S,
        )
        if view == "pipelines":
            chromium.run("tensorpool.view.show('bronze/frames'); tensorpool.view.report()")
            wait_until(lambda: "Open the page" in text(chromium, "main"), timeout=DEADLINE_S)
        assert chromium.run("return document.documentElement.scrollWidth") <= width, view
        # Nothing but tables and the graph scrolls sideways.
        assert (
            chromium.run("const m = document.querySelector('main'); return m.scrollWidth - m.clientWidth")
            <= 0
        )
        assert accessibility_faults(chromium) == [], view
    colour = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, colour[4:-1].split(","))) > 380) is (scheme == "light")
    assert errors(chromium) == []


def test_script_of_a_stream_name_is_only_text(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, chromium: Browser, wait_until: WaitUntil
) -> None:
    evil = "<img src=x onerror=window.hacked=1>"
    with laboratory(aeron_dir, shm_base) as lab:
        lab.produce(evil, free_stream_id, lambda _: np.zeros((4, 4), np.uint8), 20)
        with console(lab) as server:
            chromium.visit(server.url())
            wait_until(lambda: "onerror" in nodes(chromium), timeout=DEADLINE_S)
            chromium.run("location.hash = '#/streams'")
            wait_until(lambda: evil in text(chromium, "main"), timeout=DEADLINE_S)
            assert chromium.run("return [window.hacked ?? null, document.images.length]") == [None, 1]


@pytest.mark.long
def test_page_of_a_thousand_streams_stays_usable(
    aeron_dir: Path, shm_base: Path, chromium: Browser, wait_until: WaitUntil
) -> None:
    """A thousand streams with four consumers each; prints when the first view was complete."""
    options = {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base)}
    with (
        laboratory(aeron_dir, shm_base) as lab,
        RemoteProcess(SyntheticSystem) as system,
        console(lab, period_s=1.0) as server,
    ):
        system.call("publish", options=options, streams=1000, consumers=4)
        wait_until(lambda: len(server.feed.snapshot.streams) == 1000, timeout=DEADLINE_S)
        wait_until(
            lambda: sum(len(s.consumers) for s in server.feed.snapshot.streams) == 4000, timeout=DEADLINE_S
        )
        chromium.resize(1440, 900)
        chromium.visit(server.url())
        nodes_shown = "return document.querySelectorAll('.node').length"
        wait_until(lambda: chromium.run(nodes_shown) > 48, timeout=DEADLINE_S)
        shown_ms = chromium.run("return performance.now()")
        # The graph shows the most important streams, and how many it leaves out.
        assert "952 more streams" in text(chromium, "main")
        # The page keeps up: every update is drawn before the next one comes.
        chromium.run(
            "window.costs = [];"
            "const c = tensorpool.connection, old = c.onUpdate.bind(c);"
            "c.onUpdate = (m) => { const t = performance.now(); old(m); costs.push(performance.now() - t); }"
        )
        wait_until(lambda: chromium.run("return costs.length") >= 6, timeout=DEADLINE_S)
        costs = chromium.run("return costs")
        print(f"first view {shown_ms:.0f} ms after the load; updates take {max(costs):.0f} ms of the page")
        assert max(costs) < 1000
        # Filtering a table and its details answer at once.
        chromium.run("location.hash = '#/streams'")
        wait_until(lambda: "the first 500 of 1,000" in text(chromium, "main"), timeout=DEADLINE_S)
        chromium.run(
            "const s = tensorpool.view.search; s.value = '100999'; s.dispatchEvent(new Event('input'))"
        )
        wait_until(lambda: "1 streams" in text(chromium, "main"), timeout=DEADLINE_S)
        assert errors(chromium) == []
        system.call("close")
