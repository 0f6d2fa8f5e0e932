"""Whether a frame is what it says, and what the definition demands. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .definition import RuleSettings

DUPLICATE, LATE, CHECKSUM, MISSING = "duplicate", "late", "checksum", "missing"
Verdict = tuple[str, str]
"""Why a frame is turned away: the reason, and what was found."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the definition, for a stream that it is for."""

    dtypes: tuple[str, ...]
    shape: tuple[int, ...] | None
    max_payload_bytes: int | None

    def check(self, dtype: str, shape: Sequence[int], payload_bytes: int) -> Verdict | None:
        if self.dtypes and dtype not in self.dtypes:
            return "dtype", f"{dtype} is not {' or '.join(self.dtypes)}"
        if self.shape is not None and not _fits(shape, self.shape):
            return "shape", f"{list(shape)} is not {list(self.shape)}"
        if self.max_payload_bytes is not None and payload_bytes > self.max_payload_bytes:
            return "size", f"{payload_bytes} bytes are more than {self.max_payload_bytes}"
        return None

    def to_json(self) -> list[Any]:
        return [self.dtypes, self.shape, self.max_payload_bytes]

    @classmethod
    def from_json(cls, found: Sequence[Any]) -> Rule:
        return cls(tuple(found[0]), None if found[1] is None else tuple(found[1]), found[2])


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(
        want in (0, size) for size, want in zip(shape, wanted, strict=True)
    )


def rules_for(stream_id: int, rules: Iterable[RuleSettings]) -> list[Rule]:
    return [
        Rule(one.dtype, one.shape, one.max_payload_bytes)
        for one in rules
        if not one.streams or stream_id in one.streams
    ]


class Validator:
    """Applies rules; what was found for one kind of tensor holds for all of that kind."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._known: dict[tuple[Any, ...], Verdict | None] = {}

    def check(self, dtype: str, shape: Sequence[int], payload_bytes: int) -> Verdict | None:
        kind = (dtype, tuple(shape), payload_bytes)
        if kind not in self._known:
            found = (rule.check(dtype, shape, payload_bytes) for rule in self._rules)
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[kind] = next((one for one in found if one is not None), None)
        return self._known[kind]
