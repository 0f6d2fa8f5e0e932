"""The pages for operators, taken at their word: programs print what stands below them, commands work."""

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
WISHES = REFERENCE / "consumer-requests.md"
PATIENCE_S = 60


@pytest.fixture
def command_line(aeron_dir: Path, shm_base: Path) -> CommandLine:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return CommandLine(aeron_dir, shm_base, {"PATH": path, "NO_COLOR": "1"})


def programs(page: Path) -> Iterator[tuple[str, str]]:
    """Each Python block and the text block right below it."""
    text = page.read_text("utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield match[1], match[2]


def cases() -> Iterator[object]:
    for page in (SIZING, NUMA, IDS, DMA, CLOCKS, WISHES):
        for number, (source, printed) in enumerate(programs(page)):
            yield pytest.param(source, printed, id=f"{page.stem}-{number}")


@pytest.mark.parametrize(("source", "expected"), list(cases()))
def test_a_program_prints_what_the_page_says(
    command_line: CommandLine, tmp_path: Path, source: str, expected: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(source, "utf-8")
    done = subprocess.run(
        [sys.executable, script],
        env=command_line.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    told = [line for line in done.stdout.splitlines() if not line.startswith("Event(")]
    assert told == expected.splitlines(), done.stderr


@pytest.mark.parametrize("page", [SIZING, NUMA, IDS, DMA, CLOCKS, WISHES], ids=lambda one: one.stem)
def test_every_program_of_a_page_is_followed_by_what_it_prints(page: Path) -> None:
    assert len(list(programs(page))) == len(blocks(page, "python")) > 0


# --- sizing


def test_the_sizing_of_the_page_is_what_the_command_says(command_line: CommandLine) -> None:
    (console,) = blocks(SIZING, "console")
    ((command, expected),) = steps(console)
    printed = sh(command, command_line.environment()).replace(str(command_line.shm_base), "/dev/shm")
    assert looks_like(printed, expected), printed


# --- NUMA


def test_the_pages_of_a_stream_lie_where_the_driver_put_them(command_line: CommandLine) -> None:
    """All at once when they are made, by the policy of the process that makes them."""
    if shutil.which("numactl") is None:
        pytest.skip("no numactl here")
    (source, expected) = next(programs(NUMA))
    (by_hand,) = (line for line in "".join(blocks(NUMA, "sh")).splitlines() if "--membind" in line)
    bound = by_hand.partition("tensorpool")[0]
    script = command_line.shm_base / "program.py"
    script.write_text(source, "utf-8")
    try:
        assert sh(f"{bound} {sys.executable} {script}", command_line.environment()) == expected
        assert "configuration is good" in sh(by_hand, command_line.environment())
        assert "invalid" in sh(f"{bound.replace('=0', '=63')} true", command_line.environment())
    finally:
        script.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_tmpfs_with_a_policy_of_its_own_serves_a_driver(command_line: CommandLine, tmp_path: Path) -> None:
    block = next(one for one in blocks(NUMA, "sh") if "mount -t tmpfs" in one)
    here = tmp_path / "node0"
    assert sh(f"set -eu\n{block.replace('/mnt/tensorpool-0', str(here))}", command_line.environment()) == ""
    try:
        with tp.open("embedded", aeron_dir=command_line.aeron_dir, shm_base_dir=here) as context:
            producer = context.producer(20_000, pools=["1MiB"], nslots=4)
            maps = Path("/proc/self/numa_maps").read_text().splitlines()
            pools = [line for line in maps if f"/20000/{producer.epoch}/1.pool" in line]
            # 4 MiB and a superblock in pages, all there before the first frame.
            assert any(" bind:0 " in line and " N0=1025 " in line for line in pools), pools
    finally:
        assert sh(f"umount {here}", command_line.environment()) == ""


def test_the_drop_in_of_the_page_names_settings_of_services() -> None:
    (unit,) = blocks(NUMA, "ini")
    assert [line.partition("=")[0] for line in unit.splitlines()] == [
        "[Service]", "NUMAPolicy", "NUMAMask", "CPUAffinity",
    ]  # fmt: skip


# --- stream ids


def ids_of(heading: str) -> set[tuple[int, int]]:
    section = IDS.read_text("utf-8").partition(heading)[2].partition("\n## ")[0]
    rows = re.findall("^\\| (\\d+)(?:\N{EN DASH}(\\d+))? \\|", section, re.MULTILINE)
    return {(int(first), int(last or first)) for first, last in rows}


def test_the_plan_has_the_defaults_of_the_configuration() -> None:
    config = Config.load(AeronSettings, ContextSettings, DriverSettings, ServiceSettings, environ={})
    aeron, own, service = config[AeronSettings], config[ContextSettings], config[ServiceSettings]
    driver = config[DriverSettings]
    single = [
        *(getattr(aeron, f"{kind}_stream_id") for kind in ("control", "announce", "descriptor", "qos")),
        aeron.metadata_stream_id,
        service.control_stream_id,
        service.status_stream_id,
    ]
    planned = {
        *((one, one) for one in single),
        (own.per_consumer_descriptor_ids.first, own.per_consumer_descriptor_ids.last),
        (own.per_consumer_control_ids.first, own.per_consumer_control_ids.last),
        (driver.dynamic_first, driver.dynamic_last),
    }
    assert planned <= ids_of("What is in use")


# --- who may do what


def sockets() -> list[str]:
    """The doors of this process to the network."""
    links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    tables = "".join(Path(f"/proc/self/net/{kind}").read_text() for kind in ("tcp", "udp"))
    return [link for link in links if link.startswith("socket:[") and link[8:-1] in tables.split()]


def test_modes_are_those_of_the_page(command_line: CommandLine) -> None:
    (console,) = blocks(OTHERS, "console")
    # Of other tests: a Spark that runs, for one.
    foreign = set(sockets())
    context = tp.open("embedded", aeron_dir=command_line.aeron_dir, shm_base_dir=command_line.shm_base)
    before = os.umask(0)
    try:
        with context, context.producer(10_000, pools=["64KiB"], nslots=4):
            for command, expected in steps(console):
                here = substituted(command, {"/dev/shm/tensorpool-": f"{command_line.shm_base}/tensorpool-"})
                assert sh(here, command_line.environment()) == expected
            # No door to the network.
            assert set(sockets()) <= foreign
    finally:
        os.umask(before)


def profiles() -> dict[str, list[tuple[re.Pattern[str], set[str]]]]:
    """The rules of each AppArmor profile on the page for what lies in shared memory."""
    (text,) = blocks(OTHERS, "apparmor")
    found: dict[str, list[tuple[re.Pattern[str], set[str]]]] = {}
    for name, body in re.findall(r"^profile (\S+) .*?\{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        rules = re.findall(r"^\s+(@\{tensorpool_\w+\}\S*) (\w+),", body, re.MULTILINE)
        found[name] = [(re.compile(_regex(glob)), set(letters)) for glob, letters in rules]
    return found


def _regex(glob: str) -> str:
    """An AppArmor glob: ** crosses directories, * does not, {a,b} is either."""
    tokens = {"**": ".*", "*": "[^/]*", "{": "(?:", "}": ")", ",": "|"}
    names = {"@{tensorpool_memory}": "MEMORY", "@{tensorpool_media}": "MEDIA"}
    plain = substituted(glob, names)
    return "".join(tokens.get(one, re.escape(one)) for one in re.findall(r"\*\*|[*{},]|[^*{},]+", plain))


def used_by(pid: int, place: CommandLine) -> set[tuple[str, str]]:
    """What a process has open or mapped in shared memory: the page's name for the path, and how."""
    used = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        match = re.match(r"\S+ (\S+) \S+ \S+ \S+ +(/.*)", line)
        if match:
            used |= {(match[2], letter) for letter in match[1] if letter in "rw"}
    for one in Path(f"/proc/{pid}/fd").iterdir():
        try:
            flags = int(re.findall(r"^flags:\s+(\d+)", _fdinfo(pid, one.name), re.MULTILINE)[0], 8)
            target = os.readlink(one)
        except (OSError, IndexError):
            continue
        used |= {(target, letter) for letter in ("r", "rw", "rw")[min(flags & 3, 2)]}
    memory = next(place.shm_base.glob("tensorpool-*"), place.shm_base)
    names = {str(memory): "MEMORY", str(place.aeron_dir): "MEDIA"}
    return {
        (substituted(path, names), how)
        for path, how in used
        if path.startswith((str(memory), str(place.aeron_dir))) and "(deleted)" not in path
    }


def _fdinfo(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/fdinfo/{name}").read_text()


ROLES = {
    "tensorpool-driver": "with tp.open('embedded') as ctx:\n    wait()\n",
    "tensorpool-producer": (
        "with tp.open('driver') as ctx, ctx.producer(20000) as one:\n"
        "    one.wait_for_consumer(60)\n"
        "    threading.Thread(target=offer, args=(one,), daemon=True).start()\n"
        "    wait()\n"
    ),
    "tensorpool-consumer": (
        "with tp.open('driver') as ctx, ctx.consumer(20000) as one:\n"
        "    one.wait_for_producer(60); one.receive(60).array.sum(); wait()\n"
    ),
}
PREFACE = """
import sys, threading, time
import numpy as np
import tensorpool as tp

def wait():
    print("there", flush=True)
    sys.stdin.read()

def offer(producer):
    while producer.offer(np.zeros(8)).outcome != "closed":
        time.sleep(0.02)

"""


def test_driver_producer_and_consumer_use_no_more_memory_than_their_profiles_allow(
    command_line: CommandLine, tmp_path: Path
) -> None:
    rules = profiles()
    assert rules.keys() == ROLES.keys()
    running: dict[str, subprocess.Popen[str]] = {}

    def start(name: str, source: str) -> None:
        script = tmp_path / f"{name}.py"
        script.write_text(PREFACE + source, "utf-8")
        running[name] = subprocess.Popen(
            [sys.executable, script],
            env=command_line.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def is_there(name: str) -> None:
        out = running[name].stdout
        assert out is not None
        assert out.readline() == "there\n", name

    try:
        start("tensorpool-driver", ROLES["tensorpool-driver"])
        is_there("tensorpool-driver")
        start("tensorpool-consumer", ROLES["tensorpool-consumer"])
        start("tensorpool-producer", ROLES["tensorpool-producer"])
        is_there("tensorpool-producer")
        is_there("tensorpool-consumer")
        for name, process in running.items():
            used = used_by(process.pid, command_line)
            assert any(path.endswith("header.ring") for path, _ in used), (name, used)
            beyond = [
                (path, how)
                for path, how in used
                if not any(rule.fullmatch(path) and how in letters for rule, letters in rules[name])
            ]
            assert beyond == [], name
        # The rules can say no: a consumer's would not do for a producer.
        written = {
            path for path, how in used_by(running["tensorpool-producer"].pid, command_line) if how == "w"
        }
        consumer = rules["tensorpool-consumer"]
        assert any(
            path.endswith(".pool") and not any(r.fullmatch(path) and "w" in how for r, how in consumer)
            for path in written
        )
    finally:
        for process in reversed(running.values()):
            process.communicate("", timeout=PATIENCE_S)


@pytest.mark.skipif(shutil.which("apparmor_parser") is None, reason="no apparmor_parser here")
def test_the_apparmor_profile_is_one(tmp_path: Path) -> None:
    file = tmp_path / "tensorpool"
    file.write_text(blocks(OTHERS, "apparmor")[0])
    # For a parser that is not installed where it expects to be.
    more = os.environ.get("APPARMOR_FLAGS", "").split()
    done = subprocess.run(
        ["apparmor_parser", "--skip-kernel-load", "--skip-cache", *more, file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("checkmodule") is None, reason="no checkmodule here")
def test_the_selinux_module_is_one(tmp_path: Path) -> None:
    (tmp_path / "tensorpool.te").write_text(blocks(OTHERS, "selinux")[0])
    build = next(one for one in blocks(OTHERS, "sh") if "checkmodule" in one)
    commands = [line for line in build.splitlines() if not line.startswith("semodule -i")]
    done = subprocess.run(
        " && ".join(commands), shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tensorpool.pp").stat().st_size > 0
