"""Kernels with products, and the shared memory that they are expected to take and do take."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.nest.analysis.shared_memory import SharedMemory, shared_limit
from blockbuster_fusion.printers.triton.launch_plan import LaunchPlanner, block_length
from blockbuster_fusion.schedule.schedule import Schedule

o = bb.ops
CAPABILITY = 90
Function = Callable[..., dict[str, Any]]


def attention(Q: Any, K: Any, V: Any) -> dict[str, Any]:
    return {"O": o.softmax(Q @ K.T * 0.125) @ V}


def rotated_attention(Q: Any, R: Any, C: Any, S: Any, K: Any, V: Any) -> dict[str, Any]:
    """Attention of queries that are computed before; a loop goes through halves of heads."""
    scores = o.sum((Q * C + R * S) @ o.transpose(K, (0, 2, 1)), axis=0)
    return {"O": o.softmax(scores * 0.125) @ V}


FUNCTIONS: dict[str, tuple[Function, tuple[str, ...]]] = {
    "product": (lambda X, Y: {"O": X @ Y}, ("M K", "K N")),
    "linear": (lambda X, Y, B: {"O": o.gelu(X @ Y.T + B)}, ("M K", "N K", "N")),
    "gated": (lambda X, W, V: {"O": o.silu(X @ W.T) * (X @ V.T)}, ("M K", "N K", "N K")),
    "rms norm": (lambda X, Y: {"O": o.rmsnorm(X) @ Y.T}, ("M K", "N K")),
    "layer norm": (lambda X, Y: {"O": o.layernorm(X) @ Y.T}, ("M K", "N K")),
    "attention": (attention, ("M D", "N D", "N L")),
    "rotated attention": (
        rotated_attention,
        ("H M D", "H M D", "H M D", "H M D", "H N D", "N L"),
    ),
}
CASES = (
    ("product", {"M": 128, "N": 256, "K": 64}, 4, None),
    ("product", {"M": 32, "N": 256, "K": 64}, 3, None),
    ("product", {"M": 16, "N": 64, "K": 128}, 6, None),
    ("linear", {"M": 128, "N": 128, "K": 64}, 3, 8),
    ("gated", {"M": 64, "N": 128, "K": 64}, 4, None),
    ("gated", {"M": 16, "N": 64, "K": 128}, 5, None),
    ("rms norm", {"M": 64, "N": 128, "K": 64}, 3, 4),
    ("layer norm", {"M": 128, "N": 128, "K": 64}, 3, None),
    ("layer norm", {"M": 16, "N": 64, "K": 128}, 4, None),
    ("attention", {"M": 128, "N": 64}, 3, None),
    ("attention", {"M": 16, "N": 256}, 3, None),
    ("rotated attention", {"M": 16, "N": 256, "H": 2}, 4, None),
    ("rotated attention", {"M": 64, "N": 64, "H": 2}, 3, None),
)
"""Functions with tiles, stages and warps."""


def shared_resources() -> Iterator[dict[str, object]]:
    """The shared memory of each case in bfloat16, expected and taken."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    for name, tiles, stages, warps in CASES:
        function, axes = FUNCTIONS[name]
        names = function.__code__.co_varnames[: len(axes)]
        program = bb.trace(function, name="kernel", **dict(zip(names, axes, strict=True)))
        few = tiles["M"] == 16
        sizes = {"M": 16 if few else 2048, "N": 2048, "K": 2048, "D": 32, "H": 2, "L": 64}
        sizes = {axis: n for axis, n in sizes.items() if axis in " ".join(axes).split()}
        sizes |= {"D": 64} if name == "attention" else {}
        request = Request(
            program, target="cuda", dtype="bfloat16", sizes=sizes, capability=CAPABILITY
        )
        usual = choose(request)[0]
        made = {dim: tiles.get(dim.name, tile) for dim, tile in usual.tiles.items()}
        schedule = Schedule(stages=stages, warps=warps)
        choice = replace(usual, tiles=made, given=frozenset(made), schedule=schedule)
        nest, own = choice.scheduled()
        options = choice.schedule.launch
        found = compile_for(
            nest, print_triton(nest), CAPABILITY, sizes={}, tiles=own, options=options
        )
        for kernel in nest.kernels:
            memory = SharedMemory(kernel)
            if not memory.products:
                continue
            plan = LaunchPlanner(kernel, shared_limit(CAPABILITY)).plan({}, own, options)
            lengths = {dim: block_length(dim, {}, own) for dim in kernel.dims}
            counts = (plan.options["num_stages"], plan.options["num_warps"])
            yield {
                "case": f"{name}, {tiles}",
                "stages": counts[0],
                "shared": found[kernel.name].shared,
                "estimate": memory.estimate(lengths.__getitem__, *counts),
            }
