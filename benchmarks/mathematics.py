"""Measures the mathematics in C on one thread: time per element in the cache and in memory.

    python benchmarks/mathematics.py                # beside PyTorch's own operators
    python benchmarks/mathematics.py tanh erf --dtype float64

A copy of the same arrays is measured as well: no function can be faster than it in memory.
"""

import argparse
import ctypes
import time
from collections.abc import Callable

import numpy as np
import torch

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.c.mathematics.bounds import BOUNDS, BoundedFunction, X
from blockbuster_fusion.printers.c.prelude import prelude
from blockbuster_fusion.printers.operators import C_TYPES
from blockbuster_fusion.runtime.c.compiler import compile_c
from blockbuster_fusion.runtime.c.library import load_library
from blockbuster_fusion.tools.check.mathematics import batch_text

COPY = BoundedFunction("copy", X, "x", 0.0, 0.0)
CACHED, STREAMED = 4096, 1 << 22
RUNS, SECONDS = 200, 1.0
"""The least time of many short runs counts: a busy machine only makes runs slower."""
LOOP = """
void run(const {type} *RESTRICT x, const {type} *RESTRICT y, {type} *RESTRICT made, int64_t n,
         int64_t rounds) {{
    for (int64_t r = 0; r < rounds; r++) {{
        for (int64_t at = 0; at < n; at += 16) {{
{text}
        }}
        __asm__ volatile("" ::: "memory");
    }}
}}
"""
LIBRARY: dict[str, Callable[..., torch.Tensor]] = {
    "rsqrt": torch.rsqrt,
    "softplus": torch.nn.functional.softplus,
    "copy": lambda x, out: out.copy_(x),
}


def source(name: str, dtype: str) -> str:
    """A C program that runs a function over an array."""
    own = DType(dtype)
    needs: set[tuple[str, ...]] = set()
    row = BOUNDS.get(name, COPY)
    text = batch_text(row, dtype, needs, "made")
    return prelude(needs) + LOOP.format(type=C_TYPES[own], text=text)


def best(run: Callable[[int], object], elements: int) -> float:
    """The least time of an element in nanoseconds, of many short runs."""
    rounds = max(1, 50 * CACHED // elements)
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < RUNS and (len(times) < 5 or time.perf_counter() < end):
        start = time.perf_counter()
        run(rounds)
        times.append(time.perf_counter() - start)
    return min(times) / rounds / elements * 1e9


def inputs(name: str, dtype: str, elements: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(elements) * 2
    positive = name.startswith("log") or name in ("pow", "rsqrt")
    return [a.astype(dtype) for a in (np.abs(x) if positive else x, rng.standard_normal(elements))]


def ours(name: str, dtype: str, elements: int) -> float:
    run = load_library(compile_c(source(name, dtype)).content).run
    arrays = [*inputs(name, dtype, elements), np.zeros(elements, dtype)]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
    return best(lambda n: run(*pointers, ctypes.c_int64(elements), ctypes.c_int64(n)), elements)


def library(name: str, dtype: str, elements: int) -> float:
    """PyTorch's operator; in the cache the cost of its calls is part of the time."""
    arrays = [torch.from_numpy(a) for a in inputs(name, dtype, elements)]
    out = torch.empty_like(arrays[0])
    given = arrays[: BOUNDS[name].arity if name in BOUNDS else 1]
    function = LIBRARY.get(name) or getattr(torch, name)

    def run(rounds: int) -> None:
        for _ in range(rounds):
            function(*given) if name == "softplus" else function(*given, out=out)

    return best(run, elements)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="functions (default: all)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("ns per element     in cache            in memory")
    print("                 ours  PyTorch       ours  PyTorch")
    for name in ("copy", *(options.names or BOUNDS)):
        times = [
            measure(name, options.dtype, elements)
            for elements in (CACHED, STREAMED)
            for measure in (ours, library)
        ]
        print(f"{name:10}   {times[0]:8.3f} {times[1]:8.3f}   {times[2]:8.3f} {times[3]:8.3f}")


if __name__ == "__main__":
    main()
