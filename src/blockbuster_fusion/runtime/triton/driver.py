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
from torch import _C, is_inference_mode_enabled
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources

from blockbuster_fusion.errors import LaunchFailed
from blockbuster_fusion.runtime.c.kernels import loaded
from blockbuster_fusion.runtime.traced import Number, Trace, Value, int_of
from blockbuster_fusion.runtime.triton import library_call_source, library_calls
from blockbuster_fusion.runtime.triton.descriptors import Matrix, without_others
from blockbuster_fusion.runtime.triton.driver_source import SOURCE, Entry, Form
from blockbuster_fusion.runtime.triton.library_call_source import CODES, DIFFERS, REFUSED, UNFIT
from blockbuster_fusion.runtime.triton.library_calls import LibraryCall, Release

WHOLE = frozenset({"i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})
"""The types of parameters that are integers: a driver reads as many of 64 bits as it needs."""
HIDDEN = 2
"""Parameters at the end that Triton adds: the addresses of memory for programs, here none."""
LIBRARY = "libcuda.so.1"
Odd = frozenset[int]
"""The numbers of arrays whose addresses are no multiples of `ALIGNED` (variants.py); negative ones
are of pairs that one descriptor does not serve (launch.py)."""


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
    odd: Odd = frozenset()
    """The arrays at odd addresses that it was compiled for."""
    is_early: bool = False
    """True if it may start before the kernel before it has ended, for whose end it waits."""


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
    odd: Odd = frozenset(),
    matrices: Mapping[int, Matrix] | None = None,
) -> DriverLaunch | None:
    """The launch of a kernel of Triton's; None if it takes more than a grid and numbers.

    `template` has the numbers, and `pointers` the places of arrays among the arguments. Those of
    `matrices` are tensor descriptors. The kernel was compiled for odd addresses of some arrays.
    """
    about = compiled.metadata
    extras = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid")
    if about.num_ctas != 1 or any(getattr(about, x, 0) for x in extras):
        return None
    kinds = list(compiled.src.signature.values())
    taken = [at for at, kind in enumerate(kinds) if kind != "constexpr"]
    described, arrays_at = without_others(matrices or {}), {at for at, _ in pointers}
    if any(not _is_known(kinds[at], at in described) for at in taken):
        return None
    encoded = getattr(about, "tensordesc_meta", None) or ()
    if len(encoded) != len(described):
        return None  # the GPU has no descriptors
    numbers: list[Value] = []
    first: dict[int, int] = {}
    for at in taken:
        first[at] = len(numbers)
        is_address = at in arrays_at or kinds[at][0] == "*"
        numbers.append(0 if is_address else _plain(template[at]))
        if at in described:
            numbers += described[at].numbers
    needed = {*described, *(m.other for m in described.values() if m.is_joined)}
    if not needed <= first.keys():
        return None  # one of them is a constant
    maps = [
        (first[at], *matrix.encoding(facts), first[matrix.other] if matrix.is_joined else -1)
        for (at, matrix), facts in zip(sorted(described.items()), encoded, strict=True)
    ]
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
        odd=odd,
        is_early=bool(getattr(about, "launch_pdl", False)),
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
        launches: Sequence[
            tuple[DriverLaunch | LibraryCall | Release | int, Sequence[tuple[int, int]]]
        ],
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
        self.entries = (Entry * len(launches))()
        self.start = ctypes.addressof(self.entries)
        self.held: list[Any] = []  # the memory that the entries point to
        self.repeatable = set[int]()
        """The calls of operators that Python can repeat, for PyTorch's own error."""
        self.lock = Lock()
        library = load_library()
        self.play, self.publish = library.play, library.publish
        for at, (launch, places) in enumerate(launches):
            entry = self.entries[at]
            if isinstance(launch, LibraryCall):
                call, held = library_call_source.filled(launch, [*places], given or {})
                self.held += [call, held]
                entry.call = ctypes.addressof(call)
                finalize(self, library.forget, call)
                self.repeatable |= {at} if launch.is_repeatable else set()
                continue
            if isinstance(launch, Release):
                entry.released = self.kept(launch.handles)
                entry.released_count = len(launch.handles)
                continue
            forms = (Form * self.rooms[at])()
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
            form = Form.from_address(entry.forms + entry.count * ctypes.sizeof(Form))
            self.fill(form, launch, self.places[at])
            self.held.append(launch)
            self.publish(ctypes.byref(entry))
        return True

    def fill(self, form: "Form", launch: DriverLaunch, places: Sequence[tuple[int, int]]) -> None:
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
        form.odd = self.kept(int(number in launch.odd) for _, number in launch.arrays)
        form.parameter_count, form.count = len(launch.parameters), len(own)
        form.function, form.bytes = launch.function, launch.bytes
        form.grid[:] = [int_of(x), *rest]
        form.threads, form.shared, form.early = launch.threads, launch.shared, launch.is_early
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
    ) -> "Stopped | None":
        """Runs some launches on the current stream; `addresses` are those of the bases.

        `numbers` are the integers that traces are given. The result is None if all have run.
        """
        stream, mode = _C._cuda_getCurrentRawStream(self.device), is_inference_mode_enabled()
        count = len(self.entries) - first if count is None else count
        entries = self.start + first * _SIZE
        failed = self.play(entries, count, addresses, numbers, stream, self.device, mode)
        return self.stopped(failed, first) if failed else None

    def stopped(self, failed: int, first: int = 0) -> "Stopped":
        """The launch at which a call from the `first` on has stopped, or LaunchFailed."""
        at, code = divmod(failed, CODES)
        is_repeatable = code == REFUSED and first + at in self.repeatable
        if code in (UNFIT, DIFFERS) or is_repeatable:
            return Stopped(first + int(at), code)
        problem = f"the driver of the GPU reports error {code}"
        if code == REFUSED:
            problem = "PyTorch refuses its operands, or lacks memory"
        raise LaunchFailed(name=self.names[first + at], problem=problem)


