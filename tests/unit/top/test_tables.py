"""The layout of columns in a given width."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tensorpool.top.tables import Cell, Column, fit, lay_out, line_of

COLUMNS: list[Column[tuple[str, str, int]]] = [
    Column("id", lambda row: str(row[2]), lambda row: row[2], right=True, weight=0),
    Column("name", lambda row: row[0], lambda row: row[0], elastic=6, weight=1),
    Column("n", lambda row: Cell(f"{row[2]:,}", "red"), lambda row: row[2], right=True, weight=2),
    Column("why", lambda row: row[1], lambda row: row[1], elastic=6, weight=3),
    Column("extra", lambda row: "optional", lambda row: None, weight=9),
]
WIDE = ("a name that is long", "late 12, gap 4", 1234)


def shown(width: int, *rows: tuple[str, str, int]) -> list[str]:
    indices, widths, cells = lay_out(COLUMNS, rows, width)
    rights = [COLUMNS[index].right for index in indices]
    head = [Cell(COLUMNS[index].title) for index in indices]
    return [line_of(line, widths, rights, width).plain for line in (head, *cells)]


def test_all_columns_are_shown_when_there_is_room() -> None:
    head, row = shown(80, WIDE)
    assert head.split() == ["id", "name", "n", "why", "extra"]
    assert row.rstrip() == "1234  a name that is long  1,234  late 12, gap 4  optional"


def test_optional_columns_are_omitted_before_any_is_cut() -> None:
    head, row = shown(50, WIDE)
    assert head.split() == ["id", "name", "n", "why"]
    assert "a name that is long" in row


def test_widest_column_is_cut_before_one_is_omitted() -> None:
    head, row = shown(40, WIDE)
    assert head.split() == ["id", "name", "n", "why"]
    assert "…" in row
    assert "1,234" in row


def test_columns_are_omitted_by_weight() -> None:
    assert shown(26, WIDE)[0].split() == ["id", "name", "n"]
    assert shown(12, WIDE)[0].split() == ["id", "name"]
    assert shown(5, WIDE)[0].split() == ["id"]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30), st.integers(0, 10**9))), st.integers(1, 90)
)
def test_every_line_is_exactly_as_wide_as_the_screen(rows: list[tuple[str, str, int]], width: int) -> None:
    for line in shown(width, *rows):
        assert cell_len(line) == width
        assert line.isprintable()


def test_names_cannot_control_the_terminal() -> None:
    _, line = shown(60, ("a\x1b[2Jb\nc", "\u202eabc", 7))
    assert line.isprintable()
    assert line.split() == ["7", r"a\x1b[2Jb\nc", "7", r"\u202eabc", "optional"]


def test_wide_characters_are_cut_between_characters() -> None:
    assert cell_len(fit("日本語カメラ", 7)) == 7
    assert fit("abc", 5, right=True) == "  abc"
