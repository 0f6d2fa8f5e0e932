"""How large a stream has to be for its rate, its frames and its slowest reader (wire §15.6). Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from ..transport.channels import DEFAULT_DESCRIPTOR_TERM_BYTES, MAX_TERM_BYTES
from ..units import format_capacity
from .checks import Check, fail, ok, warn
from .memory import Space

SAFETY: Final = 2.0
"""The next power of two adds up to as much again: two to four times what is needed, as wire §15.6 wants."""
SUPERBLOCK_BYTES: Final = 64
HEADER_SLOT_BYTES: Final = 256
PAGE_BYTES: Final = 4096
# Fewer leave a reader that was overtaken no half ring to go on with.
_FEWEST_SLOTS: Final = 4
_MOST_SLOTS: Final = 1 << 20
_LEAST_STRIDE: Final = 64
_MOST_STRIDE: Final = 1 << 31
# A descriptor of 48 bytes behind Aeron's own header of 32, in steps of 32.
DESCRIPTOR_BYTES: Final = 96
# Aeron has three terms to a log and a page of its own behind them. It lets a publisher be half a term
# ahead of its slowest reader, and puts an untethered one to rest that is three quarters of that behind.
_TERMS: Final = 3
_REST_AT: Final = 3 / 8
_LAST_QUARTER: Final = 1 / 8
# The reader has 10 ms to come back, and the media driver looks each 2 ms; the rest is for a busy machine.
_REST_TAKES_S: Final = 0.02
# Aeron allows less; this is where less no longer matters.
_LEAST_TERM: Final = 1 << 20
# As crates/dataplane/src/producer/lanes.rs has it.
OWN_STREAM_TERM_BYTES: Final = 1 << 20
# From here on consumers need a higher max_outstanding_seq_gap.
_DEFAULT_SEQ_GAP: Final = 256


@dataclass(frozen=True, slots=True)
class Needs:
    """What a stream is to do.

    `latency_s` is the longest time from the commit of a frame until the slowest consumer is done with it.
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
        if not 0 < self.frame_bytes <= _MOST_STRIDE:
            raise ConfigError(f"{self.frame_bytes} bytes a frame: use 1 to {_MOST_STRIDE}, as in 4MiB")
        if self.consumers < 0:
            raise ConfigError(f"{self.consumers} consumers: use 0 or more")


@dataclass(frozen=True, slots=True)
class Figure:
    """One result and how it came about."""

    name: str
    value: int
    reckoning: str


@dataclass(frozen=True, slots=True)
class Sizing:
    nslots: int
    stride_bytes: int
    descriptor_term_bytes: int
    epoch_bytes: int
    """Header ring and pool, in whole pages."""
    peak_bytes: int
    """With the epoch before, which stays for a moment when the producer changes."""
    descriptor_log_bytes: int
    own_streams_bytes: int
    total_bytes: int
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]

    @property
    def names_term(self) -> bool:
        """Whether the term is another than the default, so that a configuration has to name it."""
        return self.descriptor_term_bytes != DEFAULT_DESCRIPTOR_TERM_BYTES

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def size_stream(needs: Needs) -> Sizing:
    """The smallest ring, pool and descriptor log that do. Raises ConfigError where none does."""
    frames = needs.rate_hz * needs.latency_s * needs.safety
    # What binary fractions add to a product (0.1 * 30) is no further slot.
    nslots = max(_FEWEST_SLOTS, _power_of_two(math.ceil(round(frames, 6))))
    if nslots > _MOST_SLOTS:
        raise ConfigError(
            f"{frames:.0f} slots are more than a ring has ({_MOST_SLOTS}); bring the latency down, send "
            "several samples in one frame, or split the stream"
        )
    stride = max(_LEAST_STRIDE, _power_of_two(needs.frame_bytes))
    ring = _pages(SUPERBLOCK_BYTES + nslots * HEADER_SLOT_BYTES)
    pool = _pages(SUPERBLOCK_BYTES + nslots * stride)
    epoch = ring + pool
    term, term_words = _descriptor_term(needs)
    log = _TERMS * term + PAGE_BYTES
    own = needs.consumers * (_TERMS * OWN_STREAM_TERM_BYTES + PAGE_BYTES)
    total = 2 * epoch + log + own
    unused = 100 * (1 - needs.frame_bytes / stride)
    figures = (
        Figure("nslots", nslots, f"{_times(needs)} = {frames:.6g}; next power of two"),
        Figure(
            "stride_bytes", stride, f"{needs.frame_bytes}; next power of two, {unused:.0f} % of it unused"
        ),
        Figure("header_ring_bytes", ring, f"{SUPERBLOCK_BYTES} + {nslots} * {HEADER_SLOT_BYTES}, in pages"),
        Figure("pool_bytes", pool, f"{SUPERBLOCK_BYTES} + {nslots} * {stride}, in pages"),
        Figure("epoch_bytes", epoch, "header ring + pool"),
        Figure("peak_bytes", 2 * epoch, "2 epochs: the old one stays a while when the producer changes"),
        Figure("descriptor_term_bytes", term, term_words),
        Figure("descriptor_log_bytes", log, f"{_TERMS} * {term} + {PAGE_BYTES}"),
        Figure(
            "own_streams_bytes",
            own,
            f"{needs.consumers} * ({_TERMS} * {OWN_STREAM_TERM_BYTES} + {PAGE_BYTES}), if each asks for one",
        ),
        Figure("total_bytes", total, "2 epochs + descriptors + own streams"),
        Figure("written_bytes_per_s", round(needs.rate_hz * needs.frame_bytes), "rate * bytes"),
    )
    notes = _notes(needs, nslots, unused)
    return Sizing(nslots, stride, term, epoch, 2 * epoch, log, own, total, figures, notes)


