"""Claims: slots that are written in place and committed or abandoned (decision 46)."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tests.integration.dataplane.region_files import regions_of

DEADLINE_S = 60.0


def received_seqs(stream) -> list[int]:
    return [frame.seq for frame in stream.consumer.poll()]


def test_claim_is_published_at_the_end_of_its_block(stream) -> None:
    with stream.producer.claim((2, 3), "uint16", timestamp_ns=4, meta_version=5, trace_id=6) as slot:
        assert (slot.seq, slot.array.shape, slot.array.dtype) == (0, (2, 3), np.dtype("uint16"))
        assert slot.result is None
        slot.array[:] = [[1, 2, 3], [4, 5, 6]]
    assert slot.result is not None
    assert (slot.result.outcome, slot.result.seq) == ("published", 0)
    frame = stream.consumer.receive(DEADLINE_S)
    assert frame.array.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (frame.timestamp_ns, frame.meta_version, frame.trace_id) == (4, 5, 6)


@pytest.mark.parametrize("dtype", ["bool", np.float32, np.dtype("int8"), "bytes", "bit", int])
def test_claim_accepts_every_spelling_of_a_dtype(stream, dtype) -> None:
    with stream.producer.claim((4,), dtype) as slot:
        slot.array[:] = [1, 0, 1, 1]
    frame = stream.consumer.receive(DEADLINE_S)
    assert frame.array.astype(int).tolist() == [1, 0, 1, 1]
    expected = dtype if dtype in {"bytes", "bit"} else np.dtype(dtype).name
    assert frame.element_type == expected


def test_claim_may_be_column_major(stream) -> None:
    with stream.producer.claim((2, 3), "int32", order="F") as slot:
        assert slot.array.flags.f_contiguous
        slot.array[:] = np.arange(6).reshape(2, 3)
    frame = stream.consumer.receive(DEADLINE_S)
    assert frame.array.flags.f_contiguous
    assert frame.array.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("shape", "seen"), [((), (1,)), ((0,), (0,)), ((3, 0), (3, 0)), ((1,) * 8, (1,) * 8)]
)
def test_claim_may_be_a_scalar_or_empty(stream, shape, seen) -> None:
    with stream.producer.claim(shape, "float64") as slot:
        slot.array[...] = 2.5
    frame = stream.consumer.receive(DEADLINE_S)
    assert (frame.shape, frame.array.tolist()) == (seen, np.full(seen, 2.5).tolist())


def test_timestamp_may_be_set_during_a_claim(stream) -> None:
    with stream.producer.claim((1,), "uint8") as slot:
        slot.set_timestamp_ns(99)
    assert stream.consumer.receive(DEADLINE_S).timestamp_ns == 99


def test_claimed_array_is_read_only_after_the_block(stream) -> None:
    with stream.producer.claim((3,), "uint8") as slot:
        array = slot.array
        assert array is slot.array
        array[:] = 1
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 2
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)
    assert array.tolist() == [1, 1, 1]
    assert stream.consumer.receive(DEADLINE_S).array.tolist() == [1, 1, 1]


def test_committed_or_abandoned_slot_cannot_be_used_again(stream) -> None:
    slot = stream.producer.claim((3,), "uint8")
    slot.commit()
    for use in (slot.commit, lambda: slot.array, lambda: slot.seq):
        with pytest.raises(tp.ClosedError, match="claim another one"):
            use()
    slot.abandon()
    assert stream.producer.ledger().dropped["abandoned"] == 0


def test_exception_abandons_the_claim_and_its_sequence_is_reused(stream) -> None:
    def fail() -> None:
        raise RuntimeError("mine")

    slot = stream.producer.claim((3,), "uint8")
    slot.array[:] = 7
    with pytest.raises(RuntimeError, match="mine"), slot:
        fail()
    assert slot.result is None
    assert stream.producer.next_seq == 0
    assert stream.send(np.zeros(3)).seq == 0
    ledger = stream.producer.ledger()
    assert (ledger.committed, ledger.dropped["abandoned"], ledger.holes) == (1, 1, 0)
    assert not any(stream.consumer.ledger().dropped.values())


def test_array_of_an_abandoned_claim_is_read_only(stream) -> None:
    slot = stream.producer.claim((3,), "uint8")
    array = slot.array
    slot.abandon()
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 2


def test_slot_without_references_is_abandoned(stream) -> None:
    stream.producer.claim((3,), "uint8")
    gc.collect()
    assert stream.producer.ledger().dropped["abandoned"] == 1
    assert stream.send(np.zeros(3)).seq == 0


def test_commit_inside_the_block_publishes_once(stream) -> None:
    with stream.producer.claim((1,), "uint8") as slot:
        assert slot.commit().outcome == "published"
    assert stream.producer.ledger().committed == 1


def test_offers_behind_a_claim_are_deferred_and_published_in_order(stream) -> None:
    producer = stream.producer
    claim = producer.claim((1,), "uint8")
    results = [producer.offer(np.full(1, n, np.uint8)) for n in (1, 2)]
    assert [(result.outcome, result.seq, bool(result)) for result in results] == [
        ("deferred", 1, False),
        ("deferred", 2, False),
    ]
    assert (producer.ledger().deferred, producer.ledger().balanced) == (2, False)
    assert received_seqs(stream) == []
    # The frames are in the ring; only their descriptors are missing.
    assert [regions_of(producer).commit_word(i) for i in range(3)] == [0, 3, 5]
    claim.array[:] = 9
    assert claim.commit().outcome == "published"
    frames = [stream.consumer.receive(DEADLINE_S) for _ in range(3)]
    assert [(frame.seq, int(frame.array[0])) for frame in frames] == [(0, 9), (1, 1), (2, 2)]
    assert (producer.ledger().published, producer.ledger().balanced) == (3, True)
    assert stream.consumer.ledger().balanced


def test_deferred_descriptors_carry_their_own_trace_and_version(stream) -> None:
    claim = stream.producer.claim((1,), "uint8", trace_id=10)
    stream.producer.offer(np.zeros(1), trace_id=11, meta_version=3)
    stream.producer.offer(np.zeros(1))
    claim.commit()
    frames = [stream.consumer.receive(DEADLINE_S) for _ in range(3)]
    assert [(frame.trace_id, frame.meta_version) for frame in frames] == [(10, 0), (11, 3), (None, 0)]


def test_offer_that_would_overwrite_a_claim_is_dropped(connect) -> None:
    stream = connect(nslots=4)
    producer = stream.producer
    claim = producer.claim((2,), "uint8")
    claim.array[:] = 5
    outcomes = [producer.offer(np.zeros(1)).outcome for _ in range(5)]
    assert outcomes == ["deferred"] * 3 + ["slot_claimed"] * 2
    with pytest.raises(tp.ClaimRefused, match="commit or abandon") as refused:
        producer.claim((1,), "uint8")
    assert refused.value.outcome == "slot_claimed"
    assert producer.ledger().dropped["slot_claimed"] == 3
    assert claim.array.tolist() == [5, 5]
    claim.commit()
    assert producer.offer(np.zeros(1)).seq == 4
    # The offer above reused slot 0: a claimed frame that is read too late is counted as late.
    producer.offer(np.zeros(1))
    assert stream.producer.ledger().balanced
    assert stream.producer.ledger().committed == 6


def test_several_claims_may_end_in_any_order(stream) -> None:
    claims = [stream.producer.claim((1,), "uint8") for _ in range(3)]
    assert [claim.seq for claim in claims] == [0, 1, 2]
    for number in (2, 1):
        claims[number].array[:] = number
        assert claims[number].commit().outcome == "deferred"
    assert received_seqs(stream) == []
    claims[0].commit()
    assert [stream.consumer.receive(DEADLINE_S).seq for _ in range(3)] == [0, 1, 2]


def test_abandoned_older_claim_leaves_one_hole(stream) -> None:
    assert stream.send(np.zeros(1)).seq == 0
    claim = stream.producer.claim((1,), "uint8")
    assert stream.producer.offer(np.zeros(1)).outcome == "deferred"
    claim.abandon()
    assert stream.consumer.receive(DEADLINE_S).seq == 2
    assert (stream.producer.ledger().holes, stream.producer.ledger().balanced) == (1, True)
    assert (stream.consumer.ledger().dropped["gap"], stream.consumer.ledger().balanced) == (1, True)


def test_claim_invalidates_the_former_frame_of_its_slot(connect) -> None:
    stream = connect(nslots=2)
    frame = stream.send(np.zeros(1))
    assert frame.valid()
    assert stream.send(np.zeros(1)).seq == 1
    claim = stream.producer.claim((1,), "float64")
    assert not frame.valid()
    claim.abandon()
    assert not frame.valid()


def test_deferred_frames_of_a_closed_producer_are_counted(stream) -> None:
    claim = stream.producer.claim((1,), "uint8")
    stream.producer.offer(np.zeros(1))
    stream.producer.offer(np.zeros(1))
    stream.producer.close()
    assert claim.commit().outcome == "closed"
    ledger = stream.producer.ledger()
    assert (ledger.committed, ledger.unpublished["closed"], ledger.balanced) == (2, 2, True)


def test_claimed_array_outlives_its_producer(stream) -> None:
    claim = stream.producer.claim((4,), "uint8")
    array = claim.array
    array[:] = 3
    stream.producer.close()
    array[:] += 1
    assert array.tolist() == [4] * 4
    claim.abandon()


@pytest.mark.requirement("wire-9-1")
def test_claim_that_fits_no_pool_is_refused(stream) -> None:
    with pytest.raises(tp.ClaimRefused, match="65537 bytes fits no pool") as refused:
        stream.producer.claim((65537,), "uint8")
    assert refused.value.outcome == "no_pool"
    assert (stream.producer.ledger().dropped["no_pool"], stream.producer.next_seq) == (1, 0)


@pytest.mark.parametrize(
    ("shape", "dtype", "order", "error"),
    [
        ((1,) * 9, "uint8", "C", ValueError),
        ((1 << 31,), "uint8", "C", ValueError),
        (((1 << 31) - 1,) * 8, "uint8", "C", ValueError),
        ((-1,), "uint8", "C", (ValueError, OverflowError)),
        ((1,), "float16", "C", tp.UnsupportedDtype),
        ((1,), ">i4", "C", tp.UnsupportedDtype),
        ((1,), "no such type", "C", TypeError),
        ((1,), "uint8", "K", ValueError),
    ],
    ids=str,
)
def test_invalid_claim_is_refused(stream, shape, dtype, order, error) -> None:
    with pytest.raises(error):
        stream.producer.claim(shape, dtype, order=order)
    assert stream.producer.next_seq == 0


CHANGED_AFTER_COMMIT = """
import sys
import warnings

