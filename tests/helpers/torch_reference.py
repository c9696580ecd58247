"""Array programs run by PyTorch's own operators, in any dtype: the reference for exactness."""

from collections.abc import Mapping

import numpy as np
import torch

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.torch.from_array_program import torch_program


def run(
    program: ArrayProgram, inputs: Mapping[str, np.ndarray], dtype: torch.dtype
) -> dict[str, np.ndarray]:
    """The program's outputs as float64 arrays, computed in `dtype` throughout."""
    return Reference(program, dtype).run(inputs)


class Reference:
    """One run of a program."""

    def __init__(self, program: ArrayProgram, dtype: torch.dtype) -> None:
        self.program, self.dtype = program, dtype
        self.largest = 0.0
        """The largest number among the results of the operators in `watched`."""
        self.watched: set[int] = set()

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = []
        for given in self.program.inputs:
            x = torch.from_numpy(np.asarray(inputs[given.name]))
            tensors.append(x.to(self.dtype) if x.is_floating_point() else x)
        with torch.no_grad():
            made = torch_program(self.program, self.watched)(*tensors)
        names = [out.name for out in self.program.outputs]
        for x in made[len(names) :]:
            self.largest = max(self.largest, x.abs().nan_to_num().max().item())
        return {
            name: x.to(torch.float64).numpy()
            for name, x in zip(names, made[: len(names)], strict=True)
        }
