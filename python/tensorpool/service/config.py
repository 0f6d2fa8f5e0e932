"""What services and their clients can be told by file and environment: `[service]`."""

from __future__ import annotations

from collections.abc import Iterator

from ..runtime.config import Secret, setting, settings
from ..transport.channels import ServiceStreams


@settings("service")
class ServiceSettings:
    """The shared streams of all services, and the token for commands that can do harm."""

    channel: str = setting("The channel of both streams.", default="aeron:ipc")
    control_stream_id: int = setting("Commands to services.", default=4000, minimum=1, maximum=(1 << 31) - 1)
    status_stream_id: int = setting(
        "What was accepted, and what services say.", default=4001, minimum=1, maximum=(1 << 31) - 1
    )
    token: Secret | None = setting(
        "Commands that can do harm must carry it. Guards against accidents: who can open the media driver's "
        "directory can read the stream.",
        default=None,
    )

    def check(self) -> Iterator[tuple[str, str]]:
        if self.control_stream_id == self.status_stream_id:
            yield "status_stream_id", "is the control stream too: a service would answer itself"
        if self.token is not None and not self.token.reveal():
            yield "token", "is empty, which would protect nothing"

    def streams(self) -> ServiceStreams:
        return ServiceStreams(self.channel, self.control_stream_id, self.status_stream_id)
