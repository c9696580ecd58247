"""Launches of Triton's kernels by the driver of the GPU, many in one call.

Triton's own launcher is called from Python, once for each kernel, with all arguments. Here the
parameters of a kernel are packed once, and a function in C launches many kernels. In a call only
the addresses of arrays differ, and what depends on sizes: C computes it by a trace (traced.py).
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources

from blockbuster_fusion.errors import LaunchFailed
from blockbuster_fusion.runtime import traced
from blockbuster_fusion.runtime.c.kernels import loaded
from blockbuster_fusion.runtime.traced import Number, Trace, Value, int_of
from blockbuster_fusion.runtime.triton import descriptors, library_calls
from blockbuster_fusion.runtime.triton.descriptors import Matrix
from blockbuster_fusion.runtime.triton.library_calls import LibraryCall

WHOLE = frozenset({"i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})
"""The types of parameters that are integers: a driver reads as many of 64 bits as it needs."""
HIDDEN = 2
"""Parameters at the end that Triton adds: the addresses of memory for programs, here none."""
LIBRARY = "libcuda.so.1"
ALIGNED = 16
"""Kernels are compiled for addresses that are multiples of this."""


@dataclass(frozen=True, slots=True)
class DriverLaunch:
    """A compiled kernel with its grid and parameters; or, with no function, memory to clear."""

    name: str
    function: int
    grid: tuple[Value, int, int]
    threads: int
    shared: int
    parameters: tuple[Value, ...]
    """The numbers; 0 for addresses."""
    arrays: tuple[tuple[int, int], ...]
    """The parameters that are addresses, each with the number of its array."""
    scratch: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()
    """The shapes and dtypes of arrays beside those that are given, which come after these."""
    bytes: int = 0
    """The bytes to clear."""
    kernel: Any = None
    """The compiled kernel, whose function lives as long as it does."""
    trace: Trace | None = None
    """The trace of the numbers among the parameters, and of the grid."""
    maps: tuple[tuple[int, ...], ...] = ()
    """The parameters that are tensor descriptors, each with the numbers that the driver encodes
    beside the address."""


def cleared(name: str, size: int) -> DriverLaunch:
    """The clearing of an array of some bytes."""
    return DriverLaunch(name, 0, (1, 1, 1), 0, 0, (0,), ((0, 0),), bytes=size)


def driver_launch(
    compiled: Any,
    grid: Sequence[Any],
    template: Sequence[Any],
    pointers: Sequence[tuple[int, int]],
    scratch: Sequence[tuple[tuple[int, ...], torch.dtype]] = (),
    trace: Trace | None = None,
    matrices: Mapping[int, Matrix] | None = None,
) -> DriverLaunch | None:
    """The launch of a kernel of Triton's; None if it takes more than a grid and numbers.

    `template` has the numbers, and `pointers` the places of arrays among the arguments. Those of
    `matrices` are tensor descriptors.
    """
    about = compiled.metadata
    extras = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid")
    if about.num_ctas != 1 or any(getattr(about, x, 0) for x in (*extras, "launch_pdl")):
        return None
    kinds = list(compiled.src.signature.values())
    taken = [at for at, kind in enumerate(kinds) if kind != "constexpr"]
    described = matrices or {}
    if any(not _is_known(kinds[at], at in described) for at in taken):
        return None
    encoded = getattr(about, "tensordesc_meta", None) or ()
    if len(encoded) != len(described):
        return None  # the GPU has no descriptors
    numbers: list[Value] = []
    first: dict[int, int] = {}
    maps: list[tuple[int, ...]] = []
    for at in taken:
        first[at] = len(numbers)
        numbers.append(0 if at in described or kinds[at][0] == "*" else _plain(template[at]))
        if at in described:
            matrix = described[at]
            maps.append((first[at], *matrix.encoding(encoded[len(maps)])))
            numbers += [*matrix.shape, *matrix.strides]
    arrays = [(first[at], number) for at, number in pointers if at in first]
    x, y, z = (*grid, 1, 1)[:3]
    return DriverLaunch(
        compiled.name,
        function_of(compiled),
        (x, y, z),
        32 * about.num_warps,
        about.shared,
        (*numbers, *(0,) * HIDDEN),
        tuple(arrays),
        tuple(scratch),
        kernel=compiled,
        trace=trace,
        maps=tuple(maps),
    )


def _is_known(kind: str, is_described: bool) -> bool:
    """True for a type of parameters that is packed here."""
    return kind.startswith("tensordesc") if is_described else kind[0] == "*" or kind in WHOLE


_FUNCTIONS = WeakKeyDictionary[Any, int]()
"""The functions of kernels, which Triton compiles for each GPU apart."""


def function_of(compiled: Any) -> int:
    """The function of a kernel on the current GPU, loaded if need be, or OutOfResources.

    Triton itself would also build a launcher for each kernel, with a C compiler: 0.2 s each. It
    would call hooks that watch kernels being loaded, which are left out here.
    """
    if compiled.function is not None:
        return int(compiled.function)
    found = _FUNCTIONS.get(compiled)
    if found is None:
        about, active = compiled.metadata, driver.active
        device = active.get_current_device()
        most = active.utils.get_device_properties(device)["max_shared_mem"]
        if about.shared > most:
            raise OutOfResources(about.shared, most, "shared memory")
        loaded = active.utils.load_binary(compiled.name, compiled.kernel, about.shared, device)
        _, found, _, _, *threads = loaded
        if threads and about.num_warps * 32 > threads[0]:
            raise OutOfResources(about.num_warps * 32, threads[0], "threads")
        _FUNCTIONS[compiled] = found
    return int(found)


def _plain(x: Any) -> Value:
    return x if isinstance(x, Number) else int(x)


class Launches:
    """Launches that one call runs in order, on one GPU.

    Each has the numbers of the bases that its arrays lie in, and offsets in bytes. A kernel whose
    sizes change has several forms, of which a call takes the first that fits its numbers.
    """

    def __init__(
        self,
        launches: Sequence[tuple[DriverLaunch | LibraryCall | int, Sequence[tuple[int, int]]]],
        device: int,
        names: Sequence[str],
        given: Mapping[int, int] | None = None,
    ) -> None:
        """A number stands for a kernel without any form so far: it is the most that it may have.

        `names` are those of the kernels. `given` has the places of the lengths that calls of
        PyTorch's operators are given.
        """
        self.names = [*names]
        self.device = device
        self.places = [places for _, places in launches]
        self.rooms = [x if isinstance(x, int) else 1 for x, _ in launches]
        self.entries = (_Entry * len(launches))()
        self.held: list[Any] = []  # the memory that the entries point to
        self.lock = Lock()
        library = load_library()
        self.play, self.publish = library.play, library.publish
        for at, (launch, places) in enumerate(launches):
            entry = self.entries[at]
            if isinstance(launch, LibraryCall):
                call, held = library_calls.filled(launch, [*places], given or {})
                self.held += [call, held]
                entry.call = ctypes.addressof(call)
                finalize(self, library.forget, call)
                continue
            forms = (_Form * self.rooms[at])()
            self.held.append(forms)
            entry.forms = ctypes.addressof(forms)
            if isinstance(launch, DriverLaunch):
                self.add(at, launch)

    def add(self, at: int, launch: DriverLaunch) -> bool:
        """Adds a form to an entry, also while other threads run it; False if it has too many."""
        with self.lock:
            entry = self.entries[at]
            if entry.count == self.rooms[at]:
                return False
            form = _Form.from_address(entry.forms + entry.count * ctypes.sizeof(_Form))
            self.fill(form, launch, self.places[at])
            self.held.append(launch)
            self.publish(ctypes.byref(entry))
        return True

    def fill(self, form: "_Form", launch: DriverLaunch, places: Sequence[tuple[int, int]]) -> None:
        own = [places[number] for _, number in launch.arrays]
        sized = [
            (at, x.register) for at, x in enumerate(launch.parameters) if isinstance(x, Number)
        ]
        x, *rest = launch.grid
        code = launch.trace.code if launch.trace is not None else []
        form.parameters = self.kept(map(int_of, launch.parameters))
        form.places = self.kept(at for at, _ in launch.arrays)
        form.bases = self.kept(base for base, _ in own)
        form.offsets = self.kept(offset for _, offset in own)
        form.parameter_count, form.count = len(launch.parameters), len(own)
        form.function, form.bytes = launch.function, launch.bytes
        form.grid[:] = [int_of(x), *rest]
        form.threads, form.shared = launch.threads, launch.shared
        form.blocks = x.register if isinstance(x, Number) else -1
        form.code, form.code_count = self.kept(x for each in code for x in each), len(code)
        form.sized, form.sized_count = self.kept(x for each in sized for x in each), len(sized)
        maps = launch.maps
        form.maps, form.map_count = self.kept(x for each in maps for x in each), len(maps)

    def kept(self, numbers: Iterable[int]) -> int:
        """The address of some numbers, which are kept."""
        values = [*numbers]
        made = (ctypes.c_int64 * len(values))(*values)
        self.held.append(made)
        return ctypes.addressof(made)

    def __call__(
        self, addresses: Any, first: int = 0, count: int | None = None, numbers: Any = None
    ) -> int | None:
        """Runs some launches on the current stream; `addresses` are those of the bases.

        `numbers` are the integers that traces are given. The result is None, or the number of the
        first launch that has no form for them: it and those after it have not run.
        """
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        count = len(self.entries) - first if count is None else count
        entries = ctypes.byref(self.entries, first * _SIZE)
        mode = torch.is_inference_mode_enabled()
        failed = self.play(entries, count, addresses, numbers, stream, self.device, mode)
        if not failed:
            return None
        at, code = divmod(failed, _CODES)
        if code == _UNFIT:
            return first + int(at)
        problem = f"the driver of the GPU reports error {code}"
        if code == _REFUSED:
            problem = "PyTorch refuses its operands, or lacks memory"
        raise LaunchFailed(name=self.names[first + at], problem=problem)


def single(launch: DriverLaunch, device: int, count: int) -> Callable[[Sequence[int]], object]:
    """A launch by itself: a function of the addresses of its arrays, which are that many."""
    launches = Launches([(launch, [(at, 0) for at in range(count)])], device, [launch.name])
    addresses = ctypes.c_int64 * count
    return lambda given: launches(addresses(*given))


class _Form(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("bases", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("sized", ctypes.c_void_p),
        ("maps", ctypes.c_void_p),
        ("parameter_count", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("code_count", ctypes.c_int64),
        ("sized_count", ctypes.c_int64),
        ("map_count", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
        ("shared", ctypes.c_uint),
    )


class _Entry(ctypes.Structure):
    _fields_ = (
        ("forms", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("call", ctypes.c_void_p),
    )


_SIZE = ctypes.sizeof(_Entry)
MOST_FORMS = 32
"""The number of forms of a kernel whose sizes change. It has few: the blocks of each dim are full
or not."""
_CODES = 2048
"""An upper bound of the codes of the driver's errors."""
_UNFIT = _CODES - 1
"""The code that says that no form fits."""

