"""`tensorpool.service("recorder")` and `tensorpool.discover()` without a context: for scripts and prompts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .. import service as service_module
from ..discovery import DiscoveredStream
from ..service import ServiceClient
from ..service.client import DEFAULT_TIMEOUT_S
from .context import Context
from .opening import open

_shared: dict[str | None, Context] = {}


def service(
    name: str,
    *,
    instance: str | None = None,
    token: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    aeron_dir: str | None = None,
) -> ServiceClient:
    """A client of a running service, on a context that is shared by all such calls and closed at the end."""
    return _context(aeron_dir).service(name, instance=instance, token=token, timeout=timeout)


def _context(aeron_dir: str | None) -> Context:
    context = _shared.get(aeron_dir)
    if context is None or context.closed:
        # Never embeds a driver of either kind: what is asked for runs already, or is not there.
        context = _shared[aeron_dir] = open("standalone", aeron_dir=aeron_dir, media_driver="external")
    return context


def discover(
    *,
    name: str | None = None,
    tags: Sequence[str] = (),
    stream_id: int | None = None,
    producer_id: int | None = None,
    data_source_id: int | None = None,
    timeout: float | None = None,
    aeron_dir: str | None = None,
) -> list[DiscoveredStream]:
    """The streams that fit all that is given, on a context that is shared by all such calls.

    See `Context.discover`; `ctx.consumer(name=…)` goes all the way to the frames.
    """
    return _context(aeron_dir).discover(
        name=name,
        tags=tags,
        stream_id=stream_id,
        producer_id=producer_id,
        data_source_id=data_source_id,
        timeout=timeout,
    )


async def discover_async(**wanted: Any) -> list[DiscoveredStream]:
    """`discover` for asyncio: the waiting is done on a thread, the loop stays free."""
    return await asyncio.to_thread(discover, **wanted)


class _CallableModule(ModuleType):
    __call__ = staticmethod(service)


# `tensorpool.service` is the package of the control plane and, called, the way to a client.
sys.modules[service_module.__name__].__class__ = _CallableModule
