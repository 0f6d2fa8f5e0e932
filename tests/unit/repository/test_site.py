"""The documentation site: it builds without a warning, its links have targets, and it needs no other host."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.browser import browser, missing
from tools.site.__main__ import build, build_version
from tools.site.navigation import MisplacedPage, navigation
from tools.site.stage import PROJECT_PAGES, BrokenLink, stage

ROOT = Path(__file__).parents[3]


class Addresses(HTMLParser):
    """What a page loads, what it links to, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        else:
            self.loaded += [values[name] for name in ("src", "srcset", "href", "data") if name in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical")
    target = tmp_path_factory.mktemp("site") / "site"
    assert build(ROOT, target) == 0
    return target


def make_tree(root: Path, index: str) -> Path:
    """A repository with one page."""
    (root / "docs" / "reference").mkdir(parents=True)
    (root / "docs" / "index.md").write_text(index)
    (root / "docs" / "reference" / "page.md").write_text("# Page\n\n## A part\n")
    (root / "Cargo.toml").write_text('[workspace.package]\nversion = "1.2.3"\n')
    (root / "program.py").write_text("print()\n")
    for name in PROJECT_PAGES:
        (root / name).write_text(f"# {name}\n")
    return root


def test_every_page_of_the_documentation_is_on_the_site(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 60
    for page in pages:
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        assert (site / page.parent / name).is_file(), page


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert [address for address in Addresses(page).loaded if re.match(r"(\w+:)?//", address)] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(\w+:)?//", style.read_text("utf-8")), style


def test_every_address_within_the_site_has_a_target(site: Path) -> None:
    pages = {page: Addresses(page) for page in site.rglob("*.html")}
    for page, addresses in pages.items():
        if page.name == "404.html":  # served for any path, so its addresses start at the top
            continue
        for address in (*addresses.links, *addresses.loaded):
            path, _, anchor = address.partition("#")
            if re.match(r"\w+:", address):
                continue
            target = (page.parent / unquote(path)).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.relative_to(site)}: {address}"
            if anchor and target in pages:
                assert unquote(anchor) in pages[target].anchors, f"{page.relative_to(site)}: {address}"


def test_diagrams_are_drawn_by_a_script_of_the_site(site: Path) -> None:
    with_diagram = [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text("utf-8")]
    assert {page.name for page in with_diagram} >= {"wire.html", "driver.html"}
    for page in with_diagram:
        scripts = [address for address in Addresses(page).loaded if address.endswith(".js")]
        names = [Path(address).name for address in scripts]
        assert names.index("mermaid.tiny.js") < next(
            index for index, name in enumerate(names) if name.startswith("bundle.")
        ), "the theme loads its own from another host if it comes first"


def test_search_finds_methods_of_native_classes(site: Path) -> None:
    index = json.loads((site / "search.json").read_text("utf-8"))
    text = json.dumps(index)
    assert "Producer.offer" in text
    assert "tensorpool driver revoke" in text


@pytest.mark.timeout(600)
@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_search_answers_in_a_browser_without_a_server(site: Path, wait_until) -> None:
    # The theme draws its dialog in a shadow tree, whose field has the focus once it is open.
    dialog = "const dialog = document.activeElement.shadowRoot;"
    with browser() as window:
        window.open(site / "index.html")
        window.run("document.querySelector('.md-search__button').click()")
        is_open = f"{dialog} return !!dialog && dialog.activeElement?.tagName === 'INPUT'"
        wait_until(lambda: window.run(is_open), timeout=120)
        window.devtools("Input.insertText", text="Producer.offer")
        titles = f"{dialog} return [...dialog.querySelectorAll('h2')].map(title => title.textContent.trim())"
        wait_until(lambda: "Producer.offer" in window.run(titles)[:1], timeout=120)


@pytest.mark.parametrize(
    ("link", "is_whole"), [("reference/page.md#a-part", True), ("reference/page.md#no-such-part", False)]
)
def test_link_to_a_missing_heading_fails_the_build(
    link: str, is_whole: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zensical")
    root = make_tree(tmp_path / "tree", f"# Start\n\n[there]({link})\n")
    assert (build(root, tmp_path / "site") == 0) is is_whole
    assert ("anchor does not exist" in capfd.readouterr().err) is not is_whole
    page = tmp_path / "site" / "index.html"
    assert (page.exists() and "TensorPool 1.2.3" in page.read_text("utf-8")) is is_whole


def test_linked_file_outside_the_documentation_becomes_a_page(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path / "tree", "[it](../program.py) [x](https://example.org)\n\n```md\n[no](no.md)\n```\n"
    )
    stage(root, tmp_path / "staged")
    text = (tmp_path / "staged" / "index.md").read_text()
    assert "[it](files/program.py.md) [x](https://example.org)" in text
    assert "```python\nprint()\n```" in (tmp_path / "staged" / "files" / "program.py.md").read_text()


def test_pipe_in_code_of_a_table_loses_its_backslash(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "tree", "| a |\n|---|\n| `int \\| None` or \\| |\n")
    stage(root, tmp_path / "staged")
    assert "| `int | None` or \\| |" in (tmp_path / "staged" / "index.md").read_text()


@pytest.mark.parametrize("link", ["missing.md", "../../outside.md"])
def test_link_without_a_file_is_refused(link: str, tmp_path: Path) -> None:
    (tmp_path / "outside.md").touch()
    root = make_tree(tmp_path / "tree", f"[it]({link})\n")
    with pytest.raises(BrokenLink, match=re.escape(link)):
        stage(root, tmp_path / "staged")


def test_page_in_no_section_is_refused(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "tree", "# Start\n")
    (root / "docs" / "stray.md").write_text("# Stray\n")
    stage(root, tmp_path / "staged")
    with pytest.raises(MisplacedPage, match=r"stray\.md"):
        navigation(tmp_path / "staged")


@pytest.mark.timeout(600)
@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_colours_follow_the_system_until_the_reader_chooses(site: Path, wait_until) -> None:
    with browser() as window:

        def shows(scheme: str) -> bool:
            return bool(window.run("return document.body.dataset.mdColorScheme") == scheme)

        window.prefer("light")
        window.open(site / "index.html")
        wait_until(lambda: shows("default"), timeout=120)
        # The first visit decides nothing for the next one.
        window.prefer("dark")
        window.open(site / "index.html")
        wait_until(lambda: shows("slate"), timeout=120)
        window.run("document.querySelector('[data-md-component=palette] label:not([hidden])').click()")
        wait_until(lambda: shows("default"), timeout=120)
        window.open(site / "index.html")
        wait_until(lambda: shows("default"), timeout=120)


def test_versions_are_beside_each_other(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    root, target = make_tree(tmp_path / "tree", "# Start\n"), tmp_path / "site"
    for version in ("1.9.0", "1.10.0"):
        (root / "Cargo.toml").write_text(f'[workspace.package]\nversion = "{version}"\n')
        assert build_version(root, target) == 0
    listed = json.loads((target / "versions.json").read_text("utf-8"))
    assert [entry["version"] for entry in listed] == ["1.10.0", "1.9.0"]
    assert "TensorPool 1.9.0" in (target / "1.9.0" / "index.html").read_text("utf-8")
    assert "url=1.10.0/index.html" in (target / "index.html").read_text("utf-8")
