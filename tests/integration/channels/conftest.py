"""A media driver for UDP in a process of its own, and contexts whose control, QoS and metadata use it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.context.startup import load_config
from tests import leaks
from tests.ports import free_port

DEADLINE_S = 60.0


@pytest.fixture
def network_dir(aeron_dir: Path, tmp_path: Path) -> Iterator[Path]:
    """The directory of a running `tensorpool media-driver`."""
    directory, ready = Path(f"{aeron_dir}-udp"), tmp_path / "ready"
    command = [sys.executable, "-m", "tensorpool", "media-driver", "run"]
    with subprocess.Popen([*command, "--aeron-dir", str(directory), "--ready-file", str(ready)]) as process:
        try:
            assert leaks.wait_for(ready.exists, timeout=DEADLINE_S)
            yield directory
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


@pytest.fixture
def open_context(
    aeron_dir: Path, shm_base: Path, network_dir: Path, tmp_path: Path
) -> Iterator[Callable[..., tp.Context]]:
    """Opens contexts of one configuration file, with a UDP channel for each kind of message."""
    channels = "\n".join(
        f'{kind}_channel = "aeron:udp?endpoint=127.0.0.1:{free_port()}"'
        for kind in ("control", "qos", "metadata")
    )
    file = tmp_path / "tensorpool.toml"
    file.write_text(f'[aeron]\nnetwork_dir = "{network_dir}"\nannounce_period = "200ms"\n{channels}\n')
    with tp.MediaDriver(aeron_dir), ExitStack() as stack:

        def make(mode: Any, **more: Any) -> tp.Context:
            options: dict[str, Any] = {"aeron_dir": aeron_dir, "shm_base_dir": shm_base, **more}
            return stack.enter_context(
                tp.open(mode, media_driver="external", config=load_config(file), **options)
            )

        yield make
