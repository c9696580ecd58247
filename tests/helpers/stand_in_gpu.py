"""A GPU's driver that runs kernels in Triton's interpreter: tapes of a GPU, without one.

`installed` makes plans on CPU tensors launch their kernels as on a GPU. The driver calls back into
Python, with the parameters that it was given. A kernel notes what Triton would have compiled it
for, and a launch with other numbers fails. It needs TRITON_INTERPRET=1.
"""

import ctypes
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from blockbuster_fusion.runtime.c.compiler import compile_c
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import TorchArrays
from blockbuster_fusion.runtime.triton import driver, launch
from blockbuster_fusion.torch import compile_graph, compile_parts
from blockbuster_fusion.torch.plan import (
    gpu_tape,
    kernel_buffers,
    named_calls,
    products,
    sized,
    steps,
    tape,
    tape_text,
)
from blockbuster_fusion.torch.rivals.corrections import Checked
from helpers.quick_interpreter import quicken

LIBRARY = """\
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef unsigned u;
int (*called)(void *, u, void **);
int cuLaunchKernel(void *f, u x, u y, u z, u a, u b, u c, u shared, void *stream, void **given,
                   void **more) {
    return called(f, x, given);
}
int cuCtxGetCurrent(void **found) {
    *found = (void *)1;
    return 0;
}
int cuDeviceGet(int *device, int number) { return 0; }
int cuDevicePrimaryCtxRetain(void **found, int device) { return 0; }
int cuCtxSetCurrent(void *given) { return 0; }
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void *stream) {
    memset((void *)at, value, bytes);
    return 0;
}
"""
_CALLED = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p)
)


