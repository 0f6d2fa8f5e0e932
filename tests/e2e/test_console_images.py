"""The images of the console's page and of the README, made in Chromium on a running system.

`TENSORPOOL_WRITE_IMAGES=1 pytest tests/e2e/test_console_images.py` writes them into docs/.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser, browser, missing
from tests.e2e.console_system import console, full_laboratory
from tests.e2e.pages import ROOT

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.timeout(400),
]

DEADLINE_S = 120
MAX_BYTES = 300 << 10
SIZE = (1280, 720)
IMAGES = {
    "console": ROOT / "docs" / "images" / "console.png",
    "console-frame": ROOT / "docs" / "how-to" / "images" / "console-frame.png",
    "console-recordings": ROOT / "docs" / "how-to" / "images" / "console-recordings.png",
}


def size_of(image: bytes) -> tuple[int, int]:
    """Width and height of a PNG file."""
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack_from(">II", image, 16)
    return width, height


def text(page: Browser) -> str:
    shown: str = page.run("return document.body.innerText")
    return shown


def test_images_of_the_pages_can_be_made(
    aeron_dir: Path, shm_base: Path, tmp_path: Path, free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
) -> None:  # fmt: skip
    writes = os.environ.get("TENSORPOOL_WRITE_IMAGES") == "1"
    runs = tmp_path / "runs"
    with full_laboratory(aeron_dir, shm_base, free_stream_ids) as lab:
        streams = [lab.streams["detector"], lab.streams["spectrum"]]
        with lab.context.record(runs / "run-41", streams=streams) as recorder:
            wait_until(lambda: recorder.stats().rows >= 200, timeout=DEADLINE_S)
        with (
            lab.context.record(runs / "run-42", streams=[lab.streams["detector"]]),
            console(lab, recordings=(runs,)) as server,
            browser() as page,
        ):
            page.resize(*SIZE)
            page.prefer("light")
            page.visit(server.url())
            shown: dict[str, bytes] = {}

            def shoot(name: str, *texts: str) -> None:
                """Takes an image once the page shows all of the texts."""
                wait_until(lambda: all(part in text(page) for part in texts), timeout=DEADLINE_S)
                shown[name] = page.screenshot()

            nodes = "return [...document.querySelectorAll('.node')].map(n => n.textContent).join(' ')"
            wait_until(
                lambda: "recording" in (graph := page.run(nodes)) and "loses" in graph, timeout=DEADLINE_S
            )
            shoot("console", "4 of 4 live", "adds up")
            page.run(f"location.hash = '#/frame/{lab.streams['detector']}'")
            wait_until(lambda: "uint16" in text(page), timeout=DEADLINE_S)
            page.run("const s = document.querySelectorAll('.tools select')[1];"
                     "s.value = 'viridis'; s.dispatchEvent(new Event('change'))")  # fmt: skip
            page.move(480, 400)
            shoot("console-frame", "row ", "column ", "capture to pixels")
            page.run("location.hash = '#/recordings'")
            wait_until(lambda: "run-41" in text(page), timeout=DEADLINE_S)
            page.run(f"tensorpool.view.open({str(runs / 'run-41')!r})")
            wait_until(lambda: "spectrum" in text(page), timeout=DEADLINE_S)
            page.run("tensorpool.view.verify()")
            shoot("console-recordings", "every checksum is right", "sequence")
    for name, image in shown.items():
        if writes:
            IMAGES[name].parent.mkdir(exist_ok=True)
            IMAGES[name].write_bytes(image)
        # The image of the page has to have the same size as a new one, and few bytes.
        for file in (image, IMAGES[name].read_bytes()):
            assert size_of(file) == SIZE
            assert 10_000 < len(file) <= MAX_BYTES, name
    assert shown.keys() == IMAGES.keys()


def test_pages_show_the_images() -> None:
    for page, image in {
        "README.md": "docs/images/console.png",
        "docs/how-to/watch-a-system-in-a-browser.md": "images/console-frame.png",
    }.items():
        assert f"({image})" in (ROOT / page).read_text("utf-8")
