"""The compilation of a Triton kernel, as a job for a worker process.

A job is data: a source, and the arguments of a launch with dtypes in place of tensors. Triton
itself makes the key of its cache from them, so neither a GPU nor PyTorch is needed.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import MockTensor

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.shared_memory import shared_limit
from blockbuster_fusion.runtime.triton.descriptors import Matrix
from blockbuster_fusion.runtime.triton.modules import load
from blockbuster_fusion.runtime.triton.variants import compile_fitting
from blockbuster_fusion.worker import KERNEL

USUAL = 90
"""The compute capability that Triton starts for where no GPU is known."""
SMALLEST = """\
import triton
import triton.language as tl


@triton.jit
def smallest(x):
    tl.store(x, 0.0)
"""
"""A kernel with which Triton starts: its first compilation takes longer than others."""


@dataclass(frozen=True, slots=True)
class KernelJob:
    """A kernel to be compiled for a launch."""

    source: str
    """The text of the module."""
    kernel: str
    arguments: list[int | bool | str | None]
    """Numbers, and the dtypes of tensors."""
    matrices: dict[str, list[list[int]]]
    """The shape, strides and block of tensors that are given as descriptors, by their places."""
    options: dict[str, int]
    capability: int
    unspecialised: list[str]
    """The parameters that the kernel takes as they come."""

    def data(self) -> dict[str, Any]:
        """The job as plain data, for a worker."""
        return {"task": KERNEL, **asdict(self)}

    def compile(self) -> None:
        """Compiles the kernel as its launch would; there need not be a GPU."""
        driver.set_active(Target(self.capability))
        given: list[Any] = [_array(x) if isinstance(x, str) else x for x in self.arguments]
        for at, (shape, strides, block) in self.matrices.items():
            matrix = Matrix(tuple(shape), tuple(strides), tuple(block))
            given[int(at)] = matrix.at(given[int(at)])
        function = getattr(load(self.source), self.kernel)
        if self.unspecialised:
            function = triton.jit(function.fn, do_not_specialize=self.unspecialised)
        compile_fitting(function, given, self.options, shared_limit(self.capability))


def prepare() -> None:
    """Starts Triton for a usual GPU: most of that serves others, too."""
    run_job(smallest(USUAL).data())


def smallest(capability: int) -> KernelJob:
    """The job that starts Triton."""
    return KernelJob(SMALLEST, "smallest", [str(DType.float32)], {}, {}, capability, [])


def run_job(data: Mapping[str, Any]) -> None:
    """Does a job that is given as data."""
    _pretend_torch()
    KernelJob(**{name: x for name, x in data.items() if name != "task"}).compile()


def _pretend_torch() -> None:
    """Keeps Triton from importing PyTorch, which takes seconds, to see that nothing is a tensor."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = ModuleType("torch")
        sys.modules["torch"].Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]


class Target:
    """Stands in for the driver of a GPU: kernels are compiled for it and not loaded."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class _TorchDType:
    """Stands for a dtype of PyTorch, by its name, where PyTorch is not imported."""

    name: str
    itemsize: int

    def __str__(self) -> str:
        return f"torch.{self.name}"


def _array(dtype: str) -> MockTensor:
    """Stands for a tensor of a dtype, at an aligned address."""
    return MockTensor(_TorchDType(dtype, DType(dtype).bytes))
