"""The wheel in an empty virtual environment, with declared dependencies only.

The wheel is packed from the checkout, without a compiler. `TENSORPOOL_WHEEL=FILE` tests a built one instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.repository.test_declared_imports import ROOT, declared_extras
from tools.wheel import quick

TIMEOUT_S = 300
# What pip prints if no package index answers.
_UNREACHABLE = ("NewConnectionError", "name resolution", "ConnectTimeout", "ProxyError", "unreachable")
# The programs of the README begin like this.
TEN_LINES = """\
import numpy as np
import tensorpool as tp

with tp.open() as ctx, ctx.producer(20000, pools=["1MiB"], nslots=8) as camera, ctx.consumer(20000) as frames:
    frames.wait_for_producer()
    camera.offer(np.zeros((512, 512), "uint16"))
    with camera.claim((512, 512), "uint16") as slot:
        slot.array[:] = 7
    for frame in frames.poll():
        with frame:
            print(frame.seq, frame.shape, frame.array.mean())
"""
RECORDED = """\
import time
import numpy as np
import tensorpool as tp

with tp.open() as ctx, ctx.producer(20000, pools=["64KiB"], nslots=8) as camera:
    with ctx.record(DIRECTORY, streams=[20000]) as recorder:
        while recorder.mapped().get(20000) is None:
            time.sleep(0.01)
        camera.offer(np.arange(256, dtype="uint8"))
"""
# A program for each extra that uses it.
EXTRAS = {
    "zarr": "from tensorpool import recording\nprint(recording.export(DIRECTORY, OUT + '.zarr'))",
    "mcap": "from tensorpool import recording\nprint(recording.export(DIRECTORY, OUT + '.mcap'))",
    "delta": (
        "import pyarrow as pa, pyarrow.parquet\n"
        "from deltalake import DeltaTable, write_deltalake\n"
        "import tensorpool.pipeline.delta\n"
        "write_deltalake(OUT, pa.table({'a': [1]}))\n"
        # Not to_pyarrow_table: with it one program in ten aborts at its end, because an I/O thread of pyarrow
        # still holds an object of Python.
        "[file] = DeltaTable(OUT).file_uris()\n"
        "print(pyarrow.parquet.read_table(file).num_rows)"
    ),
    "otel": (
        "from tensorpool.metrics import otel\n"
        "from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter\n"
        "print(1)"
    ),
    "console": "import starlette, uvicorn, websockets\nimport tensorpool.console.server\nprint(1)",
    "notebook": "from IPython.display import HTML, display\nimport tensorpool.notebook\nprint(1)",
    "cuda": "from cuda.bindings import runtime\nimport tensorpool.cuda\nprint(1)",
    "spark": "import tensorpool.spark, tensorpool.pipeline.builder\nprint(1)",
}

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel in it."""

    directory: Path
    install_s: float = 0.0

    @property
    def packages(self) -> Path:
        """Where its packages are."""
        return next((self.directory / "lib").glob("python3*/site-packages"))

    def run(self, *command: str, scratch: Path) -> subprocess.CompletedProcess[str]:
        """Runs a command of the environment, which sees nothing of this checkout."""
        hidden = ("PYTHON", "VIRTUAL_ENV", "TENSORPOOL_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        environment |= {
            "AERON_DIR": str(scratch / "aeron"),
            "TENSORPOOL_SHM__BASE_DIR": str(scratch / "shm"),
            "XDG_STATE_HOME": str(scratch / "state"),
            "HOME": str(scratch),
        }
        (scratch / "shm").mkdir(exist_ok=True)
        return subprocess.run(
            [str(self.directory / "bin" / command[0]), *command[1:]],
            cwd=scratch,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )


