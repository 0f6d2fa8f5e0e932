"""What a context has to do with metadata: where its producers tell of themselves, and its ear for others."""

from __future__ import annotations

from typing import Any

from .. import _native
from ..attributes.metadata import describe
from ..client.metadata import MetadataOptions
from ..errors import ConfigError
from ..transport import Connection, StreamIds

_CHANNEL = "aeron:ipc"


class WithMetadata:
    """The part of a context that speaks and listens on metadata streams."""

    connection: Connection
    _conductor: _native.Conductor
    _announce_period_ns: int
    _ears: dict[int, _native.MetadataEar]
    aeron_dir: str
    stream_ids: StreamIds

    def _metadata_terms(self, stream_id: int | None) -> MetadataOptions:
        return MetadataOptions(_CHANNEL, self._metadata_stream(stream_id), self._announce_period_ns)

    def _metadata_ear(self, stream_id: int | None) -> _native.MetadataEar:
        """One for all consumers: it is there before they say hello, so it hears what they are answered."""
        number = self._metadata_stream(stream_id)
        ear = self._ears.get(number)
        if ear is None:
            ear = self._ears[number] = _native.MetadataEar(self._conductor, _CHANNEL, number, describe)
        self.connection.wait_ready(ear)
        return ear

    def _metadata_stream(self, given: Any) -> int:
        stream: int = self.stream_ids.metadata if given is None else given
        if not 0 < stream < 1 << 31:
            raise ConfigError(f"metadata stream id {stream}: use 1 to 2147483647, as in 1300")
        return stream
