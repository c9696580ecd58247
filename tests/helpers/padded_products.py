"""Products with operands that are copied first, by printed Triton kernels."""

from collections.abc import Iterator

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import with_known_sizes
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from blockbuster_fusion.tools.check.judge import relative_error

PADDED = {
    "turned": (lambda X, W: {"O": X @ W.T}, ("M K", "N K"), {"M": 37, "K": 45, "N": 51}),
    "straight": (lambda X, W: {"O": X @ W}, ("M K", "K N"), {"M": 37, "K": 45, "N": 51}),
    "one aligned": (lambda X, W: {"O": X @ W}, ("M K", "K N"), {"M": 33, "K": 45, "N": 48}),
    "gated": (
        lambda X, W, V: {"O": bb.ops.silu(X @ W) * (X @ V)},
        ("M K", "K N", "K N"),
        {"M": 17, "K": 70, "N": 51},
    ),
}
"""Programs with the axes of their arrays, and sizes with rows that are not aligned."""


def padded_nest(name: str, dtype: DType = DType.float32) -> Nest:
    function, specs, sizes = PADDED[name]
    graph = with_known_sizes(bb.lower(bb.trace(function, *specs)), sizes)
    fused = stored_as(bb.fuse(graph).fused[0], dtype)
    return scheduled(fused, "product", Schedule(padded=True))


def padded_errors() -> Iterator[dict[str, object]]:
    """The error of each product, and its copies."""
    from helpers import triton_runner

    rng = np.random.default_rng(0)
    for name, (function, specs, sizes) in PADDED.items():
        nest = padded_nest(name)
        given = {
            array: rng.standard_normal([sizes[axis] for axis in axes.split()])
            for array, axes in zip("XWV", specs, strict=False)
        }
        given = {array: x.astype(np.float32).astype(np.float64) for array, x in given.items()}
        exact = bb.evaluate(bb.trace(function, *specs), given)
        tiles = {d: 16 for k in nest.kernels for d in k.dims if d.packed and not d.unit}
        made = triton_runner.run(nest, given, tiles)
        copies = [b.name for b in nest.between if "padded" in b.name]
        yield {"case": name, "error": relative_error(made, exact), "copies": copies}


def turn_errors() -> Iterator[dict[str, object]]:
    """The error of products whose blocks few programs compute in turns."""
    from helpers import triton_runner

    rng = np.random.default_rng(0)
    for name, (function, specs, sizes) in PADDED.items():
        graph = with_known_sizes(bb.lower(bb.trace(function, *specs)), sizes)
        nest = scheduled(bb.fuse(graph).fused[0], "product", Schedule(programs=3))
        given = {
            array: rng.standard_normal([sizes[axis] for axis in axes.split()])
            for array, axes in zip("XWV", specs, strict=False)
        }
        given = {array: x.astype(np.float32).astype(np.float64) for array, x in given.items()}
        exact = bb.evaluate(bb.trace(function, *specs), given)
        tiles = {d: 16 for k in nest.kernels for d in k.dims if d.packed and not d.unit}
        made = triton_runner.run(nest, given, tiles)
        is_loop = "for pid in tl.range(" in triton_runner.print_triton(nest)
        yield {"case": name, "error": relative_error(made, exact), "turns": is_loop}


def padded_resources() -> Iterator[dict[str, object]]:
    """The loads of products whose operands are copied: all in vectors."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    for name in PADDED:
        nest = padded_nest(name, DType.bfloat16)
        tiles = {d: 64 for k in nest.kernels for d in k.dims if d.packed and not d.unit}
        made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles)
        main = made["product"]
        single = main.assembly.count("ld.global.b16")
        yield {"case": name, "single": single, "wgmma": "wgmma" in main.assembly}


def turn_resources() -> Iterator[dict[str, object]]:
    """The registers that a large product spills if programs compute its blocks in turns."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    function, specs, _ = PADDED["turned"]
    sizes = dict.fromkeys("MKN", 4096)
    graph = with_known_sizes(bb.lower(bb.trace(function, *specs)), sizes)
    fused = stored_as(bb.fuse(graph).fused[0], DType.bfloat16)
    nest = scheduled(fused, "product", Schedule(programs=132))
    lengths = {"M": 128, "N": 256, "K": 64}
    tiles = {d: lengths[d.name] for k in nest.kernels for d in k.dims}
    options = {"num_warps": 8, "num_stages": 4}
    made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles, options=options)
    main = made["product"]
    wgmma = "wgmma" in main.assembly
    yield {"case": "turned", "spilled": main.stack, "wgmma": wgmma, "shared": main.shared}
