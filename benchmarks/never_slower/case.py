"""A case as data: what is computed, and the inputs that it is given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DEVICES = ("cpu", "cuda")
USUAL = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""The dtype of a case that names none."""


@dataclass(frozen=True)
class Input:
    """A random tensor: normal, uniform from 0 to 1, whole numbers below `below`, or True or not."""

    shape: tuple[int, ...]
    kind: str = "normal"
    scale: float = 1.0
    below: int = 0

    def made(self, dtype: torch.dtype) -> Tensor:
        if self.kind == "places":
            return torch.randint(self.below, self.shape)
        if self.kind == "chances":
            return torch.rand(self.shape) < 0.75
        random = torch.rand if self.kind == "uniform" else torch.randn
        return (random(self.shape) * self.scale).to(dtype)


def normal(*shape: int, scale: float = 1.0) -> Input:
    return Input(shape, scale=scale)


def weight(*shape: int) -> Input:
    """Normal numbers, such that a product with them keeps the size of its other factor."""
    return Input(shape, scale=shape[-1] ** -0.5)


def uniform(*shape: int) -> Input:
    """Numbers from 0 to 1, whose sums do not cancel."""
    return Input(shape, "uniform")


def places(below: int, *shape: int) -> Input:
    """Whole numbers, as a lookup takes them."""
    return Input(shape, "places", below=below)


def chances(*shape: int) -> Input:
    """True in three of four places."""
    return Input(shape, "chances")


@dataclass(frozen=True)
class Case:
    """A function or module with its inputs, on one kind of device."""

    name: str
    family: str
    make: Callable[[], Callable[..., Any]]
    """Makes the function or the module."""
    inputs: tuple[Input, ...]
    dtype: torch.dtype
    best: Callable[..., Any] | None = None
    """The same function as eager PyTorch runs it fastest, if the case writes it out."""

    def build(self, device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        """The model and its inputs on a device, the same in every process."""
        torch.manual_seed(0)
        with torch.device(device), torch.no_grad():
            model = self.make()
            if isinstance(model, nn.Module):
                model = model.to(self.dtype).eval().requires_grad_(False)
            return model, [given.made(self.dtype) for given in self.inputs]


@dataclass(frozen=True)
class Family:
    """Makes the cases of a family on a device."""

    name: str
    device: str

    def function(
        self,
        name: str,
        function: Callable[..., Any],
        *inputs: Input,
        dtype: torch.dtype | None = None,
        best: Callable[..., Any] | None = None,
    ) -> Case:
        return self.module(name, lambda: function, *inputs, dtype=dtype, best=best)

    def module(
        self,
        name: str,
        make: Callable[[], Callable[..., Any]],
        *inputs: Input,
        dtype: torch.dtype | None = None,
        best: Callable[..., Any] | None = None,
    ) -> Case:
        usual = USUAL[self.device]
        chosen = dtype or usual
        if chosen != usual:
            name = f"{name}, {str(chosen).removeprefix('torch.')}"
        return Case(name, self.name, make, inputs, chosen, best)


def by_name(sizes: tuple[int, ...]) -> str:
    """Sizes as a name has them: 512x64."""
    return "x".join(map(str, sizes))
