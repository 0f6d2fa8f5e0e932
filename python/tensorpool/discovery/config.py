"""How streams are looked for, and how those who know of them answer: `[discovery]`.

The same table serves clients, drivers and registries; `[discovery.provider]` is for those who answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..runtime.config import DurationNs, IdRange, parse_duration, setting, settings, table
from .channels import channel_fault, channels_fault, endpoints_fault, is_ipc

REQUEST_STREAM_ID: Final = 7000
RESPONSE_STREAM_ID: Final = 7004
MAX_RESULTS: Final = 1000
_MAX_STREAM_ID: Final = (1 << 31) - 1
_MAX_CLIENT_ID: Final = 0xFFFF_FFFE


@table
class VisibilityRule:
    """Lets clients see streams. What is empty holds for all; of what is listed, one has to fit."""

    clients: tuple[IdRange, ...] = setting("Client ids, as in `7` or `100-199`.", default=())
    drivers: tuple[str, ...] = setting("Patterns of driver instance ids, as in `lab-*`.", default=())
    streams: tuple[IdRange, ...] = setting("Stream ids.", default=())
    names: tuple[str, ...] = setting("Patterns of names, as in `camera-*`.", default=())
    tags: tuple[str, ...] = setting("Patterns of tags; one tag of a stream has to fit.", default=())


@table
class ProviderSettings:
    """Those who answer: drivers, for their own streams, and registries."""

    responses: tuple[str, ...] = setting(
        "UDP endpoints that answers may go to, as in `10.0.0.0/24:40124-40199`. `aeron:ipc` always may.",
        default=(),
        check=endpoints_fault,
    )
    max_results: int = setting(
        "Most streams in one answer; where more fit, it says so instead.",
        default=MAX_RESULTS,
        minimum=1,
        maximum=60_000,
    )
    rate_hz: int = setting("Questions a second that one client id may ask.", default=50, minimum=1)
    burst: int = setting("How many of them may come at once.", default=100, minimum=1)
    total_rate_hz: int = setting("Questions a second that are looked at in all.", default=1000, minimum=1)
    max_channels: int = setting(
        "Most response channels that are open at a time.", default=64, minimum=1, maximum=4096
    )
    channel_idle_ns: DurationNs = setting(
        "A response channel that was not used for this long is closed.",
        default=parse_duration("30s"),
        minimum=parse_duration("1s"),
    )
    log_every: int = setting(
        "One question in so many is logged, without the names in it. 0: none.", default=100, minimum=0
    )
    rules: tuple[VisibilityRule, ...] = setting(
        "Who sees what: a stream is visible if one of them fits. None: all see all. Client ids are chosen by "
        "the clients, so that this is tidiness and not security.",
        default=(),
    )


_PROVIDER: Final = ProviderSettings()


@settings("discovery")
class DiscoverySettings:
    """Finding streams by name, tags and ids."""

    channel: str | None = setting(
        "Where registries are asked. None: the driver is asked, on its control stream.",
        default=None,
        check=channel_fault,
    )
    stream_id: int = setting(
        "The stream of that channel.", default=REQUEST_STREAM_ID, minimum=1, maximum=_MAX_STREAM_ID
    )
    replicas: tuple[str, ...] = setting(
        "Channels of further registries, on the same stream: all are asked, and their answers put together.",
        default=(),
        check=channels_fault,
    )
    response_channel: str | None = setting(
        "Where answers are heard. None: `aeron:ipc` for registries on this media driver, else the address by "
        "which this machine reaches the registry, with `response_port`.",
        default=None,
        check=channel_fault,
    )
    response_port: int = setting(
        "The UDP port of answers, where no response_channel is set.",
        default=40_124,
        minimum=1,
        maximum=65_535,
    )
    response_stream_id: int = setting(
        "The stream of answers.", default=RESPONSE_STREAM_ID, minimum=1, maximum=_MAX_STREAM_ID
    )
    timeout_ns: DurationNs = setting(
        "How long to wait for an answer, and for a stream of a given name to be there.",
        default=parse_duration("5s"),
        minimum=parse_duration("10ms"),
    )
    client_id: int | None = setting(
        "By which providers tell clients apart. None: a new one for each connection.",
        default=None,
        minimum=1,
        maximum=_MAX_CLIENT_ID,
    )
    embedded: bool = setting("Whether a driver answers questions about its streams.", default=True)
    provider: ProviderSettings = setting("Those who answer.", default=_PROVIDER)

    def check(self) -> Iterator[tuple[str, str]]:
        if self.replicas and self.channel is None:
            yield "replicas", "comes with a channel, which is the first registry"
        if self.response_channel is not None and is_ipc(self.response_channel):
            for one in (self.channel, *self.replicas):
                if one is not None and not is_ipc(one):
                    yield "response_channel", f"is heard on this machine only, and {one} may be on another"
                    break

    @property
    def registries(self) -> tuple[str, ...]:
        """The channels of all registries; none where the driver is asked."""
        return () if self.channel is None else (self.channel, *self.replicas)
