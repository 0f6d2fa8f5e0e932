"""The vocabulary check: retired words in the names and in the prose of the source tree.

Prose is comments of Rust, Python, JavaScript and scripts, docstrings, messages of the package, and pages of
the documentation.
`docs/reference/vocabulary.md` has the terms that replace the retired words. Prints the offences below a path:

    python -m tests.unit.repository.vocabulary [PATH ...]

`--prune` removes obsolete lines from `vocabulary_exceptions.txt`, which may only get shorter.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
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

# Words and phrases that are retired in prose, as patterns. They are fewer than those of names: "home
# directory" and "a guest account" are ordinary English, and no name needs them.
_PROSE = {
    r"nobody|no one|somebody|someone|anybody|anyone|everybody|everyone|whoever": (
        "name the client, consumer, producer, process or program"
    ),
    r"tell|tells|told|telling|said|spoken|speaks?|speaking": "send, publish, report, show, distinguish",
    r"hears?|heard|hearing|unheard|ears|deaf": "receive, listener, subscription",
    r"says? hello|said hello|saying hello": "sends a hello",
    r"wish|wishes|wished": "request",
    r"greetings?|greets?|farewells?|goodbye|detours?": "hello, detach, fallback",
    r"births?|at home|comes? home|came home": "fork guard, owner process, context",
    r"bulletins?|beacons?": "metadata schedule, announcer",
    r"pictures?": "system model, snapshot, image, preview, screenshot",
    r"judges?|judged|judging": "validate, check",
    r"lanes?": "per-consumer stream",
    r"books?|in words": "ledger, text",
    r"crowds?|nursery|newcomers?|strangers?": "load, fork server, new consumer, untrusted client",
    r"lets? go|letting go|let go": "release, unmap",
    r"(?:sent|sends?|turned|turns?) away": "reject, refuse",
    r"(?:takes?|took|taken|taking) up(?! to\b)": "map, start",
    r"(?:gives?|gave|given|giving) back": "release, return",
    r"(?:goes|go|going|went|gone) on": "continue, resume",
}
_PROSE_PATTERNS = {re.compile(rf"\b(?:{phrase})\b", re.I): terms for phrase, terms in _PROSE.items()}
# A phrase may be broken by the end of a line and the marks of a comment.
_ANY_PROSE = re.compile(rf"\b(?:{'|'.join(_PROSE)})\b".replace(" ", r"[\s/#!*>\"']+"), re.I)

# Pages that contain retired words on purpose, or are not about the program.
_OTHER_PAGES = (
    "CHANGELOG.md",  # names what was renamed
    "CODE_OF_CONDUCT.md",  # is about people
    "docs/protocol",  # the text of the specifications
)
_ENDINGS = ("py", "pyi", "rs", "md", "js", "toml", "yaml", "yml", "cmake", "sh")
# The check itself has to contain the retired words.
_CHECK = "tests/unit/repository"

# Retired first words of constants.
_PREFIXES = {"MOST": "MAX", "LONGEST": "MAX"}

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")
_RUST_COMMENT = re.compile(r"(?:^|\s)//[/!]? ?(.*)")
_SCRIPT_COMMENT = re.compile(r"(?:^|\s)#!?\s?(.*)")
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


def prose_term(text: str) -> str | None:
    """The retired word or phrase that a text contains, with its replacements; None if there is none."""
    for pattern, terms in _PROSE_PATTERNS.items():
        if (match := pattern.search(" ".join(text.split()))) is not None:
            return f"{match[0].lower()} ({terms})"
    return None


def prose_offences(*roots: Path) -> dict[str, str]:
    """Retired words in comments, docstrings, messages and pages below the roots, by `path:line`."""
    result = {}
    for root in roots or (ROOT,):
        for path in _prose_files(root):
            source = path.read_text("utf-8")
            if _ANY_PROSE.search(source) is None:
                continue
            name = path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path
            for line, text in prose(path, source):
                if (term := prose_term(text)) is not None:
                    result[f"{name}:{line}"] = term
    return result


def prose(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Paragraphs of prose of a file, with the line where each begins."""
    if path.suffix == ".md":
        return _paragraphs(enumerate(source.splitlines(), 1))
    if path.suffix in (".py", ".pyi"):
        return _python_prose(path, source)
    pattern = _RUST_COMMENT if path.suffix in (".rs", ".js") else _SCRIPT_COMMENT
    comments = ((n, pattern.search(line)) for n, line in enumerate(source.splitlines(), 1))
    return _paragraphs((n, match[1] if match else "") for n, match in comments)


def _python_prose(path: Path, source: str) -> Iterator[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    yield from _paragraphs((n, comments.get(n, "").lstrip("# ")) for n in range(1, source.count("\n") + 2))
    is_package = "tests" not in path.parts and path.suffix == ".py"
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text), lineno=line)):
                yield line, text
            # Messages and help texts have several words; keys and values have one.
            case ast.Constant(value=str(text), lineno=line) if is_package and " " in text:
                yield line, text


def _paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Joins lines up to the next empty one, so that a phrase across a line break is found."""
    first, texts = 0, list[str]()
    for number, line in lines:
        if line.strip():
            first = first if texts else number
            texts.append(line)
        elif texts:
            yield first, " ".join(texts)
            texts = []
    if texts:
        yield first, " ".join(texts)


def _prose_files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    trees = [root / tree for tree in (*TREES, "docs", "deploy", "cmake")] if root == ROOT else [root]
    paths = [path for tree in trees for ending in _ENDINGS for path in tree.rglob(f"*.{ending}")]
    if root == ROOT:
        paths += [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile"]
        # Scripts have no ending.
        paths += [path for path in (ROOT / "tools").iterdir() if path.is_file() and not path.suffix]
    for path in sorted(paths):
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
        if not any(name == other or name.startswith(f"{other}/") for other in (*_OTHER_PAGES, _CHECK)):
            yield path


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
    in_prose = prose_offences(*(path.resolve() for path in arguments.path))
    for location, term in sorted({**names, **in_prose}.items()):
        print(f"{location}  {term}")
    print(f"{len(names)} retired names, {len(in_prose)} retired words in prose")


if __name__ == "__main__":
    main()
