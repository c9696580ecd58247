"""Dispatch modes that look at the collectives of calls: how many run, and what is in flight."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from blockbuster_fusion.torch.capture.collectives import is_collective, is_wait


class Counting(TorchDispatchMode):
    """Counts the collectives that run, and the waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.waited = list[str](), 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        is_real = not any(issubclass(kind, FakeTensor) for kind in types) and not any(
            x.is_meta for x in pytree.tree_leaves(args) if isinstance(x, Tensor)
        )
        if is_real and is_collective(func):
            self.waited += is_wait(func)
            self.started += [] if is_wait(func) else [str(func).split(".")[1]]
        return func(*args, **(kwargs or {}))


class Overwritten(TorchDispatchMode):
    """Notes the collectives whose operands change before the wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.flying = dict[int, tuple[str, Tensor, Tensor]]()
        self.changed, self.count = list[str](), 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_wait(func):
            name, operand, before = self.flying.pop(args[0].data_ptr())
            self.changed += [] if torch.equal(operand, before) else [name]
        made = func(*args, **(kwargs or {}))
        if is_collective(func) and not is_wait(func):
            self.count += 1
            self.flying[made.data_ptr()] = (str(func), args[0], args[0].clone())
        return made