def array_at(address: int, dtype: torch.dtype, device: Any = None) -> torch.Tensor:
    """A tensor that begins at an address; kernels go by that alone."""
    memory = (ctypes.c_uint8 * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


class Compiled:
    """A kernel as Triton would have compiled it for some arguments."""

    def __init__(self, gpu: "StandIn", function: Any, arguments: Sequence[Any]) -> None:
        self.name, self.call, self.arguments = function.__name__, function, [*arguments]
        self.metadata = SimpleNamespace(num_ctas=1, num_warps=4, shared=0)
        free = function.kwargs.get("do_not_specialize") or ()
        self.kinds: dict[str, str] = {}
        self.even: set[str] = set()
        pairs = zip(signature(function.fn).parameters.values(), arguments, strict=True)
        for parameter, x in pairs:
            is_number = isinstance(x, int)
            is_one = is_number and x == 1 and parameter.name not in free
            if "constexpr" in str(parameter.annotation) or is_one or x is None:
                self.kinds[parameter.name] = "constexpr"
            elif is_number:
                self.kinds[parameter.name] = "i32" if -(1 << 31) <= x < 1 << 31 else "i64"
                if x % 16 == 0 and parameter.name not in free:
                    self.even.add(parameter.name)
            else:
                self.kinds[parameter.name] = "*"
                if x.data_ptr() % 16 == 0:
                    self.even.add(parameter.name)
        self.src = SimpleNamespace(signature=self.kinds)
        self.function = gpu.registered(self)

    def launch(self, blocks: int, given: Any) -> None:
        """Runs the kernel with the parameters of a launch."""
        taken = [name for name, kind in self.kinds.items() if kind != "constexpr"]
        numbers = {
            name: ctypes.cast(given[at], ctypes.POINTER(ctypes.c_int64))[0]
            for at, name in enumerate(taken)
        }
        arguments = []
        for (name, kind), x in zip(self.kinds.items(), self.arguments, strict=True):
            if kind == "constexpr":
                arguments.append(x)
            elif kind == "*":
                assert name not in self.even or numbers[name] % 16 == 0, f"{name} is odd"
                arguments.append(array_at(numbers[name], x.dtype))
            else:
                assert name not in self.even or numbers[name] % 16 == 0, f"{name} is odd"
                assert kind == "i64" or -(1 << 31) <= numbers[name] < 1 << 31, f"{name} is long"
                arguments.append(numbers[name])
        self.call[(blocks, 1, 1)](*arguments)


class StandIn:
    """The kernels that were compiled, and the launches that were counted."""

    def __init__(self) -> None:
        self.kernels: list[Compiled] = []
        self.by_driver = 0
        """Launches of the driver."""
        self.met = 0
        """Launches by Triton of kernels without a form that fits."""
        self.ahead: list[list[str]] = []
        """The kernels that were to be compiled at the same time."""
        self.problems: list[BaseException] = []
        self.lock = RLock()

    def registered(self, kernel: Compiled) -> int:
        self.kernels.append(kernel)
        return len(self.kernels)

    def called(self, function: int, blocks: int, given: Any) -> int:
        with self.lock:  # Triton's interpreter runs on one thread
            self.by_driver += 1
            try:
                self.kernels[function - 1].launch(blocks, given)
            except BaseException as problem:
                self.problems.append(problem)
                return 1
        return 0


@contextmanager
def installed() -> Iterator[StandIn]:
    """Plans on CPU tensors run as on a GPU."""
    quicken()
    gpu = StandIn()
    before: Callable[..., None] = launch.BoundLaunch.__call__
    meet, found = gpu_tape.GpuTape.meet, driver.Launches
    compile_all = gpu_tape.GpuTape.compile

    def run(self: Any, tensors: Sequence[torch.Tensor]) -> None:
        with gpu.lock:
            before(self, tensors)
            key = (tensors[0].device, self.odd([x.data_ptr() for x in tensors]))
            if key not in self.compiled:
                dtypes = [launch.TORCH[buffer.dtype] for buffer, _ in self.plan.scratch]
                arrays = [*tensors, *(torch.empty(1, dtype=dtype) for dtype in dtypes)]
                self.compiled[key] = Compiled(gpu, self.function, self.arguments(arrays))

    def met(self: Any, *arguments: Any) -> None:
        gpu.met += 1
        meet(self, *arguments)

    def compiled_ahead(self: Any, numbers: Any) -> None:
        gpu.ahead.append([x.name for x in self.kernels.values()])
        compile_all(self, numbers)

    called = _CALLED(gpu.called)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder) / "libdriver.so"
        file.write_bytes(compile_c(LIBRARY).content)
        ctypes.c_void_p.in_dll(ctypes.CDLL(str(file)), "called").value = ctypes.cast(
            called, ctypes.c_void_p
        ).value
        for where, name, what in (
            (driver, "LIBRARY", str(file)),
            (driver, "Launches", lambda launches, _, *rest: found(launches, 0, *rest)),
            (torch._C, "_cuda_getCurrentRawStream", lambda index: 0),
            (torch._C, "_cuda_getDevice", lambda: None),
            (tape_text, "has_driver", lambda device: True),
            (kernel_buffers, "has_driver", lambda device: True),
            (tape, "has_driver", lambda device: True),
            (products, "has_driver", lambda device: True),
            (named_calls, "has_driver", lambda device: True),
            (steps, "library_on", _library_on),
            (kernel_buffers, "library_on", _library_on),
            (compile_parts, "_COMPILED", RecentlyUsed(256)),
            (compile_parts.PartCompiler, "try_out", lambda *_: None),
            (compile_graph, "checked", lambda *_: Checked(0.0, 0.0, math.inf)),
            (sized, "AddressedArray", array_at),
            (launch.BoundLaunch, "__call__", run),
            (gpu_tape.GpuTape, "meet", met),
            (gpu_tape.GpuTape, "compile", compiled_ahead),
        ):
            stack.enter_context(mock.patch.object(where, name, what, create=True))
        driver.load_library.cache_clear()
        yield gpu
        driver.load_library.cache_clear()


def _library_on(device: torch.device) -> TorchArrays:
    return TorchArrays(device, handles=False)
