"""The tensors of PyTorch as kernels see them."""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from blockbuster_fusion.errors import BadInput, NoMemory, Untraceable
from blockbuster_fusion.host.numbers import NumpyArray
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.runtime.arrays import NumpyArrays

STORED: dict[DType, torch.dtype] = {dtype: getattr(torch, str(dtype)) for dtype in DType}

_NUMPY = NumpyArrays()


def is_tensor(x: object) -> bool:
    """True if `x` is a tensor of PyTorch."""
    return isinstance(x, torch.Tensor)


LOW = 1 << 32
"""Addresses below this may be offsets into a freed storage, whose own address is 0."""


def address(x: torch.Tensor) -> int:
    """The address of a tensor's first element, or NoMemory."""
    try:
        found = x.data_ptr()
    except RuntimeError as error:  # for tensors that stand for others
        raise _no_memory(x, "it stands for another tensor, as in torch.vmap") from error
    return found if found >= LOW else checked_address(x, found)


def checked_address(x: torch.Tensor, found: int) -> int:
    """A low address, if the tensor is empty or its storage has memory; or NoMemory."""
    if isinstance(x, FakeTensor):
        raise _no_memory(x, "it is a fake tensor, which has a shape and no numbers")
    if x.numel() and not x.untyped_storage().data_ptr():
        raise _no_memory(x, "its storage was freed, as by resize_(0)")
    return found


def _no_memory(x: torch.Tensor, reason: str) -> NoMemory:
    dtype = str(x.dtype).removeprefix("torch.")
    return NoMemory(tensor=f"a {dtype} tensor of shape {tuple(x.shape)}", reason=reason)


class TorchArrays:
    """Tensors on one device; on the CPU, NumPy arrays are accepted too."""

    def __init__(self, device: torch.device, *, handles: bool) -> None:
        self.device = device
        self.name: Hashable = (str(device), handles)
        self.is_prompt = device.type == "cpu"
        self.handles = handles
        """True if kernels take addresses rather than tensors."""

    def seen(self, x: Any) -> Hashable:
        return x.shape, x.stride(), x.dtype, x.device

    def admitted(self, name: str, x: object, dtype: DType) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            return self._from_host(name, x, dtype)
        if x.layout is not torch.strided:
            raise BadInput(name=name, problem=f"is {x.layout}; make it dense first")
        if x.device != self.device:
            where = "the kernel" if self.device.type != "cpu" else "it"
            problem = f"is on {x.device}, and {where} runs on {self.device}; move it there"
            raise BadInput(name=name, problem=problem)
        if x.dtype is not STORED[dtype]:
            problem = f"has the dtype {x.dtype}, and the kernel takes {dtype}; convert it first"
            raise BadInput(name=name, problem=problem)
        return x.resolve_neg()  # a view that is negated when it is read

    def _from_host(self, name: str, x: object, dtype: DType) -> torch.Tensor:
        if self.device.type != "cpu" and isinstance(x, np.ndarray):
            problem = f"is a NumPy array, and the kernel runs on {self.device}; give a tensor there"
            raise BadInput(name=name, problem=problem)
        array = _NUMPY.admitted(name, x, dtype)
        if any(stride < 0 for stride in array.strides) or not array.flags.writeable:
            array = array.copy()
        made = torch.from_numpy(array).to(self.device)
        return made.view(torch.bfloat16) if dtype is DType.bfloat16 else made

    def shape(self, x: torch.Tensor) -> tuple[int, ...]:
        return tuple(x.shape)

    def strides(self, x: torch.Tensor) -> tuple[int, ...]:
        return tuple(x.stride())

    def handle(self, x: torch.Tensor) -> Any:
        found = address(x)
        return found if self.handles else x

    def empty(self, shape: Sequence[int], dtype: DType) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=STORED[dtype], device=self.device)

    def shaped(self, flat: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        count = 1
        for length in shape:
            count *= length
        return flat[:count].view(tuple(shape))

    def permuted(self, x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        return x.permute(tuple(order))

    def copied(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().clone(memory_format=torch.contiguous_format)

    def clear(self, x: torch.Tensor) -> None:
        x.zero_()

    def handed_out(self, x: torch.Tensor, dtype: DType) -> torch.Tensor:
        return x

    def to_numpy(self, x: torch.Tensor, dtype: DType) -> NumpyArray:
        x = x.detach().float() if dtype is DType.bfloat16 else x.detach()
        made: NumpyArray = np.array(x.cpu().numpy(), order="C")
        return made

    def from_numpy(self, x: NumpyArray, dtype: DType) -> torch.Tensor:
        # `torch.tensor` copies: an executor may keep its results
        return torch.tensor(x, dtype=STORED[dtype], device=self.device)


def check_untraced() -> None:
    """Untraceable while PyTorch records operators: the record would lack a kernel."""
    if torch._C._is_tracing():
        raise Untraceable(tracer="torch.jit.trace")
    if torch._C._len_torch_dispatch_stack() and get_proxy_mode() is not None:
        raise Untraceable(tracer="make_fx")


def library_for(given: Sequence[object], device: str) -> TorchArrays:
    """The library for tensors on a kind of device: on that of the first such tensor."""
    check_untraced()
    handles = device == "cpu"
    for x in given:
        if isinstance(x, torch.Tensor) and x.device.type == device:
            return _library(x.device, handles)
    if device == "cuda" and torch.cuda.is_available():
        return _library(torch.device("cuda", torch.cuda.current_device()), handles)
    return _library(torch.device("cpu"), handles)


def library_on(device: torch.device) -> TorchArrays:
    """The library for tensors on a device."""
    return _library(device, device.type == "cpu")


@cache
def _library(device: torch.device, handles: bool) -> TorchArrays:
    return TorchArrays(device, handles=handles)


def through_numpy(
    given: Sequence[Any],
    dtypes: Sequence[DType],
    run: Callable[[list[Any]], Sequence[NumpyArray]],
) -> list[torch.Tensor]:
    """The results of `run` on NumPy arrays, as tensors on the device of the first tensor.

    Their dtypes are `dtypes`; results in float64 stay so, because all was computed in it.
    """
    check_untraced()
    devices = (x.device for x in given if isinstance(x, torch.Tensor))
    device = next(devices, torch.device("cpu"))
    made = []
    for dtype, x in zip(dtypes, run([_as_numpy(x) for x in given]), strict=True):
        wanted = torch.float64 if x.dtype == np.float64 else STORED[dtype]
        made.append(torch.from_numpy(x).to(device, wanted))
    return made


def _as_numpy(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    return (x.float() if x.dtype is torch.bfloat16 else x).numpy()
