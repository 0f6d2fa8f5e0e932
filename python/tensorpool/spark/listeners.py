"""Consumers that an executor's Python process keeps between micro-batches.

They hear what comes while nobody reads, as far as the ring goes. One that no micro-batch has used for a while
is let go by a thread: the query has ended, or another process of the executor has its turn.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..client import Consumer
from ..context import Context
from ..context import open as open_context
from ..errors import AttachError, MediaDriverError, ServiceError

_KEPT_S: Final = 30.0
_Key = tuple[str | None, int]
_lock = threading.RLock()
_kept: dict[_Key, tuple[Context, Consumer]] = {}
_used: dict[_Key, float] = {}
_keeper: threading.Thread | None = None


@contextmanager
def listening(stream_id: int, aeron_dir: str | None) -> Iterator[Consumer]:
    """The consumer of a stream, made now or kept from before."""
    global _keeper  # noqa: PLW0603  one thread a process
    key = aeron_dir, stream_id
    with _lock:
        if key not in _kept:
            _kept[key] = _open(stream_id, aeron_dir)
        consumer = _kept[key][1]
        _used.pop(key, None)
        if _keeper is None:
            _keeper = threading.Thread(target=_keep, name="spark-listeners", daemon=True)
            _keeper.start()
    try:
        yield consumer
    finally:
        with _lock:
            _used[key] = time.monotonic()


def _open(stream_id: int, aeron_dir: str | None) -> tuple[Context, Consumer]:
    try:
        context = open_context("driver", aeron_dir=aeron_dir)
        try:
            return context, context.consumer(stream_id)
        except BaseException:
            context.close()
            raise
    except (AttachError, MediaDriverError, ServiceError) as error:
        raise RuntimeError(
            f"mode live reads shared memory of the executor's own host, and on {socket.gethostname()} there "
            f"is no driver to attach to ({error}); run the query where the pool is, or record the stream "
            "there and read the recording"
        ) from error


def _keep() -> None:
    while True:
        time.sleep(_KEPT_S / 6)
        forget(before=time.monotonic() - _KEPT_S)


def forget(*, before: float) -> None:
    """Lets go of consumers that were last used before then."""
    with _lock:
        for key in [key for key, used in _used.items() if used <= before]:
            del _used[key]
            context, consumer = _kept.pop(key)
            consumer.close()
            context.close()
