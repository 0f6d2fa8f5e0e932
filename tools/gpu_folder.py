"""Collects what a GPU machine needs where nothing can be installed: the built package, click and rich.

python -m tools.gpu_folder build/gpu
"""

from __future__ import annotations

import argparse
import shutil
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
# With what they import themselves. numpy, and torch, CuPy or JAX, belong to the machine.
_DISTRIBUTIONS = ("click", "rich", "markdown-it-py", "mdurl", "pygments")


def main() -> None:
    """Fills the folder again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for part in ("python/tensorpool", "tests", "tools", "benchmarks", "examples"):
        shutil.copytree(ROOT / part, folder / Path(part).name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in _DISTRIBUTIONS:
        for file in distribution(name).files or ():
            if ".dist-info" not in str(file) and ".." not in file.parts and file.suffix != ".pyc":
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), target)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
