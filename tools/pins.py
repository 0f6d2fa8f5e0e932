"""Writes requirements/constraints.txt: one exact version for everything a checkout installs.

Asks pip to resolve the package's dependencies, its build requirements and every dependency group
together, without installing anything. Run by `make pins` with the oldest Python that we support: the
versions it finds then have to work for the newer ones too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
# The tool that installs the others is pinned with them.
INSTALLER = "pip>=25.1"


def wanted(pyproject: dict[str, object]) -> list[str]:
    """Every requirement that pyproject.toml states, includes of other groups left out."""
    project, build, groups = (pyproject[key] for key in ("project", "build-system", "dependency-groups"))
    assert isinstance(project, dict)
    assert isinstance(build, dict)
    assert isinstance(groups, dict)
    found = {INSTALLER, *project["dependencies"], *build["requires"]}
    for extra in project.get("optional-dependencies", {}).values():
        found.update(extra)
    for group in groups.values():
        found.update(entry for entry in group if isinstance(entry, str))
    return sorted(found)


def resolve(requirements: list[str]) -> dict[str, str]:
    """What pip would install for them in an empty environment, name → version."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    report = subprocess.run(
        [*command, "--report", "-", *requirements], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    entries = (entry["metadata"] for entry in json.loads(report)["install"])
    return {re.sub(r"[-_.]+", "-", entry["name"]).lower(): entry["version"] for entry in entries}


def main() -> int:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = resolve(wanted(pyproject))
    lines = ["# Written by `make pins` from pyproject.toml; change the requirements there, not here."]
    lines += [f"{name}=={version}" for name, version in sorted(pinned.items())]
    CONSTRAINTS.write_text("\n".join(lines) + "\n")
    print(f"{CONSTRAINTS.relative_to(ROOT)}: {len(pinned)} packages pinned", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
