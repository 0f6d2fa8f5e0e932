"""Pages of the documentation, taken at their word."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

_SPAN = re.compile(r"\b\d+(\.\d+)? (µs|ms|s|min|h|d)\b")
_NUMBER = re.compile(r"\d+(\.\d+)?")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def steps(console: str) -> list[tuple[str, str]]:
    """Each `$ command` of a console block, with what it prints."""
    parts = re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]
    return [(command, printed) for command, _, printed in (part.partition("\n") for part in parts)]


def substituted(text: str, names: Mapping[str, str]) -> str:
    """The text with the page's names for things replaced by those of the test, longest first."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, names[name])
    return text


def looks_like(printed: str, expected: str) -> bool:
    """Whether it is the same but for figures and spaces; a line `…` stands for any number of lines."""
    return re.fullmatch(_pattern(expected), _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    """Times, numbers and the widths of columns differ from run to run."""
    lines = (" ".join(_NUMBER.sub("0", _SPAN.sub("0 s", line)).split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _pattern(expected: str) -> str:
    return re.escape(_plain(expected)).replace("…", ".*")


def sh(command: str, environment: Mapping[str, str]) -> str:
    """What the command prints, wherever it prints it."""
    done = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr
