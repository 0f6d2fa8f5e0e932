"""`tensorpool stream trace`: lineages of a running system."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.client import TraceIds
from tests.e2e.commandline import CommandLine

ARRAY = np.zeros(8)


@pytest.fixture
def command_line(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


@contextmanager
def lineage(command_line: CommandLine, ids: list[int], *, traces: bool = True) -> Iterator[int]:
    """Publishes frames on four streams: left and right → depth → map. Yields the trace id of a root."""
    stop = threading.Event()
    with (
        tp.MediaDriver(command_line.aeron_dir),
        tp.open(
            "standalone",
            aeron_dir=command_line.aeron_dir,
            media_driver="external",
            shm_base_dir=command_line.shm_base,
        ) as ctx,
    ):
        steps = [ctx.producer(stream_id, pools=["4KiB"], traces=traces) for stream_id in ids]

        def link(producer: tp.Producer, trace_id: int, parents: list[int]) -> None:
            assert producer.tracer is not None
            assert producer.epoch is not None
            producer.tracer.publish_links(
                producer.stream_id, producer.epoch, producer.next_seq - 1, trace_id, parents
            )

        def work() -> None:
            new_trace_id = TraceIds(5).new_id
            while not stop.wait(0.02):
                if not traces:
                    steps[3].offer(ARRAY)
                    continue
                roots = [new_trace_id(), new_trace_id()]
                steps[0].offer(ARRAY, trace_id=roots[0])
                steps[1].offer(ARRAY, trace_id=roots[1])
                joined = new_trace_id()
                steps[2].offer(ARRAY, trace_id=joined)
                link(steps[2], joined, roots)
                # A frame with one parent has the parent's trace id.
                steps[3].offer(ARRAY, parents=[joined])
                # ROOT is in every lineage, like a calibration.
                final = new_trace_id()
                steps[3].offer(ARRAY, trace_id=final)
                link(steps[3], final, [joined, ROOT])

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield ROOT
        finally:
            stop.set()
            thread.join()


ROOT = (1 << 40) + 7


@pytest.fixture
def ids(free_stream_ids: Callable[[], int]) -> list[int]:
    return [free_stream_ids() for _ in range(4)]


def test_trace_of_a_stream_prints_the_lineage_of_its_frames(
    command_line: CommandLine, ids: list[int]
) -> None:
    with lineage(command_line, ids):
        result = command_line.run("stream", "trace", str(ids[3]), "--count", "6", "--json", "--timeout", "50")
        assert result.returncode == 0, result.stderr
        trees = [json.loads(line) for line in result.stdout.splitlines()]
        text = command_line.run("stream", "trace", str(ids[2]), "--count", "1", "--timeout", "50").stdout
    assert len(trees) == 6
    assert {tree["frame"]["stream_id"] for tree in trees} == {ids[3]}
    carried = [tree for tree in trees if ids[2] in {frame["stream_id"] for frame in tree["frames"]}]
    joined_trees = [tree for tree in trees if tree not in carried]
    assert carried
    assert joined_trees
    for tree in carried:
        assert sorted(frame["stream_id"] for frame in tree["frames"]) == ids[2:]
        assert [parent["frames"][0]["stream_id"] for parent in tree["parents"]] == ids[:2]
    for tree in joined_trees:
        joined, root = tree["parents"]
        assert root == {"trace_id": str(ROOT), "frames": [], "parents": []}
        assert [parent["frames"][0]["stream_id"] for parent in joined["parents"]] == ids[:2]
    first, *branches = text.splitlines()
    assert first.startswith(f"{ids[2]} seq ")
    assert [branch[:4] for branch in branches] == ["├── ", "└── "]
    assert [branch[4:].split(" ")[0] for branch in branches] == [str(ids[0]), str(ids[1])]


def test_trace_of_an_id_prints_its_descendants(command_line: CommandLine, ids: list[int]) -> None:
    with lineage(command_line, ids) as root:
        result = command_line.run("stream", "trace", str(root), "--count", "3", "--json", "--timeout", "50")
        missing = command_line.run("stream", "trace", str(root + 1), "--timeout", "1")
    trees = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(trees) == 3
    assert {tree["frame"]["stream_id"] for tree in trees} == {ids[3]}
    assert all(str(root) in json.dumps(tree["parents"]) for tree in trees)
    assert missing.returncode == 1
    assert missing.stderr == f"error: no frame carried trace {root + 1} or was made from it within 1 s\n"


def test_trace_of_a_stream_without_traces_fails(command_line: CommandLine, ids: list[int]) -> None:
    with lineage(command_line, ids, traces=False):
        result = command_line.run("stream", "trace", str(ids[3]), "--timeout", "1.5")
        missing = command_line.run("stream", "trace", "9", "--timeout", "0.5")
    assert (result.returncode, missing.returncode) == (1, 1)
    assert "had a trace within 1.5 s; its producer needs traces=True" in result.stderr
    assert "stream 9" in missing.stderr
