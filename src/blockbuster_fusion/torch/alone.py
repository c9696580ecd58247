"""Runs a model on one rank alone, to explain it: collectives give zeros and wait for nobody."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from blockbuster_fusion.errors import EagerCollective
from blockbuster_fusion.torch.capture.collectives import is_collective, is_functional, is_wait
from blockbuster_fusion.torch.plan.operator_properties import PLAIN


def alone() -> AbstractContextManager[Any]:
    """A context in which no collective runs, where this process is one of several ranks."""
    is_rank = distributed.is_available() and distributed.is_initialized()
    mode: Any = _Alone
    return mode() if is_rank else nullcontext()


class _Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives zeros of the right shapes in place of what other ranks would send."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # models are compiled all the same

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        is_fake = any(isinstance(x, FakeTensor) for x in given)
        if not is_fake and any(type(x) not in PLAIN for x in given):
            return NotImplemented  # a DTensor calls collectives with plain tensors
        if is_fake or not is_collective(func):
            return func(*args, **(kwargs or {}))
        if is_wait(func):
            return args[0]
        assert isinstance(func, OpOverload)
        if not is_functional(func):
            raise EagerCollective(operator=str(func))
        device = next((x.device for x in given), torch.device("cpu"))
        meta = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), (args, kwargs or {}))
        made, zeros = func(*meta[0], **meta[1]), partial(torch.zeros_like, device=device)
        return pytree.tree_map_only(torch.Tensor, zeros, made)
