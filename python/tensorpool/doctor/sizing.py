"""The sizing of a stream: slots, stride and memory for its rate, frames and latency (wire §15.6). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from ..shm.epoch_files import HEADER_SLOT_BYTES, SUPERBLOCK_BYTES
from ..text import JsonMapping
from ..transport.channels import DEFAULT_DESCRIPTOR_TERM_BYTES, MAX_TERM_BYTES
from ..units import format_bytes
from .checks import Check, fail, ok, warn
from .memory import Space, parse_meminfo

SAFETY: Final = 2.0
"""Rounding up to a power of two adds a factor of up to two: two to four times the need, as in wire §15.6."""
PAGE_BYTES: Final = 4096
_MIN_SLOTS: Final = 4
"""A reader that was overtaken continues in the middle of the ring: half a ring has to be useful."""
_MAX_SLOTS: Final = 1 << 20
_FAST_SLOTS: Final = 4
"""The most slots of a ring that is meant to stay in the cache."""
_MIN_STRIDE: Final = 64
_MAX_STRIDE: Final = 1 << 31
DESCRIPTOR_BYTES: Final = 96
"""A descriptor of 48 bytes and Aeron's own header of 32, aligned to 32."""
# An Aeron log has three terms and a page of metadata. A publisher may be half a term ahead of its slowest
# reader; an untethered reader that is three quarters of that behind becomes rested.
_TERMS: Final = 3
_RESTED_AT: Final = 3 / 8
_LAST_QUARTER: Final = 1 / 8
_RESTED_AFTER_S: Final = 0.02
"""The reader has 10 ms to catch up, and the media driver checks every 2 ms; the rest allows for load."""
_MIN_TERM: Final = 1 << 20
"""Aeron allows less, which would save next to nothing."""
PER_CONSUMER_TERM_BYTES: Final = 256 << 10
"""Term of a per-consumer stream, as in crates/dataplane/src/producer."""
_DEFAULT_SEQ_GAP: Final = 256
"""The default max_outstanding_seq_gap: consumers of larger rings have to raise it."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Rate, frame size and latency of a stream.

    `latency_s` is the longest time from the commit of a frame until the slowest consumer has finished it.
    """

    rate_hz: float
    frame_bytes: int
    latency_s: float
    consumers: int = 1
    safety: float = SAFETY

    def __post_init__(self) -> None:
        for name, value, example in (
            ("rate", self.rate_hz, "200"),
            ("latency", self.latency_s, "0.05"),
            ("safety", self.safety, "2"),
        ):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} {value:g}: use a number above 0, as in {example}")
        if not 0 < self.frame_bytes <= _MAX_STRIDE:
            raise ConfigError(f"{self.frame_bytes} bytes a frame: use 1 to {_MAX_STRIDE}, as in 4MiB")
        if self.consumers < 0:
            raise ConfigError(f"{self.consumers} consumers: use 0 or more")


@dataclass(frozen=True, slots=True)
class Figure:
    """A result and its calculation."""

    name: str
    value: int
    reckoning: str


@dataclass(frozen=True, slots=True)
class Sizing:
    """The recommended layout of a stream, and the memory that it takes."""

    nslots: int
    stride_bytes: int
    descriptor_term_bytes: int
    epoch_bytes: int
    """Header ring and pool, in whole pages."""
    peak_bytes: int
    """With the previous epoch, whose regions stay for a moment when the producer changes."""
    descriptor_log_bytes: int
    per_consumer_bytes: int
    total_bytes: int
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]

    @property
    def needs_term_setting(self) -> bool:
        """Whether the term differs from the default, so that the configuration has to set it."""
        return self.descriptor_term_bytes != DEFAULT_DESCRIPTOR_TERM_BYTES

    def to_json(self) -> JsonMapping:
        """The fields by name."""
        return asdict(self)


