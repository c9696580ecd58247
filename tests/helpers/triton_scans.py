"""Scans on a GPU: printed kernels with the configurations that are chosen."""

from collections.abc import Iterator

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.tools.check.judge import relative_error
from helpers.effort import FULL
from helpers.triton_rows import Function, choices, row_resources

o = bb.ops
SPLIT = Schedule(split={"N": 3})

SCANS: dict[str, tuple[Function, tuple[str, ...], dict[str, int]]] = {
    "running sums": (lambda X: {"O": o.cumsum(X, axis=1)}, ("M N",), {"M": 5, "N": 1000}),
    "short rows": (lambda X: {"O": o.cumsum(X, axis=1)}, ("M N",), {"M": 37, "N": 3}),
    "one element": (lambda X: {"O": o.cumsum(X, axis=1)}, ("M N",), {"M": 3, "N": 1}),
    "long rows": (lambda X: {"O": o.cumsum(X, axis=1)}, ("M N",), {"M": 2, "N": 17_001}),
    "a vector": (lambda X: {"O": o.cumsum(X, axis=0)}, ("N",), {"N": 20_001}),
    "columns": (lambda X: {"O": o.cumsum(X, axis=0)}, ("M N",), {"M": 301, "N": 20}),
    "a middle axis": (lambda X: {"O": o.cumsum(X, axis=1)}, ("M K N",), {"M": 3, "K": 70, "N": 9}),
    "between": (
        lambda X, Y, Z: {"O": o.cumsum(X * Y, axis=1) + Z},
        ("M N", "M N", "M N"),
        {"M": 7, "N": 777},
    ),
    "probabilities": (
        lambda X: {"O": o.cumsum(o.softmax(X), axis=1)},
        ("M N",),
        {"M": 7, "N": 300},
    ),
    "long probabilities": (
        lambda X: {"O": o.cumsum(o.softmax(X), axis=1)},
        ("M N",),
        {"M": 1, "N": 17_001},
    ),
    "products": (lambda X: {"O": o.cumprod(X * 0.1 + 1, axis=1)}, ("M N",), {"M": 5, "N": 99}),
    "long products": (
        lambda X: {"O": o.cumprod(X * 0.001 + 1, axis=1)},
        ("M N",),
        {"M": 1, "N": 17_001},
    ),
    "maxima": (lambda X: {"O": o.cummax(X, axis=1)}, ("M N",), {"M": 5, "N": 1000}),
    "long minima": (lambda X: {"O": o.cummin(X, axis=1)}, ("M N",), {"M": 1, "N": 17_001}),
    "logarithms": (lambda X: {"O": o.logcumsumexp(X, axis=1)}, ("M N",), {"M": 5, "N": 300}),
    "long logarithms": (
        lambda X: {"O": o.logcumsumexp(X, axis=1)},
        ("M N",),
        {"M": 1, "N": 17_001},
    ),
    "counts": (lambda X: {"O": o.cumsum(X > 0, axis=1)}, ("M N",), {"M": 5, "N": 1000}),
    "long counts": (lambda X: {"O": o.cumsum(X > 0, axis=1)}, ("M N",), {"M": 1, "N": 17_001}),
    "twice": (
        lambda X: {"O": o.cumsum(o.cummax(X, axis=1), axis=1)},
        ("M N",),
        {"M": 1, "N": 17_001},
    ),
}
"""Functions with the axes of their inputs, and their sizes."""
LARGE: dict[str, tuple[Function, tuple[str, ...], dict[str, int]]] = {
    "1000 x 10000": (SCANS["running sums"][0], ("M N",), {"M": 1000, "N": 10_000}),
    "4 x 1000000": (SCANS["running sums"][0], ("M N",), {"M": 4, "N": 1_000_000}),
    "50000 x 100": (SCANS["running sums"][0], ("M N",), {"M": 50_000, "N": 100}),
    "8192 x 1024 along columns": (SCANS["columns"][0], ("M N",), {"M": 8192, "N": 1024}),
    "64 x 128256 probabilities": (
        SCANS["probabilities"][0],
        ("M N",),
        {"M": 64, "N": 128_256},
    ),
}
"""The same with sizes that fill a GPU; they are compiled only."""
SPLIT_SCANS: dict[str, tuple[Function, tuple[str, ...], dict[str, int], Schedule]] = {
    "serial rows": (*SCANS["long rows"], Schedule()),
    "serial counts": (*SCANS["long counts"], Schedule()),
    "serial minima": (*SCANS["long minima"], Schedule()),
    "serial logarithms": (*SCANS["long logarithms"], Schedule()),
    "split logarithms": (*SCANS["long logarithms"], SPLIT),
    "split rows": (*SCANS["long rows"], SPLIT),
    "split vector": (*SCANS["a vector"], SPLIT),
    "split columns": (*SCANS["columns"], Schedule(split={"M": 4})),
    "split probabilities": (*SCANS["long probabilities"], SPLIT),
    "split products": (*SCANS["long products"], SPLIT),
    "split minima": (*SCANS["long minima"], SPLIT),
    "split counts": (*SCANS["long counts"], SPLIT),
    "many shares": (*SCANS["a vector"], Schedule(split={"N": 64})),
    "two scans": (
        lambda X, Y: {"O": o.cumsum(X, axis=1) * o.cumprod(Y * 0.001 + 1, axis=1)},
        ("M N", "M N"),
        {"M": 2, "N": 17_001},
        SPLIT,
    ),
}
"""The same with a schedule."""
SLOW = (
    *("long products", "long logarithms", "twice", "serial logarithms"),
    *("split products", "split minima", "two scans", "long minima", "split logarithms"),
)
"""Triton's interpreter calls a function for each element of these; a full run has them too."""
if not FULL:
    for slow in SLOW:
        SCANS.pop(slow, None)
        SPLIT_SCANS.pop(slow, None)


