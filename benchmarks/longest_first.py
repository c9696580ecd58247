"""Causal attention on a GPU whose longest programs start first, by the heads that go together.

    python benchmarks/longest_first.py [--rows 2048]

Groups of as many heads as share keys stand for an order head by head. Times are medians of CUDA
graphs, interleaved with PyTorch's attention. Results are compared with float64.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from cuda_graphs import interleaved

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose, executable_of
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.torch.machines import machine_for

GROUPS = (1, 4, 8, 16, 32, 64, 128)
"""The heads that go together."""
CASES = (
    {"B": 1, "G": 8, "R": 4, "D": 64},
    {"B": 1, "G": 8, "R": 4, "D": 128},
    {"B": 2, "G": 8, "R": 4, "D": 128},
    {"B": 4, "G": 32, "R": 1, "D": 128},
    {"B": 8, "G": 12, "R": 1, "D": 64},
)
"""Batches, heads of keys, queries for each of them, and their elements."""
CAPABILITY = 90


def attention(q: Any, k: Any, v: Any) -> Any:
    s = q @ k[:, :, None].swapaxes(-1, -2) * bb.ops.size(q, -1) ** -0.5
    mask = bb.ops.index(s, -1) <= bb.ops.index(s, -2)
    return bb.ops.softmax(bb.ops.where(mask, s, float("-inf"))) @ v[:, :, None]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    made = F.scaled_dot_product_attention(q.flatten(1, 2), k, v, is_causal=True, enable_gqa=True)
    return made.view(q.shape)


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def measured(sizes: Mapping[str, int]) -> dict[str, float]:
    """Microseconds of PyTorch, and of each group."""
    specs = {"q": "B G R S D", "k": "B G T D", "v": "B G T E"}
    lengths = {**sizes, "T": sizes["S"], "E": sizes["D"]}
    program = bb.trace(attention, **specs)
    request = Request(
        program, target="cuda", sizes=lengths, dtype="bfloat16", capability=CAPABILITY
    )
    best = Improver(choose(request), machine_for("cuda")).best(())[0]
    print(f"  {best.config}")
    shapes = [[lengths[axis] for axis in spec.split()] for spec in specs.values()]
    given = [torch.randn(shape, device="cuda").bfloat16() for shape in shapes]
    exact = reference(*(x.double() for x in given))
    allowed = 2 * error_of(reference(*given), exact)
    calls = {"PyTorch": [partial(reference, *given)]}
    for group in GROUPS:
        choice = replace(best, schedule=replace(best.schedule, group=group))
        runner = executable_of([choice]).runner
        error = error_of(runner.run(given)[0].reshape(exact.shape), exact)
        if error <= allowed:
            calls[str(group)] = [partial(runner.run, given)]
        else:
            print(f"  WRONG, {error:.2g} instead of {allowed:.2g}: groups of {group}")
    return interleaved(calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1024, 2048, 4096])
    for rows in parser.parse_args().rows:
        for case in CASES:
            sizes = {**case, "S": rows}
            print(" ".join(f"{axis}={length}" for axis, length in sizes.items()), flush=True)
            times = measured(sizes)
            print("  " + "  ".join(f"{name}: {spent:.1f}" for name, spent in times.items()))


if __name__ == "__main__":
    main()
