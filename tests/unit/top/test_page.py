"""The page of `tensorpool top`: keys, rows, screens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tensorpool.monitor.snapshot import LedgerView, Snapshot
from tensorpool.top import keyboard
from tensorpool.top.draw import draw
from tensorpool.top.page import PageState
from tensorpool.top.tables import lay_out
from tests.unit.top.snapshots import consumer, stream, system

ALL_KEYS = [
    keyboard.UP,
    keyboard.DOWN,
    keyboard.PAGE_UP,
    keyboard.PAGE_DOWN,
    keyboard.TO_START,
    keyboard.TO_END,
    keyboard.ENTER,
    keyboard.ESCAPE,
    keyboard.BACKSPACE,
    keyboard.TAB,
    keyboard.BACK_TAB,
    *"123456789sSr/p? hjkx<>é",
]


def page() -> PageState:
    state = PageState()
    state.show(system())
    return state


def press(state: PageState, *pressed: str) -> PageState:
    for key in pressed:
        state.press(key)
    return state


def text(state: PageState, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in draw(state, width, height))


def ids(state: PageState) -> list[int]:
    return [row.stream_id for row in state.rows()]


def test_title_shows_collisions_and_mismatches() -> None:
    title = text(page()).splitlines()[0]
    assert "1 id collision  1 ledger mismatch  3 of 6 streams live" in title
    sound = PageState()
    sound.show(replace(system(), ledger=LedgerView({"exact": 8, "mismatch": 0})))
    assert "mismatch" not in text(sound)


def test_list_fits_80_columns() -> None:
    shown = text(page())
    assert "3 of 6 streams live" in shown
    assert "10000  camera-left" in shown
    row = next(line for line in shown.splitlines() if line.startswith(" 10000"))
    assert row.split() == [
        "10000",
        "camera-left",
        "live",
        "30.0",
        "30.0",
        "48",
        "ms",
        "2",
        "2.5",
        "late",
        "120,",
        "gap…",
    ]
    assert "1 id collision" in shown
    assert "q quit" in shown


def test_every_tab_has_its_rows() -> None:
    state = page()
    for key, text_of_row in zip(
        "123456", ("thermal", "≤ 10 Hz", "producer", "connected", "recording", "started"), strict=True
    ):
        assert text_of_row in text(press(state, key)), text_of_row


def test_sorting_puts_the_largest_first_and_unknown_last() -> None:
    state = page()
    assert state.sort_by("fps")
    assert ids(state) == [10010, 10000, 10001, 10020, 10030, 10040]
    press(state, "r")
    assert ids(state) == [10020, 10000, 10001, 10010, 10030, 10040]
    assert state.sort_by("state")
    assert ids(state)[0] == 10030
    assert not state.sort_by("colour")


def test_sorting_cycles_through_all_columns_and_none() -> None:
    state = page()
    columns = len(state.table.columns)
    press(state, *("s" for _ in range(columns)))
    assert state.sorting.column == columns - 1
    assert press(state, "s").sorting.column is None
    assert press(state, "S").sorting.column == columns - 1


def test_filter_is_typed_kept_and_dropped() -> None:
    state = press(page(), "/", *"CAM lefx", keyboard.BACKSPACE)
    assert state.is_typing
    assert "filter: CAM lef" in text(state)
    assert ids(state) == [10000]
    press(state, keyboard.ENTER)
    assert not state.is_typing
    assert press(state, "q").done
    assert ids(press(page(), "/", *"cam", keyboard.ENTER, keyboard.ESCAPE)) == ids(page())
    assert "no row has 'zzz'" in text(press(page(), "/", *"zzz", keyboard.ENTER))


def test_cursor_stays_with_its_row_when_others_change() -> None:
    state = press(page(), keyboard.DOWN, keyboard.DOWN)
    assert state.selected() == 10010
    before = system()
    state.show(replace(before, streams=(stream(5), *before.streams)))
    assert state.selected() == 10010
    state.show(replace(before, streams=before.streams[3:]))
    assert state.selected() == 10040, "the cursor stays on its line when its row has gone"


def test_unmoved_cursor_stays_on_the_first_line() -> None:
    state = PageState()
    state.show(Snapshot(0, streams=(stream(9),)))
    assert state.selected() == 9
    state.show(Snapshot(0, streams=(stream(3), stream(9))))
    assert state.selected() == 3


def test_details_show_the_stream_and_escape_goes_back() -> None:
    state = press(page(), keyboard.ENTER)
    shown = text(state, 100, 40)
    for detail in (
        "the left eye",
        "camera, lab",
        "feeds      10010 detections",
        "up to 3 slots open at once",
        "late 120, gap 4",
        "back_pressured 1",
        "consumer 502 is used twice",
        "recorder r1: recording",
        "990 rows",
        "1298074214633706",
    ):
        assert detail in shown, detail
    assert press(state, keyboard.ESCAPE).detail is None
    assert "made from  10000 camera-left, 10001 camera-right" in text(
        press(page(), keyboard.DOWN, keyboard.DOWN, keyboard.ENTER), 100
    )
    state.detail = 4711
    assert "stream 4711 has gone" in text(state)


def test_paused_page_keeps_its_snapshot() -> None:
    state = press(page(), " ")
    state.show(Snapshot(0))
    assert len(state.rows()) == 6
    assert "paused" in text(state)
    press(state, " ").show(Snapshot(0))
    assert state.rows() == []


def test_help_replaces_the_page_until_any_key() -> None:
    state = press(page(), "?")
    assert "filter: rows that have" in text(state)
    assert not press(state, "x").is_help
    assert press(page(), "?", "q").done


def test_ctrl_c_quits_while_a_filter_is_typed() -> None:
    assert press(page(), "/", "q").done is False
    assert press(page(), "/", keyboard.INTERRUPT).done


def test_states_are_readable_without_colours() -> None:
    """States are text; colours only repeat them."""
    shown = text(page())
    for state in ("live", "quiet", "stale", "vacant"):
        assert state in shown


@settings(deadline=None)
@given(st.lists(st.sampled_from(ALL_KEYS), max_size=40), st.integers(1, 160), st.integers(1, 60))
def test_screen_is_exactly_filled_after_any_keys(pressed: list[str], width: int, height: int) -> None:
    state = page()
    for index, key in enumerate(pressed):
        state.press(key)
        if index % 7 == 3:
            state.show(Snapshot(0) if index % 2 else system())
        lines = draw(state, width, height)
        assert len(lines) == height
        assert {cell_len(line.plain) for line in lines} == {width}
    assert not state.done


def test_list_of_a_thousand_streams_scrolls() -> None:
    state = PageState()
    state.show(Snapshot(0, streams=tuple(stream(n, f"s{n}") for n in range(1000))))
    shown = text(press(state, keyboard.TO_END))
    assert " s999 " in shown
    assert " s0 " not in shown
    text(press(state, keyboard.PAGE_UP))
    assert state.selected() == 979


def test_rows_are_layouts_out_once_per_snapshot_not_per_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layouts: list[int] = []

    def counting_lay_out(columns: Any, rows: Any, width: int) -> Any:
        layouts.append(len(rows))
        return lay_out(columns, rows, width)

    monkeypatch.setattr("tensorpool.top.draw.lay_out", counting_lay_out)
    consumers = [consumer(n, m, {}) for n in range(100) for m in range(4)]
    snapshot = Snapshot(
        0, streams=tuple(stream(n, consumers=tuple(consumers[4 * n : 4 * n + 4])) for n in range(100))
    )
    state = PageState(tab=1)
    state.show(snapshot)
    for _ in range(30):
        assert text(press(state, keyboard.DOWN))
    assert layouts == [400]
    # Laid out again after another snapshot, order, filter, tab or width.
    state.show(replace(snapshot, now_ns=1))
    text(state)
    text(press(state, "s"))
    text(press(state, "r"))
    text(press(state, "/", "9", "9", keyboard.ENTER))
    text(press(state, "1"))
    text(state, width=100)
    assert layouts[:4] == [400] * 4
    assert len(layouts) == 7
    assert layouts[4] < 400
