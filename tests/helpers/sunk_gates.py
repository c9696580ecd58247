"""Products with gates that are loaded, by printed Triton kernels: computed behind the loop."""

from collections.abc import Iterator

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import with_known_sizes
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Compute, For, Nest
from blockbuster_fusion.nest.passes.sink import sink
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.schedule.schedule import Schedule, each_kernel, scheduled
from blockbuster_fusion.tools.check.judge import relative_error

o = bb.ops
GATES = {
    "gate": (lambda X, W, V: {"O": o.silu(X) * (W @ V.T)}, ("M N", "M K", "N K")),
    "gate and bias": (
        lambda X, W, V, U: {"O": o.gelu(X + U) * (W @ V.T)},
        ("M N", "M K", "N K", "N"),
    ),
    "both orders": (lambda X, W, V: {"O": o.exp(X) * (W @ V), "P": X * 2.0}, ("M N", "M K", "K N")),
}
"""Programs with the axes of their arrays."""
RAGGED = {"M": 37, "N": 51, "K": 45}


def gate_nest(name: str, dtype: DType, schedule: Schedule, **sizes: int) -> Nest:
    function, specs = GATES[name]
    graph = with_known_sizes(bb.lower(bb.trace(function, *specs)), sizes)
    nest = scheduled(stored_as(bb.fuse(graph).fused[0], dtype), "gate", schedule)
    return each_kernel(sink, "").run(nest)


def behind(nest: Nest) -> int:
    """The computations behind the loops of a nest."""
    bodies = (kernel.body for kernel in nest.kernels)
    found = [(body, at) for body in bodies for at, s in enumerate(body) if isinstance(s, For)]
    return sum(isinstance(s, Compute) for body, at in found for s in body[at + 1 :])


def sunk_errors() -> Iterator[dict[str, object]]:
    """The errors of gated products in float16, and those of rounding alone."""
    from helpers import triton_runner

    rng = np.random.default_rng(0)
    for name, (function, specs) in GATES.items():
        nest = gate_nest(name, DType.float16, Schedule(), **RAGGED)
        given = {
            array: rng.standard_normal([RAGGED[axis] for axis in axes.split()])
            for array, axes in zip("XWVU", specs, strict=False)
        }
        given = {array: x.astype(np.float16).astype(np.float64) for array, x in given.items()}
        exact = bb.evaluate(bb.trace(function, *specs), given)
        rounded = {array: x.astype(np.float16).astype(np.float64) for array, x in exact.items()}
        tiles = {d: 16 for k in nest.kernels for d in k.dims if d.packed and not d.unit}
        yield {
            "case": name,
            "error": relative_error(triton_runner.run(nest, given, tiles), exact),
            "rounding": relative_error(rounded, exact),
            "behind": behind(nest),
        }


def sunk_resources() -> Iterator[dict[str, object]]:
    """The registers that a large product with a gate spills: none."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    lengths, options = {"M": 128, "N": 256, "K": 64}, {"num_warps": 8, "num_stages": 4}
    nest = gate_nest("gate", DType.bfloat16, Schedule(described=True), M=4096, N=4096, K=4096)
    tiles = {d: lengths[d.name] for k in nest.kernels for d in k.dims}
    made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles, options=options)
    (main,) = made.values()
    yield {"case": "gate", "spilled": main.stack, "wgmma": "wgmma" in main.assembly}
