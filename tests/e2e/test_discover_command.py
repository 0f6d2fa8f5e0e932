"""`tensorpool discover` and `tensorpool registry`, as people run them; and the pages about them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.context.config import AeronSettings, ContextSettings, ShmSettings
from tensorpool.discovery import DiscoverySettings
from tensorpool.driver import DriverSettings
from tensorpool.registry import RegistrySettings
from tensorpool.runtime.config import Config, check_file
from tensorpool.service.config import ServiceSettings
from tests.e2e.commandline import CommandLine, running
from tests.e2e.pages import ROOT, blocks, looks_like, sh, steps, substituted

HOW_TO = ROOT / "docs" / "how-to"
FIND, FLEET = HOW_TO / "find-a-stream.md", HOW_TO / "run-a-registry-for-a-fleet.md"
PATIENCE_S = 60


@pytest.fixture
def there(aeron_dir: Path, shm_base: Path) -> CommandLine:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return CommandLine(aeron_dir, shm_base, {"PATH": path, "NO_COLOR": "1"})


@pytest.fixture
def home(there: CommandLine) -> Iterator[tp.Context]:
    with tp.open(
        "embedded", aeron_dir=there.aeron_dir, shm_base_dir=there.shm_base, announce_period=0.2
    ) as context:
        yield context


def test_streams_are_shown_as_a_table_and_as_json(there: CommandLine, home: tp.Context) -> None:
    camera = home.producer(20_000, pools=["64KiB"], nslots=4, name="camera-1", tags=["lab", "a"])
    other = home.producer(20_001, pools=["64KiB"], nslots=4)
    done = there.run("discover")
    assert done.returncode == 0, done.stderr
    head, first, second = done.stdout.splitlines()
    assert head.split() == ["stream", "name", "tags", "source", "driver", "slots", "pools", "producer"]
    assert re.fullmatch(r" *20000 +camera-1 +a lab +default +4 +64KiB +\d+ *", first), first
    assert second.split()[0] == "20001"
    (found,) = there.json("discover", "--name", "camera-1", "--tag", "lab", "--tag", "a", "--stream", "20000")
    assert found["epoch"] == str(camera.epoch)
    assert (found["name"], found["tags"], found["driver"]) == ("camera-1", ["a", "lab"], "default")
    nothing = there.run("discover", "--name", "camera-1", "--stream", "20001", "--json")
    assert (nothing.returncode, json.loads(nothing.stdout)) == (1, [])
    assert nothing.stderr == "no stream fits\n"
    assert other.attached


def test_wrong_use_and_nobody_there_are_told_apart(there: CommandLine) -> None:
    assert there.run("discover", "--stream", "x").returncode == 2
    done = there.run("discover")
    assert done.returncode == 1
    assert "no media driver is running" in done.stderr
    with tp.MediaDriver(there.aeron_dir):
        done = there.run("discover", "--timeout", "0.5")
        assert done.returncode == 1
        assert "no response within 0.5 s" in done.stderr
        done = there.run("registry", "status", "--timeout", "0.5")
        assert done.returncode == 1
        assert "no registry answers" in done.stderr


def test_watching_tells_of_arrivals_changes_and_ends(there: CommandLine, home: tp.Context) -> None:
    with running(there.start("discover", "--watch", "--period", "0.05", "--json", "--tag", "cam")) as watch:
        assert watch.stdout is not None

        def line() -> dict[str, Any]:
            assert watch.stdout is not None
            found: dict[str, Any] = json.loads(watch.stdout.readline())
            return found

        camera = home.producer(
            20_000, pools=["64KiB"], nslots=4, metadata={"tensorpool.data_source_id": 1}, tags=["cam"]
        )
        last = line()
        assert (last["change"], last["stream_id"]) == ("arrived", 20_000)
        while last["data_source_id"] != "1":
            last = line()
            assert last["change"] == "changed"
        camera.set_metadata({"tensorpool.data_source_id": 2})
        while (last := line())["data_source_id"] != "2":
            assert last["change"] == "changed"
        camera.close()
        while (last := line())["producer_id"] is not None:
            pass
        assert last["change"] == "changed"
        with home.service("driver") as driver:
            # The plan has no such tag any more, and nobody else says it.
            driver.call("provision", {"stream_id": 20_000, "tags": []})
        while (last := line())["change"] != "gone":
            assert last["change"] == "changed"
        watch.send_signal(signal.SIGINT)
        assert watch.wait(PATIENCE_S) == 0


def test_on_a_terminal_watching_is_a_picture(there: CommandLine, home: tp.Context) -> None:
    camera = home.producer(20_000, pools=["64KiB"], nslots=4, name="camera-1")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    command = [sys.executable, "-m", "tensorpool", "discover", "--watch", "--period", "0.05"]
    environment = there.environment(TERM="xterm")
    process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = ""

    def until(pattern: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + PATIENCE_S
        while re.search(pattern, seen) is None:
            assert select.select([ours], [], [], max(deadline - time.monotonic(), 0))[0], seen
            seen += os.read(ours, 1 << 16).decode()

    try:
        until(r"20000 +camera-1 [^\n]*\n[^\n]*1 streams; Ctrl-C ends")
        with home.producer(20_001, pools=["64KiB"], nslots=4, name="camera-2"):
            until(r"20001 +camera-2 .*(arrived|changed)")
        process.send_signal(signal.SIGINT)
        while select.select([ours], [], [], PATIENCE_S)[0]:
            try:
                seen += os.read(ours, 1 << 16).decode()
            except OSError:  # nobody at the other end any more
                break
        assert process.wait(PATIENCE_S) == 0, seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "Traceback" not in seen
    assert camera.attached


def test_the_unit_of_the_registry_is_one(tmp_path: Path) -> None:
    unit = ROOT / "deploy" / "tensorpool-registry.service"
    text = unit.read_text()
    assert "ExecStart=/usr/bin/env tensorpool registry run --config /etc/tensorpool/registry.toml\n" in text
    assert "Type=notify\n" in text
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    copy = tmp_path / unit.name
    shutil.copy(unit, copy)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line] == []


# --- the example and the pages


@contextmanager
def script(path: Path, there: CommandLine) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, path], env=there.environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()


def test_the_example_s_viewer_finds_its_camera(there: CommandLine) -> None:
    folder = ROOT / "examples" / "find"
    with script(folder / "camera.py", there):
        done = subprocess.run(
            [sys.executable, folder / "viewer.py"],
            env=there.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    *frames, last = done.stdout.splitlines()
    assert all(re.fullmatch(r"stream 20000 frame (\d+): \1", line) for line in frames), frames
    assert last == "camera-1: stream 20000 of default, ['calibrated', 'lab']"


def programs(page: Path) -> Iterator[Any]:
    text = page.read_text("utf-8")
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(found) == len(blocks(page, "python"))
    yield from (pytest.param(*one, id=str(number)) for number, one in enumerate(found))


@pytest.mark.parametrize(("source", "expected"), list(programs(FIND)))
def test_the_programs_of_the_page_print_what_it_says(
    there: CommandLine, tmp_path: Path, source: str, expected: str
) -> None:
    file = tmp_path / "program.py"
    file.write_text(source, "utf-8")
    done = subprocess.run(
        [sys.executable, file],
        env=there.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.stdout == expected, done.stderr


def test_the_commands_of_the_page_show_what_it_says(there: CommandLine) -> None:
    (console,) = blocks(FIND, "console")
    with script(ROOT / "examples" / "find" / "camera.py", there):
        first = sh("tensorpool discover --watch --count 1 --source 4711 --timeout 60", there.environment())
        # The media driver may not be there yet.
        while not first.startswith("arrived"):
            first = sh(
                "tensorpool discover --watch --count 1 --source 4711 --timeout 60", there.environment()
            )
        for command, expected in steps(console):
            printed = sh(command, there.environment())
            assert looks_like(printed, expected), printed


@pytest.mark.parametrize("page", [FIND, FLEET], ids=lambda page: page.stem)
def test_every_configuration_of_a_page_is_one(page: Path, tmp_path: Path) -> None:
    classes = (
        AeronSettings,
        ContextSettings,
        ShmSettings,
        ServiceSettings,
        DriverSettings,
        DiscoverySettings,
        RegistrySettings,
    )
    texts = blocks(page, "toml")
    assert len(texts) >= 2
    for text in texts:
        file = tmp_path / "config.toml"
        file.write_text(text, "utf-8")
        Config.load(*classes, file=file, environ={})
        check_file(file)


def test_the_fleet_of_the_page_is_found_as_it_says(
    there: CommandLine, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    files: dict[str, str] = {}
    for text in blocks(FLEET, "toml"):
        heading = re.match(r"# (\S+\.toml)", text)
        if heading is not None:
            files.setdefault(heading[1], text)
    files["roof.toml"] = substituted(
        files["lab.toml"],
        {"lab": "roof", "= 1000\n": "= 2000\n", "4000": "4100", "4001": "4101", "10000": "10001"},
    )
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    assert tomllib.loads(files["roof.toml"])["driver"]["instance_id"] == "roof"
    environment = there.environment(TENSORPOOL_AERON__MEDIA_DRIVER="external")
    consoles = blocks(FLEET, "console")
    commands = next(one for one in blocks(FLEET, "sh") if "registry" in one)
    with tp.MediaDriver(there.aeron_dir), ExitStack() as stack:
        for number, line in enumerate(commands.splitlines()):
            ready = tmp_path / f"ready-{number}"
            command = f"exec {line.rstrip(' &')} --ready-file {ready}"
            process = subprocess.Popen(
                command, shell=True, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
            )
            stack.enter_context(running(process))  # type: ignore[arg-type]
            stack.callback(process.wait, PATIENCE_S)
            stack.callback(process.terminate)
            wait_until(ready.exists, timeout=PATIENCE_S)
        client = f"cd {tmp_path} && tensorpool discover --config client.toml --json"

        def is_complete() -> bool:
            printed = sh(client, environment)
            return "lab camera" in printed and "roof camera" in printed

        wait_until(is_complete, timeout=PATIENCE_S)
        for console in consoles:
            for command, expected in steps(console):
                printed = sh(f"cd {tmp_path} && {command}", environment)
                assert looks_like(printed, expected), printed
        with (
            tp.open(
                "driver",
                aeron_dir=there.aeron_dir,
                shm_base_dir=there.shm_base,
                config=tmp_path / "client.toml",
            ) as ctx,
            ctx.consumer(name="roof camera") as frames,
        ):
            assert frames.stream_id == 10_001
