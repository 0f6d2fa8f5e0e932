"""What keys do to the page."""

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
    keyboard.HOME,
    keyboard.END,
    keyboard.ENTER,
    keyboard.ESCAPE,
    keyboard.BACKSPACE,
    keyboard.TAB,
    keyboard.BACK_TAB,
    *"123456789sSr/p? hjkx<>é",
]


def page() -> PageState:
    found = PageState()
    found.show(system())
    return found


def press(found: PageState, *pressed: str) -> PageState:
    for key in pressed:
        found.press(key)
    return found


def text(found: PageState, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in draw(found, width, height))


def ids(found: PageState) -> list[int]:
    return [row.stream_id for row in found.rows()]


def test_the_title_says_what_is_wrong() -> None:
    title = text(page()).splitlines()[0]
    assert "1 id collision  1 ledger mismatch  3 of 6 streams live" in title
    sound = PageState()
    sound.show(replace(system(), ledger=LedgerView({"exact": 8, "mismatch": 0})))
    assert "mismatch" not in text(sound)


def test_the_list_tells_what_is_going_on_at_80_columns() -> None:
    shown = text(page())
    assert "3 of 6 streams live" in shown
    assert "10000  camera-left" in shown
    row = next(line for line in shown.splitlines() if line.startswith(" 10000"))
    assert row.split() == [
        "10000",
        "camera-left",
        "live",
        "30.0",
        "31.5",
        "48",
        "ms",
        "2",
        "2.5",
        "late",
        "120,",
        "gap",
        "4",
    ]
    assert "1 id collision" in shown
    assert "q quit" in shown


def test_every_page_has_its_rows() -> None:
    found = page()
    for key, word in zip(
        "123456", ("thermal", "≤ 10 Hz", "producer", "connected", "recording", "came"), strict=True
    ):
        assert word in text(press(found, key)), word


def test_columns_sort_the_largest_figure_first_and_the_unknown_last() -> None:
    found = page()
    assert found.sort_by("fps")
    assert ids(found) == [10010, 10000, 10001, 10020, 10030, 10040]
    press(found, "r")
    assert ids(found) == [10020, 10000, 10001, 10010, 10030, 10040]
    assert found.sort_by("state")
    assert ids(found)[0] == 10030
    assert not found.sort_by("colour")


def test_sorting_goes_through_all_columns_and_back_to_none() -> None:
    found = page()
    columns = len(found.table.columns)
    press(found, *("s" for _ in range(columns)))
    assert found.sorting.column == columns - 1
    assert press(found, "s").sorting.column is None
    assert press(found, "S").sorting.column == columns - 1


def test_a_filter_is_typed_kept_and_dropped() -> None:
    found = press(page(), "/", *"CAM lefx", keyboard.BACKSPACE)
    assert found.is_typing
    assert "filter: CAM lef" in text(found)
    assert ids(found) == [10000]
    press(found, keyboard.ENTER)
    assert not found.is_typing
    assert press(found, "q").done
    assert ids(press(page(), "/", *"cam", keyboard.ENTER, keyboard.ESCAPE)) == ids(page())
    assert "no row has 'zzz'" in text(press(page(), "/", *"zzz", keyboard.ENTER))


def test_the_cursor_stays_with_its_thing_when_others_come_and_go() -> None:
    found = press(page(), keyboard.DOWN, keyboard.DOWN)
    assert found.selected() == 10010
    before = system()
    found.show(replace(before, streams=(stream(5), *before.streams)))
    assert found.selected() == 10010
    found.show(replace(before, streams=before.streams[3:]))
    assert found.selected() == 10040, "it stays on its line when its thing has gone"


def test_nobody_has_chosen_anything_yet_so_the_first_line_is_it() -> None:
    found = PageState()
    found.show(Snapshot(0, streams=(stream(9),)))
    assert found.selected() == 9
    found.show(Snapshot(0, streams=(stream(3), stream(9))))
    assert found.selected() == 3


def test_details_tell_of_one_stream_and_escape_goes_back() -> None:
    found = press(page(), keyboard.ENTER)
    shown = text(found, 100, 40)
    for words in (
        "the left eye",
        "camera, lab",
        "feeds      10010 detections",
        "late 120, gap 4",
        "back_pressured 1",
        "two go by consumer 502",
        "recorder r1: recording",
        "990 rows",
        "1298074214633706",
    ):
        assert words in shown, words
    assert press(found, keyboard.ESCAPE).detail is None
    assert "made from  10000 camera-left, 10001 camera-right" in text(
        press(page(), keyboard.DOWN, keyboard.DOWN, keyboard.ENTER), 100
    )
    found.detail = 4711
    assert "stream 4711 is gone" in text(found)


def test_a_paused_page_stands_still() -> None:
    found = press(page(), " ")
    found.show(Snapshot(0))
    assert len(found.rows()) == 6
    assert "paused" in text(found)
    press(found, " ").show(Snapshot(0))
    assert found.rows() == []


def test_help_covers_the_page_and_any_key_goes_back() -> None:
    found = press(page(), "?")
    assert "filter: rows that have" in text(found)
    assert not press(found, "x").is_help
    assert press(page(), "?", "q").done


def test_ctrl_c_ends_it_also_while_a_filter_is_typed() -> None:
    assert press(page(), "/", "q").done is False
    assert press(page(), "/", keyboard.INTERRUPT).done


def test_without_colours_nothing_is_lost() -> None:
    """States and losses are words and figures; colours only repeat them."""
    words = text(page())
    for state in ("live", "quiet", "stale", "vacant"):
        assert state in words


@settings(deadline=None)
@given(st.lists(st.sampled_from(ALL_KEYS), max_size=40), st.integers(1, 160), st.integers(1, 60))
def test_whatever_is_pressed_the_screen_is_exactly_filled(
    pressed: list[str], width: int, height: int
) -> None:
    found = page()
    for place, key in enumerate(pressed):
        found.press(key)
        if place % 7 == 3:
            found.show(Snapshot(0) if place % 2 else system())
        lines = draw(found, width, height)
        assert len(lines) == height
        assert {cell_len(line.plain) for line in lines} == {width}
    assert not found.done


def test_a_thousand_streams_scroll() -> None:
    found = PageState()
    found.show(Snapshot(0, streams=tuple(stream(n, f"s{n}") for n in range(1000))))
    shown = text(press(found, keyboard.END))
    assert " s999 " in shown
    assert " s0 " not in shown
    text(press(found, keyboard.PAGE_UP))
    assert found.selected() == 979


def test_thousands_of_rows_are_laid_out_once_a_look_however_many_keys_are_pressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid: list[int] = []

    def counted(columns: Any, rows: Any, width: int) -> Any:
        laid.append(len(rows))
        return lay_out(columns, rows, width)

    monkeypatch.setattr("tensorpool.top.draw.lay_out", counted)
    readers = [consumer(n, m, {}) for n in range(100) for m in range(4)]
    crowd = Snapshot(
        0, streams=tuple(stream(n, consumers=tuple(readers[4 * n : 4 * n + 4])) for n in range(100))
    )
    found = PageState(tab=1)
    found.show(crowd)
    for _ in range(30):
        assert text(press(found, keyboard.DOWN))
    assert laid == [400]
    # What changes what is seen is laid out anew: another look, order, filter, page or width.
    found.show(replace(crowd, now_ns=1))
    text(found)
    text(press(found, "s"))
    text(press(found, "r"))
    text(press(found, "/", "9", "9", keyboard.ENTER))
    text(press(found, "1"))
    text(found, width=100)
    assert laid[:4] == [400] * 4
    assert len(laid) == 7
    assert laid[4] < 400