def scan_errors() -> Iterator[dict[str, object]]:
    """The error of each program, and that of scans in float32, element by element."""
    from helpers import triton_runner

    rng = np.random.default_rng(0)
    for name, program, sizes, choice in choices("float32", SCANS, SPLIT_SCANS):
        inputs = {
            given.name: rng.standard_normal([sizes[a.name] for a in given.type.axes], np.float32)
            for given in program.inputs
        }
        if "minima" not in name and "maxima" not in name and "products" not in name:
            inputs = {given: np.abs(x) for given, x in inputs.items()}
        exact = bb.evaluate(program, {given: np.float64(x) for given, x in inputs.items()})
        nest, tiles = choice.scheduled()
        found = triton_runner.run(nest, inputs, tiles, options=choice.schedule.launch)
        usual = {given: np.float64(x) for given, x in bb.evaluate(program, inputs).items()}
        yield {
            "case": name,
            "kernels": len(nest.kernels),
            "error": relative_error(found, exact),
            "usual": relative_error(usual, exact),
        }


TRIANGLES: dict[str, tuple[dict[str, int], dict[str, int], Schedule]] = {
    "one strip": ({"M": 301, "N": 16}, {"M": 32, "N": 16}, Schedule()),
    "ragged strips": ({"M": 170, "N": 50}, {"M": 64, "N": 32}, Schedule()),
    "one block": ({"M": 130, "N": 40}, {"M": 128, "N": 16}, Schedule()),
    "shares": ({"M": 301, "N": 40}, {"M": 16, "N": 16}, Schedule(split={"M": 4})),
    "short blocks": ({"M": 140, "N": 20}, {"M": 8, "N": 16}, Schedule()),
    "long blocks": ({"M": 300, "N": 20}, {"M": 256, "N": 16}, Schedule()),
}
"""Sizes, tiles and schedules of sums down columns of 16-bit numbers."""
ODD = {"finite": (), "infinity": (np.inf,), "NaN": (np.nan,), "both": (np.inf, -np.inf)}
"""Numbers in a column that are not finite."""


def triangle_errors() -> Iterator[dict[str, object]]:
    """The error of sums down columns in float16, and the elements that are not finite."""
    from helpers import triton_runner

    rng = np.random.default_rng(0)
    program = bb.trace(lambda X: {"O": o.cumsum(X, axis=0)}, "M N")
    for name, (sizes, tiles, schedule) in TRIANGLES.items():
        options = {"sizes": sizes, "tiles": tiles, "schedule": schedule, "dtype": "float16"}
        choice = choose(Request(program, target="cuda", **options))[0]
        nest, own = choice.scheduled()
        for word, odd in ODD.items():
            x = rng.standard_normal((sizes["M"], sizes["N"])).astype(np.float16)
            for at, number in enumerate(odd):
                x[sizes["M"] // 2 + 3 * at, sizes["N"] // 2] = number
            found = triton_runner.run(nest, {"X": x}, own, options=schedule.launch)["O"]
            with np.errstate(invalid="ignore"):
                exact = np.cumsum(np.float64(x), axis=0)
                usual = np.float64(np.cumsum(np.float32(x), axis=0).astype(np.float16))
            finite = np.isfinite(exact)
            np.testing.assert_array_equal(found[~finite], exact[~finite])
            yield {
                "case": f"{name}, {word}",
                "dots": "tl.dot(" in print_triton(nest),
                "error": relative_error({"O": found[finite]}, {"O": exact[finite]}),
                "usual": relative_error({"O": usual[finite]}, {"O": exact[finite]}),
            }


def scan_resources() -> Iterator[dict[str, object]]:
    """The resources of each kernel in bfloat16, and those of long and short rows of a GPU."""
    yield from row_resources({**SCANS, **LARGE}, SPLIT_SCANS)


STRIPS = {"128 x 32": (128, 32), "64 x 32": (64, 32), "128 x 16": (128, 16), "32 x 64": (32, 64)}
"""The rows and columns of blocks of sums down columns."""


def triangle_resources() -> Iterator[dict[str, object]]:
    """The resources of sums down columns in bfloat16, and the reads of operands into registers."""
    from blockbuster_fusion.nest.analysis.shared_memory import SharedMemory
    from blockbuster_fusion.runtime.triton.resources import compile_for

    program = bb.trace(lambda X: {"O": o.cumsum(X, axis=0)}, "M N")
    sizes = {"M": 8192, "N": 4096}
    for name, block in STRIPS.items():
        tiles = dict(zip("MN", block, strict=True))
        options = {"sizes": sizes, "tiles": tiles, "dtype": "bfloat16"}
        nest, own = choose(Request(program, target="cuda", **options))[0].scheduled()
        source, launch = print_triton(nest), {"num_warps": 4, "num_stages": 3}
        made = compile_for(nest, source, 90, sizes={}, tiles=own, options=launch)
        (one,), (kernel,) = made.values(), nest.kernels
        yield {
            "case": name,
            "groups": "wgmma" in one.assembly,
            "reads": one.assembly.rpartition("wgmma.mma")[0].count("ldmatrix"),
            "spilled": one.stack,
            "shared": one.shared,
            "estimate": SharedMemory(kernel).estimate(own.__getitem__, 3, 4),
        }
