"""The plans of layers for 1, 16, 128 and 4096 rows on an H200, also where there is none.

    python benchmarks/plan_rows.py [--rows 1 16 128 4096] [--cases swiglu layer] [--library]

Layers are of Llama 3.1 8B's shape in bfloat16. Kernels are predicted, launches are replayed, and
nothing is compiled or run. A line has the rows, the predicted time of the plan, and its parts with
theirs. Parts are of kernels alone; with `--library`, PyTorch's operators may run some, with times
by a model (tests/helpers/offline.py). Rows are words of a text; those of the layer are texts of
which one word is decoded, up to 1024.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from llama_shapes import LLAMA_8B, Layer, SwiGlu, hollow
from torch import Tensor, nn
from torch.nn import functional

from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.part_choices import part_name
from helpers.offline import captured, offline

WIDTH, HEADS = LLAMA_8B["width"], LLAMA_8B["heads"]
HEAD = WIDTH // HEADS
MOST_TEXTS, ROOM = 1024, 1024

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class NormLinear(nn.Module):
    """LayerNorm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def norm_linear(rows: int) -> Call:
    with torch.device("meta"):
        made = NormLinear()
    return hollow(made), (empty(rows, WIDTH),)


def swiglu(rows: int) -> Call:
    with torch.device("meta"):
        made = SwiGlu(WIDTH, LLAMA_8B["inner"])
    return hollow(made), (empty(rows, WIDTH),)


def attention(rows: int) -> Call:
    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attended, tuple(empty(1, HEADS, rows, HEAD) for _ in range(3))


def layer(rows: int) -> Call:
    with torch.device("meta"):
        made = Layer(WIDTH, HEADS, LLAMA_8B["groups"], LLAMA_8B["inner"])
    texts, words = (rows, 1) if rows <= MOST_TEXTS else (1, rows)
    angles = (empty(words, HEAD), empty(words, HEAD))
    shape = (texts, LLAMA_8B["groups"], ROOM, HEAD)
    cache = (empty(*shape), empty(*shape)) if words == 1 else None
    for array in cache or ():
        torch._dynamo.mark_static_address(array)
    at = torch.tensor([ROOM // 2]) if words == 1 else torch.arange(words)
    return hollow(made), (empty(texts, words, WIDTH), *angles, cache, at)


CASES = {"norm_linear": norm_linear, "swiglu": swiglu, "attention": attention, "layer": layer}


def plan(call: Call, *, library: bool) -> tuple[float, list[str]]:
    """The predicted microseconds of a plan, and its parts, each with its own."""
    model, given = call
    (graph,) = captured(model, *given, runs=False)
    machine = known()["h200"]
    kind = "auto" if library else "never"
    with offline(machine):
        options = Options(target="cuda", strict=True, library=kind, candidates=64)
        chooser = graph.chooser(options, machine, replayed=True)
        chooser.choose() if library else chooser.choose_kernels()
        shown, total = list[str](), 0.0
        if library:
            seen = {id(x): x for x in chooser.parts.libraries.values()}
            for choice in seen.values():
                total += choice.library.device
                names = "+".join(n.split(".")[-1] for n in choice.nodes)
                shown.append(f"PyTorch {names} {choice.library.device * 1e6:.1f}")
        for nodes in filter(lambda own: chooser.parts.is_computed(own[0]), chooser.parts.taken):
            made = chooser.estimates.of(nodes)
            total += made.seconds.device
            launches = round(made.seconds.host / machine.launch)
            shown.append(f"{part_name(nodes)} ({launches}) {made.seconds.device * 1e6:.1f}")
    return total * 1e6, shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 128, 4096])
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=[*CASES])
    parser.add_argument("--library", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("BLOCKBUSTER_DATABASE", "off")  # what was tuned here once does not count
    for name in options.cases:
        print(f"\n{name}: rows | µs | parts (launches) µs")
        for rows in options.rows:
            total, parts = plan(CASES[name](rows), library=options.library)
            print(f"{rows:5} | {total:8.1f} | {'; '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
