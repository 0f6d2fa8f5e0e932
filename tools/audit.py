"""The command behind `make audit`: licences, sources, withdrawn versions and known flaws of all dependencies.

Licences and sources come from `cargo metadata` and `deny.toml`; withdrawn ("yanked") versions from the
indexes of crates.io and PyPI; known flaws from cargo-deny and pip-audit, where they are installed and reach
their databases.
A check that cannot run says why. `--strict` fails then too, as in CI.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

ROOT = Path(__file__).resolve().parent.parent
CRATES_IO: Final = "registry+https://github.com/rust-lang/crates.io-index"
TIMEOUT_S: Final = 30
_WORKERS: Final = 8


_T = TypeVar("_T")


class NotChecked(Exception):
    """Why a check could not run."""


@dataclass(frozen=True, slots=True)
class Crate:
    """A crate of a lock file."""

    name: str
    version: str
    licence: str
    source: str | None
    """None for crates of this repository."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one check."""

    name: str
    findings: tuple[str, ...]
    not_checked: str | None = None

    @property
    def mark(self) -> str:
        """A sign for the table."""
        return "-" if self.not_checked else "✗" if self.findings else "✓"


def licence_is_allowed(expression: str, allowed: Iterable[str]) -> bool:
    """Whether an SPDX expression permits one of the allowed licences. "/" is the old form of OR."""
    known = set(allowed)
    tokens = re.findall(r"\(|\)|[^\s()]+", re.sub(r"/", " OR ", expression))
    # WITH belongs to the licence before it.
    parts: list[str] = []
    for token in tokens:
        if parts and (token == "WITH" or parts[-1].endswith(" WITH")):
            parts[-1] += f" {token}"
        else:
            parts.append(token)
    position = 0

    def either() -> bool:
        nonlocal position
        result = both()
        while position < len(parts) and parts[position] == "OR":
            position += 1
            result = both() or result
        return result

    def both() -> bool:
        nonlocal position
        result = one()
        while position < len(parts) and parts[position] == "AND":
            position += 1
            result = one() and result
        return result

    def one() -> bool:
        nonlocal position
        if position >= len(parts):
            return False
        token = parts[position]
        position += 1
        if token != "(":
            return token in known
        result = either()
        position += 1
        return result

    return either() and position == len(parts)


def crates(workspace: Path) -> list[Crate]:
    """The crates of a workspace's lock file."""
    command = ["cargo", "metadata", "--format-version=1", "--locked"]
    done = subprocess.run(command, cwd=workspace, check=True, capture_output=True, text=True)
    return [
        Crate(package["name"], package["version"], package["license"] or "", package["source"])
        for package in json.loads(done.stdout)["packages"]
    ]


def check_licences(all_crates: list[Crate]) -> list[str]:
    """Crates whose licence deny.toml does not allow."""
    allowed = tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"]
    return [
        f"{crate.name} {crate.version}: {crate.licence or 'no licence'}"
        for crate in all_crates
        if crate.source is not None and not licence_is_allowed(crate.licence, allowed)
    ]


def check_sources(all_crates: list[Crate]) -> list[str]:
    """Crates that come from elsewhere than crates.io."""
    return [
        f"{crate.name} {crate.version}: {crate.source}"
        for crate in all_crates
        if crate.source not in (None, CRATES_IO)
    ]


def index_path(name: str) -> str:
    """The path of a crate in the index of crates.io."""
    name = name.lower()
    if len(name) <= 2:
        return f"{len(name)}/{name}"
    return f"3/{name[0]}/{name}" if len(name) == 3 else f"{name[:2]}/{name[2:4]}/{name}"


def check_yanked_crates(all_crates: list[Crate]) -> list[str]:
    """Locked versions that their authors have withdrawn."""

    def find(crate: Crate) -> str | None:
        lines = _fetch(f"https://index.crates.io/{index_path(crate.name)}").splitlines()
        versions = {entry["vers"]: entry["yanked"] for entry in map(json.loads, lines)}
        return f"{crate.name} {crate.version}" if versions.get(crate.version, True) else None

    return _each(find, [crate for crate in all_crates if crate.source == CRATES_IO])


def pins() -> list[tuple[str, str]]:
    """The pinned Python packages."""
    lines = (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
    return [(name, version) for name, is_pin, version in (line.partition("==") for line in lines) if is_pin]


def check_yanked_pins() -> list[str]:
    """Pinned Python versions that their authors have withdrawn."""

    def find(pin: tuple[str, str]) -> str | None:
        name, version = pin
        page = _fetch(f"https://pypi.org/simple/{name}/")
        links = re.findall(r"<a\s([^>]*)>\s*([^<]*)</a>", page)
        stem = re.escape(re.sub(r"[-_.]+", "-", name).lower())
        wanted = re.compile(rf"{stem}-{re.escape(version)}(-|\.tar|\.zip)")
        files = [attributes for attributes, file in links if wanted.match(_normal(file))]
        is_yanked = bool(files) and all("data-yanked" in attributes for attributes in files)
        return f"{name} {version}" if is_yanked else None

    return _each(find, pins())


def _normal(file: str) -> str:
    """A file name with the project's part in its normal form."""
    stem, dash, rest = re.sub("_", "-", file.strip().lower()).partition("-")
    return re.sub(r"\.", "-", stem) + dash + rest


def check_rust_advisories() -> list[str]:
    """Known flaws of crates, by cargo-deny and the RustSec database."""
    if shutil.which("cargo-deny") is None:
        raise NotChecked("cargo-deny is not installed: cargo install --locked cargo-deny")
    command = ["cargo", "deny", "--format=json", "check", "advisories"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    entries = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    if any("failed to fetch advisory database" in json.dumps(entry) for entry in entries):
        raise NotChecked("the database at github.com/RustSec/advisory-db is not reachable")
    findings = [
        entry["fields"]["message"]
        for entry in entries
        if entry.get("type") == "diagnostic" and entry["fields"].get("severity") == "error"
    ]
    if done.returncode and not findings:
        raise NotChecked(f"cargo-deny failed: {done.stderr.strip()[-200:]}")
    return findings


def check_python_advisories() -> list[str]:
    """Known flaws of Python packages, by pip-audit and PyPI."""
    if shutil.which("pip-audit") is None:
        raise NotChecked("pip-audit is not installed: pipx install pip-audit")
    command = ["pip-audit", "--requirement=requirements/constraints.txt", "--no-deps", "--disable-pip"]
    done = subprocess.run(
        [*command, "--format=json", "--progress-spinner=off"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        raise NotChecked(f"pip-audit failed: {done.stderr.strip()[-200:]}") from None
    # Without the JSON pages of PyPI it skips every package, and succeeds.
    if packages and all("skip_reason" in package for package in packages):
        raise NotChecked("PyPI's JSON pages, which list known flaws, are not reachable")
    return [
        f"{package['name']} {package['version']}: {flaw['id']}"
        for package in packages
        for flaw in package.get("vulns", ())
    ]


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        content: bytes = response.read()
        return content.decode()


def _each(find: Callable[[_T], str | None], items: list[_T]) -> list[str]:
    try:
        with ThreadPoolExecutor(_WORKERS) as pool:
            return [finding for finding in pool.map(find, items) if finding is not None]
    except (urllib.error.URLError, OSError) as error:
        raise NotChecked(f"the index is not reachable: {error}") from None


def run(name: str, check: Callable[[], list[str]]) -> Outcome:
    """Runs one check."""
    try:
        return Outcome(name, tuple(check()))
    except NotChecked as why:
        return Outcome(name, (), str(why))


def main() -> int:
    """The exit status: 0 if nothing was found, with `--strict` also only if everything was checked."""
    parser = argparse.ArgumentParser(prog="python -m tools.audit", description=__doc__.partition("\n")[0])
    parser.add_argument("--strict", action="store_true", help="a check that cannot run fails")
    arguments = parser.parse_args()
    all_crates = sorted(
        {*crates(ROOT), *crates(ROOT / "fuzz")}, key=lambda crate: (crate.name, crate.version)
    )
    outcomes = [
        run(f"licences of {len(all_crates)} crates", lambda: check_licences(all_crates)),
        run("sources of crates", lambda: check_sources(all_crates)),
        run("withdrawn crates", lambda: check_yanked_crates(all_crates)),
        run(f"withdrawn Python packages, of {len(pins())}", check_yanked_pins),
        run("known flaws of crates", check_rust_advisories),
        run("known flaws of Python packages", check_python_advisories),
    ]
    for outcome in outcomes:
        print(f"{outcome.mark} {outcome.name}{': ' + outcome.not_checked if outcome.not_checked else ''}")
        for finding in outcome.findings:
            print(f"    {finding}")
    is_bad = any(outcome.findings or (arguments.strict and outcome.not_checked) for outcome in outcomes)
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
