"""What notebooks show of frames, recordings, ledgers and streams; a live view in a kernel of Jupyter."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.errors import ConfigError
from tensorpool.notebook import LiveView, live, message_html
from tests.e2e.console_system import Laboratory, detector, laboratory, spectrum
from tests.e2e.pages import ROOT, blocks

DEADLINE_S = 90
PAGE = ROOT / "docs" / "how-to" / "watch-a-system-in-a-browser.md"
WaitUntil = Callable[..., Any]
# The kernel of this interpreter, whatever kernels this machine has.
RUN_NOTEBOOK = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")
client.create_kernel_manager().kernel_spec.argv[0] = sys.executable
client.execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.fixture
def lab(aeron_dir: Path, shm_base: Path) -> Iterator[Laboratory]:
    with laboratory(aeron_dir, shm_base) as system:
        yield system


def pixels(html: str) -> bytes:
    """The filtered rows of the PNG in a page."""
    (data,) = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", html)
    image = base64.b64decode(data)
    assert image.startswith(b"\x89PNG")
    start = image.index(b"IDAT")
    size = int.from_bytes(image[start - 4 : start], "big")
    return zlib.decompress(image[start + 4 : start + 4 + size])


def test_frames_show_a_thumbnail_and_facts(
    lab: Laboratory, free_stream_id: int, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = lab.stack.enter_context(lab.context.producer(free_stream_id, pools=["256KiB"], nslots=8))
    with lab.context.consumer(free_stream_id) as consumer:
        consumer.wait_for_producer()
        for count in range(3):
            producer.offer(detector(count))
        frame = consumer.receive(DEADLINE_S)
        html = frame._repr_html_()
        # 240 rows of 320 columns, every second one: the longer side has 256 pixels at most.
        assert len(pixels(html)) == 120 * (160 + 1)
        assert "<th>shape</th><td>(240, 320)</td>" in html
        whole = next(iter(consumer.whole()))
        assert f"<th>seq</th><td>{whole.seq}</td>" in whole._repr_html_()
        # Outside a notebook the frame says what it is.
        whole.show()
        assert "240x320 uint16" in capsys.readouterr().out
        consumer.receive(DEADLINE_S).show()
        assert "<Frame stream=" in capsys.readouterr().out


def test_overwritten_frame_shows_facts_alone(lab: Laboratory, free_stream_id: int) -> None:
    producer = lab.stack.enter_context(lab.context.producer(free_stream_id, pools=["64KiB"], nslots=4))
    with lab.context.consumer(free_stream_id) as consumer:
        consumer.wait_for_producer()
        producer.offer(np.zeros((8, 8), np.uint8))
        frame = consumer.receive(DEADLINE_S)
        for _ in range(8):
            producer.offer(np.ones((8, 8), np.uint8))
        html = frame._repr_html_()
        assert "overwritten by a newer frame" in html
        assert "<img" not in html
        with pytest.raises(tp.FrameOverwritten):
            frame.show()


def test_recording_stream_and_ledger_show_themselves(
    lab: Laboratory, tmp_path: Path, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("<eye>", free_stream_id, detector, 50)
    with lab.context.record(tmp_path / "run", streams=[free_stream_id]) as recorder:
        wait_until(lambda: recorder.stats().rows >= 10, timeout=DEADLINE_S)
    with tp.recording.open(tmp_path / "run") as recording:
        html = recording._repr_html_()
        assert "&lt;eye&gt;" in html
        assert html.count("<svg") == 1
        assert "rows of" in html
        frame = recording.frames(free_stream_id)[0]
        assert "<img" in frame._repr_html_()
    (stream,) = lab.context.discover(name="<eye>")
    assert f"<th>stream</th><td>{free_stream_id}</td>" in stream._repr_html_()
    assert "&lt;eye&gt;" in stream._repr_html_()
    with lab.context.consumer(free_stream_id) as consumer:
        consumer.receive(DEADLINE_S)
        assert "<th>received</th>" in consumer.ledger()._repr_html_()


def test_live_view_shows_newer_frames_until_it_is_closed(
    lab: Laboratory, free_stream_ids: Callable[[], int], wait_until: WaitUntil
) -> None:
    image_id, line_id = free_stream_ids(), free_stream_ids()
    lab.produce("detector", image_id, detector, 100)
    lab.produce("spectrum", line_id, spectrum, 100)
    for stream_id, mark in ((image_id, "<img"), (line_id, "<polyline")):
        shown: list[str] = []
        with LiveView(lab.context, stream_id, shown.append, hz=20) as view:
            assert view.wait(5, DEADLINE_S)
            assert f"<LiveView stream={stream_id} live" in repr(view)
        seqs = [int(re.findall(r"<th>seq</th><td>(\d+)</td>", html)[0]) for html in shown[-5:]]
        assert seqs == sorted(set(seqs))
        assert mark in shown[-1]
        count = len(shown)
        assert view.closed
        assert count == len(shown) == view.frames


def test_live_view_outside_a_notebook_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"frame\.show\(\)"):
        live(10_000)
    with pytest.raises(ConfigError, match=r"0\.1 to"):
        live(10_000, hz=1e6)
    with pytest.raises(ConfigError, match=r"side = 0"):
        live(10_000, side=0)


def test_message_without_elements_shows_why() -> None:
    header = b'{"watch":1,"stream":5,"kind":"none","why":"<b> is no number"}'
    html = message_html(len(header).to_bytes(4, "little") + header)
    assert html == "<p>&lt;b&gt; is no number</p>"


@pytest.mark.timeout(300)
def test_notebook_in_a_real_kernel_shows_live_frames(
    lab: Laboratory, tmp_path: Path, free_stream_id: int
) -> None:
    pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    lab.produce("camera-1", free_stream_id, detector, 50)
    names = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    variables = {name: str(tmp_path / name.lower()) for name in names}
    variables |= {"AERON_DIR": str(lab.aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(lab.shm_base)}
    cells = [
        next(iter(blocks(PAGE, "python"))),
        "assert view.wait(3, 60), view\nview.close()",
        "ctx = tp.open('standalone', media_driver='external')\n"
        f"with ctx.consumer({free_stream_id}) as consumer:\n    frame = next(iter(consumer.whole()))\n"
        "ctx.close()\nframe",
        "frame.show()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    file = tmp_path / "live.ipynb"
    nbformat.write(notebook, file)
    # In a process of its own: the client keeps an event loop.
    done = subprocess.run(
        [sys.executable, "-c", RUN_NOTEBOOK, str(file)],
        env={**os.environ, **variables}, cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    notebook = nbformat.read(file, as_version=4)
    outputs = [[output.get("data", {}) for output in cell["outputs"]] for cell in notebook["cells"]]
    assert "data:image/png" in outputs[0][0]["text/html"]
    assert re.search(r"<th>rate</th><td>\d", outputs[0][0]["text/html"])
    assert "data:image/png" in outputs[2][0]["text/html"]
    assert "data:image/png" in outputs[3][0]["text/html"]
