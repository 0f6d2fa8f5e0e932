"""The table of `tensorpool discover --watch`: streams and their recent changes."""

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


def render(table: DiscoveryTable, now_s: float) -> list[str]:
    screen = Console(width=100, color_system=None)
    with screen.capture() as capture:
        screen.print(table.table(now_s))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_changes_are_those_between_two_results() -> None:
    changed = replace(CAMERA, epoch=6)
    assert changes_between([], [CAMERA]) == [("arrived", CAMERA)]
    assert changes_between([CAMERA, OTHER], [changed, OTHER]) == [("changed", changed)]
    assert changes_between([CAMERA, OTHER], [OTHER]) == [("gone", CAMERA)]
    assert changes_between([CAMERA], [CAMERA]) == []


def test_streams_of_the_first_result_are_not_news() -> None:
    table = DiscoveryTable()
    table.update([("arrived", CAMERA)], 100.0)
    head, row, foot = render(table, 100.0)
    assert head.split() == ["stream", "name", "tags", "source", "driver", "slots", "pools", "producer"]
    assert row.split() == ["10000", "camera-1", "a", "lab", "lab", "8", "1MiB", "7"]
    assert foot == "1 streams; Ctrl-C ends"


def test_changes_are_shown_for_a_while() -> None:
    table = DiscoveryTable()
    table.update([("arrived", CAMERA)], 100.0)
    table.update([("arrived", OTHER)], 102.0)
    assert render(table, 105.0)[2].endswith("none      arrived 3.0 s ago")
    assert render(table, 112.1)[2].endswith("none")
    table.update([("gone", CAMERA), ("changed", OTHER)], 120.0)
    _, gone, changed, foot = render(table, 121.0)
    assert gone.endswith("gone 1.0 s ago")
    assert changed.endswith("changed 1.0 s ago")
    assert foot.startswith("1 streams")
    table.update([], 130.1)
    _, only, _ = render(table, 130.1)
    assert only.split()[0] == "10001"
    # It arrives again, which is news again.
    table.update([("arrived", CAMERA)], 131.0)
    assert render(table, 131.0)[1].endswith("arrived 0 µs ago")


def test_rows_stay_while_a_registry_does_not_answer() -> None:
    table = DiscoveryTable()
    table.update([("arrived", CAMERA)], 100.0)
    table.problem = "no answer; still asking"
    _, row, foot = render(table, 101.0)
    assert row.split()[0] == "10000"
    assert foot == "no answer; still asking"
