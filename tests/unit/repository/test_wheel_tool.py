"""`make wheel`: the archive, the checks, and the debug information in a file of its own."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.wheel import __main__ as command_line
from tools.wheel import build, checks, emulation
from tools.wheel.archive import pack, unpack
from tools.wheel.build import NATIVE, TARGETS, BuiltWheel, WheelError
from tools.wheel.installation import VirtualEnvironment, try_package

INFO = "a-1.dist-info"
TARGET = TARGETS["x86_64"]
NAME = "a-1-cp311-abi3-manylinux_2_28_x86_64.whl"
WHOLE = {
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: a\nVersion: 1\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nTag: cp311-abi3-manylinux_2_28_x86_64\n",
    "tensorpool/sbe/schemas/a.xml": b"x",
    "tensorpool/pipeline/report/page.html": b"x",
    "tensorpool/py.typed": b"",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared library with debug information that links the C library alone."""
    directory = tmp_path_factory.mktemp("library")
    (directory / "a.c").write_text("#include <stdlib.h>\nint f(void) { return abs(rand()); }\n")
    command = ["cc", "-g", "-shared", "-fPIC", "-o", "a.so", "a.c"]
    subprocess.run(command, cwd=directory, check=True)
    return (directory / "a.so").read_bytes()


def test_archive_lists_its_files_with_their_hashes(tmp_path: Path) -> None:
    wheel = pack(tmp_path / NAME, {**WHOLE, f"{INFO}/RECORD": b"old"})
    record = unpack(wheel)[f"{INFO}/RECORD"].decode().splitlines()
    assert len(record) == len(WHOLE) + 1
    assert record[-1] == f"{INFO}/RECORD,,"
    assert "tensorpool/py.typed,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0" in record
    assert pack(tmp_path / "again.whl", WHOLE).read_bytes() == wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None


def test_debug_information_goes_to_a_file_of_its_own(tmp_path: Path, library: bytes) -> None:
    if shutil.which("rustc") is None and shutil.which("llvm-objcopy") is None:
        pytest.skip("no objcopy of LLVM")
    (tmp_path / "in").mkdir()
    unstripped = pack(tmp_path / "in" / NAME, {**WHOLE, NATIVE: library})
    built = build.split_debug_information(unstripped, tmp_path, TARGET)
    assert built.debug_file.name == "a-1-cp311-abi3-manylinux_2_28_x86_64.debug"
    module = tmp_path / "module.so"
    module.write_bytes(unpack(built.wheel)[NATIVE])
    sections = {path: _sections(path) for path in (module, built.debug_file)}
    assert ".debug_info" not in sections[module]
    assert ".gnu_debuglink" in sections[module]
    assert ".debug_info" in sections[built.debug_file]
    assert checks.linked_libraries(built.wheel) == {"libc.so.6"}


def _sections(path: Path) -> str:
    command = ["readelf", "--sections", "--wide", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("name", "without", "linked", "expected"),
    [
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", "", set(), "is not for all Pythons"),
        ("a-1-cp311-abi3-linux_x86_64.whl", "", set(), "is not for all Pythons"),
        (NAME, "tensorpool/sbe/schemas/a.xml", set(), "has no tensorpool/sbe/schemas/"),
        (NAME, "", {"libbsd.so.0", "libc.so.6"}, "links libbsd.so.0, which a plain Linux may lack"),
    ],
)
def test_unfit_wheel_is_refused(
    name: str,
    without: str,
    linked: set[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {file: data for file, data in WHOLE.items() if file != without}
    built = BuiltWheel(pack(tmp_path / name, {**files, NATIVE: b""}), tmp_path / "debug", TARGET)
    monkeypatch.setattr(checks, "linked_libraries", lambda _: linked)
    with pytest.raises(WheelError, match=expected):
        checks.check_wheel(built)


@pytest.mark.parametrize(
    ("verdict", "is_fit"),
    [
        ("manylinux_2_28_x86_64", True),
        ("manylinux_2_17_x86_64", True),
        ("manylinux_2_36_x86_64", False),
        ("linux_x86_64", False),
    ],
)
def test_verdict_of_auditwheel_counts_and_not_the_file_name(
    verdict: str, is_fit: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = f'{NAME} is\nconsistent with the following platform tag: "{verdict}".\n'
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}END\n")
    fake.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(fake))
    if is_fit:
        checks.audit(tmp_path / NAME)
    else:
        with pytest.raises(WheelError, match="auditwheel does not find"):
            checks.audit(tmp_path / NAME)


def test_source_distribution_has_what_its_build_needs(tmp_path: Path) -> None:
    sdist = build.build_sdist(tmp_path)
    checks.check_sdist(sdist)
    tree = checks.extract(sdist, tmp_path / "tree")
    assert (tree / "python/tensorpool/sbe/schemas/wire-900.xml").is_file()
    assert not list(tree.rglob("*.so")), "a module that was built here is not a source"


def put_program(directory: Path, name: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_missing_rust_target_is_installed_by_rustup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    programs, libraries = tmp_path / "bin", tmp_path / "lib"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    put_program(programs, "rustc", f"echo {libraries}")
    # A rustup that cannot help.
    put_program(programs, "rustup", "true")
    with pytest.raises(WheelError, match=r"https://rustup\.rs.*make wheel ARGS='--arch"):
        build.require_target(TARGETS["aarch64"])
    install = f"mkdir {libraries} && touch {libraries}/libstd-1.rlib"
    put_program(programs, "rustup", f'[ "$*" = "target add aarch64-unknown-linux-gnu" ] && {install}')
    build.require_target(TARGETS["aarch64"])
    # It is not asked again.
    (programs / "rustup").unlink()
    build.require_target(TARGETS["aarch64"])


def test_missing_emulator_error_names_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert emulation.missing_tools("aarch64") == ["qemu-user-static", "debootstrap"]
    # The package qemu-user has the same program, without a suffix.
    put_program(tmp_path, "qemu-aarch64", "true")
    assert emulation.missing_tools("aarch64") == ["debootstrap"]


def test_missing_tools_are_named_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_program(tmp_path / "tools", "system-packages", f'echo "$*" >{tmp_path}/asked; exit 1')
    monkeypatch.setattr(command_line, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["make wheel", "--out", str(tmp_path / "dist")])
    assert command_line.main() == 1
    assert "needs packages of the system" in capsys.readouterr().err
    assert (tmp_path / "asked").read_text() == "strip emulation\n"
    assert not list((tmp_path / "dist").iterdir())
    # This machine's own wheel needs no emulator.
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--arch", platform.machine()])
    assert command_line.main() == 1
    assert (tmp_path / "asked").read_text() == "strip\n"


def test_package_of_this_environment_passes_the_trial() -> None:
    """The programs that are run in each installation, also under emulation."""
    printed = try_package(VirtualEnvironment(Path(sys.prefix)))
    assert "protocol wire" in printed
    assert "16 frames through a ring of 8" in printed
    assert "50 frames of another process compared" in printed


@pytest.mark.parametrize("failing", ["--version", "alone", "consume", "produce"])
def test_trial_names_the_program_that_fails(failing: str) -> None:
    class Broken:
        def command(self, *arguments: str) -> list[str]:
            # The producer ends with its input.
            script = f"echo ready; [ $1 != produce ] || cat >/dev/null; [ $1 != {failing} ] || exit 3"
            return ["sh", "-c", script, "sh", arguments[-1]]

        def environment(self) -> dict[str, str]:
            return {}

    with pytest.raises(WheelError, match=r"(producer|" + failing + r") failed with exit status 3"):
        try_package(Broken())
