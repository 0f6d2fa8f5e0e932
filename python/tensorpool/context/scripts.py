"""`tensorpool.service("recorder")` without a context: for scripts and the interactive prompt."""

from __future__ import annotations

import sys
from types import ModuleType

from .. import service as service_module
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
    context = _shared.get(aeron_dir)
    if context is None or context.closed:
        # Never embeds a driver of either kind: a service that runs has what it needs already.
        context = _shared[aeron_dir] = open("standalone", aeron_dir=aeron_dir, media_driver="external")
    return context.service(name, instance=instance, token=token, timeout=timeout)


class _CallableModule(ModuleType):
    __call__ = staticmethod(service)


# `tensorpool.service` is the package of the control plane and, called, the way to a client.
sys.modules[service_module.__name__].__class__ = _CallableModule
