"""docs/how-to/run-a-driver-for-several-users.md, followed to the letter by several users.

Users are numbers here, groups are some that every Debian has, and paths are the test's own: nothing of the
machine is changed. What would change it is given to stubs.
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
PATIENCE_S = 60

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

# Imports first, and all of them: the interpreter and the package may lie where another user cannot go.
_AS_USER = """
import encodings.ascii, encodings.idna, importlib, os, pkgutil, runpy, sys
import numpy as np, tensorpool, tensorpool.sbe
for module in pkgutil.walk_packages(tensorpool.__path__, "tensorpool."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
tensorpool.sbe.layout.schemas()
np.random.default_rng().integers(0, 4096, (2, 2))
uid, groups, script = int(sys.argv[1]), [int(one) for one in sys.argv[2].split(",") if one], sys.argv[3]
sys.argv = sys.argv[3:]
program = compile(open(script, encoding="utf-8").read(), script, "exec")
os.setgroups(groups); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
exec(program, {"__name__": "__main__"})
"""


@dataclass(frozen=True)
class User:
    """Somebody with a number, groups, and a home."""

    uid: int
    groups: tuple[int, ...]
    environment: dict[str, str]

    def start(self, script: Path, *arguments: str) -> subprocess.Popen[str]:
        groups = ",".join(map(str, self.groups))
        command = [sys.executable, "-c", _AS_USER, str(self.uid), groups, str(script), *arguments]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, script: Path) -> tuple[str, str]:
        process = self.start(script)
        try:
            return process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.communicate()


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory where other users can go, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="tensorpool-page-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@dataclass(frozen=True)
class Site:
    """The machine of the page."""

    public: Path
    names: dict[str, str]
    environment: dict[str, str]

    def text(self, text: str) -> str:
        return substituted(text, self.names)

    def page(self, printed: str) -> str:
        """What was printed here, in the page's names."""
        return substituted(printed, {here: there for there, here in self.names.items()})

    def user(self, name: str, uid: int, *groups: int) -> User:
        home = self.public / name
        home.mkdir(exist_ok=True)
        os.chown(home, uid, uid)
        places = {"HOME": str(home), "XDG_STATE_HOME": str(home)}
        return User(uid, groups, {**self.environment, **places})

    def script(self, name: str, source: str) -> Path:
        file = self.public / name
        file.write_text(source, "utf-8")
        return file

    def follow(self, console: str) -> None:
        for command, expected in steps(console):
            printed = self.page(sh(self.text(command), self.environment))
            assert looks_like(printed, expected), f"$ {command}\n{printed}"


@pytest.fixture
def site(public: Path, aeron_dir: Path, shm_base: Path) -> Site:
    # Others pass through it; what is below says who may do what.
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
    (block,) = blocks(PAGE, "ini")
    found = re.search(rf"^{name}=(.*)$", block, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture
def service(site: Site, wait_until: Callable[..., Any]) -> Iterator[subprocess.Popen[str]]:
    """What systemd would start: the unit's command, with the umask and the groups of the drop-in."""
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
        wait_until(lambda: ready.exists() or process.poll() is not None, timeout=PATIENCE_S)
        assert process.poll() is None, process.communicate()[1]
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def of(page_consoles: list[str], word: str) -> str:
    (found,) = [block for block in page_consoles if word in block]
    return found


def test_the_page_is_followed_to_the_letter(
    site: Site, service: subprocess.Popen[str], wait_until: Callable[..., Any]
) -> None:
    consoles = blocks(PAGE, "console")
    # Three streams are configured here: the last block of the page as well.
    site.follow(of(consoles, "--check"))
    alice, bob = (site.user(name, uid, TENSORPOOL_GROUP[1]) for name, uid in (("alice", 2001), ("bob", 2002)))

    def active(count: int) -> Callable[[], bool]:
        """Whether that many leases have been kept alive; one after the other, so that the order is known."""
        return lambda: sh("tensorpool driver leases --json", site.environment).count('"active"') == count

    with running(alice.start(CAMERA, "10000")):
        wait_until(active(1), timeout=PATIENCE_S)
        with running(bob.start(VIEWER, "10000")) as viewer:
            assert viewer.stdout is not None
            assert [viewer.stdout.readline().startswith("frame ") for _ in range(3)] == [True] * 3
            wait_until(active(2), timeout=PATIENCE_S)
            look = of(consoles, "driver status")
            row = r"^ *10001.*\n"
            assert re.search(row, look, re.MULTILINE)
            # The third stream, which this test configures at once, has a row too.
            site.follow(re.sub(row, lambda found: found[0] + "…\n", look, flags=re.MULTILINE))
            site.follow(of(consoles, "revoke"))
            assert service.poll() is None
            assert viewer.stdout.readline().startswith("frame ")
    site.follow(of(consoles, "stop --reason").replace("2 leases ended", "0 leases ended"))
    assert service.wait(PATIENCE_S) == 0


def test_streams_on_demand(site: Site, service: subprocess.Popen[str]) -> None:
    (source,) = blocks(PAGE, "python")
    told = next(block for block in blocks(PAGE, "text") if "20000 True" in block)
    bob = site.user("bob", 2002, TENSORPOOL_GROUP[1])
    out, err = bob.run(site.script("own.py", source))
    assert looks_like(out, told), out + err


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


def test_the_kernel_decides_who_may_map_what(site: Site, service: subprocess.Popen[str]) -> None:
    member, microscopist = TENSORPOOL_GROUP[1], MICROSCOPY_GROUP[1]
    alice, bob = site.user("alice", 2001, member), site.user("bob", 2002, member)
    dora, carol = site.user("dora", 2004, member, microscopist), site.user("carol", 2003)
    # She is not let in, however long she waits.
    carol.environment["TENSORPOOL_AERON__CONNECT_TIMEOUT"] = "1s"
    denied, closed = [block.strip() for block in blocks(PAGE, "text") if "…" in block]

    def says(user: User, source: str, stream: int) -> str:
        out, err = user.run(site.script("asked.py", source.format(stream=stream)))
        assert not err
        return site.page(out)

    assert says(alice, PRODUCE, 10000) == says(dora, PRODUCE, 10000) == "may write 0\n"
    assert says(dora, PRODUCE, 10001) == "may write 0\n"
    assert looks_like(says(alice, PRODUCE, 10001), denied)
    assert "permission denied" in says(alice, CONSUME, 10001)
    assert looks_like(says(carol, PRODUCE, 10000), closed)
    # Files of one user: others of the group read, and do not write.
    assert says(alice, PRODUCE, 10002) == "may write 0\n"
    assert "permission denied" in says(bob, PRODUCE, 10002)
    assert says(bob, CONSUME, 10002) == "may read True\n"


def test_what_changes_the_machine_names_what_is_there(site: Site, public: Path) -> None:
    """Commands for root are run with stubs in the place of the real ones."""
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
    done = log.read_text("utf-8").splitlines()
    assert len(done) == 6
    (installed,) = [line.split() for line in done if line.startswith("install")]
    assert (ROOT / installed[-2]).read_bytes() == UNIT.read_bytes()
    assert Path(installed[-1]).name == UNIT.name
    user = re.search(r"^User=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE)
    assert user is not None
    assert f"useradd --system {user[1]}" in done


def test_the_token_of_the_page_is_not_printed(site: Site) -> None:
    printed = sh(
        site.text("tensorpool driver --config /etc/tensorpool/driver.toml --print-config"), site.environment
    )
    assert "open-sesame" not in printed
    assert "front camera" in printed
