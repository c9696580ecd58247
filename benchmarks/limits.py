"""Generated CPU kernels by themselves, as a share of what the machine can do at most.

    python benchmarks/limits.py [--threads 1] [--cases attention norm] [--seconds 0.5]
    python benchmarks/limits.py --save benchmarks/results/limits.json  # merges: other cases stay
    python benchmarks/limits.py --table                                # the table of docs/cpu.md

Kernels are launched by themselves, on arrays that are there already, and PyTorch's operators are no
rivals. Kernels with products are compared with the peak of fused multiply-adds that the machine
reaches in registers. Others are compared with a copy: PyTorch copies as many bytes as the kernel
reads and writes. The limit is measured in turns with the kernel, so that other load on the machine,
and its clock, take little part.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from blockbuster_fusion.runtime.bound import Bound
from blockbuster_fusion.runtime.c import probe
from blockbuster_fusion.runtime.measuring import measuring
from blockbuster_fusion.tools.bench import processor, versions
from blockbuster_fusion.torch.backend import backend

RESULTS = Path(__file__).parent / "results" / "limits.json"
ROUNDS = 9
GOAL = {"attention": 0.75}
USUAL_GOAL = 0.85
LANES_OF_PEAK = 10
"""The chains of multiply-adds that the probe of the peak runs."""


@dataclass(frozen=True)
class Case:
    """A function with the shapes of its inputs, and the products that it computes."""

    name: str
    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    flops: float = 0.0
    """The operations of its products; 0 if memory is the limit."""

    @property
    def goal(self) -> float:
        return next((goal for word, goal in GOAL.items() if word in self.name), USUAL_GOAL)

    def inputs(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        made = [torch.randn(shape, generator=generator) for shape in self.shapes]
        return [x / x.shape[-1] ** 0.5 if number else x for number, x in enumerate(made)]


def swiglu(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, w)) * F.linear(x, v), u)


def norm_swiglu(x: Tensor, g: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    return x + swiglu(F.rms_norm(x, x.shape[-1:], g), w, v, u)


def norm_linear(x: Tensor, g: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.layer_norm(x, x.shape[-1:], g, b), w)


def products() -> Iterator[Case]:
    for n in (512, 1024):
        yield Case(f"product {n}x{n}x{n}", torch.matmul, ((n, n), (n, n)), 2 * n**3)
    rows, width, wide, inner = 512, 1024, 4096, 2816
    flops = 2 * rows * width * wide
    given = (rows, width), (wide, width)
    yield Case(f"linear {rows}x{width}x{wide}", F.linear, given, flops)
    given = (rows, width), (width,), (width,), (wide, width)
    yield Case(f"layer norm, linear {rows}x{width}x{wide}", norm_linear, given, flops)
    weights = (inner, width), (inner, width), (width, inner)
    flops = 6 * rows * width * inner
    size = f"{rows}x{width}x{inner}"
    yield Case(f"SwiGLU {size}", swiglu, ((rows, width), *weights), flops)
    given = (rows, width), (width,), *weights
    yield Case(f"rms norm, SwiGLU, residual {size}", norm_swiglu, given, flops)


def attentions() -> Iterator[Case]:
    causal = partial(F.scaled_dot_product_attention, is_causal=True)
    for length, width in ((512, 64), (512, 128), (2048, 64), (2048, 128)):
        shape = (1, 8, length, width)
        flops = 4 * 8 * length**2 * width
        size = "x".join(map(str, shape))
        yield Case(f"attention {size}", F.scaled_dot_product_attention, (shape,) * 3, flops)
        if length == 2048:
            yield Case(f"causal attention {size}", causal, (shape,) * 3, flops / 2)


def few_rows() -> Iterator[Case]:
    for rows in (1, 4):
        yield Case(f"linear {rows}x4096x4096", F.linear, ((rows, 4096), (4096, 4096)))
    yield Case("matrix times vector 8192x4096", torch.mv, ((8192, 4096), (4096,)))
    weights = (5632, 2048), (5632, 2048), (2048, 5632)
    yield Case("SwiGLU 1x2048x5632", swiglu, ((1, 2048), *weights))
    given = (1, 2048), (2048,), *weights
    yield Case("rms norm, SwiGLU, residual 1x2048x5632", norm_swiglu, given)


def streams() -> Iterator[Case]:
    square = (4096, 4096)
    for rows, width in (square, (100_000, 100)):
        size, shape, vector = f"{rows}x{width}", (rows, width), (width,)
        last = (width,)
        yield Case(f"sum of two {size}", torch.add, (shape, shape))
        yield Case(f"gelu {size}", F.gelu, (shape,))
        yield Case(f"silu gate {size}", lambda x, y: F.silu(x) * y, (shape, shape))
        yield Case(
            f"layer norm {size}",
            partial(lambda last, x, g, b: F.layer_norm(x, last, g, b), last),
            (shape, vector, vector),
        )
        yield Case(
            f"rms norm {size}",
            partial(lambda last, x, g: F.rms_norm(x, last, g), last),
            (shape, vector),
        )
        yield Case(f"softmax {size}", lambda x: x.softmax(-1), (shape,))
        yield Case(f"log softmax {size}", lambda x: x.log_softmax(-1), (shape,))
        yield Case(f"sum of rows {size}", lambda x: x.sum(-1), (shape,))
        yield Case(f"sum of columns {size}", lambda x: x.sum(0), (shape,))
        yield Case(f"sum of all {size}", lambda x: x.sum(), (shape,))
        yield Case(f"mse {size}", F.mse_loss, (shape, shape))
    yield Case("sum with a transpose 4096x4096", lambda x: x + x.t(), (square,))


CASES = [*products(), *attentions(), *few_rows(), *streams()]


class Limit:
    """The peak of multiply-adds, and copies: what kernels are compared with."""

    def __init__(self, threads: int) -> None:
        self.library, self.threads = probe._library(), threads

    def flops(self, seconds: float) -> float:
        """Operations per second in registers, measured now on all threads at once."""
        lanes = self.library.vector_bytes() // 4
        rounds = int(seconds * 2e8)
        spent = self.library.time_of_all_float32(rounds, self.threads)
        return float(2.0 * LANES_OF_PEAK * lanes * rounds / spent * self.threads)


def measured(case: Case, threads: int, seconds: float) -> dict[str, Any]:
    """One case: the kernels and their limit, in turns."""
    limit = Limit(threads)
    torch._dynamo.reset()
    inputs = case.inputs()
    launches, result = prepared(case, inputs)

    def run() -> None:
        for launch in launches:
            launch()

    size = sum(4 * x.numel() for x in (*inputs, result))
    source = torch.zeros(size // 8)
    target = torch.empty_like(source)
    limits: dict[str, Callable[[], float]] = {
        "peak": lambda: case.flops / limit.flops(0.01),
        "copy": lambda: timed(lambda: target.copy_(source), threads),
    }
    of = "peak" if case.flops else "copy"
    shares, times = [], []
    with measuring("cpu"):
        for _ in range(3):
            run()
            limits[of]()
        begin = time.perf_counter()
        while len(times) < ROUNDS or time.perf_counter() - begin < seconds:
            least = limits[of]()
            own = timed(run, threads)
            times.append(own)
            shares.append(0.5 * (least + limits[of]()) / own)
    return {
        "case": case.name,
        "of": of,
        "share": median(shares),
        "goal": case.goal,
        "microseconds": 1e6 * median(times),
        "gflops": case.flops / median(times) / 1e9 or None,
        "gigabytes_per_second": size / median(times) / 1e9,
        "threads": threads,
        "rounds": len(times),
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {processor()}",
        "versions": versions(),
    }


def prepared(case: Case, inputs: list[Tensor]) -> tuple[list[Callable[[], None]], Tensor]:
    """Functions that launch the kernels of a case on arrays that are there, and its result."""
    launches: list[Callable[[], None]] = []
    run = Bound.run

    def noted(self: Bound, library: Any, given: Any, into: Any = None) -> Any:
        launches.append(self.prepared(library, given))
        return run(self, library, given, into)

    never = partial(backend, options={"library": "never"})
    compiled = torch.compile(case.function, backend=never, dynamic=False)
    with patch.object(Bound, "run", noted):
        result = compiled(*inputs)
    assert launches, "kernels run"
    return launches, result


def timed(run: Callable[[], Any], threads: int) -> float:
    """Seconds of a call: several calls if they are short."""
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    run()
    count = max(1, min(1000, int(5e-4 / max(clock() - start, 1e-7))))
    start = clock()
    for _ in range(count):
        run()
    return (clock() - start) / count


def table(results: list[dict[str, Any]]) -> str:
    """The results as the table of docs/cpu.md."""
    lines = ["| kernel | threads | share of the limit | limit | goal |", "|---|--:|--:|---|--:|"]
    words = {"peak": "multiply-adds", "copy": "a copy"}
    for r in results:
        share = f"{r['share']:.2f}"
        shown = f"**{share}**" if r["share"] >= r["goal"] else share
        lines.append(
            f"| {r['case']} | {r['threads']} | {shown} | {words[r['of']]} | {r['goal']:.2f} |"
        )
    return "\n".join(lines)


def load(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8"))["results"] if file.exists() else []


def merged(
    old: list[dict[str, Any]], new: list[dict[str, Any]], cases: Sequence[Case], by: str = "threads"
) -> list[dict[str, Any]]:
    """Old and new results in the order of the machines, of a field, and of the cases."""
    found = {(r["machine"], r[by], r["case"]): r for r in (*old, *new)}
    order = {case.name: place for place, case in enumerate(cases)}
    keys = sorted(found, key=lambda key: (*key[:2], order.get(key[2], len(order))))
    return [found[key] for key in keys]


def one_by_one(
    measured: Callable[[Case, int, float], dict[str, Any]],
) -> Callable[[Sequence[Case], argparse.Namespace], Iterator[dict[str, Any]]]:
    """Measures cases in turn, each with a number of threads, for some seconds."""

    def all_measured(
        cases: Sequence[Case], options: argparse.Namespace
    ) -> Iterator[dict[str, Any]]:
        torch.set_num_threads(options.threads)
        os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
        for case in cases:
            yield measured(case, options.threads, options.seconds)

    return all_measured


def with_threads(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of benchmarks on a CPU."""
    parser.add_argument("--threads", type=int, default=1)


