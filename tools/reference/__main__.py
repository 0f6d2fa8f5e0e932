"""`python -m tools.reference`: writes or checks the generated pages of the documentation."""

from __future__ import annotations

import argparse
import sys

from . import outdated_pages


def main() -> int:
    """Writes the outdated pages; with --check only names them. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if outdated")
    is_check = parser.parse_args().check
    outdated = outdated_pages()
    for path, text in outdated.items():
        if is_check:
            print(f"{path} is out of date; run: python -m tools.reference")
        else:
            path.write_text(text, "utf-8")
            print(f"wrote {path}")
    return 1 if is_check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
