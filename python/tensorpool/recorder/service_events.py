"""Events of the services' status stream: the record of accepted commands (service §6).

The conductor's thread receives them into a queue while the recorder is busy with frames. Status reports of
producers and consumers use the same stream, and are no part of the record. The agent's thread owns it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..errors import CodecError
from ..sbe import STATUS_KEY
from ..service import ALL_SERVICES, Event, EventKind
from ..service.events import LOST
from ..transport import Connection

_BATCH: Final = 1024


def lost_event(count: int) -> bytes:
    """The event that stands for events that are missing in the record."""
    return Event(ALL_SERVICES, LOST, count).encode()


class ServiceEvents:
    """The events of all services since it was opened, in order of receipt."""

    def __init__(self, connection: Connection) -> None:
        self._mailbox = connection.mailbox(connection.services.status_address, [])
        self._lost = 0

    @property
    def is_ready(self) -> bool:
        """Whether every event that is published from now on is received."""
        return self._mailbox.is_ready

    def take(self) -> Iterator[tuple[bytes, EventKind]]:
        """Yields and removes the received events, as messages with their kind."""
        messages = self._mailbox.take(_BATCH)
        # The queue drops its oldest messages: what is missing was before these.
        lost = self._mailbox.counters().overflowed
        if lost != self._lost:
            yield lost_event(lost - self._lost), EventKind.LOST
            self._lost = lost
        for message in messages:
            try:
                event = Event.decode(message)
            except CodecError:
                continue
            if event.key != STATUS_KEY:
                yield message, event.kind

    def close(self) -> None:
        """Closes the subscription."""
        self._mailbox.close()
