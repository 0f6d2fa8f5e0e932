"""A definition in Python, for those who outgrow TOML: the same settings, and functions at hand.

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
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import PipelineError
from .definition import PipelineSettings, anchored, load, parse

F = TypeVar("F", bound=Callable[..., Any])


class Pipeline:
    """Keyword arguments are the keys of `[pipeline]`, as TOML would have them. Checked when `settings` is
    asked for."""

    def __init__(self, **keys: Any) -> None:
        self._tables: dict[str, Any] = dict(keys)
        self.callables: dict[str, Callable[..., Any]] = {}
        """Functions by their name in the definition."""

    def rule(self, **keys: Any) -> None:
        """One of `[[pipeline.rules]]`."""
        self._tables.setdefault("rules", []).append(keys)

    def align(self, name: str, *, streams: Sequence[int], **keys: Any) -> None:
        """One of `[[pipeline.alignments]]`."""
        self._tables.setdefault("alignments", []).append({"name": name, "streams": list(streams), **keys})

    def function(self, *, name: str | None = None, **keys: Any) -> Callable[[F], F]:
        """Decorates a function: one of `[[pipeline.functions]]`, under its own name unless another is
        given."""

        def take(function: F) -> F:
            chosen = name or function.__name__
            self.callables[chosen] = function
            entry = {"name": chosen, "function": f"{function.__module__}:{function.__name__}", **keys}
            self._tables.setdefault("functions", []).append(entry)
            return function

        return take

    @property
    def settings(self) -> PipelineSettings:
        """Raises InvalidConfig with everything that is wrong."""
        return parse({"pipeline": {key: _plain(value) for key, value in self._tables.items()}})

    def run(self, **how: Any) -> Any:
        """Runs it; `how` as for `tensorpool.pipeline.run`."""
        from .run import run

        return run(self.settings, callables=self.callables, **how)


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def read_definition(file: Path) -> tuple[PipelineSettings, dict[str, Callable[..., Any]]]:
    """A definition in TOML, or in Python: a file that has a `Pipeline` called `pipeline`."""
    if file.suffix != ".py":
        return load(file), {}
    name = f"tensorpool_definition_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PipelineError(f"{file} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found = getattr(module, "pipeline", None)
    if not isinstance(found, Pipeline):
        raise PipelineError(
            f"{file} has no Pipeline called pipeline: pipeline = tensorpool.pipeline.Pipeline(…)"
        )
    try:
        from pyspark import cloudpickle
    except ImportError:
        pass
    else:
        # Executors cannot import the file under this name: its functions travel as they are.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return anchored(found.settings, file), found.callables
