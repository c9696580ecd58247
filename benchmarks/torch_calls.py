"""The costs of torch.compile(backend="blockbuster") beside its kernels: a call, and compiling.

    python benchmarks/torch_calls.py [--save benchmarks/results/torch_calls.json] [--no-inductor]
                                     [--only calls small growing compiling]

A Llama with random weights, float32. Calls: two layers, hidden size 64, one token, so that kernels
take next to no time; eager, Inductor and Blockbuster are called in turns in one process. Small: a
kernel or two, or a layer as it was captured, on 6 x 8 numbers: all is host time. Growing:
the same model with a DynamicCache that grows by a word at each call, from 8 to 200. Compiling:
2 and 32 layers of hidden size 256, each in a process of its own, with an empty cache of kernels and
once more with what that left; PyTorch's own share is what its backend "aot_eager" takes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from library_steps import by_pytorch

from blockbuster_fusion.tools.bench import versions
from blockbuster_fusion.torch.backend import backend as blockbuster
from blockbuster_fusion.torch.model import CompiledModel

os.environ.setdefault("BLOCKBUSTER_LIBRARY", "never")  # kernels are measured, faster or not

ROUNDS, WARM = 300, 20
GROWN = range(8, 200)


def llama(layers: int, hidden: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def inputs(length: int) -> dict[str, object]:
    return {"input_ids": torch.arange(length)[None] % 128, "use_cache": False}


# ---------------------------------------------------------------- calls


def calls(with_inductor: bool) -> dict[str, object]:
    """The median CPU time of a call, in microseconds."""
    torch.set_num_threads(1)
    model, given = llama(2, 64), inputs(1)
    contenders: dict[str, Callable[..., object]] = {"eager": model}
    for backend in ("blockbuster", *(("inductor",) if with_inductor else ())):
        contenders[backend] = torch.compile(model, backend=backend, dynamic=False)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.no_grad():
        for number in range(WARM + ROUNDS):
            for name, call in contenders.items():
                start = time.process_time()
                call(**given)
                if number >= WARM:
                    times[name].append(time.process_time() - start)
    return compared(times)


class Chain(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2 + 1) * x


class Softmaxes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 1.5).softmax(0).mul(2).softmax(1)


class Inputs(torch.nn.Module):
    def forward(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
    ) -> torch.Tensor:
        return a * b + c * d


class Named(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, *, scale: torch.Tensor, is_signed: bool = False
    ) -> torch.Tensor:
        return (x if is_signed else x.relu()) * scale


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(torch.tanh(x) * 2)) * 0.5


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))


@dataclass(frozen=True)
class Small:
    """A small model, and the arguments of a call beside one tensor."""

    kind: Callable[[], torch.nn.Module]
    is_captured: bool = False
    """True if it runs as it was captured."""
    more: int = 0
    """The number of other tensors."""
    named: Mapping[str, object] = field(default_factory=dict)
    dynamic: bool | None = None


NUMBERS = torch.randn(8)
SMALL = {
    "relu, as captured": Small(torch.nn.ReLU, is_captured=True),
    "linear layer, as captured": Small(partial(torch.nn.Linear, 8, 8), is_captured=True),
    "layer norm, as captured": Small(partial(torch.nn.LayerNorm, 8), is_captured=True),
    "two linear layers, as captured": Small(layers, is_captured=True),
    "four inputs, as captured": Small(Inputs, is_captured=True, more=3),
    "named, as captured": Small(Named, is_captured=True, named={"scale": NUMBERS}),
    "any sizes, as captured": Small(torch.nn.ReLU, is_captured=True, dynamic=True),
    "one kernel": Small(Chain),
    "two kernels": Small(Softmaxes),
    "kernel, linear layer, kernel": Small(Layer),
    "one kernel, four inputs": Small(Inputs, more=3),
    "one kernel, named": Small(Named, named={"scale": NUMBERS}),
    "one kernel, any sizes": Small(Chain, dynamic=True),
}


def is_product(nodes: Sequence[Any]) -> bool:
    return any("mm" in str(n.target) or "linear" in str(n.target) for n in nodes)


def small(with_inductor: bool) -> dict[str, object]:
    """The least time of a call of a small model, in microseconds: the mean of 100 in a row."""
    torch.set_num_threads(1)
    found = {}
    for name, case in SMALL.items():
        torch._dynamo.reset()
        model = case.kind().eval().requires_grad_(False)
        given = [torch.randn(6, 8) for _ in range(1 + case.more)]
        library = "auto" if case.is_captured or case.kind is Layer else "never"
        options = {"library": library, "time_model": case.is_captured}
        calls: dict[str, Callable[..., object]] = {"eager": model}
        for other in ("eager", *(("inductor",) if with_inductor else ())):
            compiled = torch.compile(model, backend=other, dynamic=case.dynamic)
            calls[f"torch.compile, {other}"] = compiled
        ours = partial(blockbuster, options=options)
        compiled = torch.compile(model, backend=ours, dynamic=case.dynamic)
        calls["torch.compile, blockbuster"] = compiled
        calls["bb.compile"] = CompiledModel(model, dynamic=case.dynamic, **options)
        times = dict.fromkeys(calls, float("inf"))
        with torch.no_grad(), nullcontext() if case.is_captured else by_pytorch(is_product):
            for call in calls.values():
                call(*given, **case.named)
            for _ in range(ROUNDS):
                for contender, call in calls.items():
                    start = time.perf_counter()
                    for _ in range(100):
                        call(*given, **case.named)
                    spent = 1e4 * (time.perf_counter() - start)
                    times[contender] = min(times[contender], spent)
        found[name] = times
    return found


def growing(with_inductor: bool) -> dict[str, object]:
    """The median CPU time of a word while a cache grows, in microseconds."""
    from transformers import DynamicCache

    torch.set_num_threads(1)
    model, word = llama(2, 64), torch.tensor([[5]])
    contenders: dict[str, Callable[..., object]] = {"eager": model}
    for backend in ("blockbuster", *(("inductor",) if with_inductor else ())):
        contenders[backend] = torch.compile(model, backend=backend, dynamic=True)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.no_grad():
        for _ in range(2):  # what is compiled in the first round is measured in the second
            times = {name: [] for name in contenders}
            caches = {name: DynamicCache() for name in contenders}
            for name, call in contenders.items():
                call(input_ids=torch.arange(GROWN.start)[None], past_key_values=caches[name])
            for _ in GROWN:
                for name, call in contenders.items():
                    start = time.process_time()
                    call(input_ids=word, past_key_values=caches[name])
                    times[name].append(time.process_time() - start)
    return compared(times)


def compared(times: Mapping[str, list[float]]) -> dict[str, object]:
    medians = {name: 1e6 * statistics.median(t) for name, t in times.items()}
    ratios = {name: medians["eager"] / m for name, m in medians.items()}
    return {"microseconds": medians, "times_as_fast_as_eager": ratios}


# ---------------------------------------------------------------- compiling


def compile_time(layers: int, backend: str) -> float:
    """The seconds that the first call takes."""
    model, given = llama(layers, 256), inputs(32)
    with torch.no_grad():
        model(**given)
        compiled = torch.compile(model, backend=backend)
        start = time.perf_counter()
        compiled(**given)
        return time.perf_counter() - start


def in_a_process(layers: int, backend: str, environment: Mapping[str, str]) -> float:
    command = [sys.executable, __file__, "--measure", str(layers), backend]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def compiling(with_inductor: bool) -> list[dict[str, object]]:
    """For each number of layers: seconds of the first call, with empty and with full caches."""
    made: list[dict[str, object]] = []
    for layers in (2, 32):
        with tempfile.TemporaryDirectory() as folder:
            caches = {"BLOCKBUSTER_CACHE": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            row: dict[str, object] = {"layers": layers}
            row["aot_eager"] = in_a_process(layers, "aot_eager", caches)
            for backend in ("blockbuster", *(("inductor",) if with_inductor else ())):
                row[f"{backend}, empty cache"] = in_a_process(layers, backend, caches)
                row[f"{backend}, full cache"] = in_a_process(layers, backend, caches)
            print(row, flush=True)
            made.append(row)
    return made


PARTS: dict[str, Callable[[bool], object]] = {
    "calls": calls,
    "small": small,
    "growing": growing,
    "compiling": compiling,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="some parts")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        layers, backend = options.measure
        print(compile_time(int(layers), backend))
        return
    for name in options.only:
        found = PARTS[name](not options.no_inductor)
        print(name, found, flush=True)
        if options.save:  # other parts stay as they were
            kept = json.loads(options.save.read_text()) if options.save.exists() else {}
            kept |= {"date": str(date.today()), "versions": versions(), name: found}
            options.save.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
