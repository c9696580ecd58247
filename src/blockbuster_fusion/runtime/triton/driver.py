"""Launches of Triton's kernels by the driver of the GPU, many in one call.

Triton's own launcher is called from Python, once for each kernel, with all arguments. Here the
parameters of a kernel are packed once, and a function in C launches many kernels. In a call only
the addresses of arrays differ.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from blockbuster_fusion.errors import LaunchFailed
from blockbuster_fusion.runtime.c.kernels import loaded

WHOLE = frozenset({"i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})
"""The types of parameters that are integers: a driver reads as many of 64 bits as it needs."""
HIDDEN = 2
"""Parameters at the end that Triton adds: the addresses of memory for programs, here none."""
LIBRARY = "libcuda.so.1"


@dataclass(frozen=True, slots=True)
class DriverLaunch:
    """A compiled kernel with its grid and parameters; or, with no function, memory to clear."""

    name: str
    function: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    parameters: tuple[int, ...]
    """The numbers; 0 for addresses."""
    arrays: tuple[tuple[int, int], ...]
    """The parameters that are addresses, each with the number of its array."""
    scratch: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()
    """The shapes and dtypes of arrays beside those that are given, which come after these."""
    bytes: int = 0
    """The bytes to clear."""
    kernel: Any = None
    """The compiled kernel, whose function lives as long as it does."""


def cleared(name: str, size: int) -> DriverLaunch:
    """The clearing of an array of some bytes."""
    return DriverLaunch(name, 0, (1, 1, 1), 0, 0, (0,), ((0, 0),), bytes=size)


def driver_launch(
    compiled: Any,
    grid: Sequence[int],
    template: Sequence[Any],
    pointers: Sequence[tuple[int, int]],
    scratch: Sequence[tuple[tuple[int, ...], torch.dtype]] = (),
) -> DriverLaunch | None:
    """The launch of a kernel of Triton's; None if it takes more than a grid and numbers.

    `template` has the numbers, and `pointers` the places of arrays among the arguments.
    """
    about = compiled.metadata
    extras = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid")
    if about.num_ctas != 1 or any(getattr(about, x, 0) for x in (*extras, "launch_pdl")):
        return None
    kinds = list(compiled.src.signature.values())
    taken = [at for at, kind in enumerate(kinds) if kind != "constexpr"]
    if any(kinds[at][0] != "*" and kinds[at] not in WHOLE for at in taken):
        return None
    numbers = [0 if kinds[at][0] == "*" else int(template[at]) for at in taken]
    arrays = [(taken.index(at), number) for at, number in pointers if at in taken]
    x, y, z = (*grid, 1, 1)[:3]
    return DriverLaunch(
        compiled.name,
        compiled.function,
        (x, y, z),
        32 * about.num_warps,
        about.shared,
        (*numbers, *(0,) * HIDDEN),
        tuple(arrays),
        tuple(scratch),
        kernel=compiled,
    )


class Launches:
    """Launches that one call runs in order, on one GPU.

    Each has the numbers of the bases that its arrays lie in, and offsets in bytes.
    """

    def __init__(
        self, launches: Sequence[tuple[DriverLaunch, Sequence[tuple[int, int]]]], device: int
    ) -> None:
        self.names = [launch.name for launch, _ in launches]
        self.device = device
        self.entries = (_Entry * len(launches))()
        self.held: list[Any] = [launches]  # and the memory that the entries point to
        for entry, (launch, places) in zip(self.entries, launches, strict=True):
            own = [places[number] for _, number in launch.arrays]
            entry.parameters = self.kept(launch.parameters)
            entry.places = self.kept([at for at, _ in launch.arrays])
            entry.bases = self.kept([base for base, _ in own])
            entry.offsets = self.kept([offset for _, offset in own])
            entry.parameter_count, entry.count = len(launch.parameters), len(own)
            entry.function, entry.bytes = launch.function, launch.bytes
            entry.grid[:] = launch.grid
            entry.threads, entry.shared = launch.threads, launch.shared
        self.play = _player()

    def kept(self, numbers: Sequence[int]) -> int:
        """The address of some numbers, which are kept."""
        made = (ctypes.c_int64 * len(numbers))(*numbers)
        self.held.append(made)
        return ctypes.addressof(made)

    def __call__(self, addresses: Any, first: int = 0, count: int | None = None) -> None:
        """Runs some launches on the current stream; `addresses` are those of the bases."""
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        count = len(self.entries) if count is None else count
        entries = ctypes.byref(self.entries, first * _SIZE)
        failed = self.play(entries, count, addresses, stream, self.device)
        if failed:
            at, code = divmod(failed, _CODES)
            problem = f"the driver of the GPU reports error {code}"
            raise LaunchFailed(name=self.names[first + at], problem=problem)


class _Entry(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("bases", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("parameter_count", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
        ("shared", ctypes.c_uint),
    )


_SIZE = ctypes.sizeof(_Entry)
_CODES = 1024
"""An upper bound of the codes of the driver's errors."""

