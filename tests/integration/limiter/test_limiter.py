"""Rate limiters: the newest frames of a stream on another one (docs/protocol/joins.md#rate-limiter)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import sbe
from tensorpool.limiter import LimiterAgent, LimiterMapping, LimiterSettings
from tensorpool.monitor.ledger import Verdict
from tensorpool.monitor.snapshot import LedgerView
from tensorpool.runtime.runner import Runner
from tests.integration.supervisor.test_policy import supervising
from tests.systemd_units import DEPLOY, settings, systemd_warnings

DEADLINE_S = 60
StreamIds = Callable[[], int]
WaitUntil = Callable[..., Any]


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=str(aeron_dir), shm_base_dir=shm_base) as context:
        yield context


def flow(source: tp.Producer, consumer: tp.Consumer, wait_until: WaitUntil) -> tp.Frame:
    """Offers frames until one arrives behind the limiter."""

    def arrived() -> tp.Frame | None:
        source.offer(np.full(64, source.next_seq), timestamp_ns=1000 + (source.next_seq or 0))
        return consumer.receive_or_none(0.05)

    frame: tp.Frame = wait_until(arrived, timeout=DEADLINE_S)
    return frame


def test_frames_keep_sequence_time_trace_and_metadata(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source_id, destination = free_stream_ids(), free_stream_ids()
    with (
        ctx.producer(
            source_id, name="camera", metadata={"gain": 3}, pools=["4KiB"], nslots=32, traces=True
        ) as source,
        tp.Limiter(ctx, "camera", destination, max_rate_hz=0) as limiter,
        ctx.consumer(destination) as consumer,
    ):
        assert limiter.wait_ready(DEADLINE_S)
        assert limiter.producer is not None
        assert (limiter.producer.nslots, limiter.producer.pools) == (source.nslots, source.pools)
        frame = flow(source, consumer, wait_until)
        with frame:
            assert frame.array[0] == frame.seq
            assert frame.timestamp_ns == 1000 + frame.seq
            assert frame.meta_version == 1
        assert frame.trace_id is not None
        metadata = wait_until(lambda: consumer.metadata)
        assert metadata["gain"] == 3
        assert consumer.source_name == "camera"
        source.set_metadata({"gain": 4})
        wait_until(lambda: (consumer.metadata or {}).get("gain") == 4)
        assert flow(source, consumer, wait_until).meta_version == 2
        ledger = limiter.ledger()
        assert ledger.forwarded > 0
        assert "forwarded" in str(ledger)


def test_blobs_are_forwarded_complete_with_their_versions(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source = ctx.producer(free_stream_ids(), metadata={"gain": 3}, pools=["4KiB"], nslots=32)
    destination = free_stream_ids()
    dark = np.random.default_rng(1).bytes(300_000)
    source.set_blob(7, dark)
    with (
        tp.Limiter(ctx, source.stream_id, destination, max_rate_hz=0) as limiter,
        ctx.consumer(destination) as consumer,
    ):
        assert limiter.wait_ready(DEADLINE_S)
        frame = flow(source, consumer, wait_until)
        assert consumer.blob(7, frame, timeout=DEADLINE_S) == dark
        source.set_blob(7, b"another")
        source.set_blob(8, b"")
        wait_until(lambda: consumer.blob(7) == b"another" and consumer.blob(8) == b"", timeout=DEADLINE_S)
        source.set_blob(7, None)
        wait_until(
            lambda: set((consumer.metadata or {}).get("tensorpool.blobs", ())) == {"8"}, timeout=DEADLINE_S
        )


def test_progress_and_qos_are_forwarded_under_the_destination(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=32)
    destination, other = free_stream_ids(), free_stream_ids()
    streams = [free_stream_ids() for _ in range(4)]
    settings = LimiterSettings(
        mappings=(LimiterMapping(source_stream_id=source.stream_id, dest_stream_id=destination),),
        forward_progress=True,
        forward_qos=True,
        source_control_stream_id=streams[0],
        dest_control_stream_id=streams[1],
        source_qos_stream_id=streams[2],
        dest_qos_stream_id=streams[3],
    )
    connection = ctx.connection
    with (
        closing(connection.publication(streams[0])) as control,
        closing(connection.subscription(streams[1])) as forwarded_control,
        closing(connection.publication(streams[2])) as qos,
        closing(connection.subscription(streams[3])) as forwarded_qos,
        Runner(LimiterAgent(ctx, settings=settings)),
        ctx.consumer(destination) as consumer,
    ):
        connection.wait_ready(control, forwarded_control, qos, forwarded_qos)
        flow(source, consumer, wait_until)
        epoch = consumer.epoch
        assert epoch is not None
        progress = sbe.FrameProgress(
            stream_id=source.stream_id,
            epoch=5,
            seq=42,
            payload_bytes_filled=1024,
            state=sbe.FrameProgressState.PROGRESS,
        )
        reports = (
            sbe.QosProducer(stream_id=source.stream_id, producer_id=3, epoch=5, current_seq=42),
            sbe.QosConsumer(
                stream_id=source.stream_id,
                consumer_id=9,
                epoch=5,
                last_seq_seen=41,
                drops_gap=1,
                drops_late=0,
                mode=sbe.Mode.STREAM,
            ),
        )
        received: list[sbe.Message] = []

        def has_all() -> bool:
            # Those of another stream, and of another kind, are not forwarded.
            control.offer(replace(progress, stream_id=other).encode())
            control.offer(reports[0].encode())
            control.offer(progress.encode())
            for report in reports:
                qos.offer(report.encode())
            for subscription in (forwarded_control, forwarded_qos):
                received.extend(sbe.decode(message) for message in subscription.poll())
            return len({type(message) for message in received}) == 3

        wait_until(has_all, timeout=DEADLINE_S)
        expected = [
            replace(progress, stream_id=destination, epoch=epoch),
            replace(reports[0], stream_id=destination, epoch=epoch),
            replace(reports[1], stream_id=destination, epoch=epoch),
        ]
        assert all(message in expected for message in received)


def test_newest_frame_goes_out_and_the_others_are_a_gap(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64)
    destination = free_stream_ids()
    with (
        tp.Limiter(ctx, source.stream_id, destination, max_rate_hz=20) as limiter,
        ctx.consumer(destination) as consumer,
    ):
        assert limiter.wait_ready(DEADLINE_S)
        assert consumer.wait_for_producer(DEADLINE_S)
        flow(source, consumer, wait_until)
        begin, seqs = time.monotonic(), []
        while (elapsed := time.monotonic() - begin) < 1.0:
            source.offer(np.full(64, source.next_seq))
            while (frame := consumer.receive_or_none(0)) is not None:
                seqs.append(frame.seq)
            time.sleep(0.001)
        # The places of the rate, and no more; a busy machine may use fewer.
        assert 2 <= len(seqs) <= 20 * elapsed + 2
        assert seqs == sorted(set(seqs))
        assert limiter.ledger().source.dropped["rate_limited"] > 0
    # The frame that waited for its turn is counted too.
    ledger = limiter.ledger()
    assert ledger.source.span == ledger.source.received + sum(ledger.source.dropped.values())
    not_copied = ledger.dropped["no_pool"] + ledger.dropped["no_slot"]
    assert ledger.source.received == ledger.forwarded + not_copied


def test_new_epoch_of_the_source_begins_one_of_the_destination(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source_id, destination = free_stream_ids(), free_stream_ids()
    source = ctx.producer(source_id, pools=["4KiB"], nslots=32)
    with (
        tp.Limiter(ctx, source_id, destination, max_rate_hz=200) as limiter,
        ctx.consumer(destination) as consumer,
    ):
        first = flow(source, consumer, wait_until)
        source.close()
        with ctx.producer(source_id, pools=["4KiB"], nslots=32) as again:
            second = flow(again, consumer, wait_until)
            assert second.epoch > first.epoch
            assert second.timestamp_ns == 1000 + second.seq
        assert limiter.is_running
        assert "running" in repr(limiter)


def test_destination_of_another_producer_is_logged_once_and_taken_later(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=32)
    destination = free_stream_ids()

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "tensorpool.limiter"]

    with ctx.producer(destination, pools=["4KiB"]) as holder:
        limiter = tp.Limiter(ctx, source.stream_id, destination, max_rate_hz=0)
        wait_until(warnings, timeout=DEADLINE_S)
        assert not limiter.wait_ready(1)
        assert limiter.is_running
        (warning,) = warnings()
        assert f"stream {destination} has 8 slots of 4KiB and a producer" in warning
        assert holder.epoch is not None
    with limiter, ctx.consumer(destination) as consumer:
        assert flow(source, consumer, wait_until).array[0] >= 0
        assert limiter.error is None


def test_layout_that_cannot_be_ends_the_limiter_with_its_error(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=32)
    limits = {"max_rate_hz": 0, "pools": ["much"]}
    with tp.Limiter(ctx, source.stream_id, free_stream_ids(), **limits) as limiter:  # type: ignore[arg-type]
        wait_until(lambda: not limiter.is_running, timeout=DEADLINE_S)
        assert isinstance(limiter.error, tp.ConfigError)
        assert not limiter.wait_ready(1)


def test_frame_that_fits_no_pool_is_dropped_and_counted(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=32)
    with tp.Limiter(ctx, source.stream_id, free_stream_ids(), max_rate_hz=0, pools=[64], nslots=8) as limiter:
        assert limiter.wait_ready(DEADLINE_S)

        def dropped() -> int:
            source.offer(np.zeros(512, np.uint8))
            return limiter.ledger().dropped["no_pool"]

        assert wait_until(dropped) > 0
        assert limiter.ledger().forwarded == 0


def test_supervisor_shows_the_limiter_between_its_streams_and_in_the_ledger(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=256)
    destination = free_stream_ids()
    label = f"limiter to {destination}"
    with (
        supervising(ctx) as agent,
        tp.Limiter(ctx, source.stream_id, destination, max_rate_hz=20),
        ctx.consumer(destination) as consumer,
    ):
        assert consumer.wait_for_producer(DEADLINE_S)

        def ledger() -> LedgerView:
            assert agent.latest.ledger is not None
            return agent.latest.ledger

        def is_shown() -> bool:
            source.offer(np.zeros(64))
            consumer.poll()
            read, sent = (agent.latest.stream(stream_id) for stream_id in (source.stream_id, destination))
            if read is None or sent is None or not sent.consumers:
                return False
            limited = [each for each in read.consumers if each.label == label]
            return (
                [each.dropped.get("rate_limited", 0) > 0 for each in limited] == [True]
                and (read.derived, sent.sources) == ((destination,), (source.stream_id,))
                # Both producers and both consumers have a row of the ledger.
                and sum(ledger().paths.values()) == 4
            )

        wait_until(is_shown, timeout=DEADLINE_S)

        def is_exact() -> bool:
            consumer.poll()
            assert ledger().mismatches == ()
            return ledger().paths[Verdict.EXACT] == 4

        # At rest every frame of every path is accounted for: what was left out too.
        wait_until(is_exact, timeout=DEADLINE_S)
        assert consumer.ledger().dropped["gap"] > 0


def test_settings_that_do_not_fit_are_named() -> None:
    one = LimiterMapping(source_stream_id=1, dest_stream_id=2)
    faults = dict(LimiterSettings(mappings=(one, one), forward_progress=True, forward_qos=True).check())
    assert "destination of 2 mappings" in faults["mappings"]
    assert "source_control_stream_id" in faults["forward_progress"]
    assert "source_qos_stream_id" in faults["forward_qos"]
    chain = LimiterMapping(source_stream_id=2, dest_stream_id=3)
    assert "two files" in dict(LimiterSettings(mappings=(one, chain)).check())["mappings"]
    assert not list(LimiterSettings(mappings=(one,)).check())


def test_rates_and_streams_that_cannot_be_are_refused(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    stream_id = free_stream_ids()
    with pytest.raises(tp.ConfigError, match="frames a second"):
        tp.Limiter(ctx, stream_id, free_stream_ids(), max_rate_hz=-1)
    with pytest.raises(tp.ConfigError, match="its own source"):
        tp.Limiter(ctx, stream_id, stream_id, max_rate_hz=1)


def test_command_runs_several_mappings_and_shows_them(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil, tmp_path: Path
) -> None:
    sources = [ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=32) for _ in range(2)]
    destinations = [free_stream_ids() for _ in sources]
    tables = "".join(
        f"[[limiter.mappings]]\nsource_stream_id = {source.stream_id}\ndest_stream_id = {destination}\n"
        for source, destination in zip(sources, destinations, strict=True)
    )
    file = tmp_path / "limiter.toml"
    file.write_text(
        f'[aeron]\ndir = "{ctx.aeron_dir}"\n[shm]\nbase_dir = "{ctx.shm_base_dir}"\n'
        f"[limiter]\nmax_rate_hz = 100\n{tables}"
    )
    command = [sys.executable, "-m", "tensorpool", "limit"]
    process = subprocess.Popen([*command, "--config", str(file)], stderr=subprocess.PIPE, text=True)
    try:
        for source, destination in zip(sources, destinations, strict=True):
            with ctx.consumer(destination) as consumer:
                flow(source, consumer, wait_until)
        with ctx.service("limiter", timeout=DEADLINE_S) as service:
            mappings = service.call("status")["mappings"]
        assert [each["dest_stream_id"] for each in mappings] == destinations
        assert all(each["forwarded"] > 0 for each in mappings)
        shown = subprocess.run(
            [*command, "status", "--aeron-dir", ctx.aeron_dir], capture_output=True, text=True, check=True
        )
        assert str(destinations[0]) in shown.stdout
    finally:
        # Ctrl-C.
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors


def test_unit_file_runs_the_command(tmp_path: Path) -> None:
    unit = DEPLOY / "tensorpool-limiter.service"
    assert settings(unit)["ExecStart"].endswith("tensorpool limit --config /etc/tensorpool/limiter.toml")
    assert systemd_warnings(unit, tmp_path) == []
