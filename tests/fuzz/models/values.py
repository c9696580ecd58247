"""Tensors for random models: of every dtype and layout, from a seed, sometimes with odd values."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ODD = (math.nan, math.inf, -math.inf, -0.0, 0.0)
LAYOUTS = ("plain", "turned", "stepped", "offset", "expanded")
"""Ways in which the elements of a tensor lie in memory."""


def tensor(
    seed: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    layout: str = "plain",
    *,
    odd: bool = False,
    most: int = 4,
    scale: float = 1.0,
    offset: float = 0.0,
    floats: torch.dtype | None = None,
) -> Tensor:
    """A random tensor of this shape.

    Whole numbers lie in 0 … most - 1; `odd` puts NaN, infinities and signed zeros among floats.
    With `floats`, floats are of that dtype and have the values that they have in `dtype`.
    """
    numbers = _numbers(seed, _memory(shape, layout), dtype, odd, most, scale, offset)
    if floats is not None and dtype.is_floating_point:
        numbers = numbers.to(floats)
    if not shape:
        return numbers
    match layout:
        case "turned":
            return numbers.permute([*range(len(shape))][::-1])
        case "stepped":
            return numbers[..., 1::2]
        case "offset":
            return numbers[1:-1]
        case "expanded":
            return numbers.expand(*shape)
        case _:
            return numbers


def _memory(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """The shape of the memory of which a layout shows a part."""
    if not shape:
        return ()
    match layout:
        case "turned":
            return (*shape[::-1],)
        case "stepped":
            return (*shape[:-1], 2 * shape[-1] + 1)
        case "offset":
            return (shape[0] + 2, *shape[1:])
        case "expanded":
            return (1, *shape[1:])
        case _:
            return (*shape,)


def _numbers(
    seed: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    odd: bool,
    most: int,
    scale: float,
    offset: float,
) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=made).bool()
    if not dtype.is_floating_point:
        return torch.randint(0, max(most, 1), shape, generator=made).to(dtype)
    x = torch.randn(shape, generator=made, dtype=torch.float64) * scale + offset
    if odd and x.numel():
        flat = x.view(-1)
        places = torch.randint(0, flat.numel(), (1 + flat.numel() // 8,), generator=made)
        for i, at in enumerate(places.tolist()):
            flat[at] = ODD[(seed + i) % len(ODD)]
    return x.to(dtype)
