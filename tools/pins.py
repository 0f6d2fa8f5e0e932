"""The command behind `make pins`: writes the exact version of every dependency to
requirements/constraints.txt.

pip resolves the package's dependencies, its build requirements and every dependency group together, without
installing them. Run it with the oldest supported Python: the resulting versions also have to work with newer
ones.
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
# pip is pinned too.
INSTALLER = "pip>=25.1"


def requirements(pyproject: dict[str, object]) -> list[str]:
    """All requirements of pyproject.toml, without includes of other groups."""
    project, build, groups = (pyproject[key] for key in ("project", "build-system", "dependency-groups"))
    assert isinstance(project, dict)
    assert isinstance(build, dict)
    assert isinstance(groups, dict)
    result = {INSTALLER, *project["dependencies"], *build["requires"]}
    for extra in project.get("optional-dependencies", {}).values():
        result.update(extra)
    for group in groups.values():
        result.update(entry for entry in group if isinstance(entry, str))
    return sorted(result)


def resolve(specifiers: list[str]) -> dict[str, str]:
    """Packages that pip would install in an empty environment, name → version."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    report = subprocess.run(
        [*command, "--report", "-", *specifiers], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    entries = (entry["metadata"] for entry in json.loads(report)["install"])
    return {re.sub(r"[-_.]+", "-", entry["name"]).lower(): entry["version"] for entry in entries}


def main() -> int:
    """Writes the constraints file."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = resolve(requirements(pyproject))
    lines = ["# Written by `make pins` from pyproject.toml; change the requirements there, not here."]
    lines += [f"{name}=={version}" for name, version in sorted(pinned.items())]
    CONSTRAINTS.write_text("\n".join(lines) + "\n")
    print(f"{CONSTRAINTS.relative_to(ROOT)}: {len(pinned)} packages pinned", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
