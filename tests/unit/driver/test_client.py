"""All rows of a driver, in as many answers as it takes, and from whoever answers in its name."""

from __future__ import annotations

from typing import Any

import pytest

from tensorpool.driver.client import all_rows
from tensorpool.errors import CommandFailed


class Client:
    """Gives two rows at a time."""

    def __init__(self, *ids: int, cheats: bool = False) -> None:
        self.ids, self.cheats, self.asked = ids, cheats, 0

    def call(self, command: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        self.asked += 1
        assert self.asked < 10
        first = 0 if self.cheats else arguments["first"]
        return [{"stream_id": str(one)} for one in self.ids if one >= first][:2]


def test_rows_come_in_several_answers() -> None:
    client = Client(1, 4, 5, 9, 12)
    assert [row["stream_id"] for row in all_rows(client, "streams")] == ["1", "4", "5", "9", "12"]  # type: ignore[arg-type]
    assert client.asked == 4
    assert all_rows(Client(), "streams") == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer", [7, [7], [{}], {"stream_id": 7}, [{"stream_id": "x"}], [{"stream_id": None}]]
)
def test_an_answer_that_is_no_rows_says_so(answer: Any) -> None:
    client = Client()
    client.call = lambda command, arguments: answer  # type: ignore[method-assign]
    with pytest.raises(CommandFailed, match="rows that have no stream_id"):
        all_rows(client, "streams")  # type: ignore[arg-type]


def test_who_gives_the_same_rows_for_ever_is_not_asked_for_ever() -> None:
    with pytest.raises(CommandFailed, match="where 5 comes next"):
        all_rows(Client(1, 4, 5, cheats=True), "streams")  # type: ignore[arg-type]
