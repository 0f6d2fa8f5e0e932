"""The commands of docs/how-to/run-a-driver-for-several-users.md, run by several users.

Users are numeric ids, groups are some that every Debian has, and paths are private, so the machine is not
changed. Stubs replace commands that would change it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.pages import ROOT, blocks, looks_like, sh, steps, substituted

PAGE = ROOT / "docs" / "how-to" / "run-a-driver-for-several-users.md"
UNIT = ROOT / "deploy" / "tensorpool-driver.service"
CAMERA, VIEWER = (ROOT / "examples" / "camera" / name for name in ("camera.py", "viewer.py"))
TENSORPOOL_GROUP, MICROSCOPY_GROUP = ("users", 100), ("games", 60)
TIMEOUT_S = 60

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the user")

# Import all modules first: other users may not be allowed to read the interpreter and the package.
_RUN_AS_USER = """
import encodings.ascii, encodings.idna, importlib, os, pkgutil, runpy, sys
import numpy as np, tensorpool, tensorpool.sbe
for module in pkgutil.walk_packages(tensorpool.__path__, "tensorpool."):
    if not module.name.endswith(("__main__", ".torch")):  # torch is not installed
        importlib.import_module(module.name)
tensorpool.sbe.layout.schemas()
np.random.default_rng().integers(0, 4096, (2, 2))
uid, groups, script = int(sys.argv[1]), [int(gid) for gid in sys.argv[2].split(",") if gid], sys.argv[3]
sys.argv = sys.argv[3:]
program = compile(open(script, encoding="utf-8").read(), script, "exec")
os.setgroups(groups); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
exec(program, {"__name__": "__main__"})
"""


@dataclass(frozen=True)
class User:
    """A user with an id, groups and a directory."""

    uid: int
    groups: tuple[int, ...]
    environment: dict[str, str]

    def start(self, script: Path, *arguments: str) -> subprocess.Popen[str]:
        """Starts a program as this user."""
        groups = ",".join(map(str, self.groups))
        command = [sys.executable, "-c", _RUN_AS_USER, str(self.uid), groups, str(script), *arguments]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, script: Path) -> tuple[str, str]:
        """Runs a program as this user; returns its output and errors."""
        process = self.start(script)
        try:
            return process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            process.communicate()


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Ends the program with Ctrl-C at the end of the block."""
    try:
        yield process
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users may enter, unlike pytest's."""
    directory = Path(tempfile.mkdtemp(prefix="tensorpool-page-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@dataclass(frozen=True)
class Site:
    """The environment of the page, with the names of the test."""

    public: Path
    names: dict[str, str]
    environment: dict[str, str]

    def text(self, text: str) -> str:
        """A text of the page with the names of the test."""
        return substituted(text, self.names)

    def page(self, printed: str) -> str:
        """An output with the names of the page."""
        return substituted(printed, {name: page_name for page_name, name in self.names.items()})

    def user(self, name: str, uid: int, *groups: int) -> User:
        """A user with a private directory."""
        directory = self.public / name
        directory.mkdir(exist_ok=True)
        os.chown(directory, uid, uid)
        paths = {"HOME": str(directory), "XDG_STATE_HOME": str(directory)}
        return User(uid, groups, {**self.environment, **paths})

    def script(self, name: str, source: str) -> Path:
        """Writes a program that all users may read."""
        file = self.public / name
        file.write_text(source, "utf-8")
        return file

    def follow(self, console: str) -> None:
        """Runs the commands of a console block and compares their output."""
        for command, expected in steps(console):
            printed = self.page(sh(self.text(command), self.environment))
            assert looks_like(printed, expected), f"$ {command}\n{printed}"


@pytest.fixture
def site(public: Path, aeron_dir: Path, shm_base: Path) -> Site:
    # Other users may pass through; the directories below have their own permissions.
    shm_base.chmod(0o711)
    names = {
        "/etc/tensorpool/driver.toml": str(public / "driver.toml"),
        "/etc/tensorpool/client.toml": str(public / "client.toml"),
        "/dev/shm/aeron-tensorpool": str(aeron_dir),
        '"tensorpool"': f'"{TENSORPOOL_GROUP[0]}"',
        '"microscopy"': f'"{MICROSCOPY_GROUP[0]}"',
        '"alice"': '"2001"',
        "of tensorpool, a service": "of root, a service",
    }
    driver, client, owned = blocks(PAGE, "toml")
    for name, text in (("driver.toml", driver + owned), ("client.toml", client)):
        (public / name).write_text(substituted(text, names), "utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (variable,) = [block for block in blocks(PAGE, "sh") if "=" in block and "install" not in block]
    key, _, value = substituted(variable, names).strip().partition("=")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TENSORPOOL_")},
        "PATH": path,
        "NO_COLOR": "1",
        "TENSORPOOL_SHM__BASE_DIR": str(shm_base),
        key: value,
    }
    return Site(public, {**names, "/dev/shm": str(shm_base)}, environment)


def drop_in(name: str) -> str:
    """A setting of the systemd drop-in of the page."""
    (block,) = blocks(PAGE, "ini")
    match = re.search(rf"^{name}=(.*)$", block, re.MULTILINE)
    assert match is not None
    return match[1]


@pytest.fixture
def service(site: Site, wait_until: Callable[..., Any]) -> Iterator[subprocess.Popen[str]]:
    """The command of the systemd unit, run with the umask and the groups of the drop-in."""
    started = re.search(r"^ExecStart=/usr/bin/env (.*)$", UNIT.read_text("utf-8"), re.MULTILINE)
    assert started is not None
    assert drop_in("SupplementaryGroups") == "microscopy"
    ready = site.public / "ready"
    process = subprocess.Popen(
        f"exec {site.text(started[1])} --ready-file {ready}",
        shell=True,
        env=site.environment,
        group=TENSORPOOL_GROUP[1],
        extra_groups=[TENSORPOOL_GROUP[1], MICROSCOPY_GROUP[1]],
        umask=int(drop_in("UMask"), 8),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, timeout=TIMEOUT_S)
        assert process.poll() is None, process.communicate()[1]
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


def block_with(consoles: list[str], text: str) -> str:
    """The console block that contains a text."""
    (block,) = [console for console in consoles if text in console]
    return block


def test_commands_of_the_page_print_the_shown_output(
    site: Site, service: subprocess.Popen[str], wait_until: Callable[..., Any]
) -> None:
    consoles = blocks(PAGE, "console")
    # The test also configures the stream of the last block, so there are three.
    site.follow(block_with(consoles, "--check"))
    alice, bob = (site.user(name, uid, TENSORPOOL_GROUP[1]) for name, uid in (("alice", 2001), ("bob", 2002)))

    def active(count: int) -> Callable[[], bool]:
        """A predicate: whether this number of leases is active. Clients start one by one, so their order is
        known."""
        return lambda: sh("tensorpool driver leases --json", site.environment).count('"active"') == count

    with running(alice.start(CAMERA, "10000")):
        wait_until(active(1), timeout=TIMEOUT_S)
        with running(bob.start(VIEWER, "10000")) as viewer:
            assert viewer.stdout is not None
            assert [viewer.stdout.readline().startswith("frame ") for _ in range(3)] == [True] * 3
            wait_until(active(2), timeout=TIMEOUT_S)
            status = block_with(consoles, "driver status")
            row = r"^ *10001.*\n"
            assert re.search(row, status, re.MULTILINE)
            # The third stream, which the page configures later, has a row too.
            site.follow(re.sub(row, lambda match: match[0] + "…\n", status, flags=re.MULTILINE))
            site.follow(block_with(consoles, "revoke"))
            assert service.poll() is None
            assert viewer.stdout.readline().startswith("frame ")
    site.follow(block_with(consoles, "stop --reason").replace("2 leases ended", "0 leases ended"))
    assert service.wait(TIMEOUT_S) == 0


def test_streams_are_created_on_demand(site: Site, service: subprocess.Popen[str]) -> None:
    (source,) = blocks(PAGE, "python")
    expected = next(block for block in blocks(PAGE, "text") if "20000 True" in block)
    bob = site.user("bob", 2002, TENSORPOOL_GROUP[1])
    out, err = bob.run(site.script("own.py", source))
    assert looks_like(out, expected), out + err


PRODUCE = """
import numpy as np
import tensorpool as tp

try:
    with tp.open() as ctx, ctx.producer({stream}) as producer:
        print("may write", producer.offer(np.zeros(8)).seq)
except Exception as error:
    print(error)
"""
CONSUME = """
import time
import tensorpool as tp

try:
    with tp.open() as ctx, ctx.consumer({stream}) as consumer:
        deadline = time.monotonic() + 30
        while not (there := consumer.wait_for_producer(0.1)) and time.monotonic() < deadline:
            consumer.poll()  # says why not
        print("may read", there)
except Exception as error:
    print(error)
"""


def test_file_permissions_decide_which_user_may_map(site: Site, service: subprocess.Popen[str]) -> None:
    member, microscopist = TENSORPOOL_GROUP[1], MICROSCOPY_GROUP[1]
    alice, bob = site.user("alice", 2001, member), site.user("bob", 2002, member)
    dora, carol = site.user("dora", 2004, member, microscopist), site.user("carol", 2003)
    # She may not use the media driver, so do not wait long.
    carol.environment["TENSORPOOL_AERON__CONNECT_TIMEOUT"] = "1s"
    denied, closed = [block.strip() for block in blocks(PAGE, "text") if "…" in block]

    def run_script(user: User, source: str, stream: int) -> str:
        out, err = user.run(site.script("asked.py", source.format(stream=stream)))
        assert not err
        return site.page(out)

    assert run_script(alice, PRODUCE, 10000) == run_script(dora, PRODUCE, 10000) == "may write 0\n"
    assert run_script(dora, PRODUCE, 10001) == "may write 0\n"
    assert looks_like(run_script(alice, PRODUCE, 10001), denied)
    assert "permission denied" in run_script(alice, CONSUME, 10001)
    assert looks_like(run_script(carol, PRODUCE, 10000), closed)
    # Files with one owner: other users of the group may read and not write.
    assert run_script(alice, PRODUCE, 10002) == "may write 0\n"
    assert "permission denied" in run_script(bob, PRODUCE, 10002)
    assert run_script(bob, CONSUME, 10002) == "may read True\n"


def test_root_commands_name_existing_files(site: Site, public: Path) -> None:
    """Stubs replace the commands for root."""
    stubs, log = public / "stubs", public / "log"
    stubs.mkdir()
    for name in ("useradd", "usermod", "install", "systemctl"):
        stub = stubs / name
        stub.write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n')
        stub.chmod(0o755)
    environment = {**site.environment, "PATH": f"{stubs}{os.pathsep}{site.environment['PATH']}"}
    for block in blocks(PAGE, "sh"):
        if not block.startswith("TENSORPOOL_"):
            assert sh(f"set -eu; cd {ROOT}\n{block}", environment) == ""
    calls = log.read_text("utf-8").splitlines()
    assert len(calls) == 6
    (installed,) = [line.split() for line in calls if line.startswith("install")]
    assert (ROOT / installed[-2]).read_bytes() == UNIT.read_bytes()
    assert Path(installed[-1]).name == UNIT.name
    user = re.search(r"^User=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE)
    assert user is not None
    assert f"useradd --system {user[1]}" in calls


def test_print_config_hides_the_token(site: Site) -> None:
    printed = sh(
        site.text("tensorpool driver --config /etc/tensorpool/driver.toml --print-config"), site.environment
    )
    assert "open-sesame" not in printed
    assert "front camera" in printed
