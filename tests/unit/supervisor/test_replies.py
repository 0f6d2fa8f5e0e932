"""The typed replies of `service:supervisor` name members of the views that they are made from."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tensorpool.monitor.snapshot import ConsumerView, LedgerView, MismatchView, StreamView
from tensorpool.supervisor.agent import MismatchReply, SupervisorLedger
from tensorpool.supervisor.policy import Decision
from tensorpool.supervisor.service import DecisionReply, SupervisedConsumer, SupervisedStream


@pytest.mark.parametrize(
    ("reply", "view"),
    [
        (DecisionReply, Decision),
        (SupervisedConsumer, ConsumerView),
        (SupervisedStream, StreamView),
        (SupervisorLedger, LedgerView),
        (MismatchReply, MismatchView),
    ],
)
def test_reply_members_are_members_of_the_view(reply: Any, view: Any) -> None:
    assert set(reply.__annotations__) <= {member.name for member in fields(view)}


def test_decision_reply_has_every_member() -> None:
    assert set(DecisionReply.__annotations__) == {member.name for member in fields(Decision)}
