"""docs/how-to/monitor-a-system: its images are those of the command, and its files exist.

TENSORPOOL_WRITE_IMAGES=1 pytest tests/e2e/test_watch_page.py      writes the images again
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

import tensorpool as tp
from tests.e2e.commandline import CommandLine
from tests.e2e.pages import ROOT

HOW_TO = ROOT / "docs" / "how-to"
IMAGES = HOW_TO / "images"
ROWS, COLUMNS = np.mgrid[0:120, 0:160]


def camera(n: int) -> npt.NDArray[np.uint8]:
    """An image of a ball in front of a sky."""
    x, y = 80 + 50 * np.sin(n / 15), 60 + 25 * np.cos(n / 11)
    ball = (COLUMNS - x) ** 2 + (ROWS - y) ** 2 < 24**2
    sky = np.stack([ROWS * 0.6, 60 + ROWS, 200 - ROWS * 0.8], -1)
    return np.where(ball[..., None], (235, 120, 40), sky).astype(np.uint8)


@contextmanager
def laboratory(command_line: CommandLine, out: Path) -> Iterator[None]:
    """Runs two cameras, a detector, an idle lidar, readers (one of them slow) and a recorder."""
    stop = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(tp.MediaDriver(command_line.aeron_dir))
        ctx = stack.enter_context(
            tp.open(
                "embedded",
                aeron_dir=command_line.aeron_dir,
                media_driver="external",
                shm_base_dir=command_line.shm_base,
            )
        )

        def producer(stream_id: int, name: str, pool: str = "64KiB") -> tp.Producer:
            return stack.enter_context(ctx.producer(stream_id, pools=[pool], nslots=16, name=name))

        left, right = producer(10000, "camera-left"), producer(10001, "camera-right")
        detections, _ = producer(10010, "detections", "4KiB"), producer(10020, "lidar", "4KiB")
        readers = [stack.enter_context(ctx.consumer(stream_id)) for stream_id in (10000, 10001, 10010)]
        slow = stack.enter_context(ctx.consumer(10000))
        stack.enter_context(ctx.record(out, streams=[10000]))

        def offer_frames() -> None:
            n = 0
            while not stop.wait(1 / 40):
                left.offer(camera(n))
                right.offer(camera(n + 3))
                detections.offer(np.arange(16, dtype=np.float32))
                for reader in readers:
                    reader.poll()
                if n % 30 == 29:
                    slow.poll()
                n += 1

        thread = threading.Thread(target=offer_frames)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def svg_text(image: Path) -> str:
    """All text of an SVG image."""
    return "".join(ElementTree.parse(image).getroot().itertext()).replace("\xa0", " ")


def test_images_show_the_output_of_the_command(aeron_dir: Path, shm_base: Path, tmp_path: Path) -> None:
    command_line = CommandLine(aeron_dir, shm_base)
    writes = os.environ.get("TENSORPOOL_WRITE_IMAGES") == "1"
    directory = IMAGES if writes else tmp_path
    with laboratory(command_line, tmp_path / "recording"):
        # By then the slow reader has lost frames, and every endpoint has reported twice.
        result = command_line.run("top", "--once", "--timeout", "6")
        assert result.returncode == 0, result.stderr
        for name, more in {"top": (), "top-stream": ("--stream", "10000")}.items():
            lines = "16" if name == "top" else "30"
            arguments = ("top", "--svg", str(directory / f"{name}.svg"), "--timeout", "6", *more)
            result = command_line.run(*arguments, COLUMNS="90", LINES=lines)
            assert result.returncode == 0, result.stderr
    expected = {
        "top": ("streams live", "camera-left", "camera-right", "detections", "lidar", "5 recorders 1"),
        "top-stream": ("stream 10000", "producer", "committed", "latency", "consumers: 3", "uint8 120x160x3"),
    }
    for name, texts in expected.items():
        # The image of the page has to show the same as a new one.
        for image in (directory / f"{name}.svg", IMAGES / f"{name}.svg"):
            shown = svg_text(image)
            assert [text for text in texts if text not in shown] == [], image
            assert "http" not in shown


def test_images_and_files_of_the_page_exist() -> None:
    page = next(
        path for path in HOW_TO.glob("monitor-a-system*.md") if "images/top.svg" in path.read_text("utf-8")
    )
    text = page.read_text("utf-8")
    for image in re.findall(r"!\[[^]]*]\(([^)]+)\)", text):
        assert (HOW_TO / image).is_file(), image
    for named in re.findall(r"`(deploy/[\w./-]+)`", text):
        assert (ROOT / named).is_file(), named
