"""A tape of launches: one call runs many kernels, one after the other."""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from blockbuster_fusion.runtime import traced
from blockbuster_fusion.runtime.c.kernels import ALONE, CpuLaunch, failure, loaded, most_threads
from blockbuster_fusion.torch.plan.sized import CallNumbers, SizedKernel

ALIGNED = 64
"""The alignment of arrays in an arena, in bytes."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a buffer: the number of a base, and an offset in bytes."""

    base: int
    offset: int


class Tape:
    """Launches that one call runs in order.

    A call passes the addresses of the bases that their buffers lie in, and the values that
    determine the sizes of some. So several threads may run a tape at once.
    """

    def __init__(
        self, launches: Sequence[tuple[CpuLaunch | SizedKernel, Sequence[Address]]]
    ) -> None:
        self.launches = (_Launch * len(launches))()
        self.names = [launch.name for launch, _ in launches]
        sized = [x for x, _ in launches if isinstance(x, SizedKernel)]
        self.numbers = CallNumbers([x.buffers for x in sized])
        self.held: list[Any] = [launches]  # and the memory that the launches point to
        for slot, (launch, places) in zip(self.launches, launches, strict=True):
            slot.bases = self.kept(place.base for place in places)
            slot.offsets = self.kept(place.offset for place in places)
            slot.function = ctypes.cast(launch.function, ctypes.c_void_p)
            slot.count = len(places)
            if isinstance(launch, CpuLaunch):
                slot.strides = ctypes.addressof(launch.strides)
                slot.sizes = ctypes.addressof(launch.sizes)
                slot.threads = launch.threads
                continue
            made = launch.traced(self.numbers.places)
            slot.threads, slot.few = launch.kernels.threads, launch.kernels.for_small
            slot.code = self.kept(x for each in made.code for x in each)
            slot.code_count = len(made.code)
            slot.strides, slot.stride_count = self.kept(made.strides), len(made.strides)
            slot.sizes, slot.size_count = self.kept(made.sizes), len(made.sizes)
            (slot.elements,) = made.elements
        self.function, self.start = _player(), ctypes.addressof(self.launches)

    def kept(self, numbers: Iterable[int]) -> int:
        """The address of some numbers, which are kept."""
        values = [*numbers]
        made = (ctypes.c_int64 * len(values))(*values)
        self.held.append(made)
        return ctypes.addressof(made)

    def lines(self, name: Callable[[str, Any], str], values: str) -> Iterator[str]:
        """The text of a call, of the addresses `a` of the bases, with names for what it needs."""
        numbers = f"{name('read', self.numbers.read)}({values})" if self.numbers.count else "None"
        given = f"{self.start}, {len(self.names)}, a, {numbers}, {name('most', most_threads)}()"
        yield f"failed = {name('play', self.function)}({given})"
        yield f"if failed: {name('tape', self)}.fail(failed)"

    def run(self, addresses: Any, values: Sequence[Any], first: int, count: int) -> None:
        """Runs some of the launches."""
        numbers = self.numbers.read(values) if self.numbers.count else None
        launches = self.start + first * _SIZE
        failed = self.function(launches, count, addresses, numbers, most_threads())
        if failed:
            self.fail(failed, first)

    def fail(self, failed: int, first: int = 0) -> None:
        """Raises the error that a launch reports."""
        at, code = divmod(failed, _CODES)
        raise failure(code, self.names[first + at])

    def apart(self, values: Sequence[Any] = ()) -> Iterator[Callable[[Any], None]]:
        """Each launch as a function of the addresses of the bases."""
        for at in range(len(self.launches)):
            yield partial(self.run, values=values, first=at, count=1)


def packed(spans: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """The offsets of arrays of (bytes, first use, last use) in one arena, and its length.

    Arrays that are in use at the same time do not overlap; each gets the first gap that fits.
    """
    offsets, end = [0] * len(spans), 0
    taken: list[tuple[int, int, int]] = []  # begin, end and last use of an array
    for number in sorted(range(len(spans)), key=lambda n: spans[n][1]):
        size, first, last = spans[number]
        taken = [one for one in taken if one[2] >= first]
        at = 0
        for begin, stop, _ in taken:
            if begin - at >= size:
                break
            at = -(-stop // ALIGNED) * ALIGNED
        offsets[number] = at
        end = max(end, at + size)
        taken = sorted([*taken, (at, at + size, last)])
    return offsets, end


class _Launch(ctypes.Structure):
    """A launch; with code, the strides and sizes are registers of its trace."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("bases", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("few", ctypes.c_int64),
        ("code_count", ctypes.c_int64),
        ("stride_count", ctypes.c_int64),
        ("size_count", ctypes.c_int64),
        ("elements", ctypes.c_int64),
    )


_SIZE = ctypes.sizeof(_Launch)
_CODES = 256
"""An upper bound of the codes that a kernel returns."""

_SOURCE = f"""\
{traced.SOURCE}
struct launch {{
    int (*function)(void *const *, const int64_t *, const int64_t *, int);
    const int64_t *strides, *sizes, *bases, *offsets, *code;
    int64_t count, threads, few, code_count, stride_count, size_count, elements;
}};

static int launched(const struct launch *one, void *const *buffers, const int64_t *numbers,
                    int64_t most) {{
    int64_t made[one->code_count + 1], strides[one->stride_count + 1], sizes[one->size_count + 1];
    int64_t threads = one->threads;
    if (one->code) {{
        traced(one->code, one->code_count, numbers, made);
        for (int64_t j = 0; j < one->stride_count; j++) strides[j] = made[one->strides[j]];
        for (int64_t j = 0; j < one->size_count; j++) sizes[j] = made[one->sizes[j]];
        if (made[one->elements] <= {ALONE}) threads = one->few;
    }}
    if (threads > most) threads = most;
    return one->function(buffers, one->code ? strides : one->strides,
                         one->code ? sizes : one->sizes, (int)threads);
}}

int64_t play(const struct launch *launches, int64_t count, char *const *addresses,
             const int64_t *numbers, int64_t most)
{{
    for (int64_t i = 0; i < count; i++) {{
        const struct launch *one = &launches[i];
        void *buffers[one->count + 1];
        for (int64_t j = 0; j < one->count; j++)
            buffers[j] = addresses[one->bases[j]] + one->offsets[j];
        int failed = launched(one, buffers, numbers, most);
        if (failed)
            return i * {_CODES} + failed;
    }}
    return 0;
}}
"""


@cache
def _player() -> Any:
    function = loaded(_SOURCE).play
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (pointer, number, pointer, pointer, number)
    function.restype = ctypes.c_int64
    return function
