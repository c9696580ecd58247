"""Measures the cost of a step of PyTorch's in a plan, beside the operator itself.

    python benchmarks/library_steps.py [--save benchmarks/results/library_steps.json]
                                       [--device cuda]

A chain of small operators that PyTorch runs by choice, on one thread: run by a plan, and from a
list of prepared closures that call the same operators, without the Python around them that
torch.ops has. Both run in turns in one process. The cost of a step is the difference of the median
CPU times, between a long chain and a short one, divided by the operators that the long one has
more: what a call costs once is not in it. With "a kernel", one runs after each operator; the list
then allocates its result and launches it. With "changing sizes", the number of rows differs from
call to call.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.tools.bench import versions
from blockbuster_fusion.torch import compile_graph, compiled_graph
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.rivals import choose, library
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.fusers import KernelFuser

INSTANT, FAST = Seconds(1e-15), Seconds(1e-12)
"""The times of kernels, and of each of PyTorch's operators: few parts are better than many."""
LAYERS = (6, 30)
"""The layers of the short chain and of the long one."""
ROUNDS, WARM = 1500, 100
WIDTH, ROWS = 16, 4
CONTIGUOUS = torch.contiguous_format

Call = Callable[[Tensor], Any]
aten = torch.ops.aten
linear, mul, softmax = aten.linear.default._op, aten.mul.Tensor._op, aten._softmax.default._op
view, permute, clone = aten.view.default._op, aten.permute.default._op, aten.clone.default._op


# ---------------------------------------------------------------- chains


class Chain(nn.Module):
    """Linear layers, one after the other."""

    each = 1
    """The operators of a layer."""

    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        weights = [torch.randn(WIDTH, WIDTH) / 4 for _ in range(count)]
        self.weights = nn.ParameterList([nn.Parameter(w, requires_grad=False) for w in weights])

    def forward(self, x: Tensor) -> Tensor:
        for w in self.weights:
            x = self.after(nn.functional.linear(x, w))
        return x

    def after(self, x: Tensor) -> Tensor:
        """The operators behind a linear layer."""
        return x

    def calls(self) -> list[Call]:
        """The operators as prepared closures."""
        return [call for w in self.weights for call in (partial(_linear, w), *self.calls_after())]

    def calls_after(self) -> list[Call]:
        return []


class Mixed(Chain):
    """Linear layers, products element by element and softmax, in turns."""

    each = 3

    def after(self, x: Tensor) -> Tensor:
        return (x * 0.5).softmax(-1)

    def calls_after(self) -> list[Call]:
        return [lambda x: mul(x, 0.5), lambda x: softmax(x, -1, False)]


class Turned(Chain):
    """Linear layers whose results are turned: views are operators as well."""

    each = 5

    def after(self, x: Tensor) -> Tensor:
        return x.view(2, 2, 4, 4).transpose(1, 2).reshape(4, 16)

    def calls_after(self) -> list[Call]:
        return [
            lambda x: view(x, [2, 2, 4, 4]),
            lambda x: permute(x, [0, 2, 1, 3]),
            lambda x: clone(x, memory_format=CONTIGUOUS),
            lambda x: view(x, [4, 16]),
        ]


