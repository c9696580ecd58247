"""Measures the host's time for a kernel and for a step of PyTorch's in a plan on a GPU.

    python benchmarks/gpu_host.py [--device cpu] [--no-inductor]

Chains of small layers, called on an idle GPU: each layer is a kernel, a linear layer that PyTorch
runs, or one after the other. The time of a layer is the difference of the median CPU times of a
call, between a long chain and a short one, divided by the layers that the long one has more. Sizes
are the same in each call, or come again ("20 lengths"), or are new in each call. "Cold" calls
follow a walk through memory that replaces what the CPU's caches hold. Beside it are Inductor
without CUDA graphs, and eager mode. Under two minutes.
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

LAYERS = (4, 16)
WIDTH, ROWS = 64, 32
ROUNDS, COLD_ROUNDS, WARM = 200, 30, 25
JUNK = np.zeros(1 << 25, np.uint8)


class Kernels(nn.Module):
    """Softmaxes along two dimensions in turns, each a kernel of its own."""

    has_library = False

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        weights = [torch.randn(WIDTH, WIDTH) / 8 for _ in range(layers)]
        self.weights = nn.ParameterList([nn.Parameter(w, requires_grad=False) for w in weights])

    def forward(self, x: Tensor) -> Tensor:
        for at, _ in enumerate(self.weights):
            x = (x * 1.5).softmax(at % 2)
        return x


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


def ours(model: Kernels, *, dynamic: bool) -> Callable[[Tensor], Any]:
    """A model compiled here, of which PyTorch runs the products, if any."""
    options = {"library": "auto" if model.has_library else "never", "time_model": False}
    return torch.compile(model, backend=partial(backend, options=options), dynamic=dynamic)


def wanted(nodes: Sequence[Any]) -> bool:
    return any("mm" in str(n.target) or "linear" in str(n.target) for n in nodes)


def contenders(model: Kernels, *, dynamic: bool, inductor: bool) -> dict[str, Any]:
    made = {"eager": model, "blockbuster": ours(model, dynamic=dynamic)}
    if inductor:
        made["inductor"] = torch.compile(model, backend="inductor", dynamic=dynamic)
    return made


def lengths(kind: str) -> Iterator[int]:
    """The numbers of rows of the calls."""
    if kind == "same size":
        return cycle([ROWS])
    if kind == "20 lengths":
        return cycle([ROWS + 3 * n for n in range(20)])
    return count(ROWS)


def microseconds(call: Callable[[], Any], device: str, *, cold: bool) -> float:
    """The CPU time of a call."""
    if cold:
        JUNK[::64] += 1
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.process_time()
    call()
    return 1e6 * (time.process_time() - start)


def measured(kind: type[Kernels], sizes: str, device: str, *, inductor: bool) -> dict[str, Any]:
    """For each contender the time of a layer, warm and cold, and of the rest of a call."""
    found: dict[str, dict[str, list[float]]] = {}
    for layers in LAYERS:
        model = kind(layers).to(device).eval()
        calls = contenders(model, dynamic=sizes != "same size", inductor=inductor)
        rows = lengths(sizes)
        times: dict[str, list[float]] = {}
        for number in range(WARM + ROUNDS + COLD_ROUNDS):
            x = torch.randn(next(rows), WIDTH, device=device)
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
    made = {}
    for name, each in found.items():
        short, long = (statistics.median(each[str(n)]) for n in LAYERS)
        layer = (long - short) / (LAYERS[1] - LAYERS[0])
        made[name] = {"layer": layer, "rest": short - LAYERS[0] * layer}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad(), by_pytorch(wanted):
        for kind in (Kernels, Linear, Both):
            for sizes in ("same size", "20 lengths", "new lengths"):
                torch._dynamo.reset()
                found = measured(kind, sizes, options.device, inductor=not options.no_inductor)
                words = "; ".join(
                    f"{name} {x['layer']:.1f} + {x['rest']:.0f}" for name, x in found.items()
                )
                print(f"{kind.__name__}, {sizes}, µs a layer + rest: {words}", flush=True)


if __name__ == "__main__":
    main()
