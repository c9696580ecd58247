"""A tape of launches: one call runs many kernels, one after the other."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

from blockbuster_fusion.runtime.c.kernels import CpuLaunch, failure, loaded, most_threads

ALIGNED = 64
"""The alignment of arrays in an arena, in bytes."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a buffer: the number of a base, and an offset in bytes."""

    base: int
    offset: int


class SizedLaunch(Protocol):
    """A kernel whose launch depends on the sizes of a call."""

    name: str
    function: Any

    def launch(self, values: Sequence[Any]) -> CpuLaunch: ...


class Tape:
    """Launches that one call runs in order.

    A call passes the addresses of the bases that their buffers lie in, and the values that
    determine the sizes of some. So several threads may run a tape at once.
    """

    def __init__(
        self, launches: Sequence[tuple[CpuLaunch | SizedLaunch, Sequence[Address]]]
    ) -> None:
        self.launches = (_Launch * len(launches))()
        self.sized: list[tuple[int, SizedLaunch]] = []
        self.held: list[Any] = []  # the memory that the launches point to
        for at, (launch, places) in enumerate(launches):
            slot = self.launches[at]
            bases = (ctypes.c_int64 * len(places))(*(place.base for place in places))
            offsets = (ctypes.c_int64 * len(places))(*(place.offset for place in places))
            self.held.append((launch, bases, offsets))
            slot.bases, slot.offsets = ctypes.addressof(bases), ctypes.addressof(offsets)
            slot.function = ctypes.cast(launch.function, ctypes.c_void_p)
            slot.count = len(places)
            if isinstance(launch, CpuLaunch):
                slot.fill(launch)
            else:
                self.sized.append((at, launch))
        self.function = _player()

    def __call__(
        self, addresses: "ctypes.Array[ctypes.c_void_p]", values: Sequence[Any] = ()
    ) -> None:
        """Runs the launches; `addresses` are those of the bases."""
        launches, _made = self.filled(values)
        failed = self.function(launches, len(launches), addresses, most_threads())
        if failed:
            at, code = divmod(failed, _CODES)
            raise failure(code, self.held[at][0].name)

    def filled(self, values: Sequence[Any]) -> tuple[Any, list[CpuLaunch]]:
        """The launches with the sizes of a call, and the memory that they point to."""
        launches = self.launches
        made: list[CpuLaunch] = []
        if self.sized:
            launches = type(launches).from_buffer_copy(launches)
            for at, sized in self.sized:
                made.append(sized.launch(values))
                launches[at].fill(made[-1])
        return launches, made

    def apart(self, values: Sequence[Any] = ()) -> Iterator[Callable[[Any], None]]:
        """Each launch as a function of the addresses of the bases."""
        launches, _made = self.filled(values)

        def run(at: int, addresses: Any) -> None:
            failed = self.function(ctypes.byref(launches[at]), 1, addresses, most_threads())
            if failed:
                raise failure(failed % _CODES, self.held[at][0].name)

        for at in range(len(launches)):
            yield partial(run, at)


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
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("bases", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("threads", ctypes.c_int64),
    )

    def fill(self, launch: CpuLaunch) -> None:
        """Sets the strides and sizes of a launch, which has to live as long as this."""
        self.strides = ctypes.addressof(launch.strides)
        self.sizes = ctypes.addressof(launch.sizes)
        self.threads = launch.threads


_CODES = 256
"""An upper bound of the codes that a kernel returns."""

_SOURCE = f"""\
#include <stdint.h>

struct launch {{
    int (*function)(void *const *, const int64_t *, const int64_t *, int);
    const int64_t *strides, *sizes, *bases, *offsets;
    int64_t count, threads;
}};

int64_t play(const struct launch *launches, int64_t count, char *const *addresses, int64_t most)
{{
    for (int64_t i = 0; i < count; i++) {{
        const struct launch *one = &launches[i];
        void *buffers[one->count];
        for (int64_t j = 0; j < one->count; j++)
            buffers[j] = addresses[one->bases[j]] + one->offsets[j];
        int64_t threads = one->threads < most ? one->threads : most;
        int failed = one->function(buffers, one->strides, one->sizes, (int)threads);
        if (failed)
            return i * {_CODES} + failed;
    }}
    return 0;
}}
"""


@cache
def _player() -> Any:
    function = loaded(_SOURCE).play
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    function.restype = ctypes.c_int64
    return function
