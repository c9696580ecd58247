"""Measures what constant weights gain: models with `freeze=True`, on one thread of a CPU.

    python benchmarks/freeze.py [--save benchmarks/results/freeze.json] [--rounds 41]

Two layers of each kind, with random weights. The contenders are eager mode, `bb.compile` without
and with `freeze`, and Inductor without and with freezing. They run in turns in one process, and
the figures are medians of CPU time. Errors are against float64, in norm and relative to it. The
memory of constants is given beside that of the weights.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor
from torch import Tensor, nn
from torch.nn import functional

import blockbuster_fusion as bb
from blockbuster_fusion.runtime.measuring import measuring
from blockbuster_fusion.tools.bench import versions

WIDTH, HEADS = 768, 12


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.outer = nn.Linear(WIDTH, WIDTH, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], HEADS, -1)
        q, k, v = (y.view(shape).transpose(1, 2) for y in self.inner(x).chunk(3, dim=-1))
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(made.transpose(1, 2).flatten(2))


class Gpt(nn.Module):
    """A layer with LayerNorm and GELU, as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention(bias=True))
        wide = (nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.rest = nn.Sequential(nn.LayerNorm(WIDTH), *wide)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.rest(x)


class Llama(nn.Module):
    """A layer with RMSNorm and SwiGLU, as Llama has it, without positions."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.RMSNorm(WIDTH), Attention(bias=False))
        self.norm, self.gate_up = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        gate, up = self.gate_up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Convolved(nn.Module):
    """A convolution with batch norm and a residual, as a ResNet has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.relu(self.norm(self.layer(x)))


CASES: dict[str, tuple[type[nn.Module], tuple[int, ...], torch.dtype]] = {
    "GPT-2, 1 token, float32": (Gpt, (1, 1, WIDTH), torch.float32),
    "GPT-2, 16 tokens, float32": (Gpt, (1, 16, WIDTH), torch.float32),
    "GPT-2, 128 tokens, float32": (Gpt, (1, 128, WIDTH), torch.float32),
    "GPT-2, 1 token, bfloat16": (Gpt, (1, 1, WIDTH), torch.bfloat16),
    "GPT-2, 16 tokens, bfloat16": (Gpt, (1, 16, WIDTH), torch.bfloat16),
    "Llama, 16 tokens, float32": (Llama, (1, 16, WIDTH), torch.float32),
    "Llama, 16 tokens, bfloat16": (Llama, (1, 16, WIDTH), torch.bfloat16),
    "convolution and batch norm": (Convolved, (1, 64, 28, 28), torch.float32),
}


def contenders(model: nn.Module, x: Tensor) -> dict[str, Callable[[Tensor], Any]]:
    """The ways of running a model, each compiled."""
    found: dict[str, Callable[[Tensor], Any]] = {"eager": model}
    torch._dynamo.reset()
    found["inductor"] = torch.compile(lambda x: model(x))
    found["inductor"](x)
    with inductor.patch(freezing=True):
        found["inductor, freezing"] = torch.compile(lambda x: model(x))
        found["inductor, freezing"](x)
    found["blockbuster"] = bb.compile(model, x)
    found["blockbuster, freeze"] = bb.compile(model, x, freeze=True)
    return found


def measure(kind: type[nn.Module], shape: tuple[int, ...], dtype: torch.dtype, rounds: int) -> Any:
    """The times, errors and bytes of a case."""
    torch.manual_seed(0)
    model = nn.Sequential(kind(), kind()).eval()
    x = torch.randn(shape).to(dtype)
    exact = model.to(dtype).double()(x.double())
    calls = contenders(model.to(dtype), x)
    times: dict[str, list[float]] = {name: [] for name in calls}
    with measuring("cpu"):
        for number in range(rounds + 2):
            for name, call in calls.items():
                start = time.process_time()
                call(x)
                if number >= 2:
                    times[name].append(time.process_time() - start)
    frozen: Any = calls["blockbuster, freeze"]
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        "milliseconds": {name: seconds * 1e3 for name, seconds in medians.items()},
        "of_eager": {name: medians["eager"] / seconds for name, seconds in medians.items()},
        "errors": {
            name: ((call(x).double() - exact).norm() / exact.norm()).item()
            for name, call in calls.items()
        },
        "bytes_of_constants": frozen.explanation.frozen_bytes,
        "bytes_of_weights": sum(p.nbytes for p in model.parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--rounds", type=int, default=41, help="the number of rounds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with torch.no_grad():
        for name, case in CASES.items():
            found[name] = made = measure(*case, options.rounds)
            ratios = (f"{key} {value:.2f}" for key, value in made["of_eager"].items())
            told = f"{made['bytes_of_constants']} bytes beside {made['bytes_of_weights']}"
            print(f"{name}: {', '.join(ratios)}; {told}", flush=True)
    if options.save:
        made = {"date": str(date.today()), "versions": versions(), "threads": 1, "cases": found}
        options.save.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
