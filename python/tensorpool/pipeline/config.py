"""Settings of a pipeline: `[pipeline]`. The classes are in `definition.py`."""

from .definition import PipelineSettings

__all__ = ["PipelineSettings"]
