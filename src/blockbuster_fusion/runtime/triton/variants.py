"""The compiled forms of a Triton kernel whose sizes change from call to call.

Triton compiles a kernel anew for each mixture of constants, and of integers that are 1 or multiples
of 16. So a model that is called with ever new lengths would wait for the compiler again and again.
A kernel with symbolic sizes has two forms instead. The *aligned* one serves calls in which all
blocks are full and all sizes and strides that may change are multiples of 16. The *general* one
serves all others: it masks every tail, and takes those integers as they come. Both are compiled
with the first call, so that later calls compile nothing. Two things are left: arrays that do not
begin at a multiple of 16 bytes, and sizes from 2**31 on, are compiled for when they first come.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from threading import RLock
from typing import Any

import triton
from triton.runtime.jit import JITFunction, MockTensor

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import Along, Buffer, Launchable
from blockbuster_fusion.printers.triton.names import ParameterNames

ALIGNED = 16
"""Triton knows of an integer that it is a multiple of this, and loads longer vectors."""

Arguments = dict[str, int]
"""The numbers of a launch by the names of parameters."""


class Variants:
    """The forms of one kernel, or of several of one launch."""

    def __init__(self, launched: Launchable, names: ParameterNames, function: Any) -> None:
        self.launched, self.names, self.function = launched, names, function
        self.general: dict[frozenset[str], Any] = {}
        """The functions that take some integers as they come."""
        self.compiled: set[object] = set()
        self.lock = RLock()
        """Threads compile at the same time; each form is made once."""

    @cached_property
    def is_symbolic(self) -> bool:
        return bool(self.launched.symbols)

    @property
    def are_compiled(self) -> bool:
        """True if there are several forms, and a compiler: Triton's interpreter has none."""
        return self.is_symbolic and isinstance(self.function, JITFunction)

    def fitting(self, known: Arguments, changing: Collection[str]) -> tuple[Any, Arguments]:
        """The function for a launch, and its numbers; those of `changing` differ between calls."""
        if not self.is_symbolic:
            return self.function, known
        numbers = [known[name] for name in changing]
        is_even = all(known.get(name, True) for name in self.evens)
        # one question, however many numbers there are: each answer is a form of its own
        if is_even and sum(x % ALIGNED for x in numbers) == 0:
            return self.function, known
        return self.taking(changing), {**known, **dict.fromkeys(self.evens, False)}

    def all_forms(self, known: Arguments, changing: Collection[str]) -> list[tuple[Any, Arguments]]:
        """The aligned and the general form for launches with numbers such as these."""
        even = {**known, **dict.fromkeys(changing, ALIGNED), **dict.fromkeys(self.evens, True)}
        uneven = {**known, **dict.fromkeys(changing, ALIGNED + 1)}
        return [self.fitting(even, changing), self.fitting(uneven, changing)]

    def taking(self, changing: Collection[str]) -> Any:
        """The function that takes some integers as they come."""
        key = frozenset(changing)
        with self.lock:
            if key not in self.general:
                names = [name for name in self.function.arg_names if name in key]
                self.general[key] = triton.jit(self.function.fn, do_not_specialize=names)
            return self.general[key]

    def compile(
        self, function: Any, values: Sequence[Any], options: Mapping[str, int], room: int
    ) -> None:
        """Compiles a function for a launch, without launching it, unless that is done.

        A program may take `room` bytes of shared memory.
        """
        form = _form(function, values, options)
        with self.lock:
            is_new = form not in self.compiled
            self.compiled.add(form)
        if is_new:
            compile_fitting(function, values, options, room)

    def knows(self, function: Any, values: Sequence[Any], options: Mapping[str, int]) -> bool:
        """True if a function is compiled for a launch, or is being compiled."""
        return _form(function, values, options) in self.compiled

    @cached_property
    def evens(self) -> list[str]:
        """The parameters that say whether the blocks of a dim of changing length are full."""
        return [name for dim, name in self.names.evens.items() if _changes(dim)]

    def changing(
        self, strides: Mapping[Buffer, Sequence[int]], copies: Mapping[Buffer, Sequence[int]]
    ) -> frozenset[str]:
        """The parameters that may differ in later calls: sizes, and strides that follow from them.

        A stride follows from the lengths of the axes that are faster. `copies` are buffers with
        one copy for each program, whose first stride is that between copies.
        """
        found = {*self.names.sizes.values(), *self.names.run_lengths.values()}
        for buffer, own in strides.items():
            found.update(_following(buffer, self.names.strides[buffer], own))
        for buffer, own in copies.items():
            found.update(_following(buffer, self.names.strides[buffer], own[1:]))
            if any(_entries_change(axis.dim, axis.along) for axis in buffer.axes):
                found.add(self.names.copies[buffer])
        return frozenset(found & set(self.function.arg_names))


def _form(function: Any, values: Sequence[Any], options: Mapping[str, int]) -> tuple[object, ...]:
    """All that a kernel is compiled for, but for dtypes, which are those of its arrays."""
    constant = [v for p, v in zip(function.params, values, strict=True) if p.is_constexpr]
    fixed = [v for p, v in zip(function.params, values, strict=True) if not p.do_not_specialize]
    numbers = [v for v in fixed if isinstance(v, int)]
    return (id(function), (*constant,), (*numbers,), (*options.items(),))


def placeholder(dtype: Any) -> Any:
    """Stands for an array of a dtype where a kernel is compiled only."""
    return MockTensor.wrap_dtype(dtype)


def _following(buffer: Buffer, names: Sequence[str], strides: Sequence[int]) -> Iterator[str]:
    """The names of the strides that change if some lengths do."""
    order = sorted(range(len(strides)), key=lambda at: (-strides[at], at))
    slow = [at for at in order if strides[at]]
    for place, at in enumerate(slow):
        faster = (buffer.axes[x] for x in slow[place + 1 :])
        if any(_entries_change(axis.dim, axis.along) for axis in faster):
            yield names[at]


def _entries_change(dim: Dim, along: Along) -> bool:
    """True if the number of entries along an axis of a buffer may differ between calls."""
    return along is not Along.BLOCK and _changes(dim)


def _changes(dim: Dim) -> bool:
    return not isinstance(dim.axis.extent, int)


def compile_fitting(
    function: Any, values: Sequence[Any], options: Mapping[str, int], room: int
) -> None:
    """Compiles a function, and again with fewer stages until its shared memory suffices.

    A launch that lacks shared memory does the same, and finds all of them compiled.
    """
    own = dict(options)
    while True:
        made = function.warmup(*values, grid=(1, 1, 1), **own)
        is_small = made is None or made.metadata.shared <= room  # an interpreter makes nothing
        if is_small or own.get("num_stages", 1) <= 1:
            return
        own["num_stages"] -= 1
