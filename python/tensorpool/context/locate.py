"""Streams whose driver is on another machine (discovery §9): read off the bridge that a tag names.

What a bridge has brought into this machine's memory is a stream of the driver here, and no concern of this
module. The tag comes from outside, so of its channels only what a subscriber needs is taken.

What a context has to do with discovery: looking for streams, and the way from a name to its frames.

What is found is a hint. The stream's own driver has the last word, and only then is memory mapped
(discovery §7): ask → attach at the driver that is named → compare the epoch → follow announces. An answer
that is no longer true leads to another question, not to an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from .. import _native
from ..client import Consumer, LeaseOptions
from ..client.lease import attach_error
from ..discovery import DiscoveredStream, DiscoveryClient, DiscoverySettings, Filter, make_filter, routes
from ..discovery.channels import Channel, is_ipc
from ..driver import namespace_on
from ..errors import (
    AmbiguousStream,
    AttachError,
    CodecError,
    ConfigError,
    DiscoveryError,
    NoProvider,
    StreamNotFound,
    StreamNotLocal,
)
from ..sbe import ShmPoolAnnounce
from ..transport import StreamIds
from .driver_host import Mode
from .part import ContextPart

if TYPE_CHECKING:
    from .context import Context

_BRIDGE_POLL_S: Final = 0.005
# Whatever else a channel can say concerns sockets, files and limits of this machine: not a stranger's affair.
_TAKEN: Final = frozenset({"endpoint", "control", "control-mode", "interface", "reliable", "alias"})


def uri_fault(uri: str) -> str | None:
    """Why a fallback URI that was found is not followed."""
    try:
        words = parse_qs(urlsplit(uri).query, strict_parsing=True)
    except ValueError as error:
        return str(error)
    for key in ("payload", "control"):
        channel = Channel.parse(words.get(key, [""])[0])
        if channel is None or channel.media != "udp" or not channel.parameters.keys() <= _TAKEN:
            return f"its {key} channel is none to be followed"
    return None


def consume_from_bridge(
    ctx: Context, stream: DiscoveredStream, uri: str, deadline: float, attach: Callable[..., Consumer]
) -> Consumer | StreamNotLocal:
    """A consumer of what the bridge sends; or why not. It is there once the bridge has announced the epoch
    that was found: a way that nobody sends on is none."""
    if (fault := uri_fault(uri)) is not None:
        return not_local_error(stream, f"the bridge that it names cannot be used ({fault})")
    try:
        consumer = attach(ctx, fallback_uri=uri)
    except ConfigError as error:
        return not_local_error(stream, f"the bridge that it names cannot be used ({error})")
    # A bridge says again what its source announces. Meanwhile another answer may have become the true one.
    deadline = min(deadline, time.monotonic() + 3 * ctx._announce_period_ns / 1e9)
    try:
        while consumer.epoch != stream.epoch and time.monotonic() < deadline:
            time.sleep(_BRIDGE_POLL_S)
    except BaseException:
        consumer.close()
        raise
    if (heard := consumer.epoch) == stream.epoch:
        return consumer
    consumer.close()
    said = "says nothing" if heard is None else f"has epoch {heard}, and not {stream.epoch}"
    return not_local_error(stream, f"the bridge that it names {said}")


def not_local_error(stream: DiscoveredStream, but: str = "no bridge has brought it here") -> StreamNotLocal:
    return StreamNotLocal(
        f"{stream} is not on this media driver, so that its memory cannot be mapped here, and {but}; run "
        f"tensorpool bridge on both machines with a mapping of source_stream_id {stream.stream_id}, and ask "
        "by the same name",
        stream_id=stream.stream_id,
        driver_instance_id=stream.driver_instance_id,
    )


_ANNOUNCES: Final = "aeron:ipc?tether=false"
_AGAIN_S: Final = 0.05
_LOOK_S: Final = 0.002
_SHORTEST_S, _ONE_QUESTION_S = 0.25, 1.0
LAYOUT_VERSION: Final = 1


class WithDiscovery(ContextPart):
    """The part of a context that looks for streams."""

    _discovery: DiscoverySettings
    _finder: DiscoveryClient | None
    _own_finder: DiscoveryClient | None
    _siblings: dict[int, Context]
    _sibling: Callable[..., Context]
    _terms: LeaseOptions
    _announce_period_ns: int
    aeron_dir: str
    mode: Mode
    stream_ids: StreamIds

    def discover(
        self,
        *,
        name: str | None = None,
        tags: Sequence[str] = (),
        stream_id: int | None = None,
        producer_id: int | None = None,
        data_source_id: int | None = None,
        timeout: float | None = None,
    ) -> list[DiscoveredStream]:
        """The streams that fit all that is given; all streams, if nothing is.

        Asks the driver, or the registries that `[discovery]` names. Names and tags are compared byte for
        byte. A stream that is found is there as far as anybody knows: that says nothing of who may attach to
        it. Raises NoProvider if nobody answers within `timeout` seconds.
        """
        wanted = make_filter(
            name=name, tags=tags, stream_id=stream_id, producer_id=producer_id, data_source_id=data_source_id
        )
        return self._client().find(wanted, timeout=self._patience(timeout))

    def discover_async(self, **wanted: Any) -> Coroutine[Any, Any, list[DiscoveredStream]]:
        """`discover` for asyncio: the waiting is done on a thread, the loop stays free."""
        self._conductor.status()  # raises in a forked child, and not only when it is awaited
        return asyncio.to_thread(self.discover, **wanted)

    def _patience(self, timeout: float | None) -> float:
        return self._discovery.timeout_ns / 1e9 if timeout is None else timeout

    def _client(self) -> DiscoveryClient:
        self._check_open()
        if self._finder is None:
            to = routes(self._discovery, self.stream_ids.control)
            self._finder = DiscoveryClient(self._conductor, to, client_id=self._discovery.client_id)
        return self._finder

    # --- the way from a name to a consumer

    def _consumer_by_name(
        self,
        name: str | None,
        tags: Sequence[str],
        timeout: float | None,
        attach: Callable[..., Consumer],
    ) -> Consumer:
        wanted = make_filter(name=name, tags=tags)
        deadline = time.monotonic() + self._patience(timeout)
        why: DiscoveryError | AttachError | None = None
        while True:
            outcome = self._try(wanted, deadline, attach)
            if isinstance(outcome, Consumer):
                return outcome
            # That the last question of several was not answered in time says less than what was said before.
            why = outcome if why is None or not isinstance(outcome, NoProvider) else why
            if time.monotonic() >= deadline:
                raise why
            time.sleep(_AGAIN_S)

    def _try(
        self, wanted: Filter, deadline: float, attach: Callable[..., Consumer]
    ) -> Consumer | DiscoveryError | AttachError:
        """A consumer, or why there is none as yet. Raises what will not change."""
        remaining = deadline - time.monotonic()
        try:
            found = self._client().find(wanted, timeout=min(max(remaining, _SHORTEST_S), _ONE_QUESTION_S))
        except NoProvider as error:
            return error
        if not found:
            return StreamNotFound(f"no stream {_described(wanted)} was there in time; {_LOOK_FOR_IT}")
        here = [one for one in found if self._is_here(one) is not False]
        # What a bridge has brought here has the same name, and registries need not know of it.
        here = here or self._brought_here(wanted, deadline)
        if not here:
            return self._from_elsewhere(_only(found, wanted), deadline, attach)
        stream = _only(here, wanted)
        if self._is_here(stream) is None and not self._is_announced(stream):
            return self._from_elsewhere(stream, deadline, attach)
        return self._attached(stream, attach)

    def _brought_here(self, wanted: Filter, deadline: float) -> list[DiscoveredStream]:
        """What the driver here has of that name, where others were asked first."""
        if self._discovery.channel is None or self.mode == "standalone":
            return []
        if self._own_finder is None:
            own = replace(self._discovery, channel=None, replicas=(), response_channel=None)
            to = routes(own, self.stream_ids.control)
            self._own_finder = DiscoveryClient(self._conductor, to, client_id=own.client_id)
        remaining = deadline - time.monotonic()
        try:
            return self._own_finder.find(wanted, timeout=min(max(remaining, _SHORTEST_S), _ONE_QUESTION_S))
        except DiscoveryError:
            return []

    def _from_elsewhere(
        self, stream: DiscoveredStream, deadline: float, attach: Callable[..., Consumer]
    ) -> Consumer | StreamNotLocal:
        uri = stream.fallback_uri
        if uri is None:
            return not_local_error(stream)
        return consume_from_bridge(self, stream, uri, deadline, attach)  # type: ignore[arg-type]

    def _attached(
        self, stream: DiscoveredStream, attach: Callable[..., Consumer]
    ) -> Consumer | DiscoveryError | AttachError:
        if stream.layout_version != LAYOUT_VERSION:
            raise DiscoveryError(
                f"{stream} has layout version {stream.layout_version}; {LAYOUT_VERSION} is known here"
            )
        consumer = attach(self._home_of(stream), stream.stream_id)
        lease = consumer.lease() or {}
        deadline = time.monotonic() + 3 * self._announce_period_ns / 1e9
        while lease.get("granted") and consumer.epoch is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if consumer.epoch == stream.epoch:
            return consumer
        mapped = consumer.epoch
        consumer.close()
        if not lease.get("granted"):
            code, why = lease.get("code") or "NO_ANSWER", lease.get("message") or ""
            return attach_error(stream.stream_id, code, why, self._terms)
        return StreamNotFound(
            f"{stream} was found in epoch {stream.epoch}, and its driver has {mapped or 'none'}; ask again"
        )

    def _home_of(self, stream: DiscoveredStream) -> Context:
        """The connection to the stream's own driver: this one, or another on the same media driver."""
        control = stream.control_stream_id
        if self.mode != "standalone" and control == self.stream_ids.control:
            return self  # type: ignore[return-value]
        sibling = self._siblings.get(control)
        if sibling is None:
            sibling = self._siblings[control] = self._sibling(
                stream_ids=replace(self.stream_ids, control=control),
                terms=replace(self._terms, control_stream_id=control),
            )
        return sibling

    def _is_here(self, stream: DiscoveredStream) -> bool | None:
        """Whether its driver is on this media driver; None if that cannot be said."""
        if not is_ipc(stream.control_channel):
            return False
        if self._discovery.channel is None:
            # The driver itself has said so, on its own control stream.
            return True
        place = namespace_on(self.aeron_dir, stream.control_stream_id)
        if place is None:
            # Who it is decides, if that can be told: on its own machine such a stream needs no bridge.
            return False if stream.needs_bridge else None
        wanted = stream.driver_instance_id
        return place == wanted or place.endswith(f".{wanted}")

    def _is_announced(self, stream: DiscoveredStream) -> bool:
        """Whether it is announced here, in that epoch. For drivers that do not say who they are."""
        ear = _native.Subscription(self._conductor, _ANNOUNCES, self.stream_ids.announce)
        deadline = time.monotonic() + 3 * self._announce_period_ns / 1e9
        try:
            while time.monotonic() < deadline:
                for message in ear.poll(256):
                    try:
                        said = ShmPoolAnnounce.decode(message)
                    except CodecError:
                        continue
                    if (said.stream_id, said.epoch) == (stream.stream_id, stream.epoch):
                        return True
                time.sleep(_LOOK_S)
            return False
        finally:
            ear.close()

    def _close_finder(self) -> None:
        for finder in (self._finder, self._own_finder):
            if finder is not None:
                finder.close()


_LOOK_FOR_IT = "see what there is with tensorpool discover"


def check_by_name(stream_id: int | None, name: str | None, tags: Sequence[str]) -> None:
    """A consumer has a stream id, or a name or tags. Raises ConfigError."""
    if (stream_id is None) == (name is None and not tags):
        raise ConfigError(
            "give a stream id, or a name or tags to find it by, as in consumer(name='camera-1')"
        )


def _described(wanted: Filter) -> str:
    from ..attributes.tags import from_wire

    words = [f"named {from_wire(wanted.name)!r}"] if wanted.name else []
    words += [f"tagged {', '.join(sorted(map(from_wire, wanted.tags)))}"] if wanted.tags else []
    return " and ".join(words)


def _only(found: list[DiscoveredStream], wanted: Filter) -> DiscoveredStream:
    """The one that is meant: the one with a producer, if only one has. Raises AmbiguousStream."""
    chosen = [one for one in found if one.has_producer] or found
    if len(chosen) > 1:
        raise AmbiguousStream(
            f"{len(chosen)} streams are {_described(wanted)}: {', '.join(map(str, chosen))}; add tags, "
            "or attach by stream id"
        )
    return chosen[0]
