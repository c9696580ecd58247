"""Kernels that start before the one before them has ended, beside others, on a GPU.

    python benchmarks/early_launch.py [--cases SwiGLU] [--seconds 0.4] [--processes 4]
    python benchmarks/early_launch.py --save benchmarks/results/early_launch_h200.json

Each case is compiled with and without `early` (nest/passes/start_early.py), by kernels alone. Both
run in turns, as CUDA graphs, on inputs that rotate: none is in the L2 cache.
Before that, a graph of calls with all inputs is replayed, and its results are compared with
float64: a kernel that does not wait would read what is not there yet. A wrong one is not timed.

A few processes compile cases at the same time, and one at a time measures. Less than a minute.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("BLOCKBUSTER_DATABASE", "off")  # what was tuned once does not count

import torch
from cuda_graphs import interleaved
from gpu_cases import CASES, GpuCase
from gpu_limits import MOST_SETS, ROTATED, compiled_by, told_of
from limits import norm_swiglu
from never_slower.contenders import allowed, errors, exact_results, results
from torch import Tensor

from blockbuster_fusion.runtime.measuring import measuring
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compiled_graph import CompiledGraph

Call = Callable[[], Tensor]
EARLY = {"late": False, "early": True}
REPEATED = "rms norm, SwiGLU, residual 16x1024x2816"
"""The case that is one layer of several, too."""
NAMES = (
    REPEATED,
    "rms norm, SwiGLU, residual 1x1024x2816",
    "rms norm, SwiGLU, residual 128x1024x2816",
    "rms norm, SwiGLU, residual 1x4096x14336",
    "sum of all 16000000",
)
LAYERS = 4
REPLAYS = 20


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    """Several layers, each with a norm and three products: many small kernels in a row."""
    for at in range(0, len(weights), 4):
        x = norm_swiglu(x, *weights[at : at + 4])
    return x


def cases() -> list[GpuCase]:
    """The cases that are measured: some of benchmarks/gpu_limits.py, and several layers."""
    found = {case.name: case for case in CASES}
    one = found[REPEATED]
    x, *weights = one.shapes
    shapes, flops = (x, *weights * LAYERS), LAYERS * one.flops
    name = one.name.replace("rms norm, SwiGLU, residual", f"{LAYERS} layers")
    several = replace(one, name=name, function=layers, shapes=shapes, flops=flops)
    return [several, *(found[name] for name in NAMES)]  # the one that takes longest comes first


class Prepared:
    """A case, compiled with and without `early`."""

    def __init__(self, case: GpuCase) -> None:
        self.case = case
        self.graphs: dict[str, list[CompiledGraph]] = {name: [] for name in EARLY}
        self.functions = {name: self.compiled(name) for name in EARLY}
        count = min(MOST_SETS, max(2, math.ceil(ROTATED / case.bytes)))
        self.sets = [*case.sets(count)]
        for function in self.functions.values():
            function(*self.sets[0])
        torch.cuda.synchronize()

    def compiled(self, name: str) -> Callable[..., Tensor]:
        options = {"library": "never", "early": EARLY[name]}
        own = partial(backend, options=options, watcher=self.graphs[name].append)
        return compiled_by(own, self.case.function)

    def measured(self, seconds: float) -> dict[str, Any]:
        """The microseconds of those that are right, and the errors."""
        calls = {n: [partial(f, *x) for x in self.sets] for n, f in self.functions.items()}
        most, found = self.errors(calls)
        right = {name: own for name, own in calls.items() if found[name] <= most}
        fused = [x for graph in self.graphs["early"] for x in graph.fused]
        return {
            "case": self.case.name,
            "errors": found,
            "allowed": most,
            "microseconds": interleaved(right, seconds=seconds),
            "configs": [str(x.executable.config) for x in fused],
        }

    def errors(self, calls: dict[str, list[Call]]) -> tuple[float, dict[str, float]]:
        """The error that is allowed, and that of each graph: the largest of several inputs."""
        checked = [0, 1, len(self.sets) - 1]
        most, found = 0.0, dict.fromkeys(calls, 0.0)
        made = {name: replayed(own) for name, own in calls.items()}
        for at in checked:
            inputs = self.sets[at]
            exact = exact_results(self.case.function, inputs)
            eager = results(self.case.function(*inputs))
            (own,) = allowed(errors(eager, exact, eager), exact, torch.bfloat16)
            most = max(most, own)
            for name, results_of in made.items():
                (error,) = errors([results_of[at]], exact, eager)
                found[name] = max(found[name], error)
        return most, found


def replayed(calls: Sequence[Call]) -> list[Tensor]:
    """The results of calls in a graph that is replayed several times."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            made = [call() for call in calls]
        for x in made:
            x.fill_(torch.nan)
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        return [x.clone() for x in made]


def found(name: str, seconds: float) -> dict[str, Any]:
    """The result of a case, in a process of its own."""
    torch.set_grad_enabled(False)
    try:
        prepared = Prepared(next(case for case in cases() if case.name == name))
        with measuring("cuda"):
            return prepared.measured(seconds)
    except Exception as error:  # whatever a compiler or a driver raises
        return {"case": name, "failed": told_of(error)}


def told(row: dict[str, Any]) -> str:
    """A result as lines."""
    if "failed" in row:
        return f"{row['case']}: FAILED, {row['failed']}"
    spent = row["microseconds"]
    usual = spent.get("late", math.nan)
    shown = [f"{name} {x:.2f} µs ({usual / x:.3f})" for name, x in spent.items()]
    wrong = [f"{name} WRONG, {row['errors'][name]:.1e}" for name in EARLY if name not in spent]
    return f"{row['case']}: {', '.join([*shown, *wrong])}\n    {row['configs']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", metavar="WORD", default=[""])
    parser.add_argument("--seconds", type=float, default=0.4, help="of measurements for a case")
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--processes", type=int, default=4, help="that compile at once")
    options = parser.parse_args()
    names = [x.name for x in cases() if any(word in x.name for word in options.cases)]
    workers = max(1, (os.cpu_count() or 1) // options.processes)  # of each process
    os.environ.setdefault("BLOCKBUSTER_WORKERS", str(workers))
    rows = []
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(found, name, options.seconds) for name in names]
        for job in as_completed(jobs):
            rows.append(job.result())
            print(told(rows[-1]), flush=True)
    if options.save is not None:
        head = {"date": str(date.today()), "machine": torch.cuda.get_device_name()}
        text = json.dumps(head | {"rows": rows}, indent=1)
        options.save.write_text(f"{text}\n", encoding="utf-8")
    # a form that is wrong is not timed
    sys.exit(any(len(row.get("microseconds", ())) < len(EARLY) for row in rows))


if __name__ == "__main__":
    main()