class WithKernels(Chain):
    """Linear layers, each with a kernel behind it."""

    def after(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * 0.5


def _linear(w: Tensor, x: Tensor) -> Any:
    return linear(x, w, None)


# ---------------------------------------------------------------- plans


@contextmanager
def by_pytorch(wanted: Callable[[Sequence[Any]], bool]) -> Iterator[None]:
    """PyTorch runs the parts that are wanted, and kernels all others, whatever is faster."""

    def floor(self: KernelFuser, part: int) -> Seconds | None:
        return None if self.is_misc(part) or wanted(self.of(part)) else INSTANT

    def estimate(self: choose.Chooser, nodes: Sequence[Any]) -> Estimate:
        self.parts.program(nodes)  # it raises if there is none
        return Estimate(INSTANT, "predicted")

    with (
        mock.patch.object(KernelFuser, "floor", floor),
        mock.patch.object(choose.Chooser, "estimate", estimate),
        mock.patch.object(choose.Chooser, "pays", return_value=True),
        mock.patch.object(library.LibraryTimes, "_timed", return_value=FAST),
        mock.patch.object(compile_graph, "MOST", 0),
        mock.patch.object(compiled_graph.CompiledGraph, "gains", True),
    ):
        yield


def plan_of(
    model: Chain, inputs: Sequence[Tensor], *, dynamic: bool = False
) -> tuple[ModelPlan, list[Sequence[Any]]]:
    """The plan of a model whose linear layers PyTorch runs, and what it is called with."""
    has_kernels = isinstance(model, WithKernels)
    plans: list[ModelPlan] = []
    seen: list[Sequence[Any]] = []

    def watch(graph: compiled_graph.CompiledGraph) -> None:
        plan = graph.plan
        plans.append(plan)

        def called(*given: Any) -> list[Any]:
            seen.append(given)
            return plan(*given)

        graph.plan = called  # type: ignore[assignment]

    def wanted(nodes: Sequence[Any]) -> bool:
        return not has_kernels or any("mm" in str(n.target) for n in nodes)

    options = {"library": "auto", "time_model": False}
    torch._dynamo.reset()
    with by_pytorch(wanted):
        watched = partial(backend, options=options, watcher=watch)
        compiled = torch.compile(model, backend=watched, dynamic=dynamic)
        for x in inputs:
            torch.testing.assert_close(compiled(x), model(x))
    (plan,) = plans
    return plan, seen


# ---------------------------------------------------------------- times


def in_turns(calls: Sequence[Callable[[], Any]], device: str) -> list[float]:
    """The median CPU time of each call, in microseconds; a GPU is idle before each."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(WARM + ROUNDS):
        for call, found in zip(calls, times, strict=True):
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.process_time()
            call()
            if number >= WARM:
                found.append(time.process_time() - start)
    return [1e6 * statistics.median(found) for found in times]


def cost(kind: type[Chain], device: str, *, dynamic: bool = False) -> dict[str, float]:
    """The microseconds of a step."""
    contenders: list[Callable[[], Any]] = []
    for count in LAYERS:
        model = kind(count).to(device)
        lengths = (ROWS, ROWS + 1, ROWS + 2) if dynamic else (ROWS,)
        inputs = [torch.randn(rows, WIDTH, device=device) for rows in lengths]
        plan, given = plan_of(model, inputs, dynamic=dynamic)
        calls = with_kernels(model, plan) if isinstance(model, WithKernels) else model.calls()
        for x in inputs:
            torch.testing.assert_close(_direct(calls, x), model(x))
        contenders.append(_each(lambda x, plan=plan: plan(*x), given))
        contenders.append(_each(partial(_direct, calls), inputs))
    plan_short, direct_short, plan_long, direct_long = in_turns(contenders, device)
    more, short = (kind.each * n for n in (LAYERS[1] - LAYERS[0], LAYERS[0]))
    ours, direct = (plan_long - plan_short) / more, (direct_long - direct_short) / more
    once = plan_short - direct_short - (ours - direct) * short
    return {"plan": ours, "direct": direct, "beside": ours - direct, "once_a_call": once}


def _each(call: Callable[[Any], Any], given: Sequence[Any]) -> Callable[[], Any]:
    """A function that calls another one with the next of some inputs."""
    endless = cycle(given)
    return lambda: call(next(endless))


def _direct(calls: Sequence[Call], x: Tensor) -> Tensor:
    for call in calls:
        x = call(x)
    return x


def with_kernels(model: Chain, plan: ModelPlan) -> list[Call]:
    """The linear layers of a model as closures, each with its kernel, launched by itself."""
    (tape,) = plan.tapes.values()
    kernels = [part for part in tape.parts if part.tape is not None]
    operators = [part for part in tape.parts if part.step is not None]
    calls: list[Call] = []
    for w, operator, kernel in zip(model.weights, operators, kernels, strict=True):
        ((_, read),), (fresh,) = operator.made, kernel.fresh
        addresses = type(tape.addresses).from_buffer_copy(tape.addresses)
        calls.append(partial(_linear, w))
        calls.append(partial(_launched, kernel.tape, addresses, read, fresh.base))
    return calls


def _launched(tape: Any, addresses: Any, read: int, written: int, x: Tensor) -> Tensor:
    """The result of a kernel."""
    made = torch.empty((ROWS, WIDTH))
    addresses[read], addresses[written] = x.data_ptr(), made.data_ptr()
    tape.run(addresses, (), 0, 1)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    device = options.device
    torch.set_num_threads(1)
    with torch.no_grad():
        found = {
            "linear": cost(Chain, device),
            "linear, mul, softmax": cost(Mixed, device),
            "linear, 3 views, clone": cost(Turned, device),
            "linear, changing sizes": cost(Chain, device, dynamic=True),
        }
        if device == "cpu":  # on a GPU, a plan has no launches that can be called by themselves
            found["linear and a kernel"] = cost(WithKernels, device)
    for name, figures in found.items():
        words = ", ".join(f"{key} {value:.2f} µs" for key, value in figures.items())
        print(f"{name}: {words}", flush=True)
    if options.save:
        kept = json.loads(options.save.read_text()) if options.save.exists() else {}
        made = {"date": str(date.today()), "versions": versions(), "microseconds_of_a_step": found}
        kept[device] = made  # the other device stays as it was
        options.save.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
