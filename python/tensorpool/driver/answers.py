"""Answers that were given, so that a request that comes again gets the same one and nothing is done twice."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

from ..sbe.wire import ResponseCode
from .actions import Action, Send
from .counters import DriverCounters
from .requests import Answer

MAX_ANSWERS: Final = 4096

Key: TypeAlias = tuple[type, int | None, int]
"""Kind of request, client id, correlation id."""


class Answers:
    """The newest ones, by who asked what (decision 18). Each goes out as an action."""

    def __init__(self, actions: list[Action], counters: DriverCounters, most: int = MAX_ANSWERS) -> None:
        self._actions = actions
        self._counters = counters
        self._most = most
        self._kept: OrderedDict[Key, Answer | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def is_repeat(self, key: Key) -> bool:
        """Whether it came before; then it gets the answer that it got, if there is one already."""
        if key not in self._kept:
            return False
        self._counters.repeats.add()
        answer = self._kept[key]
        if answer is not None:
            self._actions.append(Send(answer, is_repeat=True))
        return True

    def begin(self, key: Key) -> None:
        """It is being worked on: no second time."""
        self._keep(key, None)

    def give(self, answer: Answer, key: Key | None = None) -> None:
        """Without a key it is not kept: nobody knows who asked."""
        if answer.code is not ResponseCode.OK:
            self._counters.rejects[answer.code.name.lower()].add()
        if key is not None:
            self._keep(key, answer)
        self._actions.append(Send(answer))

    def _keep(self, key: Key, answer: Answer | None) -> None:
        self._kept[key] = answer
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
