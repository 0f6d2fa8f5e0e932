"""`tensorpool top` on a running system: in a terminal, in a pipe, as SVG."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import tensorpool as tp
from tests.e2e.commandline import CommandLine, offering
from tests.e2e.terminal import ended, in_terminal, interrupt

ROWS, COLUMNS = np.mgrid[0:60, 0:80]
IMAGE = np.stack([COLUMNS * 3, ROWS * 4, np.zeros_like(ROWS)], -1).astype(np.uint8)


@dataclass(frozen=True)
class LiveSystem:
    """Two streams on a private media driver, and commands that use it."""

    command: CommandLine
    left: int
    right: int


@contextmanager
def system(commands: CommandLine, left: int, right: int) -> Iterator[LiveSystem]:
    """Two cameras and a consumer on an embedded driver; no supervisor."""
    with ExitStack() as stack:
        media = stack.enter_context(tp.MediaDriver(commands.aeron_dir))
        assert media is not None
        ctx = stack.enter_context(
            tp.open(
                "embedded",
                aeron_dir=commands.aeron_dir,
                media_driver="external",
                shm_base_dir=commands.shm_base,
            )
        )
        for stream_id, name in ((left, "camera-left"), (right, "camera-right")):
            camera = stack.enter_context(ctx.producer(stream_id, pools=["64KiB"], nslots=16, name=name))
            stack.enter_context(offering(camera, IMAGE, hz=20))
        stack.enter_context(ctx.consumer(left))
        yield LiveSystem(commands, left, right)


@pytest.fixture
def live(aeron_dir: Path, shm_base: Path, free_stream_ids: Callable[[], int]) -> Iterator[LiveSystem]:
    left, right = sorted((free_stream_ids(), free_stream_ids()))
    with system(CommandLine(aeron_dir, shm_base), left, right) as running:
        yield running


def test_page_is_live_and_keys_work(live: LiveSystem) -> None:
    with in_terminal("top", "--period", "0.2", env=live.command.environment()) as (terminal, process):
        before = terminal.attributes()
        shown = terminal.wait_for(lambda text: "camera-right" in text and "2 of 2 streams live" in text)
        assert str(live.left) in shown
        # Rates need two reports of each producer.
        terminal.wait_for(lambda text: any(_fps(text, live.right)))
        assert terminal.attributes() != before
        terminal.send(b"/right")
        terminal.wait_for(lambda text: "filter: right" in text and "camera-left" not in text)
        terminal.send(b"\r\r")
        shown = terminal.wait_for(lambda text: f"stream {live.right}" in text and "uint8 60x80x3" in text)
        assert "▀▀▀▀" in shown
        # The consumer of top's preview is hidden.
        terminal.wait_for(lambda text: f"stream {live.right}" in text and "consumers:" not in text)
        assert b"38;5;" in terminal.raw or b"38;2;" in terminal.raw
        # One key at a time: ESC and a key together are that key with Alt.
        terminal.send(b"\x1b")
        terminal.wait_for("esc drops it")
        terminal.send(b"\x1b")
        terminal.wait_for("camera-left")
        terminal.send(b"3")
        terminal.wait_for(lambda text: "producer" in text and "lease" in text)
        terminal.send(b"?")
        terminal.wait_for("any key goes back")
        terminal.resize(60, 12)
        terminal.send(b"x1")
        terminal.wait_for(lambda text: "camera-left" in text and "any key" not in text)
        terminal.send(b"q")
        assert ended(terminal, process) == 0
        assert terminal.attributes() == before


def _fps(text: str, stream_id: int) -> list[str]:
    for line in text.splitlines():
        cells = line.split()
        if cells[:1] == [str(stream_id)] and len(cells) > 3:
            return [cell for cell in cells[3:4] if float(cell.replace(",", "")) > 0]
    return []


def test_ctrl_c_quits_and_no_color_is_honoured(live: LiveSystem) -> None:
    env = live.command.environment(NO_COLOR="1")
    with in_terminal("top", "--stream", str(live.left), env=env) as (terminal, process):
        before = terminal.attributes()
        terminal.wait_for("uint8 60x80x3")
        # Without colours, denser letters show brighter pixels.
        assert "▀" not in terminal.text
        assert "+" in terminal.text or "*" in terminal.text
        assert b"38;" not in terminal.raw
        assert b"\x1b[3" not in terminal.raw
        interrupt(process)
        assert ended(terminal, process) == 0
        assert b"Traceback" not in terminal.raw
        assert terminal.attributes() == before


def test_once_prints_text_json_and_svg(live: LiveSystem, tmp_path: Path) -> None:
    done = live.command.run("top", "--once", "--sort", "name")
    assert done.returncode == 0, done.stderr
    head, first, second = done.stdout.splitlines()
    assert head.split()[:4] == ["stream", "name", "state", "fps"]
    assert first.split()[:3] == [str(live.left), "camera-left", "live"]
    assert "\x1b" not in done.stdout
    assert second.split()[1] == "camera-right"

    done = live.command.run("top", "--once", "--json")
    snapshot = json.loads(done.stdout)
    assert [stream["stream_id"] for stream in snapshot["streams"]] == [live.left, live.right]
    assert snapshot["streams"][0]["producer"]["rate_hz"] > 0
    assert len(snapshot["streams"][0]["consumers"]) == 1
    assert isinstance(snapshot["streams"][0]["epoch"], str)

    path = tmp_path / "page.svg"
    done = live.command.run("top", "--stream", str(live.left), "--svg", str(path), COLUMNS="100", LINES="30")
    assert done.returncode == 0, done.stderr
    document = ElementTree.parse(path)
    shown = "".join(document.getroot().itertext()).replace("\xa0", " ")
    assert "camera-left" in shown
    assert "▀" in shown


def test_metrics_are_shown_once_and_served(live: LiveSystem) -> None:
    done = live.command.run("metrics", "show")
    assert done.returncode == 0, done.stderr
    assert f'tensorpool_stream_info{{stream_id="{live.left}",name="camera-left"}} 1' in done.stdout
    assert f'tensorpool_stream_consumers{{stream_id="{live.left}"}} 1' in done.stdout


def test_unknown_sort_column_is_a_usage_error(live: LiveSystem) -> None:
    done = live.command.run("top", "--sort", "colour")
    assert done.returncode == 2
    assert "no column 'colour'" in done.stderr


def test_top_without_a_media_driver_explains_the_error(aeron_dir: Path, shm_base: Path) -> None:
    done = CommandLine(aeron_dir, shm_base).run("top", "--once")
    assert done.returncode == 1
    assert "no media driver is running" in done.stderr