def size_stream(needs: Needs, *, cache_bytes: int | None = None) -> Sizing:
    """The smallest ring, pool and descriptor log that are large enough. Raises ConfigError if none does.

    `cache_bytes` of the last-level cache: with it, the notes say when a smaller ring is faster.
    """
    frames = needs.rate_hz * needs.latency_s * needs.safety
    # Rounded first: the error of a binary fraction (0.1 * 30) must not add a slot.
    nslots = max(_MIN_SLOTS, _power_of_two(math.ceil(round(frames, 6))))
    if nslots > _MAX_SLOTS:
        raise ConfigError(
            f"{frames:.0f} slots are more than a ring can have ({_MAX_SLOTS}); reduce the latency, send "
            "several samples in one frame, or split the stream"
        )
    stride = max(_MIN_STRIDE, _power_of_two(needs.frame_bytes))
    ring = _pages(SUPERBLOCK_BYTES + nslots * HEADER_SLOT_BYTES)
    pool = _pages(SUPERBLOCK_BYTES + nslots * stride)
    epoch = ring + pool
    term, term_text = _descriptor_term(needs)
    log = _TERMS * term + PAGE_BYTES
    per_consumer = needs.consumers * (_TERMS * PER_CONSUMER_TERM_BYTES + PAGE_BYTES)
    total = 2 * epoch + log + per_consumer
    unused = 100 * (1 - needs.frame_bytes / stride)
    figures = (
        Figure("nslots", nslots, f"{_times(needs)} = {frames:.6g}; next power of two"),
        Figure(
            "stride_bytes", stride, f"{needs.frame_bytes}; next power of two, {unused:.0f} % of it unused"
        ),
        Figure("header_ring_bytes", ring, f"{SUPERBLOCK_BYTES} + {nslots} * {HEADER_SLOT_BYTES}, in pages"),
        Figure("pool_bytes", pool, f"{SUPERBLOCK_BYTES} + {nslots} * {stride}, in pages"),
        Figure("epoch_bytes", epoch, "header ring + pool"),
        Figure("peak_bytes", 2 * epoch, "2 epochs: the old one stays for a while when the producer changes"),
        Figure("descriptor_term_bytes", term, term_text),
        Figure("descriptor_log_bytes", log, f"{_TERMS} * {term} + {PAGE_BYTES}"),
        Figure(
            "per_consumer_bytes",
            per_consumer,
            f"{needs.consumers} * ({_TERMS} * {PER_CONSUMER_TERM_BYTES} + {PAGE_BYTES}), one stream each",
        ),
        Figure("total_bytes", total, "2 epochs + descriptors + per-consumer streams"),
        Figure("written_bytes_per_s", round(needs.rate_hz * needs.frame_bytes), "rate * bytes"),
    )
    notes = (*_notes(needs, nslots, unused), *_cache_notes(needs, nslots, stride, cache_bytes))
    return Sizing(nslots, stride, term, epoch, 2 * epoch, log, per_consumer, total, figures, notes)


def _times(needs: Needs) -> str:
    return f"{needs.rate_hz:g} Hz * {needs.latency_s:g} s * {needs.safety:g}"


def _descriptor_term(needs: Needs) -> tuple[int, str]:
    per_s = needs.rate_hz * DESCRIPTOR_BYTES
    for_slow = per_s * needs.latency_s * needs.safety / _RESTED_AT
    for_stopped = per_s * _RESTED_AFTER_S / _LAST_QUARTER
    needed = max(for_slow, for_stopped)
    term = max(_MIN_TERM, _power_of_two(math.ceil(needed)))
    if term > MAX_TERM_BYTES:
        raise ConfigError(
            f"{needs.rate_hz:g} descriptors a second, held for {needs.latency_s:g} s, do not fit the longest "
            f"term of Aeron ({MAX_TERM_BYTES}); reduce the latency, or send several samples in one frame"
        )
    text = (
        f"{DESCRIPTOR_BYTES} * {_times(needs)} / (3/8) = {for_slow:.0f} for a slow reader, "
        f"{DESCRIPTOR_BYTES} * {needs.rate_hz:g} Hz * {_RESTED_AFTER_S:g} s / (1/8) = {for_stopped:.0f} for "
        f"a stopped one; next power of two, at least {_MIN_TERM}"
    )
    return term, text