@dataclass(frozen=True, slots=True)
class Stopped:
    """The launch at which a call stopped: those after it have not run."""

    at: int
    reason: int
    """UNFIT if no form of a kernel fits, REFUSED if an operator has failed that Python can
    repeat, DIFFERS if it has run, and a result lies in memory otherwise than expected."""


def single(launch: DriverLaunch, device: int, count: int) -> Callable[[Sequence[int]], object]:
    """A launch by itself: a function of the addresses of its arrays, which are that many."""
    launches = Launches([(launch, [(at, 0) for at in range(count)])], device, [launch.name])
    addresses = ctypes.c_int64 * count
    return lambda given: launches(addresses(*given))


_SIZE = ctypes.sizeof(Entry)
FEW_FORMS = 4
"""The number of forms of a kernel of known sizes: they differ in the arrays at odd addresses."""
MOST_FORMS = 32
"""The number of forms of a kernel whose sizes change. It has few: the blocks of each dim are full
or not."""


@cache
def load_library() -> Any:
    """The functions that launch kernels, compiled and loaded."""
    library = loaded(SOURCE)
    library.find.argtypes, library.find.restype = (ctypes.c_char_p,), ctypes.c_int
    if library.find(LIBRARY.encode()):
        raise LaunchFailed(name="the GPU's driver", problem=f"{LIBRARY} cannot be loaded")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.play.argtypes = (pointer, number, *[pointer] * 3, ctypes.c_int, ctypes.c_int)
    library.play.restype = ctypes.c_int64
    library.use_tensors.argtypes, library.use_tensors.restype = (pointer, pointer), None
    library.use_tensors(*library_calls.makers())
    library.use_operators.argtypes, library.use_operators.restype = (pointer,), None
    callers = library_calls.callers()
    library.use_operators((pointer * len(callers))(*callers))
    library.release.argtypes, library.release.restype = (pointer, pointer, number), None
    library.forget.argtypes, library.forget.restype = (
        (ctypes.POINTER(library_call_source.Call),),
        None,
    )
    library.publish.argtypes, library.publish.restype = (pointer,), None
    return library
