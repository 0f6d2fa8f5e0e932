"""The finding on GPUs, for each state of a machine."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tensorpool.doctor.checks import CheckStatus
from tensorpool.doctor.host import GpuFacts, check_gpu, read_gpu_facts


@pytest.mark.parametrize(
    ("facts", "status", "text"),
    [
        (GpuFacts(has_device_files=False, has_bindings=False), CheckStatus.OK, "none"),
        (GpuFacts(has_device_files=True, has_bindings=False), CheckStatus.WARN, "aeron-tensorpool[cuda]"),
        (
            GpuFacts(has_device_files=True, has_bindings=True, fault="cudaErrorInsufficientDriver"),
            CheckStatus.WARN,
            "cudaErrorInsufficientDriver",
        ),
        (GpuFacts(has_device_files=True, has_bindings=True), CheckStatus.WARN, "nvidia-smi"),
        (
            GpuFacts(has_device_files=True, has_bindings=True, devices=("H200",)),
            CheckStatus.OK,
            "cuda:0 H200",
        ),
        (
            GpuFacts(has_device_files=True, has_bindings=True, devices=("K20",), registers_read_only=False),
            CheckStatus.WARN,
            "pageable",
        ),
    ],
)
def test_the_finding_has_a_remedy(facts: GpuFacts, status: CheckStatus, text: str) -> None:
    check = check_gpu(facts)
    assert check.status is status
    assert text in f"{check.found} {check.meaning} {check.remedy}"
    assert (check.remedy == "") is (status is CheckStatus.OK)


def test_the_facts_of_this_machine_can_be_read() -> None:
    assert check_gpu(read_gpu_facts()).name == "GPU"


def test_a_missing_library_of_the_driver_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("libcuda.so.1 was not found")

    bindings = ModuleType("cuda.bindings")
    monkeypatch.setattr(bindings, "runtime", SimpleNamespace(cudaGetDeviceCount=fail), raising=False)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setattr("tensorpool.doctor.host.NVIDIA_DEVICE", tmp_path)
    check = check_gpu(read_gpu_facts())
    assert check.status is CheckStatus.WARN
    assert "libcuda.so.1 was not found" in check.found
