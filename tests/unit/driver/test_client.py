"""Rows of a driver's service: several replies, and malformed replies of other programs."""

from __future__ import annotations

from typing import Any

import pytest

from tensorpool.driver.client import all_rows
from tensorpool.errors import CommandFailed


class FakeClient:
    """Returns two rows per call. `repeats`: ignores `first` and returns the same rows again."""

    def __init__(self, *ids: int, repeats: bool = False) -> None:
        self.ids, self.repeats, self.calls = ids, repeats, 0

    def call(self, command: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        self.calls += 1
        assert self.calls < 10
        first = 0 if self.repeats else arguments["first"]
        return [{"stream_id": str(stream_id)} for stream_id in self.ids if stream_id >= first][:2]


def test_rows_come_in_several_replies() -> None:
    client = FakeClient(1, 4, 5, 9, 12)
    assert [row["stream_id"] for row in all_rows(client, "streams")] == ["1", "4", "5", "9", "12"]  # type: ignore[arg-type]
    assert client.calls == 4
    assert all_rows(FakeClient(), "streams") == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reply", [7, [7], [{}], {"stream_id": 7}, [{"stream_id": "x"}], [{"stream_id": None}]]
)
def test_malformed_reply_is_an_error(reply: Any) -> None:
    client = FakeClient()
    client.call = lambda command, arguments: reply  # type: ignore[method-assign]
    with pytest.raises(CommandFailed, match="rows without stream_id"):
        all_rows(client, "streams")  # type: ignore[arg-type]


def test_repeated_rows_are_an_error() -> None:
    with pytest.raises(CommandFailed, match="has stream_id 4 after 4"):
        all_rows(FakeClient(1, 4, 5, repeats=True), "streams")  # type: ignore[arg-type]
