"""Generated GPU kernels by themselves, against PyTorch and against what the memory can do.

    python benchmarks/gpu_limits.py [--cases norm sum] [--seconds 0.3] [--tuned 20]
    python benchmarks/gpu_limits.py --save benchmarks/results/gpu_limits.json  # merges
    python benchmarks/gpu_limits.py --table                                    # for docs/gpu.md
    python benchmarks/gpu_limits.py --cases SwiGLU --options '{"together": [["mm", "mm_1"]]}'

PyTorch's operators are no rivals within the compiled functions. Products are compared with cuBLAS,
large kernels without products with the memory, others with the better of eager and Inductor. A
product with an epilogue or a prologue ("linear and", "norm and") is compared with our own kernel of
the product alone. All run in turns, in CUDA graphs, in bfloat16, on inputs that rotate: none is in
the L2 cache. Results are first compared with float64 on the GPU. A wrong one is reported as wrong,
and is not timed. A baseline that fails is left out, and the reason is told.

Processes compile the cases at the same time. When all are done, each case is measured by itself.
"""

import argparse
import json
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from cuda_graphs import interleaved
from gpu_cases import CASES, PLAIN, GpuCase
from limits import Benchmark, Case
from never_slower.contenders import allowed, counts, errors, exact_results, results
from never_slower.kept import all_versions, machine
from torch import Tensor

from blockbuster_fusion.torch.backend import TUNING, backend
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.model import own_frame

RESULTS = Path(__file__).parent / "results" / "gpu_limits.json"
BANDWIDTH = 4.35e12
"""Bytes per second that an H200 copies at most."""
ROTATED = 250e6
"""Bytes of all inputs that a case rotates through: several times the L2 cache."""
MOST_SETS = 64
OURS = "ours"

Function = Callable[..., Tensor]


class Prepared:
    """A case with its contenders, all of them compiled."""

    def __init__(self, case: GpuCase, tuned: float, more: Mapping[str, Any]) -> None:
        """`tuned` are the seconds for tuning the kernels, `more` other options of theirs."""
        self.case, self.graphs = case, list[CompiledGraph]()
        (inputs,) = case.sets(1)
        for function in filter(None, (case.function, case.plain)) if tuned else ():
            options = {"seconds": tuned, "workers": 1}
            tuning = partial(backend, mode=TUNING[-1], options=options, thorough=True)
            compiled_by(tuning, function)(*inputs)
        own = {"library": "never", **more}
        never = partial(backend, options=own, watcher=self.graphs.append)
        self.functions: dict[str, Function] = {OURS: compiled_by(never, case.function)}
        self.functions[OURS](*inputs)
        if case.plain is not None:
            alone = partial(backend, options={"library": "never"})
            self.functions[PLAIN] = compiled_by(alone, case.plain)
            self.functions[PLAIN](*inputs)
        self.left_out: dict[str, str] = {}
        """The reasons why baselines failed."""
        for name in case.baselines:
            compiles = name == "Inductor"
            function = compiled_by("inductor", case.function) if compiles else case.function
            try:
                function(*inputs)
                self.functions[name] = function
            except Exception as error:  # ours is measured all the same
                self.left_out[name] = told_of(error)
        torch.cuda.empty_cache()

    def measured(self, seconds: float) -> dict[str, Any]:
        """The times of all contenders, if ours is right."""
        case, size = self.case, self.case.bytes
        count = min(MOST_SETS, max(2, math.ceil(ROTATED / size)))
        sets = [*case.sets(count)]
        found = {**self.errors(sets[0], OURS, case.function), **counts(self.graphs)}
        if case.plain is not None:
            found["is_wrong"] |= self.errors(sets[0], PLAIN, case.plain)["is_wrong"]
        found |= self.kernels()
        found |= {"left_out": self.left_out} if self.left_out else {}
        if not found["is_wrong"]:
            calls = {n: [partial(f, *x) for x in sets] for n, f in self.functions.items()}
            spent = interleaved(calls, seconds=seconds)
            found |= {"microseconds": spent} | rates(case, spent)
        torch.cuda.empty_cache()
        return found

    def errors(self, inputs: Sequence[Tensor], name: str, function: Function) -> dict[str, Any]:
        """The error of kernels for a function, and what is allowed: twice eager's and a floor."""
        exact = exact_results(function, inputs)
        eager = results(function(*inputs))
        usual = errors(eager, exact, eager)
        (own,) = errors(results(self.functions[name](*inputs)), exact, eager)
        (most,) = allowed(usual, exact, torch.bfloat16)
        return {"error": own, "allowed": most, "is_wrong": not own <= most}

    def kernels(self) -> dict[str, Any]:
        """The configurations of the kernels."""
        fused = [x for graph in self.graphs for x in graph.fused]
        return {"configs": [str(x.executable.config) for x in fused]}


def compiled_by(compiler: Any, function: Function) -> Function:
    """A function compiled for fixed sizes, apart from others with the same code."""
    made: Function = torch.compile(own_frame(function), backend=compiler, dynamic=False)
    return made


def rates(case: GpuCase, spent: dict[str, float]) -> dict[str, Any]:
    """Our speed as a share of the limit, in bytes and in operations."""
    ours = spent[OURS] * 1e-6
    times = {name: 1e-6 * x for name, x in spent.items() if name != OURS}
    rivals = [seconds for name, seconds in times.items() if name != PLAIN]
    times |= {"memory": case.bytes / BANDWIDTH, "PyTorch": min(rivals, default=math.inf)}
    return {
        "share": times[case.limit] / ours,
        "terabytes_per_second": case.bytes / ours / 1e12,
        "tflops": case.flops / ours / 1e12 or None,
    }


