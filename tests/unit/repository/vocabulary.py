"""The vocabulary check: names in the source tree that contain a retired word. Pure.

`docs/reference/vocabulary.md` has the terms that replace them. Prints the offences below a path:

    python -m tests.unit.repository.vocabulary [PATH ...]

`--prune` removes obsolete lines from `vocabulary_exceptions.txt`, which may only get shorter.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TREES = ("python", "tests", "benchmarks", "tools", "examples", "crates")
EXCEPTIONS = Path(__file__).with_name("vocabulary_exceptions.txt")

# Retired words, and the terms to use instead.
_RETIRED = {
    "tell tells told telling say says said saying spoken speak speaks speaker speech": (
        "send, publish, report, status, message"
    ),
    "hear hears heard hearing unheard ear ears deaf deafness voice": "receive, listener, subscription",
    "words whose lying patiently obey obeys hurry": "text, message, wait, exit, stop",
    "wish wishes wishing": "request, grant",
    "greet greets greeting farewell goodbye detour": "hello, detach, fallback",
    "lane lanes": "per-consumer stream, stream address",
    "birth home": "fork guard, owner process, context, directory",
    "bulletin beacon beacons": "metadata schedule, announcer",
    "newcomer newcomers": "control image, new consumer",
    "picture pictures": "system model, snapshot, image, preview, screenshot",
    "judge judges judged": "validate, check, filter, codec server",
    "book books": "ledger",
    "tape film films": "record, publish",
    "mint minted": "create, generate",
    "crowd party world performance afterwards": "load, group, harness, run, result",
    "nursery vandal visitor forker frugal shelf anatomy dissect": "fork server, … process, … harness, parser",
    "weather workshop kitchen oven guest taper": "impairments, factory, … process, … service",
    "hardships stranger strangers": "overload, untrusted client",
    "somebody nobody someone whoever everybody anybody": "client, consumer, producer",
}
_REPLACEMENTS = {word: terms for group, terms in _RETIRED.items() for word in group.split()}

# Retired phrases, as they appear in snake case.
_PHRASES = {
    "let_go": "release, unmap",
    "at_home": "in the owner process",
    "take_up": "map, start",
    "taken_up": "mapped, started",
    "come_home": "return",
    "send_away": "reject",
    "sent_away": "rejected",
    "give_back": "release",
    "go_on": "resume, continue",
    "keep_house": "do_work",
    "in_words": "text, describe",
}

# Retired names as a whole.
_NAMES = {"as_json": "to_json", "as_dict": "to_json"}

# Retired first words of constants.
_PREFIXES = {"MOST": "MAX", "LONGEST": "MAX"}

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")
_RUST_NAME = re.compile(
    r"\b(?:fn|struct|enum|trait|type|const|static|mod|let(?:\s+mut)?|ref)\s+(\w+)"
    r"|^\s*(?:pub(?:\([a-z]+\))?\s+)?(\w+):\s"
    r"|\b(\w+):\s*&?(?:mut\s+)?[A-Z]"
)


def retired_term(name: str) -> str | None:
    """The retired word or phrase that a name contains, with its replacements; None if there is none."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    for part in parts:
        if part in _REPLACEMENTS:
            return f"{part} ({_REPLACEMENTS[part]})"
    snake = f"_{'_'.join(parts)}_"
    for phrase, terms in _PHRASES.items():
        if f"_{phrase}_" in snake:
            return f"{phrase} ({terms})"
    if (bare := name.strip("_")) in _NAMES:
        return f"{bare} ({_NAMES[bare]})"
    prefix, separator, _ = name.lstrip("_").partition("_")
    if separator and name.isupper() and prefix in _PREFIXES:
        return f"{prefix}_ ({_PREFIXES[prefix]}_)"
    return None


def offences(*roots: Path) -> dict[str, str]:
    """Retired terms below the roots, by `path:name`. A module or directory name is `path:`."""
    result = {}
    for root in roots or tuple(ROOT / tree for tree in TREES):
        for path in sorted([root] if root.is_file() else [*root.rglob("*.py"), *root.rglob("*.rs")]):
            relative = path.resolve().relative_to(ROOT)
            for name, location in _names(path, relative):
                if (term := retired_term(name)) is not None:
                    result[location] = term
    return result


def exceptions() -> list[str]:
    """The allowed offences."""
    return EXCEPTIONS.read_text("utf-8").splitlines() if EXCEPTIONS.exists() else []


def _names(path: Path, relative: Path) -> Iterator[tuple[str, str]]:
    for directory in relative.parents[:-1]:
        yield directory.name, f"{directory}:"
    yield path.stem, f"{relative}:"
    names = python_names(path) if path.suffix == ".py" else rust_names(path)
    for name in names:
        yield name, f"{relative}:{name}"


def python_names(path: Path) -> Iterator[str]:
    """Names that a Python file defines: functions, classes, variables, attributes, parameters, aliases."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield name
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield name


def rust_names(path: Path) -> Iterator[str]:
    """Names that a Rust file defines, by pattern; comments are skipped."""
    for line in path.read_text("utf-8").splitlines():
        for match in _RUST_NAME.finditer(line.partition("//")[0]):
            yield next(name for name in match.groups() if name)


def main() -> None:
    """Prints the offences, or prunes the list of exceptions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", nargs="*", type=Path)
    parser.add_argument("--prune", action="store_true", help="remove exceptions that no longer occur")
    arguments = parser.parse_args()
    if arguments.prune:
        current = offences()
        kept = [location for location in exceptions() if location in current]
        EXCEPTIONS.write_text("".join(f"{location}\n" for location in kept), "utf-8")
        return
    names = offences(*(path.resolve() for path in arguments.path))
    for location, term in sorted(names.items()):
        print(f"{location}  {term}")
    print(f"{len(names)} retired names")


if __name__ == "__main__":
    main()
