"""The pages for operators: their programs print the output shown, their commands work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorpool as tp
from tensorpool.context.config import AeronSettings, ContextSettings
from tensorpool.driver import DriverSettings
from tensorpool.runtime.config import Config
from tensorpool.service.config import ServiceSettings
from tests.e2e.commandline import CommandLine
from tests.e2e.pages import ROOT, blocks, looks_like, sh, steps, substituted

HOW_TO, REFERENCE = ROOT / "docs" / "how-to", ROOT / "docs" / "reference"
SIZING, NUMA, IDS, DMA, CLOCKS, OTHERS = (
    HOW_TO / f"{name}.md"
    for name in (
        "size-a-stream",
        "place-memory-on-a-numa-node",
        "plan-stream-ids",
        "fill-a-slot-by-dma",
        "synchronise-clocks",
        "restrict-access",
    )
)
REQUESTS = REFERENCE / "consumer-requests.md"
TIMEOUT_S = 60


@pytest.fixture
def commands(aeron_dir: Path, shm_base: Path) -> CommandLine:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return CommandLine(aeron_dir, shm_base, {"PATH": path, "NO_COLOR": "1"})


def programs(page: Path) -> Iterator[tuple[str, str]]:
    """Each Python block and the text block below it."""
    text = page.read_text("utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield match[1], match[2]


def cases() -> Iterator[object]:
    for page in (SIZING, NUMA, IDS, DMA, CLOCKS, REQUESTS):
        for number, (source, printed) in enumerate(programs(page)):
            yield pytest.param(source, printed, id=f"{page.stem}-{number}")


@pytest.mark.parametrize(("source", "expected"), list(cases()))
def test_program_prints_the_output_of_the_page(
    commands: CommandLine, tmp_path: Path, source: str, expected: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(source, "utf-8")
    done = subprocess.run(
        [sys.executable, script],
        env=commands.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    printed = [line for line in done.stdout.splitlines() if not line.startswith("Event(")]
    assert printed == expected.splitlines(), done.stderr


@pytest.mark.parametrize("page", [SIZING, NUMA, IDS, DMA, CLOCKS, REQUESTS], ids=lambda page: page.stem)
def test_programs_of_a_page_are_followed_by_their_output(page: Path) -> None:
    assert len(list(programs(page))) == len(blocks(page, "python")) > 0


# --- sizing


def test_sizing_of_the_page_is_that_of_the_command(commands: CommandLine) -> None:
    (console,) = blocks(SIZING, "console")
    ((command, expected),) = steps(console)
    printed = sh(command, commands.environment()).replace(str(commands.shm_base), "/dev/shm")
    if "last-level cache" not in printed:
        # This machine does not say how large its cache is, or has a larger one.
        expected = "".join(line for line in expected.splitlines(True) if "last-level cache" not in line)
    assert looks_like(printed, expected), printed


# --- NUMA


def test_memory_pages_are_on_the_node_of_the_driver(commands: CommandLine) -> None:
    """The driver allocates all of them at once, by its own policy."""
    if shutil.which("numactl") is None:
        pytest.skip("no numactl here")
    (source, expected) = next(programs(NUMA))
    (bound_command,) = (line for line in "".join(blocks(NUMA, "sh")).splitlines() if "--membind" in line)
    binding = bound_command.partition("tensorpool")[0]
    script = commands.shm_base / "program.py"
    script.write_text(source, "utf-8")
    try:
        assert sh(f"{binding} {sys.executable} {script}", commands.environment()) == expected
        assert "configuration is good" in sh(bound_command, commands.environment())
        assert "invalid" in sh(f"{binding.replace('=0', '=63')} true", commands.environment())
    finally:
        script.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_driver_uses_a_tmpfs_with_a_numa_policy(commands: CommandLine, tmp_path: Path) -> None:
    block = next(block for block in blocks(NUMA, "sh") if "mount -t tmpfs" in block)
    mount_point = tmp_path / "node0"
    assert (
        sh(f"set -eu\n{block.replace('/mnt/tensorpool-0', str(mount_point))}", commands.environment()) == ""
    )
    try:
        with tp.open("embedded", aeron_dir=commands.aeron_dir, shm_base_dir=mount_point) as context:
            producer = context.producer(20_000, pools=["1MiB"], nslots=4)
            maps = Path("/proc/self/numa_maps").read_text().splitlines()
            pools = [line for line in maps if f"/20000/{producer.epoch}/1.pool" in line]
            # 4 MiB and a superblock, in pages, allocated before the first frame.
            assert any(" bind:0 " in line and " N0=1025 " in line for line in pools), pools
    finally:
        assert sh(f"umount {mount_point}", commands.environment()) == ""


def test_systemd_drop_in_of_the_page_has_known_settings() -> None:
    (unit,) = blocks(NUMA, "ini")
    assert [line.partition("=")[0] for line in unit.splitlines()] == [
        "[Service]", "NUMAPolicy", "NUMAMask", "CPUAffinity",
    ]  # fmt: skip


# --- stream ids


def ids_of(heading: str) -> set[tuple[int, int]]:
    section = IDS.read_text("utf-8").partition(heading)[2].partition("\n## ")[0]
    rows = re.findall("^\\| (\\d+)(?:\N{EN DASH}(\\d+))? \\|", section, re.MULTILINE)
    return {(int(first), int(last or first)) for first, last in rows}


def test_id_plan_has_the_defaults_of_the_configuration() -> None:
    config = Config.load(AeronSettings, ContextSettings, DriverSettings, ServiceSettings, environ={})
    aeron, context, service = config[AeronSettings], config[ContextSettings], config[ServiceSettings]
    driver = config[DriverSettings]
    single = [
        *(getattr(aeron, f"{kind}_stream_id") for kind in ("control", "announce", "descriptor", "qos")),
        aeron.metadata_stream_id,
        service.control_stream_id,
        service.status_stream_id,
    ]
    planned = {
        *((stream_id, stream_id) for stream_id in single),
        (context.per_consumer_descriptor_ids.first, context.per_consumer_descriptor_ids.last),
        (context.per_consumer_control_ids.first, context.per_consumer_control_ids.last),
        (driver.dynamic_ids.first, driver.dynamic_ids.last),
    }
    assert planned <= ids_of("What is in use")


# --- access


def sockets() -> list[str]:
    """The network sockets of this process."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    tables = "".join(Path(f"/proc/self/net/{kind}").read_text() for kind in ("tcp", "udp"))
    return [link for link in links if link.startswith("socket:[") and link[8:-1] in tables.split()]


def test_file_modes_are_those_of_the_page(commands: CommandLine) -> None:
    (console,) = blocks(OTHERS, "console")
    # Sockets of other tests, as of a running Spark.
    foreign = set(sockets())
    context = tp.open("embedded", aeron_dir=commands.aeron_dir, shm_base_dir=commands.shm_base)
    before = os.umask(0)
    try:
        with context, context.producer(10_000, pools=["64KiB"], nslots=4):
            for command, expected in steps(console):
                local = substituted(command, {"/dev/shm/tensorpool-": f"{commands.shm_base}/tensorpool-"})
                assert sh(local, commands.environment()) == expected
            # No new socket.
            assert set(sockets()) <= foreign
    finally:
        os.umask(before)


def profiles() -> dict[str, list[tuple[re.Pattern[str], set[str]]]]:
    """The rules of each AppArmor profile of the page for files in shared memory."""
    (text,) = blocks(OTHERS, "apparmor")
    rules_by_profile: dict[str, list[tuple[re.Pattern[str], set[str]]]] = {}
    for name, body in re.findall(r"^profile (\S+) .*?\{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        rules = re.findall(r"^\s+(@\{tensorpool_\w+\}\S*) (\w+),", body, re.MULTILINE)
        rules_by_profile[name] = [(re.compile(_regex(glob)), set(letters)) for glob, letters in rules]
    return rules_by_profile


def _regex(glob: str) -> str:
    """An AppArmor glob: ** crosses directories, * does not, {a,b} is either."""
    tokens = {"**": ".*", "*": "[^/]*", "{": "(?:", "}": ")", ",": "|"}
    names = {"@{tensorpool_memory}": "MEMORY", "@{tensorpool_media}": "MEDIA"}
    plain = substituted(glob, names)
    return "".join(
        tokens.get(token, re.escape(token)) for token in re.findall(r"\*\*|[*{},]|[^*{},]+", plain)
    )


def used_by(pid: int, commands: CommandLine) -> set[tuple[str, str]]:
    """The files in shared memory that a process has open or mapped: the page's name, and the access."""
    used = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        match = re.match(r"\S+ (\S+) \S+ \S+ \S+ +(/.*)", line)
        if match:
            used |= {(match[2], letter) for letter in match[1] if letter in "rw"}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            flags = int(re.findall(r"^flags:\s+(\d+)", _fdinfo(pid, link.name), re.MULTILINE)[0], 8)
            target = os.readlink(link)
        except (OSError, IndexError):
            continue
        used |= {(target, letter) for letter in ("r", "rw", "rw")[min(flags & 3, 2)]}
    memory = next(commands.shm_base.glob("tensorpool-*"), commands.shm_base)
    names = {str(memory): "MEMORY", str(commands.aeron_dir): "MEDIA"}
    return {
        (substituted(path, names), how)
        for path, how in used
        if path.startswith((str(memory), str(commands.aeron_dir))) and "(deleted)" not in path
    }


def _fdinfo(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/fdinfo/{name}").read_text()


ROLES = {
    "tensorpool-driver": "with tp.open('embedded') as ctx:\n    wait()\n",
    "tensorpool-producer": (
        "with tp.open('driver') as ctx, ctx.producer(20000) as producer:\n"
        "    producer.wait_for_consumer(60)\n"
        "    threading.Thread(target=offer, args=(producer,), daemon=True).start()\n"
        "    wait()\n"
    ),
    "tensorpool-consumer": (
        "with tp.open('driver') as ctx, ctx.consumer(20000) as consumer:\n"
        "    consumer.wait_for_producer(60); consumer.receive(60).array.sum(); wait()\n"
    ),
}
PREFACE = """
import sys, threading, time
import numpy as np
import tensorpool as tp

def wait():
    print("ready", flush=True)
    sys.stdin.read()

def offer(producer):
    while producer.offer(np.zeros(8)).outcome != "closed":
        time.sleep(0.02)

"""


def test_processes_use_only_files_that_their_profiles_allow(commands: CommandLine, tmp_path: Path) -> None:
    rules = profiles()
    assert rules.keys() == ROLES.keys()
    running: dict[str, subprocess.Popen[str]] = {}

    def start(name: str, source: str) -> None:
        script = tmp_path / f"{name}.py"
        script.write_text(PREFACE + source, "utf-8")
        running[name] = subprocess.Popen(
            [sys.executable, script],
            env=commands.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_ready(name: str) -> None:
        out = running[name].stdout
        assert out is not None
        assert out.readline() == "ready\n", name

    try:
        start("tensorpool-driver", ROLES["tensorpool-driver"])
        wait_ready("tensorpool-driver")
        start("tensorpool-consumer", ROLES["tensorpool-consumer"])
        start("tensorpool-producer", ROLES["tensorpool-producer"])
        wait_ready("tensorpool-producer")
        wait_ready("tensorpool-consumer")
        for name, process in running.items():
            used = used_by(process.pid, commands)
            assert any(path.endswith("header.ring") for path, _ in used), (name, used)
            beyond = [
                (path, how)
                for path, how in used
                if not any(rule.fullmatch(path) and how in letters for rule, letters in rules[name])
            ]
            assert beyond == [], name
        # The rules can reject: those of a consumer do not allow a producer.
        written = {path for path, how in used_by(running["tensorpool-producer"].pid, commands) if how == "w"}
        consumer = rules["tensorpool-consumer"]
        assert any(
            path.endswith(".pool") and not any(r.fullmatch(path) and "w" in how for r, how in consumer)
            for path in written
        )
    finally:
        for process in reversed(running.values()):
            process.communicate("", timeout=TIMEOUT_S)


@pytest.mark.skipif(shutil.which("apparmor_parser") is None, reason="no apparmor_parser here")
def test_apparmor_profile_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "tensorpool"
    file.write_text(blocks(OTHERS, "apparmor")[0])
    # Flags for a parser in an unusual location.
    more = os.environ.get("APPARMOR_FLAGS", "").split()
    done = subprocess.run(
        ["apparmor_parser", "--skip-kernel-load", "--skip-cache", *more, file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("checkmodule") is None, reason="no checkmodule here")
def test_selinux_module_is_valid(tmp_path: Path) -> None:
    (tmp_path / "tensorpool.te").write_text(blocks(OTHERS, "selinux")[0])
    build = next(block for block in blocks(OTHERS, "sh") if "checkmodule" in block)
    steps_to_build = [line for line in build.splitlines() if not line.startswith("semodule -i")]
    done = subprocess.run(
        " && ".join(steps_to_build), shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tensorpool.pp").stat().st_size > 0
