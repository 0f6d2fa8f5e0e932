"""What the demo shows: the live table, the story of the kill, and the ledger at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from .checks import REPLAY_SPEED, CameraEpoch, KillReport, RecordingCheck, ReplayCheck
from .processes import ChildProcess, DemoEnvironment


def _table(title: str, left: Sequence[str], *columns: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=column not in left)
    return table


def live_table(stage: DemoEnvironment, epochs: Sequence[str], *, is_camera_dead: bool) -> Table:
    """Lease, epoch, rate, bandwidth, latency and drops by reason of each process."""
    columns = ("process", "lease", "epoch", "fps", "MiB/s", "latency", "frames", "dropped")
    table = _table("frames through shared memory", ("process", "dropped"), *columns)
    table.columns[-1].min_width = 18
    for player in (stage.camera, *stage.viewers, stage.tape):
        is_dead = is_camera_dead and player is stage.camera
        table.add_row(*_row(player, epochs, is_dead=is_dead))
    held = stage.driver.sample()
    if held:
        table.caption = (
            f"driver, process {stage.driver.pid}: {held['leases']} leases, {held['bytes'] / 2**20:.1f} MiB"
        )
        table.caption_justify = "left"
    return table


def _row(player: ChildProcess, epochs: Sequence[str], *, is_dead: bool) -> Iterator[str | Text]:
    sample = player.sample()
    frames_hz, bytes_hz = (0.0, 0.0) if is_dead else player.rates()
    latency = sample.get("latency_us")
    yield player.name
    yield "" if is_dead else short_id(sample.get("lease"))
    epoch = sample.get("epoch")
    yield str(epochs.index(epoch) + 1) if epoch in epochs and not is_dead else "-"
    yield f"{frames_hz:,.0f}"
    yield f"{bytes_hz / 2**20:,.0f}"
    yield "" if latency is None else f"{latency:,.0f} µs"
    yield f"{sample.get('frames', 0):,}"
    yield Text("killed", style="bold red") if is_dead else in_words(sample.get("dropped", {}))


def short_id(number: str | None) -> str:
    """Ids of leases are long; the last digits tell them apart."""
    return "" if number is None else f"…{number[-5:]}"


def killed_lines(death: KillReport) -> Iterator[Text]:
    """The kill, as soon as the driver has noticed."""
    yield Text(f"killed the camera on purpose: SIGKILL to process {death.pid}", style="bold red")
    yield _line(death.noticed_ms, f"driver: {death.reason}")
    yield _more(f"(missed keepalives alone would have taken up to {death.lease_s:g} s)")


def told_line(death: KillReport) -> Text:
    return _line(
        max(death.told_ms.values()), f"{_names(death.told_ms)} let go of its memory, not of their leases"
    )


def recovered_lines(death: KillReport) -> Iterator[Text]:
    """The way back."""
    assert death.back_ms is not None
    yield _line(death.back_ms, f"camera started again: process {death.next_pid}, a new lease, a later epoch")
    yield _more(f"({death.epoch} → {death.next_epoch})")
    if again := death.frames_again_ms:
        kept = "same leases" if death.leases_kept else "new leases"
        yield _line(max(again.values()), f"{_names(again)} have frames again: same processes, {kept}")


def recorder_lines(killed: int, pid: int, recovered: Sequence[str]) -> Iterator[Text]:
    """The recorder's death, and how it went on."""
    yield Text(f"killed the recorder on purpose: SIGKILL to process {killed}", style="bold red")
    yield Text(f"{'':12}started again as process {pid}; what was left open is sealed")
    for one in recovered:
        kept = one.partition(": ")[2]
        yield _more(f"({kept})")


def played_words(played: ReplayCheck) -> str:
    missed = f", {played.missed:,} missed by the viewer" if played.missed else ""
    return (
        f"replayed at speed {REPLAY_SPEED:g}: {played.played:,} frames, "
        f"{played.equal:,} checksums equal{missed}"
    )


def recording_table(recorded: RecordingCheck) -> Table:
    """The recording, epoch by epoch."""
    table = _table(
        "the recording: span = rows + gaps", ("by reason",), "epoch", "span", "rows", "gaps", "by reason"
    )
    for number, page in enumerate(recorded.pages, start=1):
        lost = sum(page.gaps.values())
        table.add_row(str(number), f"{page.span:,}", f"{page.rows:,}", f"{lost:,}", in_words(page.gaps))
    table.caption = f"{recorded.size_bytes / 2**20:,.0f} MiB in {recorded.segments} segments"
    table.caption_justify = "left"
    return table


def _names(times: dict[str, float]) -> str:
    return " and ".join(times)


def _line(after_ms: float, words: str) -> Text:
    return Text.assemble((f"{f'+{after_ms:,.0f} ms':>10}  ", "bold"), words)


def _more(words: str) -> Text:
    return Text(" " * 12 + words, style="dim")


def ledger_table(books: Sequence[CameraEpoch]) -> Table:
    """Every committed frame of every epoch, joined with what became of it at each viewer."""
    columns = ("epoch", "process", "frames", "whole", "dropped", "in flight", "by reason")
    table = _table("the ledger: frames = whole + dropped + in flight", ("process", "by reason"), *columns)
    for number, book in enumerate(books, start=1):
        told = _ring_words(book) if book.was_killed else in_words(book.unpublished)
        unpublished = "" if book.published is None else f"{sum(book.unpublished.values()):,}"
        published = "" if book.published is None else f"{book.published:,}"
        table.add_row(str(number), "camera", f"{book.committed:,}", published, unpublished, "", told)
        for name, page in book.pages.items():
            table.add_row(
                "",
                name,
                f"{book.committed:,}",
                f"{page.received:,}",
                f"{sum(page.dropped.values()):,}",
                f"{book.in_flight(page):,}",
                in_words(page.dropped),
            )
        if number < len(books):
            table.add_section()
    return table


def _ring_words(book: CameraEpoch) -> str:
    half = f", {book.half_written} half written" if book.half_written else ""
    return f"as its ring says{half}"


def in_words(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items() if count)
