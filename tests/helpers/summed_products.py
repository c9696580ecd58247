"""Convolutions of patches: products whose results are summed over all places of a window."""

from collections.abc import Iterator
from functools import partial

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.nest.nest import Contract
from blockbuster_fusion.tools.check.judge import relative_error

SUMMED: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "patches of 4 x 4": ((2, 3, 12, 72), (33, 3, 4, 4)),
    "patches of 3 x 2, 17 channels": ((1, 17, 9, 38), (18, 17, 3, 2)),
    "patches of 1 x 16": ((3, 2, 5, 288), (20, 2, 1, 16)),
    "patches of 16 in a row": ((2, 3, 320), (24, 3, 16)),
}
"""The shapes of images and of weights, ragged."""


def convolution(name: str, dtype: str) -> tuple[bb.ArrayProgram, list[Choice]]:
    """The program of a convolution with its bias, and the choices that would run it on a GPU."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from blockbuster_fusion.torch.backend import decompositions
    from blockbuster_fusion.torch.capture.analysis import Analysis
    from blockbuster_fusion.torch.compile_parts import PartCompiler
    from blockbuster_fusion.torch.options import Options

    image, weights = SUMMED[name]
    convolve = {1: torch.conv1d, 2: torch.conv2d}[len(weights) - 2]
    function = partial(convolve, stride=weights[2:])
    own = getattr(torch, dtype)
    given = [torch.zeros(shape, dtype=own) for shape in (image, weights, weights[:1])]
    module = make_fx(lambda *x: [function(*x)], decomposition_table=decompositions())(*given)
    compiler = PartCompiler(Analysis(module, set()), Options(target="cuda"), "cuda")
    part = compiler.program([n for n in module.graph.nodes if "convolution" in n.name])
    program = part.expressed.program
    return program, choose(Request(program, target="cuda", dtype=part.storage, capability=90))


def merged(choice: Choice) -> int:
    """The most axes that a product of a choice sums beside its own."""
    statements = [s for kernel in choice.scheduled()[0].kernels for s in kernel.statements]
    return max((len(s.also) for s in statements if isinstance(s, Contract)), default=0)


def summed_errors() -> Iterator[dict[str, object]]:
    """The error of each program, and that of PyTorch's float32 operators."""
    from helpers import triton_runner

    rng = np.random.default_rng(0)
    for name in SUMMED:
        program, choices = convolution(name, "float32")
        shapes = {x.name: [a.extent for a in x.type.axes] for x in program.inputs}
        given = {array: rng.standard_normal(shape) for array, shape in shapes.items()}
        given = {array: x.astype(np.float32).astype(np.float64) for array, x in given.items()}
        exact = bb.evaluate(program, given)
        usual = max(relative_error(*outputs) for outputs in orders(program, given))
        for choice in choices[:2]:
            nest, tiles = choice.scheduled()
            for length in (16, 64):
                short = {dim: min(tile, length) for dim, tile in tiles.items()}
                found = triton_runner.run(nest, given, short)
                yield {
                    "case": name,
                    "merged": merged(choice),
                    "error": relative_error(found, exact),
                    "torch": usual,
                }


Arrays = dict[str, np.ndarray]


def orders(program: bb.ArrayProgram, given: Arrays) -> Iterator[tuple[Arrays, Arrays]]:
    """PyTorch's float32 results of a convolution, and exact ones: as it is, and all turned around.

    Its sums have another order then: the error of one order can be small by chance.
    """
    import torch

    from helpers import torch_reference

    for arrays in (given, {name: np.ascontiguousarray(np.flip(x)) for name, x in given.items()}):
        yield torch_reference.run(program, arrays, torch.float32), bb.evaluate(program, arrays)
