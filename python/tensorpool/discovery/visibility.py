"""Who sees what (discovery §8, §12). Pure.

Client ids are chosen by the clients, so this is tidiness, not security: a client id is never taken for proof
of who asks, and being able to see a stream grants nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import TypeAlias

from ..attributes.tags import to_wire
from .config import VisibilityRule
from .entries import Entry

View: TypeAlias = tuple[int, ...] | None
"""The rules that hold for a client; None where there are no rules at all."""


class Visibility:
    """The rules, ready for use. A stream is visible to a client if one rule fits both."""

    def __init__(self, rules: Sequence[VisibilityRule] = ()) -> None:
        self._rules = tuple(_Rule(one) for one in rules)

    @property
    def has_rules(self) -> bool:
        return bool(self._rules)

    def view_of(self, client_id: int) -> View:
        """Clients of the same view see the same."""
        if not self._rules:
            return None
        return tuple(number for number, one in enumerate(self._rules) if one.is_for(client_id))

    def shows(self, view: View, entry: Entry) -> bool:
        return view is None or any(self._rules[number].shows(entry) for number in view)


class _Rule:
    def __init__(self, rule: VisibilityRule) -> None:
        self._clients = rule.clients
        self._streams = rule.streams
        self._drivers, self._names, self._tags = map(_pattern, (rule.drivers, rule.names, rule.tags))

    def is_for(self, client_id: int) -> bool:
        return not self._clients or any(client_id in one for one in self._clients)

    def shows(self, entry: Entry) -> bool:
        if self._streams and not any(entry.stream_id in one for one in self._streams):
            return False
        if self._drivers and not self._drivers.match(entry.driver.instance_id):
            return False
        if self._names and not self._names.match(entry.words.name):
            return False
        return self._tags is None or any(self._tags.match(tag) for tag in entry.words.tags)


def _pattern(globs: Sequence[str]) -> re.Pattern[str] | None:
    """Case counts. Written by people, compared with text as the wire has it."""
    return re.compile("|".join(translate(to_wire(one)) for one in globs)) if globs else None
