"""The output of the demo: the live table, the lines on the two kills, and the tables at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..monitor.ledger import LedgerRow
from .checks import REPLAY_SPEED, CameraEpoch, KillReport, RecordingCheck, ReplayCheck
from .processes import ChildProcess, DemoEnvironment
from .reports import DriverSample


def reasons_text(counts: Mapping[str, int]) -> str:
    """Reasons with their counts, without zeros."""
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items() if count)


def short_id(number: str | None) -> str:
    """The last digits of a lease id, which are enough to distinguish leases."""
    return "" if number is None else f"…{number[-5:]}"


def _table(title: str, left: Sequence[str], *columns: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=column not in left)
    return table


# --- while it runs


def live_table(demo: DemoEnvironment, epochs: Sequence[str], *, is_camera_dead: bool) -> Table:
    """Lease, epoch, rate, bandwidth, latency and drops by reason of each process."""
    columns = ("process", "lease", "epoch", "fps", "MiB/s", "latency", "frames", "dropped")
    table = _table("frames through shared memory", ("process", "dropped"), *columns)
    table.columns[-1].min_width = 18
    for process in (demo.camera, *demo.viewers, demo.recorder):
        is_dead = is_camera_dead and process is demo.camera
        table.add_row(*_cells(process, epochs, is_dead=is_dead))
    sample = demo.driver.report(DriverSample)
    if sample is not None:
        table.caption = (
            f"driver, process {demo.driver.pid}: {sample.leases} leases, {sample.bytes / 2**20:.1f} MiB"
        )
        table.caption_justify = "left"
    return table


def _cells(process: ChildProcess, epochs: Sequence[str], *, is_dead: bool) -> Iterator[str | Text]:
    sample = process.sample()
    frames_per_s, bytes_per_s = (0.0, 0.0) if is_dead else process.rates()
    latency = sample.latency_us
    yield process.name
    yield "" if is_dead else short_id(sample.lease)
    epoch = sample.epoch
    yield str(epochs.index(epoch) + 1) if epoch in epochs and not is_dead else "-"
    yield f"{frames_per_s:,.0f}"
    yield f"{bytes_per_s / 2**20:,.0f}"
    yield "" if latency is None else f"{latency:,.0f} µs"
    yield f"{sample.frames:,}"
    yield Text("killed", style="bold red") if is_dead else reasons_text(sample.dropped)


def killed_lines(kill: KillReport) -> Iterator[Text]:
    """The kill of the camera, once the driver has revoked its lease."""
    yield Text(f"killed the camera on purpose: SIGKILL to process {kill.pid}", style="bold red")
    yield _timed_line(kill.revoked_ms, f"driver: {kill.reason}")
    yield _note_line(f"(missed keepalives alone would have taken up to {kill.lease_s:g} s)")


def unmapped_line(kill: KillReport) -> Text:
    """The viewers have unmapped the epoch."""
    names = _names(kill.unmapped_ms)
    return _timed_line(max(kill.unmapped_ms.values()), f"{names} unmapped its regions and kept their leases")


def recovered_lines(kill: KillReport) -> Iterator[Text]:
    """The camera has restarted, and the viewers receive frames."""
    assert kill.restarted_ms is not None
    yield _timed_line(
        kill.restarted_ms, f"camera started again: process {kill.next_pid}, a new lease, a later epoch"
    )
    yield _note_line(f"({kill.epoch} → {kill.next_epoch})")
    if resumed := kill.resumed_ms:
        leases = "same leases" if kill.leases_kept else "new leases"
        yield _timed_line(
            max(resumed.values()), f"{_names(resumed)} have frames again: same processes, {leases}"
        )


def recorder_lines(killed_pid: int, pid: int, recovered: Sequence[str]) -> Iterator[Text]:
    """The kill of the recorder, and the segments that the next one recovered."""
    yield Text(f"killed the recorder on purpose: SIGKILL to process {killed_pid}", style="bold red")
    yield Text(f"{'':12}started again as process {pid}; its open segment is recovered")
    for segment in recovered:
        yield _note_line(f"({segment.partition(': ')[2]})")


def _names(times: dict[str, float]) -> str:
    return " and ".join(times)


def _timed_line(after_ms: float, text: str) -> Text:
    return Text.assemble((f"{f'+{after_ms:,.0f} ms':>10}  ", "bold"), text)


def _note_line(text: str) -> Text:
    return Text(" " * 12 + text, style="dim")


# --- at the end


def ledger_table(epochs: Sequence[CameraEpoch]) -> Table:
    """The committed frames of every epoch, received or dropped by each viewer."""
    columns = ("epoch", "process", "frames", "intact", "dropped", "in flight", "by reason")
    table = _table("the ledger: frames = intact + dropped + in flight", ("process", "by reason"), *columns)
    for number, epoch in enumerate(epochs, start=1):
        reasons = _ring_text(epoch) if epoch.was_killed else reasons_text(epoch.unpublished)
        unpublished = "" if epoch.published is None else f"{sum(epoch.unpublished.values()):,}"
        published = "" if epoch.published is None else f"{epoch.published:,}"
        table.add_row(str(number), "camera", f"{epoch.committed:,}", published, unpublished, "", reasons)
        for name, viewer in epoch.viewers.items():
            table.add_row(
                "",
                name,
                f"{epoch.committed:,}",
                f"{viewer.received:,}",
                f"{sum(viewer.dropped.values()):,}",
                f"{epoch.in_flight(viewer):,}",
                reasons_text(viewer.dropped),
            )
        if number < len(epochs):
            table.add_section()
    return table


def _ring_text(epoch: CameraEpoch) -> str:
    half = f", {epoch.half_written} half written" if epoch.half_written else ""
    return f"counted in its ring{half}"


def recording_table(check: RecordingCheck) -> Table:
    """The ledger of the recording by epoch."""
    table = _table(
        "the recording: span = rows + gaps", ("by reason",), "epoch", "span", "rows", "gaps", "by reason"
    )
    for number, epoch in enumerate(check.epochs, start=1):
        gaps = sum(epoch.gaps.values())
        table.add_row(
            str(number), f"{epoch.span:,}", f"{epoch.rows:,}", f"{gaps:,}", reasons_text(epoch.gaps)
        )
    table.caption = f"{check.size_bytes / 2**20:,.0f} MiB in {check.segments} segments"
    table.caption_justify = "left"
    return table


def system_table(rows: Sequence[LedgerRow]) -> Table:
    """The ledger of the whole system."""
    table = Table(title="the whole system: published = delivered + dropped", title_justify="left", box=None)
    for name in ("stream", "path", "who", "published", "delivered", "dropped", ""):
        table.add_column(name, justify="right" if name in ("stream", "published", "delivered") else "left")
    for row in rows:
        dropped = reasons_text(dict(sorted(row.dropped.items())))
        published, delivered = f"{row.published:,}", f"{row.delivered:,}"
        table.add_row(str(row.stream_id), row.path, row.who, published, delivered, dropped, str(row.verdict))
    return table


def replay_text(check: ReplayCheck) -> str:
    """The result of the replay in one sentence."""
    missed = f", {check.missed:,} missed by the viewer" if check.missed else ""
    return (
        f"replayed at speed {REPLAY_SPEED:g}: {check.replayed:,} frames, "
        f"{check.equal:,} checksums equal{missed}"
    )