def install(
    wheel: Path, directory: Path, *, extra: str = "", below: Installation | None = None
) -> Installation:
    """Installs the wheel into a new environment. What `below` has is not installed a second time."""
    venv.create(directory, symlinks=True, with_pip=False)
    installation = Installation(directory)
    if below is not None:
        (installation.packages / "below.pth").write_text(f"{below.packages}\n")
    command = [sys.executable, "-m", "pip", "--python", str(directory), "install", "--quiet", "--no-compile"]
    command += ["--constraint", str(ROOT / "requirements" / "constraints.txt")]
    started = time.monotonic()
    done = subprocess.run(
        [*command, f"{wheel}[{extra}]" if extra else str(wheel)],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    if done.returncode and any(sign in done.stderr for sign in _UNREACHABLE):
        pytest.skip("no package index answers, so that nothing can be installed")
    assert done.returncode == 0, done.stderr
    return Installation(directory, time.monotonic() - started)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel under test."""
    if given := os.environ.get("TENSORPOOL_WHEEL"):
        return Path(given).absolute()
    return quick.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel without extras."""
    return install(wheel, tmp_path_factory.mktemp("clean") / "venv")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A private directory in shared memory for everything that the programs write."""
    with tempfile.TemporaryDirectory(prefix="tensorpool-clean-", dir="/dev/shm") as directory:
        yield Path(directory)


def test_ten_lines_run(installation: Installation, scratch: Path) -> None:
    started = time.monotonic()
    done = installation.run("python", "-c", TEN_LINES, scratch=scratch)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == ["0 (512, 512) 0.0", "1 (512, 512) 7.0"]
    print(
        f"installed in {installation.install_s:.1f} s, first tensors {time.monotonic() - started:.1f} s later"
    )


def test_only_declared_packages_are_installed(installation: Installation) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(installation.directory), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {path.name.partition("-")[0] for path in installation.packages.glob("*.dist-info")}
    assert "aeron_tensorpool" in names
    assert "typing_extensions" not in names, (
        "it is no dependency, and this test could no longer notice its use"
    )
    assert len(names) <= 3 * len(project["dependencies"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--version"], "protocol wire"),
        (["--help"], "Run the roles of a system"),
        (["demo", "--help"], "--no-kill"),
        (["config", "schema"], "$schema"),
    ],
)
def test_commands_run(installation: Installation, scratch: Path, arguments: list[str], expected: str) -> None:
    done = installation.run("tensorpool", *arguments, scratch=scratch)
    assert (done.stderr, done.returncode) == ("", 0)
    assert expected in done.stdout


def test_every_command_can_be_loaded(installation: Installation, scratch: Path) -> None:
    from tensorpool.cli.root import SECTIONS

    names = [command.name for commands in SECTIONS.values() for command in commands]
    program = "from tensorpool.cli import cli\nimport sys\n" + "".join(
        f"cli.main([{name!r}, '--help'], standalone_mode=False)\n" for name in names
    )
    done = installation.run("python", "-c", program, scratch=scratch)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.count("Usage: ") == len(names)


def test_doctor_runs(installation: Installation, scratch: Path) -> None:
    done = installation.run("tensorpool", "doctor", scratch=scratch)
    # The status says whether the machine has problems, not whether the command works.
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
    assert "shared memory" in done.stdout.lower()


def test_demo_without_spark_names_the_extra_to_install(installation: Installation, scratch: Path) -> None:
    done = installation.run("tensorpool", "demo", "--seconds", "1", "--no-kill", scratch=scratch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every frame is accounted for, none was torn" in done.stdout
    # The words of the line are folded at the width of the terminal.
    assert "pip install 'aeron-tensorpool[spark]'" in " ".join(done.stdout.split())


def test_every_extra_is_tried() -> None:
    assert set(EXTRAS) == set(declared_extras())


def use_extras(installation: Installation, extras: list[str], scratch: Path) -> None:
    """Makes a recording and runs the program of each extra."""
    names = {"DIRECTORY": str(scratch / "recording"), "OUT": str(scratch / "out")}
    variables = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    recorded = installation.run("python", "-c", variables + RECORDED, scratch=scratch)
    assert (recorded.stderr, recorded.returncode) == ("", 0)
    for extra in extras:
        done = installation.run("python", "-c", variables + EXTRAS[extra], scratch=scratch)
        assert (extra, done.stderr, done.returncode) == (extra, "", 0)
        assert done.stdout == "1\n"


def test_extras_can_be_installed_together_and_used(
    wheel: Path, installation: Installation, scratch: Path, tmp_path: Path
) -> None:
    light = sorted(set(EXTRAS) - {"spark", "cuda"})
    with_extras = install(wheel, tmp_path / "venv", extra=",".join(light), below=installation)
    use_extras(with_extras, light, scratch)


@pytest.mark.long
@pytest.mark.parametrize("extra", EXTRAS)
def test_extra_can_be_installed_alone_and_used(
    extra: str, wheel: Path, installation: Installation, scratch: Path, tmp_path: Path
) -> None:
    use_extras(install(wheel, tmp_path / "venv", extra=extra, below=installation), [extra], scratch)


# Programs that install commands, each into an environment of its own.
INSTALLERS = {
    "pipx": (["pipx", "install"], "PIPX_HOME", "PIPX_BIN_DIR"),
    "uv": (["uv", "tool", "install"], "UV_TOOL_DIR", "UV_TOOL_BIN_DIR"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", INSTALLERS)
def test_wheel_installs_as_a_tool(name: str, wheel: Path, tmp_path: Path) -> None:
    command, environments, programs = INSTALLERS[name]
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    environment = {
        **os.environ,
        environments: str(tmp_path / "environments"),
        programs: str(tmp_path / "bin"),
    }
    done = subprocess.run(
        [*command, str(wheel)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    printed = subprocess.run(
        [tmp_path / "bin" / "tensorpool", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert "protocol wire" in printed


def test_error_without_an_extra_names_it(installation: Installation, scratch: Path) -> None:
    done = installation.run("python", "-c", "import tensorpool.spark", scratch=scratch)
    assert done.returncode == 1
    assert "pip install 'aeron-tensorpool[spark]'" in done.stderr.splitlines()[-1]
