"""A stand-in for torch: what datasets and their workers use of it, over numpy.

Torch is gigabytes, and not installed where the tests run. Where it is, the same tests use it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorpool

_NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "float32", "float64")
# A type that numpy has only from ml_dtypes, and the numpy type that holds it here.
_FOREIGN = {"bfloat16": np.int16}


class _Dtype:
    def __init__(self, name: str) -> None:
        self.name = name
        self.numpy = np.dtype(_FOREIGN.get(name, name))

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class _Tensor:
    def __init__(self, array: np.ndarray, dtype: _Dtype) -> None:
        self._array = array
        self.dtype = dtype
        self.is_shared_memory = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def __len__(self) -> int:
        return len(self._array)

    def numpy(self) -> np.ndarray:
        if self.dtype.name in _FOREIGN:
            raise TypeError(f"numpy has no {self.dtype.name}")
        return self._array

    def view(self, dtype: _Dtype) -> _Tensor:
        seen = _Tensor(self._array.view(dtype.numpy), dtype)
        seen.is_shared_memory = self.is_shared_memory
        return seen

    def share_memory_(self) -> _Tensor:
        self.is_shared_memory = True
        return self

    def is_shared(self) -> bool:
        return self.is_shared_memory


def _module() -> tuple[ModuleType, ModuleType, ModuleType]:
    dtypes = {name: _Dtype(name) for name in (*_NAMES, *_FOREIGN)}

    def from_numpy(array: np.ndarray) -> _Tensor:
        if array.dtype.name not in _NAMES:
            raise TypeError(f"can't convert np.ndarray of type {array.dtype}")
        return _Tensor(array, dtypes[array.dtype.name])

    def empty(shape: tuple[int, ...], *, dtype: _Dtype, pin_memory: bool = False) -> _Tensor:
        assert not pin_memory
        return _Tensor(np.empty(shape, dtype.numpy), dtype)

    torch, utils, data = ModuleType("torch"), ModuleType("torch.utils"), ModuleType("torch.utils.data")
    vars(torch).update(
        dtypes,
        Tensor=_Tensor,
        from_numpy=from_numpy,
        empty=empty,
        cuda=SimpleNamespace(is_available=lambda: False),
        utils=utils,
    )
    vars(utils).update(data=data)
    vars(data).update(
        Dataset=type("Dataset", (), {}),
        IterableDataset=type("IterableDataset", (), {}),
        get_worker_info=lambda: None,
        default_collate=list,
    )
    return torch, utils, data


@contextmanager
def torch_datasets() -> Iterator[Any]:
    """`tensorpool.torch`, with torch where it is installed, and with the stand-in elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("torch") is None:
            for module in _module():
                patch.setitem(sys.modules, module.__name__, module)
        # Without torch it could not be imported, and after the test it cannot be again.
        patch.delitem(sys.modules, "tensorpool.torch", raising=False)
        patch.setattr(tensorpool, "torch", None, raising=False)
        datasets = import_module("tensorpool.torch")
        yield datasets
        # A process that loads batches keeps their files mapped.
        vars(datasets)["_mapped_files"].clear()
        del sys.modules["tensorpool.torch"]
