"""Measures the host's time for a kernel and for a step of PyTorch's in a plan on a GPU.

    python benchmarks/gpu_host.py [--device cpu] [--no-inductor]

Chains of layers, called on an idle GPU: each layer is a kernel, a linear layer that PyTorch runs,
or one after the other. The time of a layer is the difference of the median CPU times of a call,
between a long chain and a short one, divided by the layers that the long one has more; the number
of launches in each says how many kernels and products a layer is. Sizes are the same in each call,
or come again ("20 lengths"), or are new in each call. "Cold" calls follow a walk through memory
that replaces what the CPU's caches hold. Beside it are Inductor without CUDA graphs, and eager
mode. About a minute; half of that without Inductor.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, cycle
from typing import Any

import numpy as np
import torch
from library_steps import by_pytorch
from torch import Tensor, nn

from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compiled_graph import CompiledGraph

LAYERS = (4, 12)
ROUNDS, COLD_ROUNDS, WARM = 100, 15, 25
LARGE = 1024
"""The rows and columns for kernels on a GPU: one program for all layers would be slower there."""
JUNK = np.zeros(1 << 25, np.uint8)


class Kernels(nn.Module):
    """Softmaxes along two dimensions in turns, each a kernel of its own."""

    has_library = False
    rows, width = 32, 64

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        weights = [torch.randn(self.width, self.width) / 8 for _ in range(layers)]
        self.weights = nn.ParameterList([nn.Parameter(w, requires_grad=False) for w in weights])

    def forward(self, x: Tensor) -> Tensor:
        for at, _ in enumerate(self.weights):
            x = (x * 1.5).softmax(at % 2)
        return x


class LargeKernels(Kernels):
    """The same on arrays that are large enough for a GPU."""

    rows = width = LARGE


class Linear(Kernels):
    """Linear layers, run by PyTorch."""

    has_library = True

    def forward(self, x: Tensor) -> Tensor:
        for w in self.weights:
            x = nn.functional.linear(x, w)
        return x


class Both(Kernels):
    """Linear layers, run by PyTorch, each with a kernel behind it."""

    has_library = True

    def forward(self, x: Tensor) -> Tensor:
        for w in self.weights:
            x = torch.tanh(nn.functional.linear(x, w)) * 0.5
        return x


def ours(model: Kernels, graphs: list[CompiledGraph], *, dynamic: bool) -> Callable[[Tensor], Any]:
    """A model compiled here, of which PyTorch runs the products, if any; its graph is noted."""
    options = {"library": "auto" if model.has_library else "never", "time_model": False}
    compiler = partial(backend, options=options, watcher=graphs.append)
    return torch.compile(model, backend=compiler, dynamic=dynamic)


def launches(graphs: Sequence[CompiledGraph]) -> int:
    """The launches of a call, and the products that C calls between them."""
    tapes = [tape for graph in graphs for tape in graph.plan.tapes.values()]
    return max(sum(len(part.names) for part in tape.parts) for tape in tapes)


def wanted(nodes: Sequence[Any]) -> bool:
    return any("mm" in str(n.target) or "linear" in str(n.target) for n in nodes)


def contenders(
    model: Kernels, graphs: list[CompiledGraph], *, dynamic: bool, inductor: bool
) -> dict[str, Any]:
    made = {"eager": model, "blockbuster": ours(model, graphs, dynamic=dynamic)}
    if inductor:
        made["inductor"] = torch.compile(model, backend="inductor", dynamic=dynamic)
    return made


def lengths(sizes: str, rows: int) -> Iterator[int]:
    """The numbers of rows of the calls."""
    if sizes == "same size":
        return cycle([rows])
    if sizes == "20 lengths":
        return cycle([rows + 3 * n for n in range(20)])
    return count(rows)


def microseconds(call: Callable[[], Any], device: str, *, cold: bool) -> float:
    """The CPU time of a call."""
    if cold:
        JUNK[::64] += 1
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.process_time()
    call()
    return 1e6 * (time.process_time() - start)


def measured(
    kind: type[Kernels], sizes: str, device: str, *, inductor: bool
) -> tuple[dict[str, Any], list[int]]:
    """For each contender the time of a layer, warm and cold, and of the rest of a call.

    With these are the launches of a call, of the short chain and of the long one.
    """
    found: dict[str, dict[str, list[float]]] = {}
    launched = []
    for layers in LAYERS:
        graphs: list[CompiledGraph] = []
        model = kind(layers).to(device).eval()
        calls = contenders(model, graphs, dynamic=sizes != "same size", inductor=inductor)
        rows = lengths(sizes, kind.rows)
        times: dict[str, list[float]] = {}
        for number in range(WARM + ROUNDS + COLD_ROUNDS):
            x = torch.randn(next(rows), kind.width, device=device)
            for name, call in calls.items():
                cold = number >= WARM + ROUNDS
                if not number:
                    torch._dynamo.mark_static(x, 1)
                    torch.testing.assert_close(call(x), model(x), rtol=1e-2, atol=1e-4)
                taken = microseconds(partial(call, x), device, cold=cold)
                if number >= WARM:
                    times.setdefault(f"{name}, cold" if cold else name, []).append(taken)
        for name, each in times.items():
            found.setdefault(name, {})[str(layers)] = each
        launched.append(launches(graphs))
    made = {}
    for name, each in found.items():
        short, long = (statistics.median(each[str(n)]) for n in LAYERS)
        layer = (long - short) / (LAYERS[1] - LAYERS[0])
        made[name] = {"layer": layer, "rest": short - LAYERS[0] * layer}
    return made, launched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad(), by_pytorch(wanted):
        for kind in (Kernels if options.device == "cpu" else LargeKernels, Linear, Both):
            for sizes in ("same size", "20 lengths", "new lengths"):
                torch._dynamo.reset()
                found, launched = measured(
                    kind, sizes, options.device, inductor=not options.no_inductor
                )
                words = "; ".join(
                    f"{name} {x['layer']:.1f} + {x['rest']:.0f}" for name, x in found.items()
                )
                chains = " and ".join(f"{n} in {m}" for n, m in zip(launched, LAYERS, strict=True))
                print(
                    f"{kind.__name__}, {sizes}, launches {chains} layers, "
                    f"µs a layer + rest: {words}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
