"""The HTML page: one file, escaped texts, and previews of frames."""

from __future__ import annotations

import base64
import json
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.pipeline import report, schemas
from tensorpool.pipeline.report.samples import samples_of
from tensorpool.pipeline.report.tables import files_of
from tensorpool.recording.table_store import open_store
from tests.unit.pipeline.report.sample_tables import DATE, START_NS, pipeline, put

_EVIL = "<script>alert(1)</script>\"'&"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(path: Path) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(path.read_text("utf-8"))
    return parser.found


def test_page_is_one_private_file_without_requests(tmp_path: Path) -> None:
    pipeline(tmp_path / "out")
    page = tmp_path / "page.html"
    report.write(tmp_path / "out", page)
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir() if "page" in one.name] == ["page.html"]
    for tag, attributes in tags(page):
        assert tag not in ("link", "iframe", "object", "embed")
        for name in ("src", "href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:image/png;base64,"), (tag, value)
    assert not re.search(r"url\(|@import", page.read_text("utf-8"))


def test_foreign_metadata_is_escaped(tmp_path: Path) -> None:
    made = pipeline(tmp_path / "out")
    marker = json.loads((made.root / "pipeline.json").read_text("utf-8"))
    marker["id"] = _EVIL
    marker["definition"]["alignments"][0]["by"] = _EVIL
    marker["definition"]["note"] = _EVIL
    (made.root / "pipeline.json").write_text(json.dumps(marker), "utf-8")
    fields = [{"stream_id": 10_000, "kind": "DataSourceAnnounce", "json": json.dumps({"name": _EVIL})}]
    put(made.root, schemas.bronze_metadata(), fields)
    rejects = [{"epoch": 1, "seq": 1, "receive_time_ns": START_NS, "reason": _EVIL}]
    put(made.root, schemas.silver_rejects(), rejects, stream_id=10_001, date=DATE)
    page = tmp_path / "page.html"
    report.write(made.root, page)
    text = page.read_text("utf-8")
    assert _EVIL not in text
    assert text.count("&lt;script&gt;alert(1)") >= 5
    assert [tag for tag, _ in tags(page)].count("script") == 1


def test_page_policy_allows_only_its_own_script(tmp_path: Path) -> None:
    pipeline(tmp_path / "out")
    page = tmp_path / "page.html"
    report.write(tmp_path / "out", page)
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in tags(page)
        if "http-equiv" in attributes and tag == "meta"
    ]
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", policy)


@pytest.mark.parametrize("payload", ["ref", "inline"])
def test_frames_are_shown_as_they_were_recorded(tmp_path: Path, payload: schemas.Payload) -> None:
    made = pipeline(tmp_path / "out", streams=(10_000,), seconds=5, payload=payload)
    found = report.collect(made.root, samples=3).samples
    assert [one.seq for one in found] == [0, 52, 99]
    assert all(one.problem is None for one in found)
    assert all(one.image is not None and one.image.startswith(b"\x89PNG") for one in found)
    page = report.page(report.collect(made.root, samples=3))
    assert base64.b64encode(found[1].image or b"").decode() in page


def sample_of(tmp_path: Path, array: np.ndarray, **changes: Any) -> Any:
    """The sample of a table with one row, for one recorded frame."""
    where = tmp_path / "one"
    with recording.RecordingWriter(where) as writer:
        writer.append(array, stream_id=7, epoch=1, seq=0)
    with recording.open(where) as found:
        frame = next(iter(found.frames(7)))
        row = {
            "epoch": 1, "seq": 0, "receive_time_ns": 0, "dtype": array.dtype.name, "shape": list(array.shape),
            "strides": list(array.strides), "payload_bytes": frame.ref.length, "crc32c": frame.ref.crc32c,
            "segment": str(frame.ref.path), "payload_offset": frame.ref.offset,
        } | changes  # fmt: skip
        del frame
    put(tmp_path, schemas.silver_frames(), [row], stream_id=7, date=DATE)
    (made,) = samples_of(files_of(open_store(tmp_path), "silver/frames") or [], 4)
    return made


def test_sample_of_one_dimension_is_a_line(tmp_path: Path) -> None:
    made = sample_of(tmp_path, np.sin(np.arange(5_000) / 99))
    assert made.image is None
    assert 2 < len(made.line) <= 400


def test_large_frames_become_small_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    made = sample_of(tmp_path, rng.integers(0, 4_000, (1_500, 2_000), np.uint16))
    assert len(made.image) < 256 * 256 * 2


def test_changed_payload_is_reported_and_not_shown(tmp_path: Path) -> None:
    made = sample_of(tmp_path, np.zeros((4, 4), np.uint8), crc32c=1)
    assert made.image is None
    assert made.problem == "the payload does not match its checksum"


def test_shape_beyond_its_bytes_is_reported_and_not_read(tmp_path: Path) -> None:
    made = sample_of(tmp_path, np.zeros((4, 4), np.uint8), shape=[4_000, 4_000])
    assert made.image is None
    assert "extends beyond" in made.problem


def test_page_without_the_recording_has_all_other_parts(tmp_path: Path) -> None:
    made = pipeline(tmp_path / "out", streams=(10_000,), seconds=3)
    for path in (tmp_path / "recording").rglob("*.arrows"):
        path.unlink()
    found = report.write(made.root, tmp_path / "page.html")
    assert {one.problem for one in found.samples} == {"the recording was moved or removed"}
    assert "the recording was moved or removed" in (tmp_path / "page.html").read_text("utf-8")
