"""Kernels in C: compiled, loaded and called through ctypes."""

import ctypes
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from blockbuster_fusion.errors import (
    BlockbusterError,
    CompilerFailed,
    LaunchFailed,
    PlaceOutside,
    WrongKind,
)
from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Contract, Launchable, Nest
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.c.prelude import OUTSIDE
from blockbuster_fusion.runtime.c.compiler import compile_c, compiler
from blockbuster_fusion.runtime.c.library import load_library
from blockbuster_fusion.runtime.c.probe import dot_unit
from blockbuster_fusion.runtime.disk_cache import discard

ALONE = 1 << 14
"""The number of elements up to which one thread is faster than several."""


class _Threads:
    """The most threads that kernels of this process may use.

    The threads of OpenMP's pool do not survive a fork, and the pool would wait for them for ever.
    So kernels run on one thread in a forked child.
    """

    most = 1 << 30

    @classmethod
    def limit(cls) -> None:
        cls.most = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Threads.limit)


def most_threads() -> int:
    """The most threads that a kernel may use in this process."""
    return _Threads.most


class CpuKernels:
    """The kernels of a program, compiled for this CPU.

    Each is `int NAME(void *const *buffers, const int64_t *strides, const int64_t *sizes, int
    threads)`: the addresses of its global buffers, their strides in elements one after the other,
    and the sizes that it depends on. It returns 0, or the code of an error.
    """

    def __init__(
        self,
        nest: Nest,
        tiles: Mapping[Dim, int],
        *,
        threads: int | None = None,
        chosen: int | None = None,
        chunk: int | None = None,
        past: int | None = None,
        sanitize: bool = False,
        is_counted: bool = False,
    ) -> None:
        """`threads` are the most to take; `chosen`, `chunk` and `past` are a schedule's.

        Counted kernels count the bytes that they move (runtime/c/counted.py).
        """
        self.source = source_of(nest, tiles, chunk, past, is_counted=is_counted)
        if threads is not None and (type(threads) is not int or threads < 1):
            remedy = "None takes all that there are"
            given = repr(threads)
            wanted = "a number of threads of at least 1"
            raise WrongKind(function="compile", wanted=wanted, given=given, remedy=remedy)
        most = threads or _all_threads()
        self.threads = most if chosen is None else min(chosen, most)
        self.for_small = 1 if chosen is None else self.threads
        """The threads of a kernel with few elements."""
        library = self.library = loaded(self.source, sanitize=sanitize)
        try:
            self.functions = {kernel.name: library[kernel.name] for kernel in nest.kernels}
        except AttributeError as error:
            command, message = shlex.join(compiler()), f"what it wrote lacks a kernel: {error}"
            raise CompilerFailed(command=command, source="a kernel", message=message) from None
        self.symbols = {kernel.name: kernel.symbols for kernel in nest.kernels}

    def bind(
        self,
        kernel: Launchable,
        strides: Sequence[Sequence[int]],
        sizes: Mapping[Symbol, int],
        *,
        elements: int,
    ) -> "CpuLaunch":
        """A launch for buffers with these strides; it takes their addresses."""
        threads = self.threads if elements > ALONE else self.for_small
        flat, values = [stride for one in strides for stride in one], self.sizes(kernel, sizes)
        return CpuLaunch(kernel.name, self.functions[kernel.name], flat, values, threads)

    def sizes(self, kernel: Launchable, sizes: Mapping[Symbol, int]) -> list[int]:
        """The sizes that a kernel takes, in order."""
        return [sizes[symbol] for symbol in self.symbols[kernel.name]]


class CpuLaunch:
    """A kernel for buffers of certain strides: called with their addresses, it runs."""

    def __init__(
        self,
        name: str,
        function: Any,
        strides: Sequence[int],
        sizes: Sequence[int],
        threads: int,
    ) -> None:
        self.name, self.function, self.threads = name, function, threads
        self.strides = (ctypes.c_int64 * len(strides))(*strides)
        self.sizes = (ctypes.c_int64 * len(sizes))(*sizes)

    def __call__(self, addresses: Sequence[int]) -> None:
        # The addresses are an array of their own: other threads may run the same kernel.
        held = (ctypes.c_void_p * len(addresses))(*addresses)
        threads = min(self.threads, most_threads())
        failed = self.function(held, self.strides, self.sizes, threads)
        if failed:
            raise failure(failed, self.name)


def failure(code: int, name: str) -> BlockbusterError:
    """The error that a kernel reports by its return code."""
    if code == OUTSIDE:
        return PlaceOutside(name=name)
    return LaunchFailed(name=name, problem="there is not enough memory for its buffers")


def source_of(
    nest: Nest,
    tiles: Mapping[Dim, int],
    chunk: int | None,
    past: int | None,
    *,
    is_counted: bool = False,
) -> str:
    """The kernels of a program in C, with the unit of this CPU that multiplies bfloat16."""
    buffers = {buffer for kernel in nest.kernels for buffer in kernel.buffers}
    is_narrow = any(buffer.dtype is DType.bfloat16 for buffer in buffers)
    products = (isinstance(s, Contract) for kernel in nest.kernels for s in kernel.statements)
    unit = dot_unit() if is_narrow and any(products) else None
    return print_c(nest, tiles, chunk, past, unit, is_counted=is_counted)


def loaded(source: str, *, sanitize: bool = False) -> Any:
    """The library of a C source; one that does not load is compiled again, once."""
    entry = compile_c(source, sanitize=sanitize)
    try:
        return load_library(entry.content)
    except OSError:
        discard(entry)
    entry = compile_c(source, sanitize=sanitize)
    try:
        return load_library(entry.content)
    except OSError as error:
        discard(entry)
        command, message = shlex.join(compiler()), f"what it wrote cannot be loaded: {error}"
        raise CompilerFailed(command=command, source="a kernel", message=message) from error


def _all_threads() -> int:
    """The number of threads that OpenMP takes by default."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
