"""The table of `tensorpool discover --watch`: what is there, and what has just happened."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from tensorpool.cli.discover import DiscoveryTable, changes_between
from tensorpool.discovery import DiscoveredStream

CAMERA = DiscoveredStream(
    stream_id=10_000,
    name="camera-1",
    tags=frozenset({"lab", "a"}),
    data_source_id=None,
    producer_id=7,
    epoch=5,
    layout_version=1,
    nslots=8,
    pools=(1 << 20,),
    driver_instance_id="lab",
    control_channel="aeron:ipc",
    control_stream_id=1000,
)
OTHER = replace(CAMERA, stream_id=10_001, name="camera-2", producer_id=0)


def drawn(picture: DiscoveryTable, now_s: float) -> list[str]:
    screen = Console(width=100, color_system=None)
    with screen.capture() as capture:
        screen.print(picture.table(now_s))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_changes_are_those_from_one_look_to_the_next() -> None:
    moved = replace(CAMERA, epoch=6)
    assert changes_between([], [CAMERA]) == [("arrived", CAMERA)]
    assert changes_between([CAMERA, OTHER], [moved, OTHER]) == [("changed", moved)]
    assert changes_between([CAMERA, OTHER], [OTHER]) == [("gone", CAMERA)]
    assert changes_between([CAMERA], [CAMERA]) == []


def test_what_was_there_at_the_first_look_is_no_news() -> None:
    picture = DiscoveryTable()
    picture.look([("arrived", CAMERA)], 100.0)
    head, row, foot = drawn(picture, 100.0)
    assert head.split() == ["stream", "name", "tags", "source", "driver", "slots", "pools", "producer"]
    assert row.split() == ["10000", "camera-1", "a", "lab", "lab", "8", "1MiB", "7"]
    assert foot == "1 streams; Ctrl-C ends"


def test_what_happens_is_told_for_a_while_and_what_is_gone_leaves_the_table_after_it() -> None:
    picture = DiscoveryTable()
    picture.look([("arrived", CAMERA)], 100.0)
    picture.look([("arrived", OTHER)], 102.0)
    assert drawn(picture, 105.0)[2].endswith("none      arrived 3.0 s ago")
    assert drawn(picture, 112.1)[2].endswith("none")
    picture.look([("gone", CAMERA), ("changed", OTHER)], 120.0)
    _, gone, changed, foot = drawn(picture, 121.0)
    assert gone.endswith("gone 1.0 s ago")
    assert changed.endswith("changed 1.0 s ago")
    assert foot.startswith("1 streams")
    picture.look([], 130.1)
    _, only, _ = drawn(picture, 130.1)
    assert only.split()[0] == "10001"
    # It comes back, and is news again.
    picture.look([("arrived", CAMERA)], 131.0)
    assert drawn(picture, 131.0)[1].endswith("arrived 0 µs ago")


def test_a_registry_that_does_not_answer_takes_nothing_away() -> None:
    picture = DiscoveryTable()
    picture.look([("arrived", CAMERA)], 100.0)
    picture.trouble = "nobody answered; still asking"
    _, row, foot = drawn(picture, 101.0)
    assert row.split()[0] == "10000"
    assert foot == "nobody answered; still asking"
