"""Functions over DataFrames of frames: numpy functions on their tensors, filters, statistics, images."""

from .functions import has_dtype, has_ndim, has_shape, stats, thumbnail, to_ml, to_torch
from .rows import to_numpy
from .tensor_map import TensorRow, inline, map

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
