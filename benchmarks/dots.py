"""Kernels with products of bfloat16, as a share of the peak of this CPU's dots.

    python benchmarks/dots.py [--threads 1] [--cases attention norm] [--seconds 1]
    python benchmarks/dots.py --save benchmarks/results/dots.json    # merges: other cases stay
    python benchmarks/dots.py --table                                # the table of docs/cpu.md

Generated kernels run on the fastest unit for bfloat16 (AVX512-BF16 or AMX), and, as `widened`, with
multiply-adds of float32. PyTorch's operators are no rivals within these; they are measured beside
them, eager and compiled by Inductor. All run in turns. Errors, against float64, may be twice those
of eager PyTorch.
"""

import platform
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from limits import Benchmark, Case, norm_linear, one_by_one, prepared, swiglu, timed
from torch import Tensor

from blockbuster_fusion.runtime.c import kernels, probe
from blockbuster_fusion.runtime.measuring import measuring
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.tools.bench import processor, versions
from blockbuster_fusion.torch import compile_parts

RESULTS = Path(__file__).parent / "results" / "dots.json"
ROUNDS = 5
WITHIN = 2.0
"""The factor of eager PyTorch's error that is allowed."""


def linear(rows: int, width: int, wide: int) -> Case:
    given = (rows, width), (wide, width)
    return Case(f"linear {rows}x{width}x{wide}", F.linear, given, 2 * rows * width * wide)


NORM = (512, 1024), (1024,), (1024,), (4096, 1024)
SWIGLU = (512, 1024), (2816, 1024), (2816, 1024), (1024, 2816)
HEADS = ((1, 8, 1024, 64),) * 3
CASES = [
    linear(512, 2048, 2048),
    linear(2048, 2048, 2048),
    linear(128, 1024, 4096),
    linear(16, 2048, 2048),
    linear(1, 2048, 2048),
    Case("product 512x2048x2048", torch.matmul, ((512, 2048), (2048, 2048)), 2 * 512 * 2048**2),
    Case("layer norm, linear 512x1024x4096", norm_linear, NORM, 2 * 512 * 1024 * 4096),
    Case("SwiGLU 512x1024x2816", swiglu, SWIGLU, 6 * 512 * 1024 * 2816),
    Case("attention 1x8x1024x64", F.scaled_dot_product_attention, HEADS, 4 * 8 * 1024**2 * 64),
]


def peak(threads: int) -> Callable[[], float]:
    """A function that measures the operations per second of all threads on the fastest unit."""
    unit, library = probe.dot_unit(), probe._library()
    if unit is None:
        raise SystemExit("this CPU, or its compiler, multiplies bfloat16 no faster than float32")
    count, run = probe.dot_units()[unit], getattr(library, f"time_of_all_{unit}")
    rounds = int(2e10 / count)
    return lambda: 2.0 * count * rounds / run(rounds, threads) * threads


def contenders(case: Case, inputs: list[Tensor]) -> dict[str, tuple[Callable[[], Any], Tensor]]:
    """The contenders by name, with the result of each."""
    torch._dynamo.reset()
    inductor = torch.compile(case.function, dynamic=False)
    found = {
        "eager": (partial(case.function, *inputs), case.function(*inputs)),
        "inductor": (partial(inductor, *inputs), inductor(*inputs)),
    }
    for name, unit in (("widened", None), ("ours", probe.dot_unit())):
        torch._dynamo.reset()
        with (
            patch.object(kernels, "dot_unit", lambda unit=unit: unit),
            patch.object(compile_parts, "_COMPILED", RecentlyUsed(1)),
        ):
            launches, result = prepared(case, inputs)
        found[name] = (partial(run_all, launches), result)
    return found


def run_all(launches: list[Callable[[], None]]) -> None:
    for launch in launches:
        launch()


def measured(case: Case, threads: int, seconds: float) -> dict[str, Any]:
    """One case: all contenders and the peak, in turns."""
    inputs = [x.bfloat16() for x in case.inputs()]
    exact = case.function(*(x.double() for x in inputs))
    found, rate = contenders(case, inputs), peak(threads)
    errors = {n: float((x.double() - exact).norm() / exact.norm()) for n, (_, x) in found.items()}
    times: dict[str, list[float]] = {name: [] for name in found}
    rates = []
    with measuring("cpu"):
        begin = time.perf_counter()
        while len(rates) < ROUNDS or time.perf_counter() - begin < seconds:
            rates.append(rate())
            for name, (run, _) in found.items():
                times[name].append(timed(run, threads))
    usual = {name: median(some) for name, some in times.items()}
    return {
        "case": case.name,
        "unit": probe.dot_unit(),
        "share": case.flops / usual["ours"] / median(rates),
        "microseconds": {name: 1e6 * spent for name, spent in usual.items()},
        "errors": errors,
        "is_wrong": errors["ours"] > WITHIN * errors["eager"],
        "peak_gflops": median(rates) / 1e9,
        "threads": threads,
        "rounds": len(rates),
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {processor()}",
        "versions": versions(),
    }


def told(result: dict[str, Any]) -> str:
    """A result as a line."""
    spent = result["microseconds"]
    ours = spent["ours"]
    others = ", ".join(f"{n} {t / ours:.2f}" for n, t in spent.items() if n != "ours")
    wrong = "  WRONG" if result["is_wrong"] else ""
    share = f"{result['share']:.2f} of {result['peak_gflops']:.0f} GFLOP/s"
    return f"{result['case']}: {ours:.0f} µs, {share} ({result['unit']}); {others} times{wrong}"


def table(results: list[dict[str, Any]]) -> str:
    """The results as the table of docs/cpu.md: times over ours."""
    lines = ["| kernel | threads | unit | share of the peak | eager | Inductor | widened |"]
    lines.append("|---|--:|---|--:|--:|--:|--:|")
    for r in results:
        spent = r["microseconds"]
        ratios = (f"{spent[n] / spent['ours']:.2f}" for n in ("eager", "inductor", "widened"))
        cells = [r["case"], str(r["threads"]), r["unit"], f"{r['share']:.2f}", *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    Benchmark(__doc__ or "", CASES, one_by_one(measured), told, table, RESULTS, 1.0).command()