def _notes(needs: Needs, nslots: int, unused_percent: float) -> tuple[str, ...]:
    notes = []
    held = int(PER_CONSUMER_TERM_BYTES * _RESTED_AT / DESCRIPTOR_BYTES)
    if needs.rate_hz * needs.latency_s > held:
        notes.append(
            f"a per-consumer stream holds {held} descriptors: at this rate and latency request a "
            "max_rate_hz, or stay on the shared stream"
        )
    if nslots > _DEFAULT_SEQ_GAP:
        notes.append(
            f"more than {_DEFAULT_SEQ_GAP} slots: open consumers with max_outstanding_seq_gap={nslots}, or "
            "a consumer that was overtaken skips to the newest frame instead of the middle of the ring"
        )
    if unused_percent > 40:
        notes.append(
            "nearly half of each slot is unused: strides are powers of two; a slightly smaller frame halves "
            "the memory"
        )
    return tuple(notes)


def _cache_notes(needs: Needs, nslots: int, stride: int, cache_bytes: int | None) -> Iterator[str]:
    """Advice for rings that the cache does not hold."""
    if cache_bytes is None or nslots * stride <= cache_bytes // 2:
        return
    cache = f"the last-level cache ({format_bytes(cache_bytes)})"
    if 2 * needs.frame_bytes > cache_bytes:
        yield (
            f"a frame is larger than half of {cache}, so frames pass through memory with any ring: 2 to "
            f"{_FAST_SLOTS} slots are the fastest, for consumers that finish a frame within "
            f"{_FAST_SLOTS / needs.rate_hz / needs.safety:.3g} s"
        )
    elif nslots > _FAST_SLOTS:
        yield (
            f"the slots take {format_bytes(nslots * stride)}, more than half of {cache}, so frames pass "
            f"through memory: 2 to {_FAST_SLOTS} slots are faster, for consumers that finish a frame within "
            f"{_FAST_SLOTS / needs.rate_hz / needs.safety:.3g} s"
        )


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def check_fit(sizing: Sizing, base: Path, space: Space, available_bytes: int | None) -> Check:
    """Finding on whether the stream fits; `available_bytes` of memory, None if not known."""
    name = "room"
    found = f"{base}: {format_bytes(space.free_bytes)} free of {format_bytes(space.total_bytes)}"
    if available_bytes is not None:
        found += f"; {format_bytes(available_bytes)} of memory available"
    needed = format_bytes(sizing.total_bytes)
    used_bytes = space.total_bytes - space.free_bytes
    if sizing.total_bytes > space.free_bytes:
        return fail(
            name,
            found,
            f"{needed} do not fit: the producer is rejected when it attaches.",
            f"mount -o remount,size={_gib_rounded_up(sizing.total_bytes + used_bytes)}G {base}, or "
            "reduce the latency or the frames.",
        )
    if available_bytes is not None and sizing.total_bytes > available_bytes:
        return fail(
            name,
            found,
            f"{needed} are more than the machine has left: it swaps, or kills a process.",
            "Reduce the latency or the frames, or add memory.",
        )
    if 2 * sizing.total_bytes > space.free_bytes:
        return warn(
            name,
            found,
            f"{needed} fit, with little left for other streams.",
            f"mount -o remount,size={_gib_rounded_up(2 * space.total_bytes)}G {base}",
        )
    return ok(name, f"{found}: {needed} fit")


def _gib_rounded_up(size: int) -> int:
    return -(-size // (1 << 30))


def available_memory(meminfo: str) -> int | None:
    """MemAvailable of /proc/meminfo, in bytes; None if it is not known."""
    available_kib = parse_meminfo(meminfo).get("MemAvailable")
    return None if available_kib is None else available_kib * 1024
