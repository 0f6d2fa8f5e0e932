"""What a replay is told to do, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from ..errors import ConfigError
from ..recording.recording import Time

TimeBase = Literal["receive", "publish", "source"]
Speed = float | Literal["max"]
_SLOWEST, _FASTEST = 0.001, 1e6
_LONGEST_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """See `replay` for what each means."""

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
        speed_of(self.speed)
        if self.time_base not in get_args(TimeBase):
            raise ConfigError(f"clock {self.time_base!r}: use 'receive', 'publish' or 'source'")
        if self.rate_hz is not None:
            if not 0 < self.rate_hz <= 1e9:
                raise ConfigError(f"rate_hz {self.rate_hz!r}: use frames a second, as in 100")
            if self.speed != 1:
                raise ConfigError("speed and rate_hz both say how fast; give one of them")
        for name, value in (("max_pause", self.max_pause), ("wait", self.wait), ("linger", self.linger)):
            if value is not None and not 0 <= value <= _LONGEST_S:
                raise ConfigError(f"{name} {value!r}: use 0 to {_LONGEST_S:.0f} seconds")
        targets = [self.mapping.get(one, one) for one in self.streams or self.mapping]
        if len(set(targets)) != len(targets):
            raise ConfigError(f"two streams cannot be played into one: {_words(self.mapping)}")

    @property
    def checks(self) -> bool:
        """Whether payloads are compared with their checksums: unless told otherwise, where there is time."""
        return self.speed != "max" if self.check is None else self.check

    def target(self, stream_id: int) -> int:
        return self.mapping.get(stream_id, stream_id)


def speed_of(speed: Any) -> float | None:
    """The speed as a number; None for as fast as it goes."""
    if speed == "max":
        return None
    if not isinstance(speed, int | float) or not _SLOWEST <= speed <= _FASTEST:
        raise ConfigError(f"speed {speed!r}: use a number, as in 1 or 0.5, or 'max'")
    return float(speed)


def _words(mapping: Mapping[int, int]) -> str:
    return ", ".join(f"{recorded}={played}" for recorded, played in mapping.items())
