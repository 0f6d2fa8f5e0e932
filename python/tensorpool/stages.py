"""Stages: a numpy function between streams, as a program of ten lines.

A stage reads one stream, or several joined ones, calls a function with the arrays and publishes the result
with its parents. Each worker is a thread. The service of the stage runs on the main thread.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias, TypedDict, Unpack

import numpy.typing as npt

from . import _native
from .client import Join, JoinKeywords, JoinOptions, Producer, ProducerKeywords, plan_join
from .client.options import check_keywords, check_stream_id
from .context import Context
from .context.startup import open as open_context
from .errors import ConfigError, FrameOverwritten, TensorPoolError
from .service import Property, Service, command

Inputs: TypeAlias = int | str | Mapping[str, int | str]
Function: TypeAlias = Callable[..., npt.NDArray[Any] | None]

_LOG = logging.getLogger(__name__)
_SLICE_S: Final = 0.1
_RETRY_S: Final = 0.5
_MAX_WORKERS: Final = 64
_SINGLE: Final = "frame"


class StageStatusReply(TypedDict):
    """The reply to `status()` of a stage."""

    published: int
    dropped: dict[str, int]
    """Joined frames without a published result, by reason."""
    inputs: dict[str, dict[str, int]]
    """Frames of each input that were never joined, by reason."""
    workers: int
    last_error: str


@dataclass(frozen=True, slots=True)
class StageOptions:
    """What a stage does beside its function."""

    name: str
    workers: int = 1
    join: JoinKeywords = field(default_factory=JoinKeywords)
    producer: ProducerKeywords = field(default_factory=ProducerKeywords)


class StageService(Service, name="stage"):
    """The service of a running stage."""

    paused = Property(False, doc="Frames are dropped unused while this is true.")

    def __init__(self, running: RunningStage, *, instance: str) -> None:
        super().__init__(instance=instance)
        self._running = running

    @command(reads=True)
    def status(self) -> StageStatusReply:
        """What was published and dropped, by reason."""
        return self._running.status()


class Stage:
    """A function between streams. `tp.stage(...)` returns it.

    `run()` runs it here until SIGTERM or Ctrl-C, `start(ctx)` beside the program. Frames that the function is
    too slow for are dropped, by reason: `status()` counts those that were never joined, by input, and those
    whose result was not published.
    """

    def __init__(self, inputs: Inputs, function: Function, output: int, options: StageOptions) -> None:
        self.inputs: dict[str, int | str] = dict(inputs) if isinstance(inputs, Mapping) else {_SINGLE: inputs}
        """The streams, by the name of their argument."""
        self.is_single = not isinstance(inputs, Mapping)
        """Whether the function has one argument, for the one stream."""
        self.function = function
        self.output = check_stream_id(output)
        """The stream that is published."""
        self.options = options

    @property
    def name(self) -> str:
        """The name of the output stream and of the service."""
        return self.options.name

    def start(self, context: Context) -> RunningStage:
        """Runs the stage on threads of its own, until it is closed."""
        return RunningStage(self, context)

    def run(self, context: Context | None = None) -> None:
        """Runs the stage here until SIGTERM or Ctrl-C, as the service `stage:<name>`."""
        run_stages([self], context)

    def call(self, joined: _native.JoinedFrames) -> npt.NDArray[Any] | None:
        """The result of the function for joined frames."""
        if self.is_single:
            return self.function(joined[_SINGLE].array)
        return self.function(**{name: _arrays(frames) for name, frames in joined.items()})

    def __repr__(self) -> str:
        streams = ", ".join(f"{name}={stream!r}" for name, stream in self.inputs.items())
        return f"<Stage {self.name!r} {streams} -> {self.output}>"


def stage(
    inputs: Inputs,
    function: Function,
    output: int,
    *,
    name: str | None = None,
    workers: int = 1,
    producer: ProducerKeywords | None = None,
    **join: Unpack[JoinKeywords],
) -> Stage:
    """A stage that calls `function` with arrays of `inputs` and publishes what it returns on `output`.

        def difference(left, right):
            return left - right

        tp.stage({"left": "camera-1", "right": "camera-2"}, difference, 30000, by="sequence").run()

    `inputs` is one stream (id or name), whose array is the argument, or several by the names of the
    arguments; `**join` are the options of `ctx.join`. An absent input is None, a window a list of arrays.
    The arrays are read-only views of shared memory: a result that was computed from an overwritten frame is
    dropped. None is no result. Results have the capture time of the first input and name their parents.

    `workers`: threads that call the function, where it frees the GIL; results may then change their order.
    `producer`: options of the output, as `ctx.producer` takes them (`pools`, `nslots`, `metadata`).
    """
    called = name or getattr(function, "__name__", "stage").replace("_", "-")
    if not called.isascii() or not called.isprintable() or called.startswith("<"):
        raise ConfigError(f"name {called!r}: name the stage, as in tp.stage(…, name='corrected')")
    if not 1 <= workers <= _MAX_WORKERS:
        raise ConfigError(f"workers {workers}: use 1 to {_MAX_WORKERS}")
    check_keywords("producer", producer or (), ProducerKeywords.__annotations__)
    plan_join(tuple(inputs) if isinstance(inputs, Mapping) else (_SINGLE,), JoinOptions(**join))
    return Stage(
        inputs, function, output, StageOptions(called, workers, join, producer or ProducerKeywords())
    )


class RunningStage:
    """A stage that runs on threads of its own. `stage.start(ctx)` returns it."""

    def __init__(self, stage: Stage, context: Context) -> None:
        self.stage = stage
        """What runs."""
        self.service = StageService(self, instance=stage.name)
        """Its service: `paused`, `status()`."""
        self._context = context
        self._counts: Counter[str] = Counter()
        self._join: Join | None = None
        self._past_inputs: dict[str, Counter[str]] = {name: Counter() for name in stage.inputs}
        self._lock = threading.Lock()
        self._last_error = ""
        self._stopping = threading.Event()
        self._main = threading.Thread(target=self._run, name=f"tp-stage-{stage.name}", daemon=True)
        self._main.start()

    def status(self) -> StageStatusReply:
        """What was published and dropped, by reason."""
        with self._lock:
            counts = dict(self._counts)
            inputs = self._input_drops()
        published = counts.pop("published", 0)
        return {
            "published": published,
            "dropped": counts,
            "inputs": {name: dict(drops) for name, drops in inputs.items()},
            "workers": self.stage.options.workers,
            "last_error": self._last_error,
        }

    def _input_drops(self) -> dict[str, Counter[str]]:
        """Frames of each input that its consumer or the join dropped, since the stage began."""
        join = self._join
        if join is None:
            return self._past_inputs
        ledger = join.ledger().inputs
        # Without the zeros.
        return {
            name: past + Counter(join.inputs[name].ledger().dropped) + Counter(ledger[name].dropped)
            for name, past in self._past_inputs.items()
        }

    def _run(self) -> None:
        """Opens the streams and runs the workers; again, if the streams fail."""
        while not (self._stopping.is_set() or self._context.closed):
            try:
                self._run_once()
            except Exception as error:
                # A context that was closed meanwhile has no streams, and ends the stage.
                if not self._context.closed:
                    self._report("the streams", error)
                    self._stopping.wait(_RETRY_S)

    def _run_once(self) -> None:
        stage, context = self.stage, self._context
        options: ProducerKeywords = {"name": stage.name, "traces": True, **stage.options.producer}
        with ExitStack() as stack:
            # At the end, when the join has counted what it held back.
            stack.callback(self._count_inputs_of, None)
            join = stack.enter_context(context.join(stage.inputs, **stage.options.join))
            output = stack.enter_context(context.producer(stage.output, **options))
            self._count_inputs_of(join)

            def work() -> None:
                while not (self._stopping.is_set() or join.closed):
                    try:
                        joined = join.receive_or_none(_SLICE_S)
                    except TensorPoolError as error:
                        # An input that cannot be joined at the moment; the join continues when it can.
                        self._report("the join", error)
                        continue
                    if joined is not None:
                        self._count(self._handle(joined, output))

            workers = [
                threading.Thread(target=work, name=f"tp-stage-{stage.name}-{number}", daemon=True)
                for number in range(stage.options.workers)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    def _count_inputs_of(self, join: Join | None) -> None:
        """The drops of the inputs are those of this join from now on, and of those before."""
        with self._lock:
            self._past_inputs = self._input_drops()
            self._join = join

    def _handle(self, joined: _native.JoinedFrames, output: Producer) -> str:
        """Calls the function and publishes its result. Returns what became of it."""
        if self.service.paused:
            return "paused"
        try:
            with joined:
                result = self.stage.call(joined)
            if result is None:
                return "no_result"
            offered = output.offer(result, parents=joined, timestamp_ns=joined.frames[0].timestamp_ns)
            return str(offered.outcome)
        except FrameOverwritten:
            return "overwritten"
        except Exception as error:
            # Overwritten data may make any computation fail. Data of whole frames concern the user.
            if not joined.valid():
                return "overwritten"
            self._report("the function", error)
            return "failed"

    def _count(self, outcome: str) -> None:
        with self._lock:
            self._counts[outcome] += 1

    def _report(self, what: str, error: BaseException) -> None:
        text = f"{what}: {type(error).__name__}: {error}"
        if text != self._last_error:
            self._last_error = text
            # As text: a log record with the traceback would keep the frames, and their memory, alive.
            trace = "".join(traceback.format_exception(error)) if what == "the function" else ""
            _LOG.warning("stage %s: %s\n%s", self.stage.name, text, trace)

    def close(self) -> None:
        """Ends the workers and closes the streams."""
        self._stopping.set()
        self._main.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def run_stages(stages: list[Stage], context: Context | None = None) -> None:
    """Runs stages in this process until SIGTERM or Ctrl-C."""
    with ExitStack() as stack:
        ctx = context or stack.enter_context(open_context())
        running = [stack.enter_context(stage.start(ctx)) for stage in stages]
        for each in running[1:]:
            stack.callback(ctx.serve(each.service).close)
        ctx.run(running[0].service)


def _arrays(value: Any) -> Any:
    """The array of a frame, those of a window, None for an absent input."""
    if isinstance(value, tuple):
        return [frame.array for frame in value]
    return None if value is None else value.array
