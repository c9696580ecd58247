"""Norms before products whose prologue is apart: one kernel for each row, and the product."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.tools.check.judge import relative_error

o = bb.ops
JOINED: dict[str, tuple[Callable[..., object], tuple[str, ...], dict[str, int]]] = {
    "layer norm": (
        lambda X, G, B, W: {"O": o.layernorm(X, G, B) @ W.T},
        ("M K", "K", "K", "N K"),
        {"M": 19, "K": 77, "N": 35},
    ),
    "root mean square": (
        lambda X, G, W: {"O": o.rmsnorm(X, G) @ W},
        ("M K", "K", "K N"),
        {"M": 33, "K": 150, "N": 21},
    ),
    "softmax": (
        lambda X, W: {"O": o.softmax(X) @ W.T},
        ("M K", "N K"),
        {"M": 5, "K": 300, "N": 40},
    ),
    "heads": (
        lambda X, W: {"O": o.layernorm(X) @ W},
        ("B M K", "B K N"),
        {"B": 3, "M": 18, "K": 130, "N": 33},
    ),
    "gated": (
        lambda X, G, W, V: {"O": o.silu(o.rmsnorm(X, G) @ W.T) * (o.rmsnorm(X, G) @ V.T)},
        ("M K", "K", "N K", "N K"),
        {"M": 17, "K": 90, "N": 33},
    ),
}
"""Programs with the axes of their arrays, and ragged sizes."""


def joined(name: str, dtype: str, **more: int) -> tuple[bb.ArrayProgram, Choice]:
    """A program, and the first snapshot of it in which the prologue is a kernel of its own."""
    function, specs, sizes = JOINED[name]
    program = bb.trace(function, *specs, name="joined")
    sizes = {**sizes, **more}
    request = Request(program, target="cuda", dtype=dtype, sizes=sizes, capability=90)
    for choice in choose(request):
        apart = replace(choice, schedule=Schedule(apart=True))
        if len(apart.scheduled()[0].kernels) == 2:
            return program, apart
    raise AssertionError(f"{name}: no snapshot has a prologue and a product")


def joined_errors() -> Iterator[dict[str, object]]:
    """The error of each program with short blocks, and that of PyTorch's float32 operators."""
    import torch

    from helpers import torch_reference, triton_runner

    rng = np.random.default_rng(0)
    for name, (_, _, sizes) in JOINED.items():
        program, choice = joined(name, "float32")
        shapes = {x.name: [sizes[a.name] for a in x.type.axes] for x in program.inputs}
        given = {array: rng.standard_normal(shape) for array, shape in shapes.items()}
        given = {array: x.astype(np.float32).astype(np.float64) for array, x in given.items()}
        given["X"] = given["X"] + 30.0  # far from 0, so that statistics must be exact
        exact = bb.evaluate(program, given)
        nest, tiles = choice.scheduled()
        usual = torch_reference.run(program, given, torch.float32)
        for length in (16, 64, 512):
            short = {dim: min(tile, length) for dim, tile in tiles.items()}
            short |= {dim: 512 for dim in short if length == 512 and dim.label == "K.0"}
            found = triton_runner.run(nest, given, short)
            yield {
                "case": name,
                "error": relative_error(found, exact),
                "torch": relative_error(usual, exact),
            }


def joined_resources() -> Iterator[dict[str, object]]:
    """Spilled bytes, loads of the row kernel with a block for the whole row, and tensor cores."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    for name in JOINED:
        _, choice = joined(name, "bfloat16", M=256, K=1024, N=256)
        nest, tiles = choice.scheduled()
        lengths = {"K.0": 1024, "M.0": 1}
        own = {dim: lengths.get(dim.label, tile) for dim, tile in tiles.items()}
        made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=own)
        rows, product = made.values()
        yield {
            "case": name,
            "spilled": rows.stack + product.stack,
            "loads": rows.assembly.count("ld.global"),
            "wgmma": "wgmma" in product.assembly,
        }
