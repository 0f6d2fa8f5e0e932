"""From what is remembered to what is shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .bounds import Bounds
from .config import Condition
from .heard import StreamHeard
from .views import BridgeView, ConsumerView, LatencyView, StreamState, StreamView


def lineage(
    streams: Iterable[StreamHeard], bridges: Iterable[BridgeView]
) -> tuple[Mapping[int, set[int]], Mapping[int, set[int]]]:
    """By stream: what it is made from, and what is made from it."""
    made_from: dict[int, set[int]] = {}
    for bridge in bridges:
        for one in bridge.mappings:
            if one.direction == "receive" and one.dest_stream_id:
                made_from.setdefault(one.dest_stream_id, set()).add(one.source_stream_id)
    for stream in streams:
        told = None if stream.producer is None else stream.producer.told
        if told is not None and told.sources:
            made_from.setdefault(stream.stream_id, set()).update(told.sources)
    feeds: dict[int, set[int]] = {}
    for child, parents in made_from.items():
        for parent in parents - {child}:
            feeds.setdefault(parent, set()).add(child)
    return made_from, feeds


class Sight:
    """What is remembered at one moment, for a look at some of it: good until the next word is heard."""

    def __init__(self, streams: Mapping[int, StreamHeard], bounds: Bounds, now_ns: int) -> None:
        self._streams = streams
        self._forget_ns = bounds.forget_consumer_ns
        self._now_ns = now_ns

    def figures(self, when: Condition) -> Iterator[tuple[tuple[int, int | None], float | None]]:
        """What rules look at: of a stream, or of each of its consumers."""
        now_ns = self._now_ns
        for stream_id, stream in self._streams.items():
            readers = stream.consumers.items()
            match when:
                case "staleness":
                    producer = stream.producer
                    yield (stream_id, None), None if producer is None else (now_ns - producer.moved_ns) / 1e9
                case "drops":
                    for number, one in readers:
                        yield (stream_id, number), one.losses.per_s()
                case "latency":
                    for number, one in readers:
                        latency = one.latency_at(now_ns, self._forget_ns)
                        yield (stream_id, number), None if latency is None else latency.p99_ns / 1e9
                case "backlog":
                    current, epoch = stream.current_seq, stream.epoch
                    for number, one in readers:
                        yield (stream_id, number), one.backlog(current, epoch)

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None:
        stream = self._streams.get(stream_id)
        one = None if stream is None else stream.consumers.get(consumer_id)
        if stream is None or one is None:
            return None
        return one.view(self._now_ns, stream.current_seq, stream.epoch, self._forget_ns)

    def own_stream_ids(self) -> set[int]:
        return {one.own_stream_id for stream in self._streams.values() for one in stream.consumers.values()}


def show(
    stream: StreamHeard, bounds: Bounds, now_ns: int, sources: Iterable[int], feeds: Iterable[int]
) -> StreamView:
    """A stream as it is at that moment."""
    announce = stream.announce
    current, epoch, forget_ns = stream.current_seq, stream.epoch, bounds.forget_consumer_ns
    consumers = tuple(
        one.view(now_ns, current, epoch, forget_ns) for _, one in sorted(stream.consumers.items())
    )
    name, summary = stream.names.get(True) or stream.names.get(False) or ("", "")
    tags, data_source_id = stream.labels.get(True) or stream.labels.get(False) or ((), None)
    return StreamView(
        stream_id=stream.stream_id,
        name=name,
        summary=summary,
        tags=tags,
        data_source_id=data_source_id,
        state=_state(stream, bounds, now_ns),
        epoch=epoch,
        epochs=stream.epochs,
        layout_version=0 if announce is None else announce.layout_version,
        nslots=0 if announce is None else announce.header_nslots,
        pools=stream.pools,
        nbytes=stream.nbytes,
        announce_age_ns=now_ns - (stream.announced_ns if announce is not None else stream.heard_ns),
        activity_age_ns=None if stream.activity_ns is None else max(now_ns - stream.activity_ns, 0),
        producer=None if stream.producer is None else stream.producer.view(now_ns),
        consumers=consumers,
        dropped=_summed(consumers),
        latency=_slowest(consumers),
        sources=tuple(sorted(sources)),
        feeds=tuple(sorted(feeds)),
    )


def _state(stream: StreamHeard, bounds: Bounds, now_ns: int) -> StreamState:
    if stream.announce is None or now_ns - stream.announced_ns > bounds.stale_ns:
        return StreamState.STALE
    if stream.activity_ns is not None and now_ns - stream.activity_ns > 5 * bounds.announce_period_ns:
        return StreamState.STALE
    if not stream.announce.producer_id:
        return StreamState.NO_PRODUCER
    producer = stream.producer
    if producer is None or now_ns - producer.moved_ns > bounds.quiet_ns:
        return StreamState.QUIET
    return StreamState.LIVE


def _summed(consumers: tuple[ConsumerView, ...]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in consumers:
        for reason, n in one.dropped.items():
            total[reason] = total.get(reason, 0) + n
    return dict(sorted(total.items())) if total else total


def _slowest(consumers: tuple[ConsumerView, ...]) -> LatencyView | None:
    told = [one.latency for one in consumers if one.latency is not None and one.latency.count]
    if not told:
        return None
    count, p50_ns, p99_ns, max_ns, since = 0, 0, 0, 0, told[0].since
    # Once a second for thousands: plain steps, no generators.
    for one in told:
        count += one.count
        p50_ns = one.p50_ns if one.p50_ns > p50_ns else p50_ns
        p99_ns = one.p99_ns if one.p99_ns > p99_ns else p99_ns
        max_ns = one.max_ns if one.max_ns > max_ns else max_ns
        since = since if one.since == since else "mixed"
    return LatencyView(count, p50_ns, p99_ns, max_ns, since)
