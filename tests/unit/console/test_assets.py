"""The files of the page: nothing from another host, and nothing that the content policy forbids."""

from __future__ import annotations

import re

import pytest

from tensorpool.console.server import load_assets

ASSETS = {name: content.decode() for name, (content, _) in load_assets().items()}
NAMESPACE = "http://www.w3.org/2000/svg"


def test_page_and_its_parts_are_served() -> None:
    assert {"index.html", "main.js", "style.css", "icon.svg"} <= ASSETS.keys()


@pytest.mark.parametrize("name", sorted(ASSETS))
def test_no_address_of_another_host(name: str) -> None:
    text = ASSETS[name].replace(NAMESPACE, "")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}", text) == []
    assert not re.search(r"@import|url\(", text)


@pytest.mark.parametrize("name", sorted(name for name in ASSETS if name.endswith((".html", ".js"))))
def test_nothing_needs_an_exception_of_the_content_policy(name: str) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\sstyle=|\son\w+=\""
    )
    assert re.findall(forbidden, ASSETS[name]) == []


@pytest.mark.parametrize("name", sorted(name for name in ASSETS if name.endswith(".js")))
def test_modules_import_only_files_that_are_there(name: str) -> None:
    for imported in re.findall(r'from "\./([\w.]+)"', ASSETS[name]):
        assert imported in ASSETS
    assert len(re.findall(r"^import ", ASSETS[name], re.M)) == len(re.findall(r'from "\./', ASSETS[name]))
