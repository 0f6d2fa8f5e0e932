"""`python -m tools.site`: builds the documentation site. Any warning is an error."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from .navigation import MisplacedPage, navigation
from .stage import BrokenLink, stage

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
_VERSION: Final = re.compile(r"\d+(\.\d+)*")


def build(root: Path, target: Path) -> int:
    """Replaces the directory `target` by the site of a repository. Returns the exit status of the generator.

    Raises BrokenLink or MisplacedPage before the generator starts.
    """
    with tempfile.TemporaryDirectory(prefix="tensorpool-site-") as temporary:
        work = Path(temporary)
        stage(root, work / "docs")
        shutil.copytree(HERE / "assets", work / "docs" / "assets", dirs_exist_ok=True)
        shutil.copytree(HERE / "overrides", work / "overrides")
        (work / "mkdocs.yml").write_text(_settings(root, work), "utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        # The settings name a function of this package.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            # It ends with a traceback of its own, which adds nothing to its warnings.
            warnings = (done.stdout + done.stderr).partition("Traceback (most recent call last)")[0]
            print(warnings.strip() or done.stderr, file=sys.stderr)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(work / "site", target)
        return done.returncode


def build_version(root: Path, target: Path) -> int:
    """Builds the site of one version into a directory of its own below `target`, beside other versions.

    `versions.json` lists all of them, newest first, for the selector on each page; `index.html` leads to the
    newest. Returns the exit status of the generator.
    """
    version = project_version(root)
    status = build(root, target / version)
    if status == 0:
        known = [
            path.parent.name for path in target.glob("*/index.html") if _VERSION.fullmatch(path.parent.name)
        ]
        known.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
        listed = [{"version": name, "title": name, "aliases": []} for name in known]
        (target / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", "utf-8")
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={known[0]}/index.html">'
        link = f'<a href="{known[0]}/index.html">TensorPool {known[0]}</a>'
        (target / "index.html").write_text(f"{page}{link}\n", "utf-8")
    return status


def project_version(root: Path) -> str:
    """The version of a repository."""
    with (root / "Cargo.toml").open("rb") as file:
        version: str = tomllib.load(file)["workspace"]["package"]["version"]
    return version


def _settings(root: Path, work: Path) -> str:
    """The settings file of the generator, with what depends on the pages and on the version."""
    # JSON is YAML.
    additions = {
        "docs_dir": "docs",
        "site_dir": "site",
        "copyright": f"TensorPool {project_version(root)}, Apache-2.0",
        "nav": navigation(work / "docs"),
    }
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in additions.items()]
    return (HERE / "mkdocs.yml").read_text("utf-8") + "".join(lines)


def main() -> int:
    """Builds the site. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--target", type=Path, default=ROOT / "build" / "site", help="directory to write")
    parser.add_argument(
        "--versioned",
        action="store_true",
        help="write into a directory of this version, and list all versions that are there",
    )
    arguments = parser.parse_args()
    target: Path = arguments.target
    try:
        status = (build_version if arguments.versioned else build)(ROOT, target)
    except (BrokenLink, MisplacedPage) as error:
        print(error, file=sys.stderr)
        return 1
    if status == 0:
        print(f"the site is in {target}; open {target / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
