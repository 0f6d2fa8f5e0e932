"""The announce period that a context adopts from a running driver."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tensorpool.context.driver_host import query_announce_period
from tensorpool.errors import ServiceTimeout
from tensorpool.service import ServiceClient

INVALID_PERIODS: list[Any] = [None, "1", [], float("nan"), float("inf")]


class FakeDriver:
    """A driver service with one fixed status."""

    def __init__(self, status: Any) -> None:
        self._status = status

    def call(self, command: str) -> Any:
        assert command == "status"
        if isinstance(self._status, Exception):
            raise self._status
        return self._status


def query(status: Any) -> int | None:
    return query_announce_period(cast(ServiceClient, FakeDriver(status)))


def test_announce_period_is_read_from_the_driver_status() -> None:
    assert query({"announce_period_s": 0.2}) == 200_000_000


@pytest.mark.parametrize("period", [0, -1.0], ids=repr)
def test_announce_period_that_is_not_positive_is_ignored(period: float) -> None:
    assert query({"announce_period_s": period}) == 0


@pytest.mark.parametrize(
    "status",
    [
        {},
        [],
        None,
        7,
        ServiceTimeout("no answer"),
        *({"announce_period_s": period} for period in INVALID_PERIODS),
    ],
    ids=repr,
)
def test_announce_period_is_unknown_without_a_valid_status(status: Any) -> None:
    assert query(status) is None
