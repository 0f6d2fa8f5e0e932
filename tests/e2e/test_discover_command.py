"""`tensorpool discover` and `tensorpool registry` as processes, and the pages about them."""

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
TIMEOUT_S = 60


@pytest.fixture
def commands(aeron_dir: Path, shm_base: Path) -> CommandLine:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return CommandLine(aeron_dir, shm_base, {"PATH": path, "NO_COLOR": "1"})


@pytest.fixture
def embedded(commands: CommandLine) -> Iterator[tp.Context]:
    with tp.open(
        "embedded", aeron_dir=commands.aeron_dir, shm_base_dir=commands.shm_base, announce_period=0.2
    ) as context:
        yield context


def test_discover_prints_a_table_and_json(commands: CommandLine, embedded: tp.Context) -> None:
    camera = embedded.producer(20_000, pools=["64KiB"], nslots=4, name="camera-1", tags=["lab", "a"])
    other = embedded.producer(20_001, pools=["64KiB"], nslots=4)
    done = commands.run("discover")
    assert done.returncode == 0, done.stderr
    head, first, second = done.stdout.splitlines()
    assert head.split() == ["stream", "name", "tags", "source", "driver", "slots", "pools", "producer"]
    assert re.fullmatch(r" *20000 +camera-1 +a lab +default +4 +64KiB +\d+ *", first), first
    assert second.split()[0] == "20001"
    (stream,) = commands.json(
        "discover", "--name", "camera-1", "--tag", "lab", "--tag", "a", "--stream", "20000"
    )
    assert stream["epoch"] == str(camera.epoch)
    assert (stream["name"], stream["tags"], stream["driver"]) == ("camera-1", ["a", "lab"], "default")
    nothing = commands.run("discover", "--name", "camera-1", "--stream", "20001", "--json")
    assert (nothing.returncode, json.loads(nothing.stdout)) == (1, [])
    assert nothing.stderr == "no stream matches\n"
    assert other.attached


def test_usage_errors_differ_from_missing_drivers(commands: CommandLine) -> None:
    assert commands.run("discover", "--stream", "x").returncode == 2
    done = commands.run("discover")
    assert done.returncode == 1
    assert "no media driver is running" in done.stderr
    with tp.MediaDriver(commands.aeron_dir):
        done = commands.run("discover", "--timeout", "0.5")
        assert done.returncode == 1
        assert "no response within 0.5 s" in done.stderr
        done = commands.run("registry", "status", "--timeout", "0.5")
        assert done.returncode == 1
        assert "no registry answers" in done.stderr