# ------------------------------------------------------------------------ processes


def served(
    connection: Connection, names: Sequence[str], tuned: float, more: Mapping[str, Any]
) -> None:
    """Prepares cases, and then measures those that it is asked for, until nobody asks."""
    torch.set_grad_enabled(False)
    ready: dict[str, Prepared] = {}
    reasons: dict[str, str] = {}
    for name in names:
        try:
            ready[name] = Prepared(next(c for c in CASES if c.name == name), tuned, more)
        except Exception as error:
            reasons[name] = told_of(error)
    connection.send({"ready": len(ready)})
    with suppress(EOFError):
        while True:
            name, seconds = connection.recv()
            try:
                found = ready[name].measured(seconds) if name in ready else {}
            except Exception as error:
                reasons[name] = told_of(error)
            connection.send({"failed": reasons[name]} if name in reasons else found)


def told_of(error: Exception) -> str:
    """An error in a line, with the place where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{Path(place.filename).name}:{place.lineno}"
    return f"{type(error).__name__}: {str(error)[:300]} ({at})"


def answer(connection: Connection, question: tuple[Any, ...] | None = None) -> dict[str, Any]:
    """The answer of a process, after a question if there is one."""
    try:
        if question is not None:
            connection.send(question)
        found: dict[str, Any] = connection.recv()
    except (EOFError, OSError):
        return {"failed": "its process has ended"}
    return found


def measured(cases: Sequence[Case], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The results of cases, one after the other."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # all processes compile at the same time
    context = get_context("spawn")
    count = min(options.processes, len(cases))
    workers, ours = [], []
    for at in range(count):
        own, theirs = context.Pipe()
        names = [case.name for case in cases[at::count]]
        given = (theirs, names, options.tuned, options.options)
        workers.append(context.Process(target=served, args=given))
        workers[-1].start()
        theirs.close()
        ours.append(own)
    for own in ours:
        answer(own)
    stamp = {"date": str(date.today()), "machine": machine("cuda"), "versions": all_versions()}
    for at, case in enumerate(cases):
        found = answer(ours[at % count], (case.name, options.seconds))
        head = {"case": case.name, "of": case.limit, "goal": case.goal, "tuned": options.tuned}
        yield {**head, **found, **stamp}
    for own, worker in zip(ours, workers, strict=True):
        own.close()
        worker.join()


def told(result: dict[str, Any]) -> str:
    """A result as a line."""
    name = result["case"]
    if "failed" in result:
        return f"{name}: FAILED, {result['failed']}"
    runs = f"{result['kernels']} kernels, {result['operators']} operators of PyTorch"
    if result["is_wrong"]:
        error = f"an error of {result['error']:.1e}, {result['allowed']:.1e} is allowed"
        return f"{name}: WRONG, {error}; {runs}; {result['configs']}"
    spent = result["microseconds"]
    others = ", ".join(f"{n} {t / spent[OURS]:.2f}" for n, t in spent.items() if n != OURS)
    failed = "".join(f"; {n} FAILED, {why}" for n, why in result.get("left_out", {}).items())
    rate = f"{result['terabytes_per_second']:.2f} TB/s"
    if result["tflops"]:
        rate = f"{result['tflops']:.0f} TFLOP/s"
    share = f"{result['share']:.2f} of {result['of']}"
    own = f"{spent[OURS]:.1f} µs, {share}, {rate}"
    return f"{name}: {own}; {others} times; {runs}; {result['configs']}{failed}"


def table(results: list[dict[str, Any]]) -> str:
    """The results as the table of docs/gpu.md: times over ours."""
    lines = ["| kernel | tuned | µs | share of the limit | limit | goal | eager | Inductor |"]
    lines.append("|---|---|--:|--:|---|--:|--:|--:|")
    for r in results:
        spent = r.get("microseconds")
        tuned = f"{r['tuned']:g} s" if r["tuned"] else "no"
        if spent is None:
            why = "failed" if "failed" in r else "wrong"
            cells = [r["case"], tuned, "–", why, r["of"], f"{r['goal']:.2f}", "–", "–"]
        else:
            share = f"{r['share']:.2f}"
            shown = f"**{share}**" if r["share"] >= r["goal"] else share
            eager = spent.get("eager", spent.get("cuBLAS"))
            ratios = [
                f"{t / spent[OURS]:.2f}" if t else "–" for t in (eager, spent.get("Inductor"))
            ]
            own = f"{spent[OURS]:.1f}"
            cells = [r["case"], tuned, own, shown, r["of"], f"{r['goal']:.2f}", *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this benchmark."""
    parser.add_argument("--tuned", type=float, default=0.0, help="seconds to tune each case first")
    parser.add_argument("--options", type=json.loads, default={}, help="of the kernels, as JSON")
    processes = max(1, (os.cpu_count() or 2) - 2)
    parser.add_argument("--processes", type=int, default=processes, help="that compile at once")


if __name__ == "__main__":
    Benchmark(
        __doc__ or "", CASES, measured, told, table, RESULTS, 0.3, arguments, "tuned"
    ).command()
