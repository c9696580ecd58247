"""Products with vectors by printed Triton kernels: their errors, and what they compile to."""

from collections.abc import Iterator, Mapping

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.nest.passes.untie_kernels import untie_kernels
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from blockbuster_fusion.tools.check.judge import relative_error

VECTORS = {
    "matrix, vector": (lambda W, X: {"O": W @ X}, ("N K", "K")),
    "vector, matrix": (lambda W, X: {"O": X @ W}, ("K N", "K")),
    "gated": (
        lambda W, X, V: {"O": bb.ops.silu(W @ X) * (V @ X)},
        ("N K", "K", "N K"),
    ),
    "normed": (lambda W, X: {"O": W @ bb.ops.rmsnorm(X)}, ("N K", "K")),
    "vectors": (lambda W, X: {"O": W @ X}, ("K", "K")),
    "in a row": (lambda W, X, V: {"O": V @ (W @ X)}, ("N K", "K", "J N")),
}
"""Programs that multiply with a vector, with the axes of their arrays."""
SIZES = (
    {"N": 37, "K": 70, "J": 9},
    {"N": 5, "K": 16 * 80 + 3, "J": 3},
    {"N": 1, "K": 17, "J": 5},
)
"""Ragged ones, and one whose sums are gathered in runs."""
BLOCKS = {"vector, matrix": (256, 16), "vectors": (1, 2048)}
"""The rows and the summed elements of blocks with which all threads load long vectors."""
SPLIT = {"matrix, vector": {"K": 3}, "vectors": {"K": 4}}


def vector_nest(
    name: str, dtype: DType = DType.float32, split: Mapping[str, int] | None = None
) -> Nest:
    function, specs = VECTORS[name]
    graph = bb.fuse(bb.lower(bb.trace(function, *specs))).fused[0]
    schedule = Schedule(split=dict(split or {}))
    nest = scheduled(stored_as(graph, dtype), "product", schedule, folds_late=True)
    return untie_kernels(nest)


def block_lengths(nest: Nest, rows: int, summed: int) -> dict[Dim, int]:
    """Tiles of some rows, and of some summed elements.

    The rows of one product are what the next one sums, with a dim of its own.
    """
    dims = [d for k in nest.kernels for d in k.dims if d.packed and not d.unit]
    return {dim: summed if dim.name == "K" or dim.label == "N.1" else rows for dim in dims}


def vector_errors() -> Iterator[dict[str, object]]:
    """The error of each product, and that of NumPy in float32."""
    from helpers import triton_runner

    rng = np.random.default_rng(0)
    forms = [(name, {}) for name in VECTORS] + list(SPLIT.items())
    for name, split in forms:
        program = bb.trace(VECTORS[name][0], *VECTORS[name][1])
        nest = vector_nest(name, split=split)
        for sizes in SIZES:
            given = {
                name: rng.standard_normal([sizes[a] for a in axes.split()]).astype(np.float32)
                for name, axes in zip("WXV", VECTORS[name][1], strict=False)
            }
            wide = {name: x.astype(np.float64) for name, x in given.items()}
            exact = bb.evaluate(program, wide)
            made = triton_runner.run(nest, wide, block_lengths(nest, 4, 16))
            scale = max(np.linalg.norm(exact["O"]), 1e-30)
            reference = bb.evaluate(program, given)["O"].astype(np.float64)
            yield {
                "case": name,
                "error": relative_error(made, exact),
                "float32": float(np.linalg.norm(reference - exact["O"]) / scale),
                "spread": "_spread += " in triton_runner.print_triton(nest),
                "dims": sorted({dim.label for k in nest.kernels for dim in k.dims}),
            }


def vector_resources() -> Iterator[dict[str, object]]:
    """The registers that each product spills, and the width of its loads."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for, symbols

    for name in VECTORS:
        nest = vector_nest(name, DType.bfloat16)
        sizes = dict.fromkeys(symbols(nest), 4096)
        for stages in (1, 3):
            rows, summed = BLOCKS.get(name, (8, 512))
            tiles, options = block_lengths(nest, rows, summed), {"num_stages": stages}
            source = print_triton(nest)
            made = compile_for(nest, source, 90, sizes=sizes, tiles=tiles, options=options)
            main = max(made.values(), key=lambda one: one.assembly.count("fma"))
            wide = main.assembly.count("cp.async.cg" if stages > 1 else "ld.global.v4")
            yield {"case": name, "stages": stages, "spilled": main.stack, "wide": wide}
