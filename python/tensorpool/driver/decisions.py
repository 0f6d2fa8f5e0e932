"""What a driver decided, in its log: whoever lost a lease can be told why, also weeks later."""

from __future__ import annotations

import logging

from ..sbe.driver import (
    ShmAttachResponse,
    ShmAttachResponseR2,
    ShmDriverShutdown,
    ShmLeaseRevoked,
)
from ..sbe.message import Message
from ..sbe.wire import ResponseCode

_LOG = logging.getLogger(__name__)


def log_decision(message: Message, *, is_repeat: bool = False) -> None:
    """A line for what matters to people. Refusals that a client may well ask for again are no warnings."""
    if is_repeat:
        return
    match message:
        case ShmAttachResponse() | ShmAttachResponseR2() as answer if answer.code is ResponseCode.OK:
            client = answer.correlation_id >> 32 & 0xFFFF_FFFF
            _LOG.info(
                "lease %d of stream %d, epoch %d, given to client %d",
                answer.lease_id,
                answer.stream_id,
                answer.epoch,
                client,
            )
        case ShmAttachResponse() | ShmAttachResponseR2() as answer:
            level = logging.WARNING if answer.code is ResponseCode.INTERNAL_ERROR else logging.INFO
            client = answer.correlation_id >> 32 & 0xFFFF_FFFF
            _LOG.log(level, "client %d refused, %s: %s", client, answer.code.name, answer.error_message)
        case ShmLeaseRevoked() as notice:
            why = f": {notice.error_message}" if notice.error_message else ""
            _LOG.info(
                "lease %d of stream %d, %s, client %d, has ended, %s%s",
                notice.lease_id,
                notice.stream_id,
                notice.role.name.lower(),
                notice.client_id,
                notice.reason.name.lower(),
                why,
            )
        case ShmDriverShutdown() as notice:
            _LOG.info(
                "telling all clients of the end: %s", notice.error_message or notice.reason.name.lower()
            )
