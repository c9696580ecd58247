"""What a step of PyTorch's costs in a plan, beside the operator itself.

    python benchmarks/library_steps.py [--save benchmarks/results/library_steps.json]

A chain of small operators that PyTorch runs by choice, on one thread: called by a plan's tape, and
from a list of prepared closures. Both run in turns in one process. The cost of a step is the
difference of the median CPU times, between a long chain and a short one, divided by the steps that
the long one has more: what a call costs once is not in it. "beside kernels": a kernel runs between
the operators, which the list runs too, by a plan of that kernel alone.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.tools.bench import versions
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compile_graph import CompiledGraph
from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.rivals import choose, library

SHORT, LONG = 12, 60
"""The operators of the chains."""
ROUNDS, WARM = 1500, 100
WIDTH, ROWS = 16, 4
LIMIT = 3.0
"""The microseconds that a step may cost beside its operator."""

aten = torch.ops.aten
Call = Callable[[Tensor], Any]


# ---------------------------------------------------------------- chains


def linears(count: int) -> tuple[Callable[..., Tensor], list[Tensor], list[Call]]:
    """Linear layers, one after the other: the model, its weights, and closures."""
    weights = [torch.randn(WIDTH, WIDTH) / 4 for _ in range(count)]

    def model(x: Tensor, *given: Tensor) -> Tensor:
        for w in given:
            x = torch.nn.functional.linear(x, w)
        return x

    return model, weights, [partial(_second, aten.linear.default, w) for w in weights]


def mixed(count: int) -> tuple[Callable[..., Tensor], list[Tensor], list[Call]]:
    """Linear layers, products element by element and softmax, in turns."""
    weights = [torch.randn(WIDTH, WIDTH) / 4 for _ in range(0, count, 3)]

    def model(x: Tensor, *given: Tensor) -> Tensor:
        for w in given:
            x = (torch.nn.functional.linear(x, w) * 0.5).softmax(-1)
        return x

    calls: list[Call] = []
    for w in weights:
        calls.append(partial(_second, aten.linear.default, w))
        calls.append(lambda x: aten.mul.Tensor(x, 0.5))
        calls.append(lambda x: aten._softmax.default(x, -1, False))
    return model, weights, calls


def heads(count: int) -> tuple[Callable[..., Tensor], list[Tensor], list[Call]]:
    """Linear layers whose results are read as turned views: a view is a step as well."""
    weights = [torch.randn(WIDTH, WIDTH) / 4 for _ in range(0, count, 2)]

    def model(x: Tensor, *given: Tensor) -> Tensor:
        for w in given:
            x = torch.nn.functional.linear(x, w).view(2, 2, 4, 4).transpose(1, 2).reshape(4, 16)
        return x

    def turned(x: Tensor) -> Tensor:
        return x.view(2, 2, 4, 4).transpose(1, 2).reshape(4, 16)

    calls: list[Call] = []
    for w in weights:
        calls += [partial(_second, aten.linear.default, w), turned]
    return model, weights, calls


def _second(function: Callable[..., Any], w: Tensor, x: Tensor) -> Any:
    return function(x, w)


CHAINS = {"linear": linears, "linear, mul, softmax": mixed, "linear, heads": heads}


@contextmanager
def by_pytorch(wanted: Callable[[Sequence[Any]], bool]) -> Iterator[None]:
    """PyTorch runs the parts that are wanted, and kernels all others, whatever is faster."""
    verdict, timed = choose.Chooser.verdict, library.LibraryTimes._timed

    def asked(self: choose.Chooser, nodes: Sequence[Any], *others: Any) -> Any:
        if wanted(nodes):
            return verdict(self, nodes, *others)
        self.gain = math.inf
        return None

    choose.Chooser.verdict = asked  # type: ignore[method-assign]
    library.LibraryTimes._timed = lambda *_: Seconds(1e-12)  # type: ignore[method-assign]
    try:
        yield
    finally:
        choose.Chooser.verdict = verdict  # type: ignore[method-assign]
        library.LibraryTimes._timed = timed  # type: ignore[method-assign]


def plan_of(model: Callable[..., Any], inputs: Sequence[Tensor], has_kernels: bool) -> ModelPlan:
    """The plan of a model whose operators PyTorch runs; with kernels, only its products."""

    def wanted(nodes: Sequence[Any]) -> bool:
        return not has_kernels or any("mm" in str(n.target) for n in nodes)

    graphs: list[CompiledGraph] = []
    options = {"library": "auto", "time_model": False}
    watched = partial(backend, options=options, watcher=graphs.append)
    torch._dynamo.reset()
    with by_pytorch(wanted):
        torch.compile(model, backend=watched, dynamic=False)(*inputs)
    return graphs[0].plan


# ---------------------------------------------------------------- times


def in_turns(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """The median CPU time of each call, in microseconds."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(WARM + ROUNDS):
        for call, found in zip(calls, times, strict=True):
            start = time.process_time()
            call()
            if number >= WARM:
                found.append(time.process_time() - start)
    return [1e6 * statistics.median(found) for found in times]


