"""Saved models run again: eager beside compiled, result by result."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from blockbuster_fusion.torch.backend import backend


def replay(
    model: type[torch.nn.Module],
    inputs: Callable[[int], list[Tensor]],
    lengths: Sequence[int],
    *,
    strict: bool,
    dynamic: bool | None,
) -> None:
    """Prints every result, and every input after the call, as eager and as kernels have it."""
    torch.set_num_threads(1)
    ours = partial(backend, options={"strict": strict, "threads": 1})
    for n in lengths:
        for call in ("on a new tape", "on a tape"):
            kept = [inputs(n), inputs(n)]
            own = model(n).eval()
            if call == "on a new tape" and n == lengths[0]:
                compiled = torch.compile(own, backend=ours, dynamic=dynamic)
            with torch.no_grad():
                wanted, found = model(n).eval()(*kept[0]), compiled(*kept[1])
            print(f"length {n}, {call}:")
            named = [f"result {i}" for i in range(len(wanted))]
            named += [f"input {i}" for i in range(len(kept[0]))]
            for name, y, x in zip(named, [*wanted, *kept[0]], [*found, *kept[1]], strict=True):
                print(f"  {name}: {_told(x)}; eager {_told(y)}{_difference(x, y)}")


def _told(x: Tensor) -> str:
    return f"{str(x.dtype)[6:]} {[*x.shape]} strides {[*x.stride()]}"


def _difference(x: Tensor, y: Tensor) -> str:
    if x.shape != y.shape or not x.numel() or x.dtype is not y.dtype:
        return ""
    same = (x == y) | ((x != x) & (y != y))
    if same.all():
        return ""
    at = tuple((~same).nonzero()[0].tolist())
    return (
        f"; {int((~same).sum())} elements differ, at {[*at]}: {x[at].item()}, eager {y[at].item()}"
    )
