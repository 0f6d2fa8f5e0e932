"""The console in Chromium: what it shows, by pointer and keyboard, on every screen, and what it forbids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpool.console.server import ConsoleServer
from tests.browser import Browser, browser, missing
from tests.e2e.console_system import Laboratory, console, detector, full_laboratory, laboratory
from tests.integration.supervisor.load import SyntheticSystem
from tests.remote_process import RemoteProcess
from tests.unit.pipeline.conftest import _arrows_threads  # noqa: F401  a fixture
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
    # Zoomed in, the server sends the part that is shown, and the value stays.
    for _ in range(6):
        chromium.scroll(place[0], place[1], -120)
    wait_until(
        lambda: chromium.run("const h = tensorpool.view.frame.header; return h.columns < h.width / 2"),
        timeout=DEADLINE_S,
    )
    chromium.move(place[0] + 0.5, place[1])
    wait_until(lambda: "54321" in text(chromium, ".over"), timeout=DEADLINE_S)
    assert "Histogram of the shown values: " in chromium.run(
        "return tensorpool.view.histogram.getAttribute('aria-label')"
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


def test_plots_have_samples_and_marks(
    lab: Laboratory, server: ConsoleServer, chromium: Browser, wait_until: WaitUntil
) -> None:
    chromium.visit(server.url())
    chromium.run(f"location.hash = '#/time/{lab.streams['detector']}'")
    wait_until(lambda: "Hz" in text(chromium, ".plot .value"), timeout=DEADLINE_S)
    history = "const h = tensorpool.view.history; return h ? h.series.rate.filter(v => v !== null).length : 0"
    wait_until(lambda: chromium.run(history) > 8, timeout=DEADLINE_S)
    assert chromium.run("return tensorpool.view.plots[0].notices.length") > 0
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
