"""Settings of services and their clients: `[service]`."""

from __future__ import annotations

from collections.abc import Iterator

from ..runtime.config import Secret, setting, settings
from ..transport.channels import ServiceStreams


@settings("service")
class ServiceSettings:
    """The two streams that all services share, and the token of dangerous commands."""

    channel: str = setting("Channel of both streams.", default="aeron:ipc")
    control_channel: str | None = setting(
        "Channel of commands to services, if it is another one: between hosts, the endpoint of the host on "
        "which the services run. None: that of both streams.",
        default=None,
    )
    status_channel: str | None = setting(
        "Channel of echoes, results and status events, if it is another one: between hosts, a multicast "
        "address, or the endpoint of the only host that follows them. None: that of both streams.",
        default=None,
    )
    control_stream_id: int = setting(
        "Stream id of commands to services.", default=4000, minimum=1, maximum=(1 << 31) - 1
    )
    status_stream_id: int = setting(
        "Stream id of echoes, results and status events.", default=4001, minimum=1, maximum=(1 << 31) - 1
    )
    token: Secret | None = setting(
        "Token that dangerous commands must have. It prevents accidents and is no security boundary: every "
        "process that can open the media driver's directory can read the stream.",
        default=None,
    )

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields (key, reason) for values that contradict each other."""
        is_one_channel = (self.control_channel or self.channel) == (self.status_channel or self.channel)
        if is_one_channel and self.control_stream_id == self.status_stream_id:
            yield "status_stream_id", "is also the control stream; use two stream ids"
        if self.token is not None and not self.token.reveal():
            yield "token", "is empty; remove it, or set a token that is not empty"

    def streams(self) -> ServiceStreams:
        """The streams of all services."""
        return ServiceStreams(
            control=self.control_stream_id,
            status=self.status_stream_id,
            control_channel=self.control_channel or self.channel,
            status_channel=self.status_channel or self.channel,
        )
