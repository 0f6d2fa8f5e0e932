"""A process with every kind of handle that forks and reports the results of its child."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

import tensorpool as tp
from tensorpool import _native

ELEMENTS = 64
# Members of a context that belong to services and are not tested here.
SERVICES = {"service", "serve", "run", "services", "status_events", "service_streams"}
# Constant properties of a handle, which also work after a fork.
CONSTANTS = {
    "Context": {"aeron_dir", "namespace", "stream_ids", "closed", "mode", "shm_base_dir"}
    | {"connection", "per_consumer_streams", "report_options"}
    | SERVICES,
    "MediaDriver": {"aeron_dir"},
    "Producer": {"stream_id", "open", "metadata", "publish_description"}
    | {
        "owned_regions",
        "tracer",
        "reporter",
        "owner",
        "closed",
        "nslots",
        "pools",
        "fit_pools",
        "source_name",
    },
    # `wait_async` is a coroutine: it uses the consumer when it is awaited.
    "Consumer": {"stream_id", "open", "timeout", "reporter", "owner", "device", "label", "wait_async"},
    "Slot": {"epoch"},
    "Frame": {
        "stream_id",
        "epoch",
        "seq",
        "timestamp_ns",
        "publish_timestamp_ns",
        "meta_version",
        "trace_id",
        "nbytes",
        "shape",
        "dtype",
        "element_type",
    },
}
ARGUMENTS: dict[str, list[Any]] = {
    "offer": [np.zeros(1)],
    "offer_many": [np.zeros((2, 1))],
    "take": [1],
    "take_or_none": [1],
    "join": [{"left": 4_000_000_000, "right": 4_000_000_001}],
    "announce_merge_map": [None, None],
    "report_source": [1],
    "map": [print],
    "find_stream": [1],
    "set_device": [None],
    "commit_after": [1],
    "commit_by_stream": [_native.StreamCommits()],
    "claim": [(1,), "uint8"],
    "producer": [4_000_000_000],
    "consumer": [4_000_000_000],
    "on_event": [print],
    "set_timestamp_ns": [1],
    "advance_to": [1],
    "set_metadata": [{}],
    "set_blob": [1, b""],
    "describe": [1],
    "blob": [1],
    "find_blob": [1],
    "record": ["/proc/nowhere"],
    "replay": ["/proc/nowhere"],
    "republish_metadata": [1, b"", b"", {}],
}


class ForkingProcess:
    """Holds a media driver, a context, a producer, a consumer, a frame and an open claim."""

    def __init__(self, options: dict[str, Any], stream_id: int) -> None:
        self.options = options
        self.stream_id = stream_id
        self.wrong = 0
        self.seen: set[int] = set()
        self.driver = None
        if options.get("media_driver") != "external":
            self.driver = tp.MediaDriver(options["aeron_dir"])
        self.context = tp.open(**options)
        self.producer = self.context.producer(stream_id, nslots=8, pools=["4KiB"])
        self.consumer = self.context.consumer(stream_id)
        self.frame = self.new_frame()
        self.view = self.frame.array
        self.buffer = memoryview(self.frame)
        self.slot = self.producer.claim((ELEMENTS,), np.uint64)
        self.slot.array[:] = self.slot.seq + 1
        self.child = 0

    def new_frame(self) -> tp.Frame:
        """Offers frames until one is received."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            self.producer.offer(np.full(ELEMENTS, self.producer.next_seq + 1, np.uint64))
            frame = self.consumer.receive_or_none(0.01)
            if frame is None:
                continue
            is_right = bool((frame.array == frame.seq + 1).all())
            if frame.valid():
                self.wrong += not is_right
                self.seen.add(frame.seq)
                return frame
        raise TimeoutError("no frame received within 30 s")

    def pid(self) -> int:
        """Process id."""
        return os.getpid()

    # --- the parent after a fork

    def send_frames(self) -> dict[str, Any]:
        """Commits the claim that was open during the fork, and sends frames; returns the checks."""
        if self.slot.result is None:
            claimed, self.seen = self.slot.seq, set()
            self.slot.commit()
            while claimed not in self.seen:
                self.new_frame()
        self.new_frame()
        return {
            "wrong": self.wrong,
            "balanced": [self.producer.ledger().balanced, self.consumer.ledger().balanced],
        }

    def close_all(self) -> None:
        """Closes all handles."""
        self.context.close()
        if self.driver is not None:
            self.driver.close()

    # --- children

    def in_child(self, check: str) -> dict[str, Any]:
        """Forks, runs a check in the child, and ends the child without clean-up."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                reply = {"value": getattr(self, check)()}
            except BaseException:
                reply = {"error": traceback.format_exc()}
            os.write(write, json.dumps(reply).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            reply = json.loads(pipe.read() or '{"error": "the child died"}')
        _, status = os.waitpid(pid, 0)
        return {**reply, "status": status}

    def exit_child(self, way: str) -> dict[str, Any]:
        """Runs a child that exits like any Python program while it has every handle of the parent."""
        read, write = os.pipe()
        blocks = ExitStack()
        for handle in self.handles().values():
            blocks.enter_context(handle)  # type: ignore[arg-type]
        pid = os.fork()
        if pid == 0:
            os.dup2(write, 2)
            if way == "sys.exit":
                sys.exit(3)
            if way == "inside the blocks":
                with blocks:
                    sys.exit(3)
            del self.frame, self.view, self.buffer, self.slot, self.consumer, self.producer, self.context
            del self.driver
            sys.exit(3)
        # The parent does not leave the blocks.
        blocks.pop_all()
        os.close(write)
        with os.fdopen(read) as pipe:
            stderr = pipe.read()
        _, status = os.waitpid(pid, 0)
        return {"status": os.waitstatus_to_exitcode(status), "stderr": stderr}

    def keep_child(self) -> int:
        """Forks a child that sleeps until it is killed; returns its process id.

        By then the child has run what is registered for a fork: on a busy machine the parent continues long
        before the child runs.
        """
        reader, writer = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.closerange(0, 3)
            os.write(writer, b"1")
            while True:
                time.sleep(60)
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        return self.child

    def end_child(self) -> None:
        """Kills the child."""
        os.kill(self.child, 9)
        os.waitpid(self.child, 0)

    def multiprocess(self) -> int | None:
        """Runs a multiprocessing child; returns its exit code."""
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_use_in_child, args=(self,))
        process.start()
        process.join(60)
        return process.exitcode

    # --- checks that run in the child

    def handles(self) -> dict[str, object]:
        """All handles by the name of their class."""
        handles = {
            "Context": self.context,
            "MediaDriver": self.driver,
            "Producer": self.producer,
            "Consumer": self.consumer,
            "Frame": self.frame,
            "Slot": self.slot,
        }
        return {name: handle for name, handle in handles.items() if handle is not None}

    def use_handles(self) -> dict[str, str]:
        """Uses every public name of every handle; returns the outcomes."""
        outcomes = {}
        for kind, handle in self.handles().items():
            # Close last, because a closed handle raises another error.
            for name in sorted(dir(type(handle)), key=lambda name: name == "close"):
                if not name.startswith("_") and name not in CONSTANTS[kind]:
                    outcomes[f"{kind}.{name}"] = use_member(handle, name)
            if hasattr(handle, "__iter__"):
                outcomes[f"{kind}.__iter__"] = outcome(lambda handle=handle: next(iter(handle)))  # type: ignore[misc]
            if hasattr(handle, "__dlpack__"):
                outcomes[f"{kind}.__dlpack__"] = outcome(handle.__dlpack__)
                outcomes[f"{kind}.__buffer__"] = outcome(lambda handle=handle: memoryview(handle))  # type: ignore[misc]
        return outcomes

    def read_views(self) -> list[int]:
        """Writes to the claimed view; returns the sums of all old views."""
        slot = self.claimed_view
        slot[:] = 7
        return [int(self.view.sum()), int(np.frombuffer(self.buffer, np.uint64).sum()), int(slot.sum()) // 7]

    def open_context(self) -> dict[str, Any]:
        """Opens a new context on the parent's media driver."""
        with tp.open(**self.options) as context:
            producer = context.producer(self.stream_id + 1, pools=["4KiB"])
            consumer = context.consumer(self.stream_id + 1)
            deadline = time.monotonic() + 30
            frame = None
            while frame is None and time.monotonic() < deadline:
                producer.offer(np.full(ELEMENTS, 9, np.uint64))
                frame = consumer.receive_or_none(0.01)
            assert frame is not None
            return {"embeds": context.embeds_media_driver, "sum": int(frame.copy().sum())}

    def attach(self) -> int:
        """Attaches a new consumer without a detach; returns the lease id."""
        self.context = tp.open(**self.options)
        self.consumer = self.context.consumer(self.stream_id)
        lease = self.consumer.lease()
        assert lease is not None
        assert lease.lease_id is not None
        return lease.lease_id

    def hold_view(self) -> None:
        """Keeps a view of the claimed slot."""
        self.claimed_view = self.slot.array


def use_member(handle: object, name: str) -> str:
    """Calls or reads a member of a handle; returns the outcome."""

    def use() -> object:
        value = getattr(handle, name)
        result = value(*ARGUMENTS.get(name, [])) if callable(value) else value
        return list(result) if name == "events" else result

    return outcome(use)


def outcome(use: Callable[[], object]) -> str:
    """Name of the raised error, or "worked"."""
    try:
        use()
    except Exception as error:
        return type(error).__name__
    return "worked"


def _use_in_child(forking_process: ForkingProcess) -> None:
    for handle in (forking_process.producer, forking_process.consumer):
        try:
            handle.counters()
        except tp.ForkedError:
            continue
        raise AssertionError("a handle of the parent worked in the child")
