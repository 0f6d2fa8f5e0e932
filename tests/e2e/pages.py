"""Code blocks of the documentation pages, and the comparison of their output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

_SPAN = re.compile(r"\b\d+(\.\d+)? (µs|ms|s|min|h|d)\b")
_NUMBER = re.compile(r"\d+(\.\d+)?")


def blocks(page: Path, language: str) -> list[str]:
    """Code blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def steps(console: str) -> list[tuple[str, str]]:
    """Each `$ command` of a console block and its output."""
    parts = re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]
    return [(command, printed) for command, _, printed in (part.partition("\n") for part in parts)]


def substituted(text: str, names: Mapping[str, str]) -> str:
    """The text with names of the page replaced by those of the test, longest first."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, names[name])
    return text


def looks_like(printed: str, expected: str) -> bool:
    """Whether the output differs only in numbers and spaces; a line `…` matches any number of lines."""
    return re.fullmatch(_pattern(expected), _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    """The text without durations, numbers and column widths, which differ between runs."""
    lines = (" ".join(_NUMBER.sub("0", _SPAN.sub("0 s", line)).split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _pattern(expected: str) -> str:
    return re.escape(_plain(expected)).replace("…", ".*")


def sh(command: str, environment: Mapping[str, str]) -> str:
    """Standard output and standard error of a shell command."""
    result = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return result.stdout + result.stderr
