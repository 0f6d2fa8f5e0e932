"""Checks and notes of a release: `python -m tools.release check|notes VERSION`.

The version of the package is in Cargo.toml alone; the wheel and `tensorpool --version` take it from there.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def package_version(root: Path = ROOT) -> str:
    """The version in Cargo.toml."""
    manifest = tomllib.loads((root / "Cargo.toml").read_text("utf-8"))
    version: str = manifest["workspace"]["package"]["version"]
    return version


def notes(version: str, root: Path = ROOT) -> str:
    """The section of a version in the changelog; empty if there is none."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    section = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.M | re.S)
    return section[1].strip() if section else ""


def faults(version: str, root: Path = ROOT) -> list[str]:
    """Why the version cannot be released."""
    found = []
    if (package := package_version(root)) != version:
        found.append(f"the tag is {version} and Cargo.toml has {package}: change one of them")
    if not notes(version, root):
        found.append(f"CHANGELOG.md has no section for it: rename [Unreleased] to [{version}], with the date")
    return found


def main() -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("action", choices=["check", "notes"])
    parser.add_argument("version")
    arguments = parser.parse_args()
    if arguments.action == "notes":
        print(notes(arguments.version))
        return 0
    found = faults(arguments.version)
    for fault in found:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