def without_kernels(name: str) -> dict[str, float]:
    """The cost of a step in a chain that PyTorch runs as a whole."""
    contenders: list[Callable[[], Any]] = []
    steps: list[int] = []
    for count in (SHORT, LONG):
        torch.manual_seed(0)
        model, weights, calls = CHAINS[name](count)
        x = torch.randn(ROWS, WIDTH)
        plan = plan_of(model, [x, *weights], has_kernels=False)
        torch.testing.assert_close(plan(x, *weights)[0], _direct(calls, x))
        contenders += [partial(plan, x, *weights), partial(_direct, calls, x)]
        steps.append(len(calls))
    return _cost(in_turns(contenders), steps)


def beside_kernels() -> dict[str, float]:
    """The cost of a linear layer between kernels of `tanh(x) * 0.5`."""
    contenders: list[Callable[[], Any]] = []
    steps = [SHORT // 2, LONG // 2]
    for count in steps:
        torch.manual_seed(0)
        weights = [torch.randn(WIDTH, WIDTH) / 4 for _ in range(count)]
        x = torch.randn(ROWS, WIDTH)

        def model(x: Tensor, *given: Tensor) -> Tensor:
            for w in given:
                x = torch.tanh(torch.nn.functional.linear(x, w)) * 0.5
            return x

        def kernels(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
            return tuple(torch.tanh(y) * 0.5 for y in given)

        plan = plan_of(model, [x, *weights], has_kernels=True)
        with torch.no_grad():
            torch.testing.assert_close(plan(x, *weights)[0], model(x, *weights))
        contenders += [partial(plan, x, *weights), partial(_linears, weights, x)]
    return _cost(in_turns(contenders), steps)


def _direct(calls: Sequence[Call], x: Tensor) -> Tensor:
    for call in calls:
        x = call(x)
    return x


def _linears(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    for w in weights:
        x = aten.linear.default(x, w)
    return x


def _cost(medians: Sequence[float], steps: Sequence[int]) -> dict[str, float]:
    """Microseconds of a step: in the plan, called directly, and the difference."""
    plan_short, direct_short, plan_long, direct_long = medians
    more = steps[1] - steps[0]
    plan, direct = (plan_long - plan_short) / more, (direct_long - direct_short) / more
    once = plan_short - direct_short - (plan - direct) * steps[0]
    return {"plan": plan, "direct": direct, "beside": plan - direct, "once_a_call": once}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        found = {name: without_kernels(name) for name in CHAINS}
        found["linear, and a kernel"] = beside_kernels()
    for name, cost in found.items():
        print(f"{name}: " + ", ".join(f"{k} {v:.2f} µs" for k, v in cost.items()), flush=True)
    if options.save:
        made = {"date": str(date.today()), "versions": versions(), "microseconds_of_a_step": found}
        options.save.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
