"""Damage to recordings: how to do it, and what must hold afterwards."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tensorpool import recording
from tensorpool.errors import RecordingError
from tensorpool.recording import manifest, manifest_store
from tests.unit.recording.conftest import STREAM, frames, payload
from tests.unit.recording.test_metadata_index import meta

OTHER = 7
# Of no interest for the content: locks, and what a repair has set aside.
IGNORED = ("_writer.lock", "_manifest.lock")
PAYLOAD_BYTES = 1024


class Damage(NamedTuple):
    """A way to damage one file, with a position in it."""

    name: str
    apply: Callable[[Path, int], None]


def write_recording(root: Path) -> None:
    """Two streams, several segments and batches, gaps before, between and behind rows, and every table."""
    limits = recording.WriterLimits(segment_bytes=20_000)
    with recording.RecordingWriter(root, limits=limits, background=False) as writer:
        writer.gap(stream_id=STREAM, epoch=1, first_seq=0, count=3, reason="late")
        for first in range(3, 27, 6):
            writer.write_batch(frames(first, 6, PAYLOAD_BYTES))
            writer.sync()
        writer.gap(stream_id=STREAM, epoch=1, first_seq=27, count=2, reason="overrun")
        writer.write_batch(frames(29, 6, PAYLOAD_BYTES))
        writer.gap(stream_id=STREAM, epoch=1, first_seq=35, count=5, reason="late")
        for seq in range(4):
            writer.append(payload(seq, 100), stream_id=OTHER, epoch=2, seq=seq, meta_version=1)
        writer.mark("a label")
        writer.add_message("metadata", meta(1, 2), stream_id=OTHER, epoch=2, meta_version=1)
        writer.add_message("qos", b"qos", stream_id=OTHER, epoch=2)
        writer.add_message("announces", b"announce", stream_id=OTHER, epoch=2)
    # With records in the snapshot and in the log.
    with manifest_store.locked(root):
        manifest_store.compact_locked(root, manifest.load(root))
    with recording.RecordingWriter(root, background=False) as writer:
        writer.write_batch(frames(40, 4, PAYLOAD_BYTES))


class Content(NamedTuple):
    """What a reader can get out of a recording."""

    frames: dict[tuple[int, int, int], bytes]
    ledgers: dict[int, list[str]]
    gaps: list[Any]
    meta: Any
    tables: dict[str, list[Any]]


def read_all(root: Path) -> Content:
    """Everything a reader can get. Raises if the reader refuses."""
    found = recording.open(root)
    read = {}
    for stream in found.streams:
        for frame in found.frames(stream):
            read[stream, frame.epoch, frame.seq] = frame.verify().payload.tobytes()
    ledgers = {stream: [str(ledger) for ledger in found.ledger(stream)] for stream in found.streams}
    gaps = [gap for stream in found.streams for gap in found.gaps(stream)]
    meta = [frame.meta for frame in found.frames(OTHER)] if OTHER in found.streams else None
    tables = {name: found.table(name).to_pylist() for name in ("marks", "qos", "announces", "anchors")}
    return Content(read, ledgers, gaps, meta, tables)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << (at % 8)
    path.write_bytes(content)


def zero(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + 512] = bytes(len(content[at : at + 512]))
    path.write_bytes(content)


def truncate(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])


def append(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes() + random.Random(at).randbytes(1 + at % 200))


def append_itself(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes() * 2)


def duplicate(path: Path, at: int) -> None:
    digits = path.name.partition(".")[0]
    name = f"{int(digits) + 1:020}" if digits.isdigit() else f"{digits}1"
    shutil.copy(path, path.with_name(path.name.replace(digits, name, 1)))


def duplicate_elsewhere(path: Path, at: int) -> None:
    target = path.parents[1] / ("epoch=9" if path.parent.name.startswith("epoch=") else "marks")
    target.mkdir(exist_ok=True)
    shutil.copy(path, target / path.name)


def remove(path: Path, at: int) -> None:
    path.unlink()


def leave_partial(path: Path, at: int) -> None:
    shutil.copy(path, path.with_name(path.name + ".partial"))


ANYWHERE = [
    Damage("flip", flip),
    Damage("zero", zero),
    Damage("truncate", truncate),
    Damage("append", append),
]
ONCE = [Damage("append itself", append_itself), Damage("duplicate", duplicate), Damage("remove", remove)]


def damages(root: Path, rng: random.Random, per_file: int) -> Iterator[tuple[Path, Damage, int]]:
    """Each damage at several positions of each file: at its start, its end, and random ones."""
    for path in sorted(path for path in root.rglob("*") if path.is_file() and path.name not in IGNORED):
        size = path.stat().st_size
        if not size:
            continue
        ends = [0, size - 1, size // 2, min(64, size - 1), max(size - 8, 0)]
        for at in sorted({*ends, *(rng.randrange(size) for _ in range(per_file))}):
            for damage in ANYWHERE:
                yield path, damage, at
        for damage in ONCE:
            # A file beside the recording's own may be the user's.
            if path.parent != root or damage.name != "duplicate":
                yield path, damage, 0
        if path.parent.name.startswith("epoch="):
            yield path, Damage("duplicate elsewhere", duplicate_elsewhere), 0
            yield path, Damage("leave partial", leave_partial), 0


def is_unchanged(one: Path, other: Path) -> bool:
    """Whether two recordings have the same files with the same bytes."""

    def files(root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    return files(one) == files(other)


def check_damage(whole: Path, content: Content, path: Path, damage: Damage, at: int, tmp_path: Path) -> None:
    """Damages a copy; a reader refuses or is right, `verify` notices, `repair` mends or says what is lost."""
    root = tmp_path / "damaged"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(whole, root)
    what = f"{damage.name} at {at} of {path.relative_to(whole)}"
    damage.apply(root / path.relative_to(whole), at)
    if is_unchanged(whole, root):
        return
    refusal: str | None = None
    try:
        read = read_all(root)
    except RecordingError as error:
        refusal = str(error)
    else:
        assert read == content, (what, "a reader returned something else")
    assert refusal is None or str(root) in refusal, (what, "the error does not name the file", refusal)
    try:
        found = recording.verify(root)
    except RecordingError:
        found = None
    if found is not None:
        assert found.problems or found.notes, (what, "verify did not notice")
        if not found.problems and {note.kind for note in found.notes} == {"padding"}:
            # Between two payloads: no frame is affected, and there is nothing to repair.
            assert refusal is None, (what, refusal)
            return
    done = recording.repair(root)
    assert done.changed, (what, "repair found nothing")
    after = recording.verify(root)
    assert after.ok, (what, "still damaged after a repair", [str(problem) for problem in after.problems])
    assert not recording.repair(root).changed, (what, "a second repair changed something")
    mended = read_all(root)
    lost = content.frames.keys() - mended.frames.keys()
    assert not mended.frames.keys() - content.frames.keys(), what
    assert all(mended.frames[key] == content.frames[key] for key in mended.frames), what
    named = {
        (gap.stream_id, gap.epoch, seq)
        for gap in done.lost
        for seq in range(gap.first_seq, gap.first_seq + gap.count)
    }
    assert named == lost, (what, "the repair does not name what is lost", lost ^ named)
    for stream, ledgers in content.ledgers.items():
        if any(stream == key[0] for key in mended.frames):
            spans = [text.split("=")[0] for text in ledgers]
            assert [text.split("=")[0] for text in mended.ledgers[stream]] == spans, (what, mended.ledgers)
    if not lost:
        assert mended.gaps == content.gaps, (what, "gaps changed")
    lost_rows = {table.path.parent.name: table.lost_rows for table in done.tables}
    for name, rows in content.tables.items():
        missing = len(rows) - len([row for row in mended.tables[name] if row in rows])
        if name != "anchors":
            assert missing == lost_rows.get(name, 0), (what, name, "the repair does not name lost rows")


def kind_of(root: Path, path: Path) -> str:
    if path.parent.name.startswith("epoch="):
        return "segments"
    if path.suffix in (".versions", ".tables"):
        return "indexes"
    return "tables" if path.parent != root else "manifest"
