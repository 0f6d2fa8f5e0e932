"""The pipeline report in Chromium: desktop, phone, dark scheme, print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorpool.pipeline import report
from tests.browser import Browser, browser, missing
from tests.unit.pipeline.conftest import arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.report.sample_tables import pipeline

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

# Elements that extend beyond the right edge of the window.
_OVERFLOWING = """
return [...document.querySelectorAll("body *")].filter(e => !e.closest("svg") && !e.hidden
  && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + "." + e.className)
"""
_CLIPPED = """
const boxes = [...document.querySelectorAll(".ys span, .tile b, figcaption b, td")];
return boxes.filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).map(e => e.textContent)
"""


@pytest.fixture
def chromium() -> Iterator[Browser]:
    """A private browser."""
    with browser() as window:
        yield window


def test_report_fits_every_screen(tmp_path: Path, chromium: Browser) -> None:
    page = tmp_path / "page.html"
    pipeline(tmp_path / "out", streams=(10_000, 10_001, 10_002), seconds=10)
    report.write(tmp_path / "out", page)
    colours = {}
    for name, width, scheme in (("desktop", 1280, "light"), ("dark", 1280, "dark"), ("phone", 360, "light")):
        chromium.resize(width, is_phone=width < 500)
        chromium.prefer(scheme)
        chromium.open(page)
        assert chromium.run(_OVERFLOWING) == [], name
        assert chromium.run("return document.documentElement.scrollWidth") <= width, name
        assert chromium.run(_CLIPPED) == [], name
        colours[name] = chromium.run("return getComputedStyle(document.body).backgroundColor")
        assert len(chromium.screenshot()) > 20_000, name
    assert colours["desktop"] == colours["phone"] != colours["dark"]
    assert chromium.log() == []
    assert chromium.pdf().startswith(b"%PDF")


def test_report_shows_frames_figures_and_hover_text(tmp_path: Path, chromium: Browser) -> None:
    page = tmp_path / "page.html"
    tables = pipeline(tmp_path / "out", streams=(10_000,), seconds=10)
    report.write(tmp_path / "out", page)
    chromium.open(page)
    images = chromium.run(
        "return [...document.images].map(i => [i.complete, i.naturalWidth, i.naturalHeight])"
    )
    assert images == [[True, 64, 48]] * 4
    assert f"{tables.frames[10_000]:,}" == chromium.run(
        "return document.querySelector('.tile b').textContent"
    )
    text = chromium.run(
        """
        const svg = document.querySelector(".plot svg"), box = svg.getBoundingClientRect();
        const at = {clientX: box.left + box.width * 0.36, clientY: box.top + 5};
        svg.dispatchEvent(new PointerEvent("pointermove", at));
        return svg.parentElement.querySelector(".hover").textContent
        """
    )
    assert text == "2026-03-01 12:00:03\nreceived 17 Hz\ndropped 3 Hz"
    assert chromium.log() == []
