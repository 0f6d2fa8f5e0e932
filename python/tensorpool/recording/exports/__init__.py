"""Recordings in formats of others: numpy files, Zarr, MCAP."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..recording import Recording, Time
from .mcap_file import export_mcap
from .numpy_files import export_npy, export_npz
from .zarr_store import export_zarr

Progress = Callable[[int, int], None]
FORMATS: Final = ("npy", "npz", "zarr", "mcap")

__all__ = ["FORMATS", "export", "export_mcap", "export_npy", "export_npz", "export_zarr"]


def export(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    form: str | None = None,
    stream_id: int | None = None,
    epoch: int | None = None,
    seq: tuple[int | None, int | None] | None = None,
    time: tuple[Time | None, Time | None] | None = None,
    progress: Progress | None = None,
) -> int:
    """Writes frames to `target`; gives their number. The form follows from the name unless it is said.

    `npy` and `zarr` stack the frames of one stream, which have to be alike; `npz` takes any frames of one
    stream; `mcap` takes all streams.
    """
    path = Path(target)
    form = form or path.suffix.removeprefix(".")
    if form not in FORMATS:
        raise ValueError(f"cannot export to {form!r}; there are {', '.join(FORMATS)}")
    if path.exists():
        raise FileExistsError(f"{path} is there already; name another one")
    recording = Recording(source)
    if form == "mcap":
        ids = [stream_id] if stream_id is not None else list(recording.streams)
        chosen = [recording.frames(one, epoch=epoch, seq=seq, time=time) for one in ids]
        return export_mcap(chosen, path, progress)
    if stream_id is None:
        if not recording.streams:
            raise ValueError(f"{source} has no frames")
        if len(recording.streams) != 1:
            known = ", ".join(map(str, recording.streams))
            raise ValueError(f"say which stream; recorded are: {known}")
        stream_id = recording.streams[0]
    frames = recording.frames(stream_id, epoch=epoch, seq=seq, time=time)
    writers = {"npy": export_npy, "npz": export_npz, "zarr": export_zarr}
    return writers[form](frames, path, progress)
