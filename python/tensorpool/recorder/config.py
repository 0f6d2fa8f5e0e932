"""The recorder's settings: table `[recorder]` of the configuration file, environment and flags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from ..runtime.config import DurationNs, SizeBytes, StreamRef, parse_duration, setting, settings
from ..units import MAX_STREAM_ID, parse_size

_MIN_BUFFER_BYTES: Final = 1 << 20


def _streams_fault(streams: tuple[int | str, ...]) -> str | None:
    ids = [stream for stream in streams if isinstance(stream, int)]
    invalid = [stream_id for stream_id in ids if not 0 < stream_id <= MAX_STREAM_ID]
    if invalid:
        return f"{invalid[0]} is not a stream id; use 1 to {MAX_STREAM_ID}"
    if len(set(streams)) < len(streams):
        return "a stream is listed twice"
    return None


def _archive_fault(uri: str | None) -> str | None:
    if uri is None:
        return None
    # Not before it is used: it imports pyarrow.
    from ..recording.storage import StorageUri, local_path

    try:
        if local_path(uri) is not None:
            return "is a local directory; use the URI of a store, as in s3://bucket/recording"
        StorageUri.parse(uri)
    except ConfigError as error:
        return str(error)
    return None


@settings("recorder")
class RecorderSettings:
    """The recorder: writes streams to disk and accounts for every sequence."""

    out: Path | None = setting(
        "Directory of the recording. An existing recording is continued.", default=None, flag="--out"
    )
    streams: tuple[StreamRef, ...] = setting(
        "Ids or names of the streams to record. A name is resolved at the start.",
        default=(),
        flag="--stream",
        check=_streams_fault,
    )
    all: bool = setting("Record every announced stream, now or later.", default=False, flag="--all")
    services: bool = setting(
        "Record the status stream of the services too: the record of accepted commands, with their results.",
        default=False,
        flag="--services",
    )
    instance: str = setting(
        "Instance name of the service, if there are several: `service:recorder:<instance>`.",
        default="",
        flag="--instance",
    )
    buffer_bytes: SizeBytes = setting(
        "Memory for frames that wait for the disk, reserved at the start. Frames that do not fit are dropped "
        "and counted.",
        default=parse_size("256MiB"),
        minimum=_MIN_BUFFER_BYTES,
        flag="--buffer",
    )
    rotate_bytes: SizeBytes = setting(
        "Size at which a segment is sealed and the next segment begins.",
        default=parse_size("256MiB"),
        minimum=1,
        flag="--rotate-bytes",
    )
    rotate_time_ns: DurationNs = setting(
        "Age at which a segment is sealed and the next segment begins.",
        default=parse_duration("60s"),
        minimum=parse_duration("10ms"),
        flag="--rotate-time",
    )
    sync_ns: DurationNs = setting(
        "Time within which a received frame is on the disk, unless the disk is slower.",
        default=parse_duration("200ms"),
        minimum=parse_duration("1ms"),
    )
    pre_trigger_ns: DurationNs | None = setting(
        "Keep the frames of this time in memory and write them on a trigger. None: write every frame.",
        default=None,
        minimum=parse_duration("1ms"),
        flag="--pre-trigger",
    )
    retain_bytes: SizeBytes | None = setting(
        "Maximum size of the recording: the oldest segments are removed. None: no limit.",
        default=None,
        flag="--retain-bytes",
    )
    retain_age_ns: DurationNs | None = setting(
        "Segments whose newest frame is older than this are removed. None: no limit.",
        default=None,
        flag="--retain-age",
    )
    archive: str | None = setting(
        "URI at which sealed segments are archived, as in `s3://bucket/recording`. Retention then removes "
        "only what was read back from there. Credentials come from the environment.",
        default=None,
        flag="--archive",
        check=_archive_fault,
    )
    keep_free_bytes: SizeBytes = setting(
        "Space that stays free behind every write: writing stops before, and resumes at twice as much.",
        default=parse_size("64MiB"),
    )

    def check(self) -> Iterator[tuple[str, str]]:
        """Faults of settings that are valid by themselves, as (setting, fault)."""
        if self.all and self.streams:
            yield "all", "records every stream; leave `streams` empty"
