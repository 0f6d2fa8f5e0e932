"""What to do with rows of frames: numpy functions over their tensors, by reference, and what follows."""

from .filters import has_dtype, has_ndim, has_shape
from .mapping import TensorRow, inline, map
from .ml import to_ml
from .rows import to_numpy
from .summaries import stats, thumbnail
from .torch_data import to_torch

__all__ = [
    "TensorRow",
    "has_dtype",
    "has_ndim",
    "has_shape",
    "inline",
    "map",
    "stats",
    "thumbnail",
    "to_ml",
    "to_numpy",
    "to_torch",
]