_SOURCE = f"""\
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

struct entry {{
    void *function;
    const int64_t *parameters, *places, *bases, *offsets;
    int64_t parameter_count, count, bytes;
    unsigned grid[3], threads, shared;
}};
typedef unsigned u;
typedef int (*launch_kernel)(void *, u, u, u, u, u, u, u, void *, void **, void **);
typedef int (*clear_memory)(uint64_t, unsigned char, size_t, void *);
static launch_kernel launch;
static clear_memory clear;
static int (*current)(void **), (*device_of)(int *, int), (*retain)(void **, int), (*set)(void *);

int find(const char *library) {{
    void *found = dlopen(library, RTLD_NOW);
    if (!found) return 1;
    launch = (launch_kernel)dlsym(found, "cuLaunchKernel");
    clear = (clear_memory)dlsym(found, "cuMemsetD8Async");
    *(void **)&current = dlsym(found, "cuCtxGetCurrent");
    *(void **)&device_of = dlsym(found, "cuDeviceGet");
    *(void **)&retain = dlsym(found, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(found, "cuCtxSetCurrent");
    return !launch || !clear || !current || !device_of || !retain || !set;
}}

/* A thread that has not used the GPU yet has no context: it gets that of PyTorch. */
static int with_context(int number) {{
    void *context = 0;
    int device, failed = current(&context);
    if (failed || context) return failed;
    failed = device_of(&device, number);
    if (!failed) failed = retain(&context, device);
    return failed ? failed : set(context);
}}

int64_t play(const struct entry *entries, int64_t count, const int64_t *addresses, void *stream,
             int device) {{
    const int lost = with_context(device);
    if (lost) return lost;
    for (int64_t i = 0; i < count; i++) {{
        const struct entry *one = &entries[i];
        int64_t parameters[one->parameter_count];
        void *pointers[one->parameter_count];
        memcpy(parameters, one->parameters, sizeof(parameters));
        for (int64_t j = 0; j < one->count; j++)
            parameters[one->places[j]] = addresses[one->bases[j]] + one->offsets[j];
        for (int64_t j = 0; j < one->parameter_count; j++) pointers[j] = &parameters[j];
        const unsigned *grid = one->grid;
        int failed = one->function
            ? launch(one->function, grid[0], grid[1], grid[2], one->threads, 1, 1, one->shared,
                     stream, pointers, 0)
            : clear((uint64_t)parameters[0], 0, (size_t)one->bytes, stream);
        if (failed) return i * {_CODES} + failed;
    }}
    return 0;
}}
"""


@cache
def _player() -> Any:
    library = loaded(_SOURCE)
    library.find.argtypes, library.find.restype = (ctypes.c_char_p,), ctypes.c_int
    if library.find(LIBRARY.encode()):
        raise LaunchFailed(name="the GPU's driver", problem=f"{LIBRARY} cannot be loaded")
    function = library.play
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (pointer, number, pointer, pointer, ctypes.c_int)
    function.restype = ctypes.c_int64
    return function
