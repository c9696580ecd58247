"""PyTorch's side of a comparison: tensors, eager operators and torch.compile."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.errors import BadTarget
from blockbuster_fusion.frontends.torch_program import torch_program
from blockbuster_fusion.ir.types import DType


class Torch:
    """A program in PyTorch, with its inputs on the device of a target."""

    def __init__(
        self,
        program: ArrayProgram,
        arrays: Mapping[str, Any],
        dtype: DType,
        target: str,
        threads: int | None,
    ) -> None:
        if target == "cuda" and not torch.cuda.is_available():
            raise BadTarget(name=target, problem="PyTorch finds no GPU here")
        self.device = torch.device("cuda" if target == "cuda" else "cpu")
        if threads is not None:
            torch.set_num_threads(threads)
        self.function = torch_program(program)
        self.outputs = [out.name for out in program.outputs]
        stored: torch.dtype = getattr(torch, str(dtype))
        self.tensors = []
        for x in map(torch.from_numpy, arrays.values()):
            narrow = x.to(stored) if x.is_floating_point() and x.dtype == torch.float32 else x
            self.tensors.append(narrow.to(self.device))

    def exact(self) -> dict[str, Any]:
        """The outputs in float64, by name."""
        wide = [x.double() if x.is_floating_point() else x for x in self.tensors]
        with torch.no_grad():
            found = self.function(*wide)
        return dict(zip(self.outputs, map(self.to_numpy, found), strict=True))

    def to_numpy(self, x: torch.Tensor) -> Any:
        return (x.double() if x.is_floating_point() else x).cpu().numpy()

    def eager(self) -> Any:
        with torch.no_grad():
            return self.function(*self.tensors)

    @cached_property
    def _compiled(self) -> Any:
        torch._dynamo.reset()
        return torch.compile(self.function)

    def compiled(self) -> Any:
        with torch.no_grad():
            return self._compiled(*self.tensors)

    def wait(self) -> None:
        """Until the device has done what it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def has_gpu() -> bool:
    """Whether PyTorch finds one."""
    return torch.cuda.is_available()
