"""Services: programs whose properties and commands clients use by name (service §4 to §7).

The module itself can be called: `tensorpool.service("recorder")` is a client with its own context, for
scripts without one; it is closed when the program ends. With a context, use `ctx.service("recorder")`.
"""

from ..transport.channels import ServiceStreams
from .agent import RunningService, ServiceAgent
from .client import AsyncServiceClient, ServiceClient, ServiceIdentity, find_services, watch_all
from .declarations import Command, Property, command
from .events import ALL_SERVICES, Bits, Event, EventKind, FrameRef, Value, service_tag
from .service import Service

__all__ = [
    "ALL_SERVICES",
    "AsyncServiceClient",
    "Bits",
    "Command",
    "Event",
    "EventKind",
    "FrameRef",
    "Property",
    "RunningService",
    "Service",
    "ServiceAgent",
    "ServiceClient",
    "ServiceIdentity",
    "ServiceStreams",
    "Value",
    "command",
    "find_services",
    "service_tag",
    "watch_all",
]