def told(result: dict[str, Any]) -> str:
    """A result as a line."""
    rate = f"{result['gigabytes_per_second']:.1f} GB/s"
    if result["gflops"]:
        rate = f"{result['gflops']:.0f} GFLOP/s"
    share = f"{result['share']:.2f} of {result['of']}"
    return f"{result['case']}: {share}, {result['microseconds']:.0f} µs, {rate}"


@dataclass(frozen=True)
class Benchmark:
    """Cases of kernels by themselves, with the way to measure them and to tell of the results."""

    about: str
    cases: Sequence[Case]
    measured: Callable[[Sequence[Case], argparse.Namespace], Iterable[dict[str, Any]]]
    """Measures some cases as the command line asks."""
    told: Callable[[dict[str, Any]], str]
    table: Callable[[list[dict[str, Any]]], str]
    results: Path
    seconds: float
    arguments: Callable[[argparse.ArgumentParser], None] = with_threads
    """Adds arguments of its own."""
    by: str = "threads"
    """The field that tells results of one case on one machine apart."""

    def command(self) -> None:
        """Runs the cases that the command line asks for, or prints the table of kept results."""
        options = self.options()
        if options.table:
            print(self.table(load(options.save or self.results)))
            return
        torch.set_grad_enabled(False)
        words = options.cases
        chosen = [c for c in self.cases if not words or any(word in c.name for word in words)]
        for result in self.measured(chosen, options):
            print(self.told(result), flush=True)
            if options.save:
                kept = {"results": merged(load(options.save), [result], self.cases, self.by)}
                options.save.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

    def options(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=self.about.splitlines()[0])
        parser.add_argument("--cases", nargs="*", help="cases whose name has one of these words")
        parser.add_argument("--seconds", type=float, default=self.seconds, help="for each case")
        parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
        parser.add_argument("--table", action="store_true", help="print the table of kept results")
        self.arguments(parser)
        return parser.parse_args()


if __name__ == "__main__":
    Benchmark(__doc__ or "", CASES, one_by_one(measured), told, table, RESULTS, 0.5).command()
