"""Code blocks of the documentation: each is run by a test, or listed here with the reason why it is not."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.e2e.pages import ROOT, blocks

DOCS = ROOT / "docs"
# Programs and sessions. Shell commands are checked by test_documents.py: each command and option exists.
RUN_LANGUAGES = ("python", "console")
# Generated from docstrings and from --help: signatures, and examples of a few lines.
GENERATED = {
    "api.md",
    "api-pipeline.md",
    "api-recorder.md",
    "api-recording.md",
    "api-replay.md",
    "api-service.md",
    "commands.md",
}

RUN_BY = {
    "README.md": "tests/e2e/test_readme.py",
    "docs/index.md": "tests/e2e/test_examples.py",
    "docs/how-to/connect-two-hosts.md": "tests/e2e/test_bridge_namespaces.py",
    "docs/how-to/consume-well.md": "tests/e2e/test_consume_well_page.py",
    "docs/how-to/fill-a-slot-by-dma.md": "tests/e2e/test_operators_pages.py",
    "docs/how-to/find-a-stream.md": "tests/e2e/test_discover_command.py",
    "docs/how-to/keep-recordings-in-object-storage.md": "tests/e2e/test_object_storage_page.py",
    "docs/how-to/from-one-machine-to-a-cluster.md": "tests/integration/spark/test_pipeline_clusters.py",
    "docs/how-to/join-streams.md": "tests/e2e/test_joins_pages.py",
    "docs/how-to/limit-a-stream.md": "tests/e2e/test_joins_pages.py",
    "docs/how-to/place-memory-on-a-numa-node.md": "tests/e2e/test_operators_pages.py",
    "docs/how-to/plan-stream-ids.md": "tests/e2e/test_operators_pages.py",
    "docs/how-to/publish-metadata.md": "tests/e2e/test_describe_page.py",
    "docs/how-to/record-and-replay.md": "tests/e2e/test_record_and_replay_page.py",
    "docs/how-to/restrict-access.md": "tests/e2e/test_operators_pages.py",
    "docs/how-to/run-a-driver-for-several-users.md": "tests/e2e/test_several_users.py",
    "docs/how-to/run-a-registry-for-a-fleet.md": "tests/e2e/test_discover_command.py",
    "docs/how-to/size-a-stream.md": "tests/e2e/test_operators_pages.py",
    "docs/how-to/synchronise-clocks.md": "tests/e2e/test_operators_pages.py",
    "docs/how-to/watch-a-system-in-a-browser.md": "tests/integration/test_notebook.py",
    "docs/reference/consumer-requests.md": "tests/e2e/test_operators_pages.py",
    "docs/tutorial/first-steps.md": "tests/e2e/test_first_steps_page.py",
    "docs/tutorial/numpy-over-a-million-frames-with-spark.md": "tests/integration/spark/test_tutorial.py",
    "docs/tutorial/write-a-service.md": "tests/e2e/test_tutorials.py",
}
"""The test that runs the blocks of a page."""

NOT_RUN = {
    "docs/how-to/copy-frames-to-a-gpu.md": "needs a GPU; tests/gpu runs the same calls",
    "docs/tutorial/a-model-on-a-live-camera.md": "needs torch; tests/gpu runs its program",
    "CONTRIBUTING.md": "shows the form of a test",
    "docs/explanation/what-it-does.md": "two lines of a Spark program that the tutorial runs as a whole",
    "docs/how-to/build-tables-from-recordings.md": "needs the tables of a day; "
    "tests/integration/spark/test_pipeline.py reads such tables",
    "docs/how-to/report-on-a-pipeline.md": "needs the tables of a day; "
    "tests/e2e/test_pipeline_report_page.py writes such a report",
    "docs/reference/pipeline.md": "the start of a program; tests/unit/pipeline/declarative runs whole ones",
    "docs/reference/recorder.md": "the calls of its table; record-and-replay.md has whole programs",
    "docs/reference/spark.md": "alternatives, not one program; the tutorial runs each form",
}
"""Pages whose blocks no test runs, with the reason."""


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in found if page.name not in GENERATED]


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def with_block(*languages: str) -> list[Path]:
    return [page for page in pages() if any(blocks(page, language) for language in languages)]


def test_every_page_with_programs_is_run_or_has_a_reason() -> None:
    assert {page_name(page) for page in with_block(*RUN_LANGUAGES)} == {*RUN_BY, *NOT_RUN}
    assert not RUN_BY.keys() & NOT_RUN.keys()


@pytest.mark.parametrize(("page", "test"), RUN_BY.items(), ids=lambda value: Path(value).stem)
def test_test_of_a_page_reads_the_page(page: str, test: str) -> None:
    text = (ROOT / test).read_text("utf-8")
    assert Path(page).stem in text
    # The blocks come from the page: a copy in the test would not follow a change.
    assert "blocks(" in text or "```python" in text


@pytest.mark.parametrize("page", with_block("python"), ids=page_name)
def test_programs_are_valid_python(page: Path) -> None:
    for block in blocks(page, "python"):
        # `…` stands for a value that the reader fills in.
        compile(block.replace("…", "..."), str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", with_block("toml"), ids=page_name)
def test_settings_are_valid_toml(page: Path) -> None:
    for block in blocks(page, "toml"):
        tomllib.loads(re.sub(r"^…$", "", block, flags=re.MULTILINE))
