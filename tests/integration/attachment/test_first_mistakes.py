"""Mistakes of the first hour: each error says what is wrong and what to type."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import recording
from tensorpool.errors import NotARecording

DEADLINE_S = 60.0
# A directory that cannot be used is refused before this wait, which would outlast the test.
NEVER_S = 3600.0


def test_recorder_takes_streams_by_name(open_context, free_stream_id, tmp_path: Path) -> None:
    context = open_context()
    context.producer(free_stream_id, name="cam", pools=["64KiB"])
    with context.record(tmp_path / "recording", streams=["cam"]) as recorder:
        assert list(recorder.mapped()) == [free_stream_id]


def test_unknown_name_of_a_recorded_stream_is_not_found(open_context, tmp_path: Path) -> None:
    with pytest.raises(tp.StreamNotFound, match=r"no stream named 'cam'.*`tensorpool discover`"):
        open_context().record(tmp_path / "recording", streams=["cam"])


def test_name_instead_of_a_list_of_streams_is_refused(open_context, tmp_path: Path) -> None:
    with pytest.raises(tp.ConfigError, match=r"use a list, as in streams=\['cam'\]"):
        open_context().record(tmp_path / "recording", streams="cam")


@pytest.mark.parametrize(
    ("keyword", "expected"),
    [("frame", r"did you mean frames=\?"), ("fps", "it has streams, services"), ("compression", "it has")],
)
def test_unknown_keyword_of_record_is_named(
    open_context, tmp_path: Path, keyword: str, expected: str
) -> None:
    with pytest.raises(TypeError, match=rf"record\(\) has no argument '{keyword}'; {expected}"):
        open_context().record(tmp_path / "recording", **{keyword: 5})
    with pytest.raises(TypeError, match=rf"record\(\) has no argument '{keyword}'; {expected}"):
        tp.record(tmp_path / "recording", **cast("dict[str, Any]", {keyword: 5}))
    assert not (tmp_path / "recording").exists()


@pytest.mark.parametrize(
    ("call", "keyword", "expected"),
    [
        ("producer", "slots", r"did you mean nslots=\?"),
        ("producer", "pool", r"did you mean pools=\?"),
        ("consumer", "rate_hz", r"did you mean max_rate_hz=\?"),
        ("consumer", "find_timeot", r"did you mean find_timeout=\?"),
        ("consumer", "quality", "it has name, tags, find_timeout, fallback_uri, policy"),
    ],
)
def test_unknown_keyword_of_an_endpoint_is_named(
    open_context, free_stream_id, call: str, keyword: str, expected: str
) -> None:
    with pytest.raises(TypeError, match=rf"{call}\(\) has no argument '{keyword}'; {expected}"):
        getattr(open_context(), call)(free_stream_id, **{keyword: 5})


def test_consumer_takes_a_name_in_place_of_the_id(open_context, free_stream_id) -> None:
    context = open_context()
    producer = context.producer(free_stream_id, name="cam", pools=["64KiB"])
    consumer = context.consumer("cam")
    assert consumer.wait_for_producer(DEADLINE_S)
    producer.offer(np.arange(4))
    assert consumer.receive(timeout=DEADLINE_S).array.tolist() == [0, 1, 2, 3]
    with pytest.raises(tp.ConfigError, match="two names, 'cam' and 'other'; give one"):
        context.consumer("cam", name="other")
    with pytest.raises(tp.ConfigError, match=r"as in ctx\.producer\(10000, name='cam'\)"):
        context.producer(cast("int", "cam"))


def test_handles_print_what_they_are(open_context, free_stream_id, tmp_path: Path, wait_until) -> None:
    context = open_context()
    producer = context.producer(free_stream_id, name="cam", pools=["64KiB"])
    assert repr(producer) == (
        f"<Producer stream={free_stream_id} name='cam' epoch={producer.epoch} committed 0 = published 0>"
    )
    root = tmp_path / "recording"
    with context.record(root, streams=["cam"]) as recorder:
        assert producer.wait_for_consumer(DEADLINE_S)
        producer.offer(np.zeros(4))
        wait_until(lambda: recorder.stats().rows == 1, timeout=DEADLINE_S)
        assert repr(recorder) == f"<Recorder {root} recording streams=[{free_stream_id}] frames=1>"
    assert repr(recorder) == f"<Recorder {root} closed>"
    producer.close()
    assert repr(producer) == f"<Producer stream={free_stream_id} closed>"


def test_file_in_place_of_a_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(NotARecording, match="file is a file, and a recording is a directory"):
        recording.open(tmp_path / "file")


def test_keyword_of_open_is_refused_beside_a_context(open_context, tmp_path: Path) -> None:
    with pytest.raises(tp.ConfigError, match=r"aeron_dir: not together with a context.*tensorpool\.open\(\)"):
        open_context().record(tmp_path / "recording", aeron_dir="/dev/shm/aeron-lab")


def test_parents_without_traces_name_the_option(open_context, free_stream_id) -> None:
    producer = open_context().producer(free_stream_id, pools=["64KiB"])
    with pytest.raises(ValueError, match=rf"use ctx\.producer\({free_stream_id}, traces=True\)"):
        producer.offer(np.zeros(4), parents=[1])


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/aeron-lab"])
def test_directory_that_cannot_be_used_is_refused_at_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(tp.MediaDriverUnavailable, match="as in aeron_dir='/dev/shm/aeron-lab'") as refused:
        tp.open(aeron_dir=str(tmp_path / place), connect_timeout=NEVER_S)
    assert "media_driver='auto'" not in str(refused.value)


def test_directory_with_other_files_is_refused_at_once(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "thesis.txt").write_text("text")
    with pytest.raises(
        tp.MediaDriverUnavailable,
        match=rf"thesis\.txt is no file of a media driver.* as in aeron_dir='{documents}/aeron'",
    ):
        tp.open(aeron_dir=str(documents), connect_timeout=NEVER_S)
    assert (documents / "thesis.txt").read_text() == "text"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every directory")
def test_directory_of_another_user_is_refused_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    try:
        with pytest.raises(tp.MediaDriverUnavailable, match="you may not enter it"):
            tp.open(aeron_dir=str(tmp_path))
    finally:
        tmp_path.chmod(0o700)


def test_mode_driver_without_one_names_the_command(aeron_dir: Path, shm_base: Path) -> None:
    with pytest.raises(tp.MediaDriverUnavailable, match=rf"`tensorpool driver --aeron-dir {aeron_dir}`"):
        tp.open("driver", aeron_dir=str(aeron_dir), shm_base_dir=str(shm_base), connect_timeout=0.2)


def test_mode_driver_beside_a_media_driver_names_the_command(
    aeron_dir: Path, shm_base: Path, free_stream_id, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORPOOL_CONTEXT__ATTACH_TIMEOUT", "200ms")
    with (
        tp.MediaDriver(aeron_dir),
        tp.open("driver", aeron_dir=str(aeron_dir), shm_base_dir=str(shm_base)) as context,
        pytest.raises(tp.AttachError, match="start one with `tensorpool driver`"),
    ):
        context.producer(free_stream_id)


@pytest.mark.parametrize("label", ["é", "a\nb", "x" * 65])
def test_label_that_cannot_be_shown_is_refused(open_context, free_stream_id, label: str) -> None:
    with pytest.raises(tp.ConfigError, match="64 visible ASCII characters, as in 'viewer'"):
        open_context().consumer(free_stream_id, label=label)