import numpy as np

import tensorpool as tp

aeron_dir, base, stream_id = sys.argv[1], sys.argv[2], int(sys.argv[3])
case = sys.argv[4]


def publish(producer, value):
    with producer.claim((256,), "uint8") as slot:
        slot.array[:] = value
        return slot.array[8:]


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with tp.open("standalone", aeron_dir=aeron_dir, media_driver="external", shm_base_dir=base) as context:
        with context.producer(stream_id, pools=["4KiB"], nslots=4) as producer:
            view = publish(producer, 1)
            if case == "next offer":
                view[0] = 9
                producer.offer(np.zeros(4))
                producer.offer(np.zeros(4))
            elif case == "slot used again":
                publish(producer, 2)
                view[0] = 9
                for value in range(3, 7):
                    publish(producer, value)
            elif case == "close":
                publish(producer, 2)
                view[0] = 9
            elif case == "nothing changed":
                for value in range(3, 20):
                    publish(producer, value)
                    producer.offer(np.full(4, value))
            elif case == "slot of another frame":
                for value in range(4):
                    producer.offer(np.full(256, value, np.uint8))
                view[0] = 9
for warning in caught:
    if issubclass(warning.category, tp.FrameChangedWarning):
        print(str(warning.message).split(" was ")[0])
"""


CLOSED_WITH_AN_ERROR = """
import sys
import warnings

