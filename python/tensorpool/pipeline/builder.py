"""Definitions in Python: the settings of TOML, and functions as objects.

```python
# pipeline.py, run with: tensorpool pipeline run pipeline.py
from tensorpool.pipeline import Pipeline

pipeline = Pipeline(recordings=["recording"], out="tables", quality={"interval": "1s"})
pipeline.align("stereo", streams=[10000, 10001], tolerance="5ms")


@pipeline.function(columns="mean double, peak bigint")
def brightness(image):
    return image.mean(), image.max()
```
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import PipelineError
from .definition import PipelineSettings, anchored, load, parse

F = TypeVar("F", bound=Callable[..., Any])


class Pipeline:
    """A definition in Python. Keyword arguments are the keys of `[pipeline]`, with the values of TOML.

    `settings` checks them.
    """

    def __init__(self, **keys: Any) -> None:
        self._keys: dict[str, object] = keys
        self._added: dict[str, list[Mapping[str, object]]] = {}
        self.callables: dict[str, Callable[..., Any]] = {}
        """Functions by their names in the definition."""

    def rule(self, **keys: Any) -> None:
        """Adds a rule, as `[[pipeline.rules]]` does."""
        self._add("rules", keys)

    def align(self, name: str, *, streams: Sequence[int], **keys: Any) -> None:
        """Adds an alignment, as `[[pipeline.alignments]]` does."""
        self._add("alignments", {"name": name, "streams": list(streams), **keys})

    def function(self, *, name: str | None = None, **keys: Any) -> Callable[[F], F]:
        """Decorates a function and adds it, as `[[pipeline.functions]]` does.

        `name` is the name in the definition; None for the name of the function.
        """

        def take(function: F) -> F:
            chosen = name or function.__name__
            self.callables[chosen] = function
            entry = {"name": chosen, "function": f"{function.__module__}:{function.__name__}", **keys}
            self._add("functions", entry)
            return function

        return take

    def _add(self, key: str, table: Mapping[str, object]) -> None:
        self._added.setdefault(key, []).append(table)

    @property
    def settings(self) -> PipelineSettings:
        """The checked settings. Raises InvalidConfig with all errors."""
        tables = {key: _plain(value) for key, value in self._keys.items()}
        for key, added in self._added.items():
            tables[key] = [*tables.get(key, ()), *map(_plain, added)]
        return parse({"pipeline": tables})

    def run(self, **how: Any) -> Any:
        """Runs the pipeline. `how` are keyword arguments of `tensorpool.pipeline.run`."""
        from .run import run

        return run(self.settings, callables=self.callables, **how)


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def read_definition(file: Path) -> tuple[PipelineSettings, dict[str, Callable[..., Any]]]:
    """Reads a definition from a TOML file, or from a Python file with a `Pipeline` named `pipeline`."""
    if file.suffix != ".py":
        return load(file), {}
    name = f"tensorpool_definition_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PipelineError(f"{file} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    pipeline = getattr(module, "pipeline", None)
    if not isinstance(pipeline, Pipeline):
        raise PipelineError(
            f"{file} has no Pipeline named pipeline; write pipeline = tensorpool.pipeline.Pipeline(…)"
        )
    try:
        from pyspark import cloudpickle
    except ImportError:
        pass
    else:
        # Executors cannot import the file under this name: its functions are pickled by value.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return anchored(pipeline.settings, file), pipeline.callables


# --- a definition to begin with

_TEMPLATE = """\
# A pipeline from recordings to tables. Run it with: tensorpool pipeline run {name}
# Every key is in docs/reference/pipeline.md; `tensorpool pipeline validate {name}` checks this file.

[pipeline]
recordings = {recordings}
out = {out}
# streams = [10000]              # empty: all streams, also those added later
# payload = "inline"             # tables contain the bytes and need no recording
# compact = "days"               # merge small files only when a day is over
# retain = "7d"                  # keep merged files longer, for time travel

# Requirements for frames. A frame that violates them goes to silver/rejects, with the reason.
# [[pipeline.rules]]
# streams = [10000]
# dtype = ["uint16"]
# shape = [1024, 0]              # 0: any size

# An alignment of several streams: one row for each frame of the first stream.
# [[pipeline.alignments]]
# name = "stereo"
# streams = [10000, 10001]
# tolerance = "5ms"

[pipeline.quality]
interval = "10s"

[pipeline.statistics]
every = 1

# A numpy function of your own, in a module beside this file. Its table is gold/brightness.
# [[pipeline.functions]]
# name = "brightness"
# function = "looks:brightness"  # def brightness(array): return array.mean(), array.max()
# columns = "mean double, peak double"
"""


def starter_definition(name: str, recordings: Sequence[str], out: str) -> str:
    """The definition that `tensorpool pipeline init` writes, with comments. Paths are written as given."""
    given = json.dumps(list(recordings or ["recording"]), ensure_ascii=False)
    return _TEMPLATE.format(name=name, recordings=given, out=json.dumps(out, ensure_ascii=False))