_REFUSED = _CODES - 2
"""The code that says that an operator of PyTorch's failed."""

_SOURCE = f"""\
{traced.SOURCE}
{library_calls.SOURCE}
{descriptors.SOURCE}
#include <dlfcn.h>
#include <string.h>

struct form {{
    void *function;
    const int64_t *parameters, *places, *bases, *offsets, *code, *sized, *maps;
    int64_t parameter_count, count, code_count, sized_count, map_count, bytes, blocks;
    unsigned grid[3], threads, shared;
}};
struct entry {{
    const struct form *forms;
    int64_t count;
    struct call *call;
}};
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
    encode = (encode_map)dlsym(found, "cuTensorMapEncodeTiled");
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

/* Launches a kernel in one of its forms, if that fits. */
static int launched(const struct form *one, const int64_t *addresses, const int64_t *numbers,
                    void *stream) {{
    int64_t parameters[one->parameter_count], made[one->code_count + 1], low = 0;
    void *pointers[one->parameter_count];
    if (!traced(one->code, one->code_count, numbers, made)) return {_UNFIT};
    memcpy(parameters, one->parameters, sizeof(parameters));
    for (int64_t j = 0; j < one->count; j++)
        low |= parameters[one->places[j]] = addresses[one->bases[j]] + one->offsets[j];
    if (!one->function) return clear((uint64_t)parameters[0], 0, (size_t)one->bytes, stream);
    if (low % {ALIGNED}) return {_UNFIT};
    for (int64_t j = 0; j < one->sized_count; j++)
        parameters[one->sized[2 * j]] = made[one->sized[2 * j + 1]];
    for (int64_t j = 0; j < one->parameter_count; j++) pointers[j] = &parameters[j];
    struct map maps[one->map_count + 1];
    if (one->map_count && !encode) return {_UNFIT};
    for (int64_t j = 0; j < one->map_count; j++) {{
        const int64_t *map = one->maps + j * {descriptors.ENCODED}, place = map[0];
        const int failed = encoded(&maps[j], map + 1, parameters[place]);
        if (failed) return failed;
        pointers[place] = &maps[j];
    }}
    const unsigned *grid = one->grid, blocks = one->blocks < 0 ? grid[0] : made[one->blocks];
    return launch(one->function, blocks, grid[1], grid[2], one->threads, 1, 1, one->shared, stream,
                  pointers, 0);
}}

/* Another thread may be in `play` meanwhile: it sees the new form as a whole, or not at all. */
void publish(struct entry *one) {{
    __atomic_store_n(&one->count, one->count + 1, __ATOMIC_RELEASE);
}}

int64_t play(const struct entry *entries, int64_t count, const int64_t *addresses,
             const int64_t *numbers, void *stream, int device, int mode) {{
    const int lost = with_context(device);
    if (lost) return lost;
    for (int64_t i = 0; i < count; i++) {{
        if (entries[i].call) {{
            if (called(entries[i].call, addresses, numbers, mode)) return i * {_CODES} + {_REFUSED};
            continue;
        }}
        const int64_t forms = __atomic_load_n(&entries[i].count, __ATOMIC_ACQUIRE);
        int failed = {_UNFIT};
        for (int64_t j = 0; j < forms && failed == {_UNFIT}; j++)
            failed = launched(&entries[i].forms[j], addresses, numbers, stream);
        if (failed) return i * {_CODES} + failed;
    }}
    return 0;
}}
"""


@cache
def load_library() -> Any:
    """The functions that launch kernels, compiled and loaded."""
    library = loaded(_SOURCE)
    library.find.argtypes, library.find.restype = (ctypes.c_char_p,), ctypes.c_int
    if library.find(LIBRARY.encode()):
        raise LaunchFailed(name="the GPU's driver", problem=f"{LIBRARY} cannot be loaded")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.play.argtypes = (pointer, number, *[pointer] * 3, ctypes.c_int, ctypes.c_int)
    library.play.restype = ctypes.c_int64
    library.use_tensors.argtypes, library.use_tensors.restype = (pointer, pointer), None
    library.use_tensors(*library_calls.makers())
    library.use_operators.argtypes, library.use_operators.restype = (pointer,) * 5, None
    library.use_operators(*library_calls.callers())
    library.forget.argtypes, library.forget.restype = (ctypes.POINTER(library_calls.Call),), None
    library.publish.argtypes, library.publish.restype = (pointer,), None
    return library
