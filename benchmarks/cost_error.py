"""Measures the error of the cost model: predicted and measured times, and PyTorch's.

    python benchmarks/cost_error.py                    # this CPU, one thread
    python benchmarks/cost_error.py --device cuda

For each program the schedule is searched by predicted time, compiled and measured. The last lines
have the quotients of measured and predicted times: the median, and the range of 8 in 10. The
errors in schedule/cost.py come from here.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, capability_of, choose, executable_of
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.runtime.machines import this_cpu
from blockbuster_fusion.schedule.cost import has_products, predicted
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.rivals import timing

o = bb.ops


@dataclass(frozen=True)
class Case:
    """A program over arrays of some axes, and the same in PyTorch."""

    name: str
    function: Callable[..., Any]
    specs: tuple[str, ...]
    rival: Callable[..., Any]


ROWS = [
    Case("softmax", lambda X: o.softmax(X), ("M N",), lambda x: x.softmax(-1)),
    Case("layer norm", lambda X: o.layernorm(X), ("M N",), lambda x: F.layer_norm(x, x.shape[-1:])),
    Case("rms norm", lambda X: o.rmsnorm(X), ("M N",), lambda x: F.rms_norm(x, x.shape[-1:])),
    Case("row sums", lambda X: o.sum(X, -1), ("M N",), lambda x: x.sum(-1)),
    Case("column sums", lambda X: o.sum(X, 0), ("M N",), lambda x: x.sum(0)),
    Case("sum of all", lambda X: o.sum(X, (0, 1)), ("M N",), lambda x: x.sum()),
    Case("sum of two", lambda X, Y: X + Y, ("M N", "M N"), lambda x, y: x + y),
    Case("gelu", lambda X: o.gelu(X), ("M N",), F.gelu),
    Case("gate", lambda X, Y: o.silu(X) * Y, ("M N", "M N"), lambda x, y: F.silu(x) * y),
]
PRODUCTS = [
    Case("product", lambda X, Y: X @ Y, ("M K", "K N"), lambda x, y: x @ y),
    Case("product, gelu", lambda X, Y: o.gelu(X @ Y), ("M K", "K N"), lambda x, y: F.gelu(x @ y)),
]
SIZES = {
    "cpu": [{"M": 64, "N": 1024}, {"M": 2048, "N": 256}, {"M": 512, "N": 4096}],
    "cuda": [{"M": 256, "N": 512}, {"M": 8192, "N": 512}, {"M": 8192, "N": 4096}],
}
PRODUCT_SIZES = {
    "cpu": [{"M": 64, "K": 256, "N": 256}, {"M": 512, "K": 512, "N": 512}],
    "cuda": [{"M": 1024, "K": 1024, "N": 1024}, {"M": 4096, "K": 4096, "N": 4096}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = options.device
    cases = [(case, sizes) for sizes in SIZES[device] for case in ROWS]
    cases += [(case, sizes) for sizes in PRODUCT_SIZES[device] for case in PRODUCTS]
    with torch.no_grad():
        rows = [timed(case, sizes, device, options.threads) for case, sizes in cases]
    report("without products", [row for row in rows if not row["products"]])
    report("with products", [row for row in rows if row["products"]])
    if options.save:
        options.save.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def timed(case: Case, sizes: dict[str, int], device: str, threads: int) -> dict[str, Any]:
    """The predicted and measured times of one program, in microseconds."""
    program = bb.trace(case.function, *case.specs)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    stored = "bfloat16" if device == "cuda" else None
    machine = machine_for("cuda") if device == "cuda" else this_cpu(threads)
    request = Request(
        program, target=device, sizes=sizes, dtype=stored, capability=capability_of(device)
    )
    choice = improved(choose(request), (), machine)[0]
    nest, tiles = choice.scheduled()
    guess = predicted(nest, Tiling(Extents(), tiles), machine, choice.schedule)
    executable = executable_of([choice], threads if device == "cpu" else None)
    shapes = [[sizes[axis] for axis in spec.split()] for spec in case.specs]
    inputs = [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]
    place = torch.device(device)
    ours = timing.timed(timing.launcher(executable, inputs, (), place), place)
    library = timing.timed(lambda: case.rival(*inputs), place)
    row = {
        "case": case.name,
        "sizes": sizes,
        "products": has_products(nest),
        "predicted": guess.device * 1e6,
        "measured": ours.seconds.device * 1e6,
        "library": library.seconds.device * 1e6,
        "is_sure": ours.is_sure and library.is_sure,
        "tiles": {dim.label: tile for dim, tile in tiles.items()},
        "grid": choice.schedule.grid,
        "split": dict(choice.schedule.split),
    }
    shown = "×".join(map(str, sizes.values()))
    times = f"predicted {row['predicted']:9.1f}, measured {row['measured']:9.1f}"
    print(f"{case.name:14} {shown:16} {times}, PyTorch {row['library']:9.1f} µs", flush=True)
    return row


def report(name: str, rows: list[dict[str, Any]]) -> None:
    """Prints how far measured times are from the predicted ones, where these are sure."""
    rows = [row for row in rows if row["is_sure"]]
    errors = sorted(math.log(row["measured"] / row["predicted"]) for row in rows)
    if not errors:
        print(f"{name}: the host is too busy to measure")
        return
    last = len(errors) - 1
    low, middle, high = (math.exp(errors[int(part * last)]) for part in (0.1, 0.5, 0.9))
    found = f"measured / predicted {middle:.2f} ({low:.2f} to {high:.2f})"
    print(f"{name}: {len(rows)} kernels, {found}")


if __name__ == "__main__":
    main()
