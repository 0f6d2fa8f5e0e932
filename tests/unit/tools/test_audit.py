"""The audit of dependencies: licences by their SPDX expression, and checks that cannot run."""

from __future__ import annotations

import pytest

from tools import audit

ALLOWED = ("MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception")


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("MIT OR LGPL-2.1-or-later", True),
        ("GPL-3.0/MIT", True),
        ("MIT AND GPL-3.0", False),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", True),
        ("(MIT OR Apache-2.0) AND NCSA", False),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", True),
        ("GPL-2.0 WITH Classpath-exception-2.0", False),
        ("", False),
        ("MIT OR", True),
        ("MIT MIT", False),
    ],
)
def test_licence_expression_is_allowed_or_not(expression: str, is_allowed: bool) -> None:
    assert audit.licence_is_allowed(expression, ALLOWED) is is_allowed


def test_crate_from_elsewhere_is_a_finding() -> None:
    good = audit.Crate("good", "1.0.0", "MIT", audit.CRATES_IO)
    own = audit.Crate("own", "1.0.0", "", None)
    bad = audit.Crate("bad", "1.0.0", "GPL-3.0", "git+https://example.org/bad")
    assert audit.check_sources([good, own, bad]) == ["bad 1.0.0: git+https://example.org/bad"]
    assert audit.check_licences([good, own, bad]) == ["bad 1.0.0: GPL-3.0"]


def test_index_path_of_a_crate_depends_on_its_length() -> None:
    paths = [audit.index_path(name) for name in ("a", "cc", "cfg", "Ring", "rustix")]
    assert paths == ["1/a", "2/cc", "3/c/cfg", "ri/ng/ring", "ru/st/rustix"]


def test_check_that_cannot_run_has_a_reason() -> None:
    def fail() -> list[str]:
        raise audit.NotChecked("no network")

    outcome = audit.run("flaws", fail)
    assert (outcome.mark, outcome.findings, outcome.not_checked) == ("-", (), "no network")
    assert audit.run("flaws", lambda: ["one"]).mark == "✗"
    assert audit.run("flaws", list).mark == "✓"