import tensorpool as tp

aeron_dir, base, stream_id = sys.argv[1], sys.argv[2], int(sys.argv[3])
warnings.simplefilter("error", tp.FrameChangedWarning)
with tp.open("standalone", aeron_dir=aeron_dir, media_driver="external", shm_base_dir=base) as context:
    producer = context.producer(stream_id, pools=["4KiB"])
    with producer.claim((256,), "uint8") as slot:
        view = slot.array[8:]
    view[0] = 9
    try:
        producer.close()
    except tp.FrameChangedWarning:
        print(producer.closed)
    with context.producer(stream_id, pools=["4KiB"]) as successor:
        print(successor.epoch is not None)
"""


def test_warning_that_is_an_error_leaves_no_producer_open(
    media_driver: tp.MediaDriver, shm_base: Path, free_stream_id: int
) -> None:
    arguments = [str(media_driver.aeron_dir), str(shm_base), str(free_stream_id)]
    command = [sys.executable, "-X", "dev", "-c", CLOSED_WITH_AN_ERROR, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["True", "True"], done.stderr


@pytest.mark.parametrize("mode", ["dev", "normal"])
@pytest.mark.parametrize(
    ("case", "changed"),
    [
        ("next offer", [0]),
        ("slot used again", [0]),
        ("close", [0]),
        ("nothing changed", []),
        ("slot of another frame", []),
    ],
)
def test_frame_changed_after_its_commit_is_noticed(
    media_driver: tp.MediaDriver,
    shm_base: Path,
    free_stream_id: int,
    case: str,
    changed: list[int],
    mode: str,
) -> None:
    """A view that was made before the commit stays writable: numpy has no way to change that."""
    options = ["-X", "dev", "-W", "ignore"] if mode == "dev" else []
    arguments = [str(media_driver.aeron_dir), str(shm_base), str(free_stream_id), case]
    done = subprocess.run(
        [sys.executable, *options, "-c", CHANGED_AFTER_COMMIT, *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = [f"frame {seq} of stream {free_stream_id}" for seq in changed] if mode == "dev" else []
    assert done.stdout.splitlines() == expected