def test_watch_prints_arrivals_changes_and_ends(commands: CommandLine, embedded: tp.Context) -> None:
    with running(
        commands.start("discover", "--watch", "--period", "0.05", "--json", "--tag", "cam")
    ) as watch:
        assert watch.stdout is not None

        def line() -> dict[str, Any]:
            assert watch.stdout is not None
            change: dict[str, Any] = json.loads(watch.stdout.readline())
            return change

        camera = embedded.producer(
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
        with embedded.service("driver") as driver:
            # The tag is no longer in the plan, and no producer announces it.
            driver.call("provision", {"stream_id": 20_000, "tags": []})
        while (last := line())["change"] != "gone":
            assert last["change"] == "changed"
        watch.send_signal(signal.SIGINT)
        assert watch.wait(TIMEOUT_S) == 0


def test_watch_on_a_terminal_is_a_table(commands: CommandLine, embedded: tp.Context) -> None:
    camera = embedded.producer(20_000, pools=["64KiB"], nslots=4, name="camera-1")
    terminal, child_side = pty.openpty()
    fcntl.ioctl(child_side, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    command = [sys.executable, "-m", "tensorpool", "discover", "--watch", "--period", "0.05"]
    environment = commands.environment(TERM="xterm")
    process = subprocess.Popen(
        command, env=environment, stdin=child_side, stdout=child_side, stderr=child_side
    )
    os.close(child_side)
    output = ""

    def read_until(pattern: str) -> None:
        nonlocal output
        deadline = time.monotonic() + TIMEOUT_S
        while re.search(pattern, output) is None:
            assert select.select([terminal], [], [], max(deadline - time.monotonic(), 0))[0], output
            output += os.read(terminal, 1 << 16).decode()

    try:
        read_until(r"20000 +camera-1 [^\n]*\n[^\n]*1 streams; Ctrl-C ends")
        with embedded.producer(20_001, pools=["64KiB"], nslots=4, name="camera-2"):
            read_until(r"20001 +camera-2 .*(arrived|changed)")
        process.send_signal(signal.SIGINT)
        while select.select([terminal], [], [], TIMEOUT_S)[0]:
            try:
                output += os.read(terminal, 1 << 16).decode()
            except OSError:  # the other end has closed
                break
        assert process.wait(TIMEOUT_S) == 0, output
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert "Traceback" not in output
    assert camera.attached


def test_systemd_unit_of_the_registry_is_valid(tmp_path: Path) -> None:
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
def script(path: Path, commands: CommandLine) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, path], env=commands.environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()


def test_example_viewer_finds_its_camera(commands: CommandLine) -> None:
    folder = ROOT / "examples" / "find"
    with script(folder / "camera.py", commands):
        done = subprocess.run(
            [sys.executable, folder / "viewer.py"],
            env=commands.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * TIMEOUT_S,
        )
    assert done.returncode == 0, done.stderr
    *frames, last = done.stdout.splitlines()
    assert all(re.fullmatch(r"stream 20000 frame (\d+): \1", line) for line in frames), frames
    assert last == "camera-1: stream 20000 of default, ['calibrated', 'lab']"


def programs(page: Path) -> Iterator[Any]:
    text = page.read_text("utf-8")
    pairs = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(pairs) == len(blocks(page, "python"))
    yield from (pytest.param(*pair, id=str(number)) for number, pair in enumerate(pairs))


@pytest.mark.parametrize(("source", "expected"), list(programs(FIND)))
def test_programs_of_the_page_print_its_output(
    commands: CommandLine, tmp_path: Path, source: str, expected: str
) -> None:
    file = tmp_path / "program.py"
    file.write_text(source, "utf-8")
    done = subprocess.run(
        [sys.executable, file],
        env=commands.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.stdout == expected, done.stderr


def test_commands_of_the_page_print_its_output(commands: CommandLine) -> None:
    (console,) = blocks(FIND, "console")
    with script(ROOT / "examples" / "find" / "camera.py", commands):
        first = sh("tensorpool discover --watch --count 1 --source 4711 --timeout 60", commands.environment())
        # The media driver may not run yet.
        while not first.startswith("arrived"):
            first = sh(
                "tensorpool discover --watch --count 1 --source 4711 --timeout 60", commands.environment()
            )
        for command, expected in steps(console):
            printed = sh(command, commands.environment())
            assert looks_like(printed, expected), printed


@pytest.mark.parametrize("page", [FIND, FLEET], ids=lambda page: page.stem)
def test_configurations_of_the_pages_are_valid(page: Path, tmp_path: Path) -> None:
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


def test_registry_of_the_page_finds_its_drivers(
    commands: CommandLine, tmp_path: Path, wait_until: Callable[..., Any]
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
    environment = commands.environment(TENSORPOOL_AERON__MEDIA_DRIVER="external")
    consoles = blocks(FLEET, "console")
    script_lines = next(block for block in blocks(FLEET, "sh") if "registry" in block)
    with tp.MediaDriver(commands.aeron_dir), ExitStack() as stack:
        for number, line in enumerate(script_lines.splitlines()):
            ready = tmp_path / f"ready-{number}"
            command = f"exec {line.rstrip(' &')} --ready-file {ready}"
            process = subprocess.Popen(
                command, shell=True, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
            )
            stack.enter_context(running(process))  # type: ignore[arg-type]
            stack.callback(process.wait, TIMEOUT_S)
            stack.callback(process.terminate)
            wait_until(ready.exists, timeout=TIMEOUT_S)
        client = f"cd {tmp_path} && tensorpool discover --config client.toml --json"

        def is_complete() -> bool:
            printed = sh(client, environment)
            return "lab camera" in printed and "roof camera" in printed

        wait_until(is_complete, timeout=TIMEOUT_S)
        for console in consoles:
            for command, expected in steps(console):
                printed = sh(f"cd {tmp_path} && {command}", environment)
                assert looks_like(printed, expected), printed
        with (
            tp.open(
                "driver",
                aeron_dir=commands.aeron_dir,
                shm_base_dir=commands.shm_base,
                config=tmp_path / "client.toml",
            ) as ctx,
            ctx.consumer(name="roof camera") as frames,
        ):
            assert frames.stream_id == 10_001