def _times(needs: Needs) -> str:
    return f"{needs.rate_hz:g} Hz * {needs.latency_s:g} s * {needs.safety:g}"


def _descriptor_term(needs: Needs) -> tuple[int, str]:
    per_s = needs.rate_hz * DESCRIPTOR_BYTES
    for_slow = per_s * needs.latency_s * needs.safety / _REST_AT
    for_stopped = per_s * _REST_TAKES_S / _LAST_QUARTER
    wanted = max(for_slow, for_stopped)
    term = max(_LEAST_TERM, _power_of_two(math.ceil(wanted)))
    if term > MAX_TERM_BYTES:
        raise ConfigError(
            f"{needs.rate_hz:g} descriptors a second, held for {needs.latency_s:g} s, do not fit the longest "
            f"term of Aeron's ({MAX_TERM_BYTES}); bring the latency down, or send several samples a frame"
        )
    words = (
        f"{DESCRIPTOR_BYTES} * {_times(needs)} / (3/8) = {for_slow:.0f} for a slow reader, "
        f"{DESCRIPTOR_BYTES} * {needs.rate_hz:g} Hz * {_REST_TAKES_S:g} s / (1/8) = {for_stopped:.0f} for "
        f"one that stopped; next power of two, at least {_LEAST_TERM}"
    )
    return term, words


def _notes(needs: Needs, nslots: int, unused_percent: float) -> tuple[str, ...]:
    notes = []
    held = int(OWN_STREAM_TERM_BYTES * _REST_AT / DESCRIPTOR_BYTES)
    if needs.rate_hz * needs.latency_s > held:
        notes.append(
            f"a consumer's own stream holds {held} descriptors: at this rate and latency ask for a "
            "max_rate_hz, or stay on the shared one"
        )
    if nslots > _DEFAULT_SEQ_GAP:
        notes.append(
            f"more than {_DEFAULT_SEQ_GAP} slots: open consumers with max_outstanding_seq_gap={nslots}, or "
            "one that was overtaken skips to the newest frame instead of the middle of the ring"
        )
    if unused_percent > 40:
        notes.append(
            "nearly half of each slot is unused: strides are powers of two; a slightly smaller frame halves "
            "the memory"
        )
    return tuple(notes)


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def check_fit(sizing: Sizing, base: Path, space: Space, available_bytes: int | None) -> Check:
    """Whether there is that much shared memory, and memory behind it (`available_bytes`, None: unknown)."""
    name = "room"
    found = f"{base}: {format_capacity(space.free_bytes)} free of {format_capacity(space.total_bytes)}"
    if available_bytes is not None:
        found += f"; {format_capacity(available_bytes)} of memory available"
    wanted = format_capacity(sizing.total_bytes)
    taken_bytes = space.total_bytes - space.free_bytes
    if sizing.total_bytes > space.free_bytes:
        return fail(
            name,
            found,
            f"{wanted} do not fit: the producer is refused when it attaches.",
            f"mount -o remount,size={_gib(sizing.total_bytes + taken_bytes)}G {base}, or less latency, fewer "
            "or smaller frames.",
        )
    if available_bytes is not None and sizing.total_bytes > available_bytes:
        return fail(
            name,
            found,
            f"{wanted} are more than the machine has left: it swaps, or kills a process.",
            "Less latency, fewer or smaller frames, or more memory.",
        )
    if 2 * sizing.total_bytes > space.free_bytes:
        return warn(
            name,
            found,
            f"{wanted} fit, with little left for other streams.",
            f"mount -o remount,size={_gib(2 * space.total_bytes)}G {base}",
        )
    return ok(name, f"{found}: {wanted} fit")


def _gib(size: int) -> int:
    return -(-size // (1 << 30))


def available_memory(meminfo: str) -> int | None:
    """MemAvailable of /proc/meminfo, in bytes."""
    for line in meminfo.splitlines():
        key, _, rest = line.partition(":")
        if key == "MemAvailable" and rest.split()[:1]:
            return int(rest.split()[0]) * 1024
    return None
