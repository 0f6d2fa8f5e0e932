"""A context takes the driver's announce period over, whoever answers as the driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest

from tensorpool.client import LeaseOptions
from tensorpool.context.endpoints import WithEndpoints

OWN_NS = 5_000_000_000
NO_PERIODS: list[Any] = [None, "1", [], 0, -1.0, float("nan"), float("inf")]


class Driver:
    def __init__(self, status: Any) -> None:
        self._status = status

    def call(self, command: str) -> Any:
        assert command == "status"
        return self._status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def learned(status: Any) -> int:
    context = SimpleNamespace(
        mode="driver",
        service=lambda name, timeout: Driver(status),
        _host=SimpleNamespace(is_here=False),
        _knows_period=False,
        _announce_period_ns=OWN_NS,
        connection=SimpleNamespace(announce_period_ns=OWN_NS),
        _terms=LeaseOptions(1, OWN_NS, 1, 1, 1, 1000),
    )
    WithEndpoints._learn_period(context)  # type: ignore[arg-type]
    assert context._terms.announce_period_ns == context._announce_period_ns
    found: int = context._announce_period_ns
    return found


def test_the_driver_s_period_is_taken_over() -> None:
    assert learned({"announce_period_s": 0.2}) == 200_000_000


@pytest.mark.parametrize(
    "status",
    [
        {},
        [],
        None,
        7,
        *({"announce_period_s": one} for one in NO_PERIODS),
    ],
    ids=repr,
)
def test_what_is_no_period_is_not(status: Any) -> None:
    assert learned(status) == OWN_NS
