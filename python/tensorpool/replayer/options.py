"""The options of a replay, checked before anything is opened. Pure.

Apart from `replay`, because the agent needs them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from ..errors import ConfigError
from ..recording.recording import Time

TimeBase = Literal["receive", "publish", "source"]
Speed = float | Literal["max"]
_MIN_SPEED: Final = 0.001
_MAX_SPEED: Final = 1e6
_MAX_RATE_HZ: Final = 1e9
_MAX_TIME_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The arguments of `replay`, which describes them."""

    speed: Speed = 1.0
    start: Time | None = None
    end: Time | None = None
    seq: tuple[int | None, int | None] | None = None
    epoch: int | None = None
    streams: Sequence[int] | None = None
    mapping: Mapping[int, int] = field(default_factory=dict)
    loop: bool = False
    paused: bool = False
    time_base: TimeBase = "receive"
    rate_hz: float | None = None
    max_pause: float | None = None
    wait: float = 0.0
    linger: float = 1.0
    nslots: int | None = None
    check: bool | None = None
    skip_damage: bool = False
    metadata: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid option."""
        parse_speed(self.speed)
        if self.time_base not in get_args(TimeBase):
            raise ConfigError(f"time_base {self.time_base!r}: use 'receive', 'publish' or 'source'")
        if self.rate_hz is not None:
            if not 0 < self.rate_hz <= _MAX_RATE_HZ:
                raise ConfigError(f"rate_hz {self.rate_hz!r}: use frames per second, as in 100")
            if self.speed != 1:
                raise ConfigError("speed and rate_hz exclude each other; give one of them")
        for name, value in (("max_pause", self.max_pause), ("wait", self.wait), ("linger", self.linger)):
            if value is not None and not 0 <= value <= _MAX_TIME_S:
                raise ConfigError(f"{name} {value!r}: use 0 to {_MAX_TIME_S:.0f} seconds")
        targets = [self.target(stream_id) for stream_id in self.streams or self.mapping]
        if len(set(targets)) != len(targets):
            pairs = ", ".join(f"{recorded}={target}" for recorded, target in self.mapping.items())
            raise ConfigError(f"mapping {pairs}: two streams cannot be replayed into one")

    @property
    def checks_payloads(self) -> bool:
        """Whether payloads are compared with their checksums: by default, unless the speed is "max"."""
        return self.speed != "max" if self.check is None else self.check

    def target(self, stream_id: int) -> int:
        """The stream id under which a recorded stream is published."""
        return self.mapping.get(stream_id, stream_id)


def parse_speed(speed: Any) -> float | None:
    """The speed as a factor; None for "max"."""
    if speed == "max":
        return None
    if not isinstance(speed, int | float) or not _MIN_SPEED <= speed <= _MAX_SPEED:
        raise ConfigError(f"speed {speed!r}: use a number, as in 1 or 0.5, or 'max'")
    return float(speed)
