"""Functions of tensors run through the torch.compile backend, beside eager PyTorch."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.explain import Explanation


class Watched:
    """A compiled function and its graphs; each instance is compiled anew."""

    def __init__(
        self, function: Callable[..., Any], *, dynamic: bool | None = None, **options: Any
    ) -> None:
        torch._dynamo.reset()
        self.function, self.graphs = function, list[CompiledGraph]()
        watched = partial(backend, options=options, watcher=self.graphs.append)
        self.compiled = torch.compile(function, backend=watched, dynamic=dynamic)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        with torch.no_grad():
            return self.compiled(*inputs, **named)

    @property
    def explanation(self) -> Explanation:
        return Explanation(tuple(self.graphs))

    def check(self, *inputs: Any, tolerance: Mapping[torch.dtype, float] | None = None) -> None:
        """The results, and inputs that are written to, equal eager's."""
        eager = copied(inputs)
        with torch.no_grad():
            wanted = self.function(*eager)
        for _ in CALLS:
            own = copied(inputs)
            found = self(*own)
            assert pytree.tree_structure(found) == pytree.tree_structure(wanted)
            leaves = (pytree.tree_leaves(x) for x in ([found, own], [wanted, eager]))
            for x, y in zip(*leaves, strict=True):
                same(x, y, tolerance or TOLERANCE)


CALLS = ("on a new tape", "on a tape", "on a tape again")
"""The first calls with inputs of the same shapes and strides."""

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""A few ulps of the largest element: the cost of another order of summation."""


def copied(inputs: Any) -> Any:
    """The inputs with memory of their own and the strides that they had."""
    return pytree.tree_map_only(Tensor, _copied, inputs)


def _copied(x: Tensor) -> Tensor:
    if x.layout is not torch.strided or x.is_nested:
        return x.clone()
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    if 0 in x.stride():
        return x.clone()[tuple(slice(0, 1) if s == 0 else slice(None) for s in x.stride())].expand(
            x.shape
        )
    return made.copy_(x)


def same(found: Any, wanted: Any, tolerance: Mapping[torch.dtype, float]) -> None:
    """Two results agree: tensors in dtype, shape and value, all else wholly."""
    if not isinstance(wanted, Tensor):
        assert found == wanted
        return
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if not wanted.dtype.is_floating_point:
        assert torch.equal(found, wanted)
        return
    plain = wanted[wanted.isfinite()]
    scale = float(plain.abs().max()) if plain.numel() else 0.0
    allowed = tolerance[wanted.dtype] * scale
    torch.testing.assert_close(found, wanted, rtol=0, atol=allowed, equal_nan=True)
