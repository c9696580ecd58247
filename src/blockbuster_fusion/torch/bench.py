"""PyTorch's side of a comparison: tensors, eager operators and torch.compile."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.torch.from_array_program import torch_program


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """PyTorch's own attention, with a batch and heads: without, its fast forms are not used."""
    if q.dim() == 2:
        return _sdpa(q[None, None], k[None, None], v[None, None], causal=causal)[0, 0]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


RIVALS: dict[str, dict[str, Callable[..., torch.Tensor]]] = {
    "attention": {"SDPA": lambda q, k, v: _sdpa(q, k, v.T, causal=False)},
    "causal_attention": {"SDPA": lambda q, k, v: _sdpa(q, k, v, causal=True)},
    "multi_head_attention": {"SDPA": lambda q, k, v: _sdpa(q, k, v, causal=True)},
}
"""PyTorch's own functions for a whole example, by the name of the example."""


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
        self.device = torch.device("cuda" if target == "cuda" else "cpu")
        if threads is not None:
            torch.set_num_threads(threads)
        self.threads = torch.get_num_threads()
        self.function = torch_program(program)
        self.rivals = RIVALS.get(program.name, {})
        self.outputs = [out.name for out in program.outputs]
        stored: torch.dtype = getattr(torch, str(dtype))
        with _memory():
            self.tensors = [self._tensor(torch.from_numpy(x), stored) for x in arrays.values()]

    def _tensor(self, x: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
        narrow = x.to(stored) if x.dtype == torch.float32 else x
        return narrow.to(self.device)

    def exact(self) -> dict[str, Any]:
        """The outputs in float64, by name."""
        with torch.no_grad(), _memory():
            wide = [x.double() if x.is_floating_point() else x for x in self.tensors]
            found = self.function(*wide)
            return dict(zip(self.outputs, map(self.to_numpy, found), strict=True))

    def to_numpy(self, x: torch.Tensor) -> Any:
        return (x.double() if x.is_floating_point() else x).cpu().numpy()

    def eager(self) -> Any:
        with torch.no_grad():
            return self.function(*self.tensors)

    def rival(self, name: str) -> Any:
        with torch.no_grad():
            return (self.rivals[name](*self.tensors),)

    @cached_property
    def _compiled(self) -> Any:
        torch._dynamo.reset()
        return torch.compile(self.function)

    def compiled(self) -> Any:
        with torch.no_grad():
            return self._compiled(*self.tensors)

    def wait(self) -> None:
        """Waits until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@contextmanager
def _memory() -> Iterator[None]:
    """Turns PyTorch's errors for a lack of memory into MemoryError."""
    try:
        yield
    except RuntimeError as error:
        lacks = ("can't allocate memory", "out of memory", "not enough memory")
        if not any(words in str(error) for words in lacks):
            raise
        raise MemoryError from error
