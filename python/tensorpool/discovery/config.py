"""Settings of discovery: `[discovery]` for clients, `[discovery.provider]` for drivers and registries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..runtime.config import DurationNs, IdRange, parse_duration, setting, settings, table
from ..units import MAX_AERON_STREAM_ID, MAX_U32
from .channels import channel_fault, channels_fault, endpoints_fault, is_ipc

REQUEST_STREAM_ID: Final = 7000
RESPONSE_STREAM_ID: Final = 7004
MAX_RESULTS: Final = 1000
MAX_STREAMS: Final = 20_000
"""Streams of one driver in an index."""


@table
class VisibilityRule:
    """Makes streams visible to clients. An empty list matches everything; of a list one item must match."""

    clients: tuple[IdRange, ...] = setting("Client ids, as in `7` or `100-199`.", default=())
    drivers: tuple[str, ...] = setting("Patterns of driver instance ids, as in `lab-*`.", default=())
    streams: tuple[IdRange, ...] = setting("Stream ids.", default=())
    names: tuple[str, ...] = setting("Patterns of names, as in `camera-*`.", default=())
    tags: tuple[str, ...] = setting("Patterns of tags; one tag of the stream must match.", default=())


@table
class ProviderSettings:
    """Providers: drivers, for their own streams, and registries."""

    responses: tuple[str, ...] = setting(
        "Allowed UDP endpoints of responses, as in `10.0.0.0/24:40124-40199`. `aeron:ipc` is always allowed.",
        default=(),
        check=endpoints_fault,
    )
    max_results: int = setting(
        "Maximum of streams in a response; if more match, the response is an error.",
        default=MAX_RESULTS,
        minimum=1,
        maximum=60_000,
    )
    rate_hz: int = setting("Requests a second of one client id.", default=50, minimum=1)
    burst: int = setting("Requests of one client id that may come at once.", default=100, minimum=1)
    total_rate_hz: int = setting("Requests a second of all clients.", default=1000, minimum=1)
    max_channels: int = setting("Maximum of open response channels.", default=64, minimum=1, maximum=4096)
    channel_idle_ns: DurationNs = setting(
        "A response channel that is unused for this long is closed.",
        default=parse_duration("30s"),
        minimum=parse_duration("1s"),
    )
    log_every: int = setting(
        "One request in this many is logged, without its names and tags. 0: none.", default=100, minimum=0
    )
    rules: tuple[VisibilityRule, ...] = setting(
        "Visibility rules; a stream is visible to a client if one rule matches both. Empty: all streams are "
        "visible. Not a security boundary: clients choose their own ids.",
        default=(),
    )
    explicit_denial: bool = setting(
        "Whether a request that matches hidden streams only is answered with an error, and not like one that "
        "matches nothing. Clients then learn that a hidden stream exists.",
        default=False,
    )


_PROVIDER: Final = ProviderSettings()


@settings("discovery")
class DiscoverySettings:
    """Finding streams by name, tags and ids."""

    channel: str | None = setting(
        "Request channel of the first registry. None: requests go to the driver, on its control stream.",
        default=None,
        check=channel_fault,
    )
    stream_id: int = setting(
        "Request stream of the registries.", default=REQUEST_STREAM_ID, minimum=1, maximum=MAX_AERON_STREAM_ID
    )
    replicas: tuple[str, ...] = setting(
        "Request channels of further registries, with the same stream. Every request goes to all "
        "registries, and their results are merged.",
        default=(),
        check=channels_fault,
    )
    response_channel: str | None = setting(
        "Channel of responses. None: `aeron:ipc` for registries on this media driver, else the address by "
        "which this host reaches the registry, with `response_port`.",
        default=None,
        check=channel_fault,
    )
    response_port: int = setting(
        "UDP port of responses, if no response_channel is set.",
        default=40_124,
        minimum=1,
        maximum=65_535,
    )
    response_stream_id: int = setting(
        "Stream of responses.", default=RESPONSE_STREAM_ID, minimum=1, maximum=MAX_AERON_STREAM_ID
    )
    timeout_ns: DurationNs = setting(
        "Maximum wait for a response, and for a stream of a given name to exist.",
        default=parse_duration("5s"),
        minimum=parse_duration("10ms"),
    )
    client_id: int | None = setting(
        "Id of this client for limits and visibility rules. None: a new one for each connection.",
        default=None,
        minimum=1,
        maximum=MAX_U32,
    )
    embedded: bool = setting("Whether a driver answers requests about its streams.", default=True)
    provider: ProviderSettings = setting("Providers.", default=_PROVIDER)

    def check(self) -> Iterator[tuple[str, str]]:
        """The faults of settings that depend on each other."""
        if self.replicas and self.channel is None:
            yield "replicas", "needs a channel, which is the first registry"
        if self.response_channel is not None and is_ipc(self.response_channel):
            for channel in self.registries:
                if not is_ipc(channel):
                    yield (
                        "response_channel",
                        f"is limited to this host, and the registry on {channel} may be on another",
                    )
                    break

    @property
    def registries(self) -> tuple[str, ...]:
        """The request channels of all registries; empty if requests go to the driver."""
        return () if self.channel is None else (self.channel, *self.replicas)
