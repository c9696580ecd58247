"""Printed kernels run by Triton's interpreter, or compiled: a script of its own for each.

The interpreter is chosen when Triton is imported, so tests start a process: `run` or `compile`.
The process prints its results as JSON.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.choice import ON_A_GPU
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.matrix_products import is_dot
from blockbuster_fusion.nest.analysis.shared_memory import SharedMemory, shared_limit
from blockbuster_fusion.nest.nest import (
    Access,
    Buffer,
    BufferAxis,
    Contract,
    Fill,
    For,
    Index,
    Kernel,
    Load,
    Nest,
    Span,
    Store,
    Tile,
    View,
)
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.printers.triton.launch_plan import LaunchPlanner, block_length
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from blockbuster_fusion.tools.check.judge import relative_error
from helpers.attention_forms import FORMS, inputs_of
from helpers.described_products import described_errors, described_resources
from helpers.early_kernels import early_assembly, early_errors
from helpers.effort import FULL, crossed
from helpers.grouped_rows import grouped_errors, grouped_resources
from helpers.joined_rows import joined_errors, joined_resources
from helpers.longest_first import longest_errors, longest_resources
from helpers.lookup_programs import FORMS as LOOKUPS
from helpers.lookup_programs import inputs_of as lookup_inputs
from helpers.lookup_programs import traced
from helpers.padded_products import padded_errors, padded_resources, turn_errors, turn_resources
from helpers.placed_programs import PLACED
from helpers.placed_programs import inputs_of as placed_inputs
from helpers.shared_kernels import shared_resources
from helpers.summed_products import summed_errors
from helpers.sunk_gates import sunk_errors, sunk_resources
from helpers.together import together_errors, together_resources
from helpers.triton_functions import error_functions, logarithms
from helpers.triton_rows import row_errors, row_resources
from helpers.triton_scans import (
    scan_errors,
    scan_resources,
    triangle_errors,
    triangle_resources,
)
from helpers.vector_products import vector_errors, vector_resources

UNITS = {
    "attention": (),
    "layernorm-matmul": (),
    "rmsnorm-swiglu": (),
    "multi-head-attention": ("D", "L"),
    "grouped-query-attention": ("D", "L"),
    "sliding-window-attention": ("D", "L"),
    "layernorm-linear": (),
    "softmax": (),
    "rmsnorm-swiglu-residual": (),
}
SCHEDULES = {
    "plain": Schedule(),
    "split": Schedule(split={"N": 2}),
    "many parts": Schedule(split={"N": 16}),
    "most parts": Schedule(split={"N": 32}),
    "atomic": Schedule(split={"K": 2}, atomic=True),
    "one program": Schedule(grid="one"),
    "rows last": Schedule(order=("N", "M")),
    "rows first": Schedule(order=("M", "H", "B")),
    "parts first": Schedule(split={"N": 2}, order=("N_parts", "L", "M")),
}
SCHEDULED = (
    ("softmax", "one program"),
    ("attention", "one program"),
    ("rmsnorm-swiglu-residual", "one program"),
    ("attention", "split"),
    ("attention", "many parts"),
    ("attention", "most parts"),
    ("attention", "parts first"),
    ("rmsnorm-swiglu", "atomic"),
    ("rmsnorm-swiglu", "rows last"),
    ("sliding-window-attention", "rows first"),
)
SMALL = {"B": 1, "H": 2, "G": 1, "R": 2}
RAGGED = (
    {"M": 45, "N": 70, "D": 17, "L": 33, "K": 40, **SMALL},
    {"M": 1, "N": 17, "D": 45, "L": 16, "K": 70, **SMALL},
)
SEEDS = range(3)


def tiles_of(nest: Nest, length: int) -> dict[Dim, int]:
    """Blocks of one length for every dim that has several, but no longer than its axis needs."""

    def tile(dim: Dim) -> int:
        extent = dim.axis.extent
        return length if not isinstance(extent, int) else 1 << (extent - 1).bit_length()

    dims = [d for k in nest.kernels for d in k.dims if d.packed and not d.unit]
    many = len(set(dims)) > 3  # blocks of more axes would not end
    return {d: min(length, tile(d)) if many else length for d in dims}


def nests(name: str, dtype: DType, schedule: str = "plain") -> Iterator[Nest]:
    """The nests of a program's snapshots; not every one can be split, but the last can."""
    program = bb.lower(bb.examples.find(name))
    snapshots = bb.fuse(program, unit=UNITS[name]).fused
    for raw in snapshots if schedule == "plain" else snapshots[-1:]:
        graph = make_safe(stored_as(raw, dtype)).graph
        yield on_a_gpu(scheduled(graph, name, SCHEDULES[schedule]))


def on_a_gpu(nest: Nest) -> Nest:
    """The nest after the passes of kernels for a GPU."""
    for change in ON_A_GPU:
        nest = change.run(nest)
    verify_nest(nest)
    return nest


def errors(name: str, schedule: str) -> Iterator[dict[str, object]]:
    """Each snapshot's error, and that of PyTorch's own float32 operators."""
    import torch

    from helpers import torch_reference, triton_runner
    from helpers.running import inputs_for

    program = bb.examples.find(name)
    graph = bb.lower(program)
    for extents in RAGGED:
        allowed = 0.0
        for seed in SEEDS:
            inputs = inputs_for(program, seed, **extents)
            inputs = {k: x.astype(np.float32).astype(np.float64) for k, x in inputs.items()}
            exact = dict(bb.interpret(graph, inputs).items())
            found = torch_reference.run(program, inputs, torch.float32)
            allowed = max(allowed, relative_error(found, exact))
        for number, nest in enumerate(nests(name, DType.float32, schedule)):
            made = triton_runner.run(nest, inputs, tiles_of(nest, 32))
            error = relative_error(made, exact)
            sizes = "x".join(str(extents[a]) for a in "MNDLK")
            yield {"case": f"{name} {schedule} {number} {sizes}", "error": error, "torch": allowed}


MASKED = (
    "all_three",
    "safe_with_padding",
    "rows_all_masked",
    "chunks",
    "added_twice",
    "query_and_a_length",
    "sink_written_out",
)
"""Forms of attention whose masks, edges and rows without keys are printed in different ways."""


DIVIDED = ("chosen_nothing", "offset_of_sizes", "softcap", "rows_without_keys", "added_mask")
"""Forms of attention whose masks leave blocks whole."""


def masked_nest(name: str) -> Nest:
    program = bb.lower(FORMS[name].traced())
    fusion = bb.fuse(program, unit=("D", "E"))
    return scheduled(fusion.snapshots[fusion.most_fused], name)


def masked_errors() -> Iterator[dict[str, object]]:
    """The error of each of the forms, and PyTorch's."""
    import torch

    from helpers import torch_reference, triton_runner

    sizes = ({"S": 37, "T": 53, "B": 2, "H": 1}, {"S": 1, "T": 41, "B": 2, "H": 1})
    for name, extents in crossed([*MASKED], sizes):
        program, nest = FORMS[name].traced(), masked_nest(name)
        inputs = inputs_of(program, **extents)
        inputs = {
            n: x.astype(np.float32).astype(np.float64) if x.dtype == np.float64 else x
            for n, x in inputs.items()
        }
        exact = torch_reference.run(program, inputs, torch.float64)
        found = torch_reference.run(program, inputs, torch.float32)
        made = triton_runner.run(nest, inputs, tiles_of(nest, 16))
        yield {
            "case": name,
            "error": relative_error(made, exact),
            "torch": max(2.0**-23, relative_error(found, exact)),
        }


def divided_nest(name: str) -> Nest:
    """A form of attention whose mask is applied only to the blocks that it divides."""
    return on_a_gpu(masked_nest(name))


def divided_errors() -> Iterator[dict[str, object]]:
    """The error of each form with a loop for blocks without a mask, and PyTorch's."""
    import torch

    from helpers import torch_reference, triton_runner

    sizes = ((37, 53), (53, 37), (48, 48), (1, 41))
    for name, (rows, keys) in crossed([*DIVIDED], sizes):
        program, nest = FORMS[name].traced(), divided_nest(name)
        inputs = inputs_of(program, S=rows, T=keys, B=2, H=1)
        inputs = {
            n: x.astype(np.float32).astype(np.float64) if x.dtype == np.float64 else x
            for n, x in inputs.items()
        }
        exact = torch_reference.run(program, inputs, torch.float64)
        found = torch_reference.run(program, inputs, torch.float32)
        tiles = tiles_of(nest, 16)
        for along, tile in (("", 16), ("T", 32), ("S", 32)):
            changed = {d: tile if d.name == along else t for d, t in tiles.items()}
            made = triton_runner.run(nest, inputs, changed)
            yield {
                "case": name,
                "error": relative_error(made, exact),
                "torch": max(2.0**-23, relative_error(found, exact)),
            }


def divided_resources() -> Iterator[dict[str, object]]:
    """That each of these forms compiles."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for, symbols

    for name in DIVIDED:
        nest = divided_nest(name)
        sizes = dict.fromkeys(symbols(nest), 1024)
        made = compile_for(nest, print_triton(nest), 90, sizes=sizes, tiles=tiles_of(nest, 32))
        yield {"case": name, "resources": str(made[name])}


def masked_resources() -> Iterator[dict[str, object]]:
    """That each of the forms compiles."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for, symbols

    for name in MASKED:
        nest = masked_nest(name)
        sizes = dict.fromkeys(symbols(nest), 1024)
        made = compile_for(nest, print_triton(nest), 90, sizes=sizes, tiles=tiles_of(nest, 32))
        yield {"case": name, "resources": str(made[name])}


def lookup_errors() -> Iterator[dict[str, object]]:
    """The error of each form of lookup, in every snapshot."""
    from helpers import triton_runner

    sizes = ({"S": 37, "V": 45, "D": 21, "E": 19, "L": 2}, {"S": 1, "V": 33, "D": 16})
    for name, extents in crossed([*LOOKUPS], sizes):
        program = traced(name)
        given = lookup_inputs(program, **extents)
        given = {
            n: x.astype(np.float32).astype(np.float64) if x.dtype == np.float64 else x
            for n, x in given.items()
        }
        exact = bb.evaluate(program, given)
        for snapshot in bb.fuse(bb.lower(program)).snapshots:
            nest = scheduled(snapshot, name)
            made = triton_runner.run(nest, given, tiles_of(nest, 16))
            yield {"case": name, "error": relative_error(made, exact)}


def placed_errors() -> Iterator[dict[str, object]]:
    """The error of each program that writes into an input, in every snapshot."""
    from helpers import triton_runner

    for name, make in PLACED.items():
        program = make()
        given = placed_inputs(program)
        exact = bb.evaluate(program, given)
        for snapshot in bb.fuse(bb.lower(program)).snapshots:
            nest = scheduled(snapshot, "placed")
            made = triton_runner.run(nest, given, tiles_of(nest, 16))
            yield {"case": name, "error": relative_error(made | {"O": made["cache"]}, exact)}


def placed_resources() -> Iterator[dict[str, object]]:
    """The resources of each program that writes into an input."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    for name, make in PLACED.items():
        program = make()
        graph = stored_as(bb.fuse(bb.lower(program)).snapshots[-1], DType.bfloat16)
        nest = scheduled(graph, "placed")
        made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles_of(nest, 32))
        yield {"case": name, "resources": {k: str(x) for k, x in made.items()}}


def resources(capability: int, dtype: DType) -> Iterator[dict[str, object]]:
    """The shared memory of each kernel with its default tiles."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for, symbols

    for name, unit in UNITS.items():
        found = list(nests(name, dtype))
        for number, nest in enumerate(found):
            is_last = number == len(found) - 1
            if not is_last and (capability != 90 or (dtype is DType.float32 and not FULL)):
                continue  # the other machines, and float32 in a part, see the last snapshot
            sizes = {s: 64 if s in ("DD", "LL") and unit else 1024 for s in symbols(nest)}
            tiles = tiles_of(nest, 32) if dtype is DType.float32 else None
            source = print_triton(nest)
            made = compile_for(nest, source, capability, sizes=sizes, tiles=tiles)
            for kernel in nest.kernels:
                one = made[kernel.name]
                yield {
                    "case": f"{kernel.name} {number} {dtype} sm_{capability}",
                    "resources": str(one),
                    "shared": one.shared,
                    "estimate": estimate_of(kernel, sizes, tiles or {}, capability),
                    "spilled": one.stack,
                    "wgmma": "wgmma" in one.assembly,
                    "dots": any(isinstance(s, Contract) and is_dot(s) for s in kernel.statements),
                }


def estimate_of(
    kernel: Kernel, sizes: Mapping[str, int], tiles: Mapping[Dim, int], capability: int
) -> int:
    """The shared memory that a kernel is expected to take."""
    planner = LaunchPlanner(kernel, shared_limit(capability))
    options = planner.plan(sizes, tiles, {}).options
    lengths = {dim: block_length(dim, sizes, tiles) for dim in kernel.dims}
    warps, stages = options["num_warps"], options["num_stages"]
    return SharedMemory(kernel).estimate(lengths.__getitem__, stages, warps)


def short_axes() -> dict[str, tuple[Callable[..., object], tuple[object, ...]]]:
    """Models whose products have short axes beside those of the matrices."""
    import torch

    output = torch.nn.Linear(512, 2048, bias=False)

    def projected(x: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        return x + output(heads.transpose(1, 2).reshape(16, 1, 512))

    tokens = (torch.zeros(16, 1, 2048), torch.zeros(16, 8, 1, 64))
    patches = torch.nn.Conv2d(3, 384, 16, 16)
    return {
        "heads to tokens": (projected, tokens),
        "patches": (patches, (torch.zeros(2, 3, 224, 224),)),
    }


def short_resources(capability: int) -> Iterator[dict[str, object]]:
    """The shared memory that models with short axes take by default on a GPU."""
    from functools import partial
    from unittest import mock

    import torch

    from blockbuster_fusion.runtime.triton import device as triton_device
    from blockbuster_fusion.runtime.triton.resources import compile_for
    from blockbuster_fusion.torch.backend import backend
    from blockbuster_fusion.torch.compile_parts import PartCompiler
    from blockbuster_fusion.torch.plan.plan import ModelPlan

    graphs = []
    options = {"target": "cuda", "strict": True}
    watched = partial(backend, options=options, watcher=graphs.append)
    for name, (model, inputs) in short_axes().items():
        with (
            mock.patch.object(triton_device, "can_launch", return_value=True),
            mock.patch.object(triton_device, "capability", return_value=capability),
            mock.patch.object(PartCompiler, "try_out"),
            mock.patch.object(ModelPlan, "__call__", return_value=[0]),
            torch.no_grad(),
        ):
            torch.compile(model, backend=watched)(*inputs)
        for part in graphs.pop().fused:
            nest, tiles = part.executable.nest, part.executable.tiles
            made = compile_for(nest, part.executable.source, capability, sizes={}, tiles=tiles)
            for kernel in nest.kernels:
                estimate = estimate_of(kernel, {}, tiles, capability)
                yield {"case": name, "shared": made[kernel.name].shared, "estimate": estimate}


def lookups_outside() -> Iterator[dict[str, object]]:
    """The largest element that is read at indices out of range, and the error of the others."""
    from helpers import triton_runner

    for name in ("embedding", "along_rows"):
        program = traced(name)
        given = lookup_inputs(program, S=37, V=45, D=21, R=6)
        exact = bb.evaluate(program, given)
        wrong = {n: x.copy() for n, x in given.items()}
        places = next(x for x in wrong.values() if x.dtype == np.int64)
        places[1], places[5], places[36] = -1, 45, 2**40
        for snapshot in bb.fuse(bb.lower(program)).snapshots:
            nest = scheduled(snapshot, name)
            found = triton_runner.run(nest, wrong, tiles_of(nest, 16))
            outside = max(float(np.abs(x[[1, 5, 36]]).max()) for x in found.values())
            for n, x in found.items():
                x[[1, 5, 36]] = exact[n][[1, 5, 36]]
            yield {"case": name, "outside": outside, "error": relative_error(found, exact)}


LONG = {
    "attention": {"M": 17, "N": 16 * 90 + 3, "D": 16, "L": 16},
    "layernorm-matmul": {"M": 17, "K": 16 * 80, "N": 17},
}
"""Programs with a loop over many blocks of 16, whose sums are gathered in runs."""


def long_nest(name: str) -> Nest:
    units = {"unit": ("D", "L")} if name == "attention" else {}
    return scheduled(bb.fuse(bb.lower(bb.examples.find(name)), **units).snapshots[-1], name)


def long_errors() -> Iterator[dict[str, object]]:
    """The error of sums in runs, and that of PyTorch's own float32 operators."""
    import torch

    from blockbuster_fusion.printers.triton import launch_plan as triton_plan
    from helpers import torch_reference, triton_runner
    from helpers.running import inputs_for

    triton_plan.FEW_DOTS = triton_plan.FEW
    for name, extents in LONG.items():
        program, nest = bb.examples.find(name), long_nest(name)
        inputs = inputs_for(program, 0, **extents)
        inputs = {k: x.astype(np.float32).astype(np.float64) for k, x in inputs.items()}
        exact = dict(bb.interpret(bb.lower(program), inputs).items())
        found = torch_reference.run(program, inputs, torch.float32)
        tiles = tiles_of(nest, 16)
        plan = triton_plan.LaunchPlanner(nest.kernels[-1]).plan(
            triton_runner.sizes_of(nest, inputs), tiles, {}
        )
        yield {
            "case": name,
            "runs": [
                value for key, value in plan.constants.items() if key.lower().startswith("run")
            ],
            "error": relative_error(triton_runner.run(nest, inputs, tiles), exact),
            "torch": relative_error(found, exact),
        }


def long_resources() -> Iterator[dict[str, object]]:
    """That sums in runs compile, whether they come out of dots or not."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for, symbols

    for name in LONG:
        nest = long_nest(name)
        sizes = {s: 16 if s in ("DD", "LL") else 1 << 16 for s in symbols(nest)}
        made = compile_for(nest, print_triton(nest), 90, sizes=sizes, tiles=tiles_of(nest, 32))
        yield {"case": name, "resources": [str(one) for one in made.values()]}


PRODUCTS = (
    "bk,hdk->bhd",
    "bhk,dk->bhd",
    "bmk,bnk->bmn",
    "abck,k->abc",
    "bhmk,bhk->mhb",
)
"""Products with too many axes to be multiplied and summed one by one."""


def product_nest(equation: str) -> Nest:
    """A product as a kernel of one program that walks K in blocks."""
    names, made_names = equation.split("->")
    lengths = {n: 19 if n == "b" else 16 for n in equation} | {"k": 40}
    dims = {n: Dim(Axis(n, lengths[n]), None, packed=True) for n in lengths if n.isalpha()}
    index = Index("k", Dim(dims["k"].axis, 0, packed=True))
    spans = {n: Span(dim.as_unit, 0) for n, dim in dims.items()} | {"k": Span(index.dim, index)}

    def buffer(name: str, axes: str) -> Access:
        axis = tuple(BufferAxis(spans[n].dim) for n in axes)
        return Access(Buffer(name, axis, DType.float32), tuple(spans[n] for n in axes))

    sides = [buffer(name, axes) for name, axes in zip("XY", names.split(","), strict=True)]
    left, right = (
        Tile(f"t{i}", side.spans, DType.float32) for i, side in enumerate(sides, start=1)
    )
    made = Tile("t3", tuple(spans[n] for n in made_names), DType.float32)
    target = buffer("O", made_names)
    loop = For(
        index,
        (Load(left, sides[0]), Load(right, sides[1]), Contract(made, left, right, spans["k"])),
        gathered=((ADD, (made,)),),
    )
    kernel = Kernel("product", (), (Fill(made, 0.0), loop, Store(target, made)))
    axes = tuple(dims[n].axis for n in made_names)
    return Nest(
        "product",
        (kernel,),
        tuple(side.buffer for side in sides),
        (View(target.buffer, axes),),
        (axes,),
    )


def product_errors() -> Iterator[dict[str, object]]:
    """The error of each product."""
    from helpers import triton_runner

    rng = np.random.default_rng(0)
    for equation in PRODUCTS:
        nest = product_nest(equation)
        given = {
            b.name: rng.standard_normal([int(str(a.dim.axis.extent)) for a in b.axes])
            .astype(np.float32).astype(np.float64)
            for b in nest.inputs
        }  # fmt: skip
        exact = {"O": np.einsum(equation, given["X"], given["Y"])}
        made = triton_runner.run(nest, given, tiles_of(nest, 16))
        yield {"case": equation, "error": relative_error(made, exact)}


def product_resources() -> Iterator[dict[str, object]]:
    """That each product compiles."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    for equation in PRODUCTS:
        nest = product_nest(equation)
        made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles_of(nest, 16))
        yield {"case": equation, "resources": str(made["product"])}


def nested(x):
    """300 operators, each within the next."""
    made = x
    for _ in range(100):
        made = bb.ops.where(x > made, made + 1, bb.ops.abs(made))
    return made


EDGES = {
    "divided by -0.0": lambda X: {"O": X / -0.0},
    "negated": lambda X: {"O": 1 / -X},
    "largest": lambda X: {"O": bb.ops.max(X, axis=1)},
    "smallest": lambda X: {"O": bb.ops.min(X, axis=1)},
    "softmax": lambda X: {"O": bb.ops.softmax(X)},
    "log softmax": lambda X: {"O": bb.ops.log_softmax(X)},
    "nested": lambda X: {"O": nested(X)},
}
"""Programs at the edges of floats, and of Python's parser."""


def edge_results() -> Iterator[dict[str, object]]:
    """True for each function that equals PyTorch for zeros, infinities and NaN."""
    import torch

    from helpers import torch_reference, triton_runner

    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 40))
    x[0, 3], x[1, 30], x[2, :2], x[3, 7], x[5] = np.nan, np.inf, -np.inf, 0, -np.inf
    for name, function in EDGES.items():
        program = bb.trace(function, X="M N")
        graph = make_safe(bb.fuse(bb.lower(program)).fused[-1]).graph
        nest = scheduled(graph, "edge")
        exact = torch_reference.run(program, {"X": x.astype(np.float32)}, torch.float64)["O"]
        made = triton_runner.run(nest, {"X": x}, tiles_of(nest, 16))["O"]
        same = np.allclose(made, exact, rtol=1e-5, atol=1e-6, equal_nan=True)
        yield {"case": name, "same": bool(same)}


EXPONENTIALS = ("product", "factor", "softmax_contracted", "logsumexp", "exp_contracted")
"""Programs whose infinities and NaN are PyTorch's."""


def exponential_errors() -> Iterator[dict[str, object]]:
    """The error of exponentials with large exponents, infinities and NaN, and the allowed error."""
    import torch

    from helpers import triton_runner
    from helpers.exponential_programs import FORMS as EXPONENTIAL_FORMS

    for name in EXPONENTIALS:
        form = EXPONENTIAL_FORMS[name]
        nest = scheduled(bb.fuse(form.traced()).snapshots[-1], name)
        for kind in ("ordinary", "infinite"):
            inputs = form.inputs(kind)
            exact = form.reference(inputs, torch.float64)
            careful = form.reference(inputs, torch.float32)
            (made,) = triton_runner.run(nest, inputs, tiles_of(nest, 16)).values()
            same = all(
                np.array_equal(test(made), test(exact))
                for test in (np.isnan, np.isposinf, np.isneginf)
            )
            finite = np.isfinite(exact)
            found, allowed = (np.linalg.norm(x[finite] - exact[finite]) for x in (made, careful))
            least = max(form.floor(inputs, 2.0**-23), 2.0**-21 * np.linalg.norm(exact[finite]))
            yield {"case": name, "same": same, "error": found, "allowed": max(2 * allowed, least)}


def plain_errors() -> Iterator[dict[str, object]]:
    """The errors of the examples, in each of their schedules."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    for name, schedule in [*((name, "plain") for name in UNITS), *SCHEDULED]:
        yield from errors(name, schedule)


def folds_of_the_interpreter() -> Iterator[dict[str, object]]:
    """True for each fold that is quick and equals that of Triton's own."""
    from helpers.quick_interpreter import fold_results

    yield from fold_results()


COMMANDS: dict[str, Callable[..., Iterator[dict[str, object]]]] = {
    "run": plain_errors,
    "run_masks": masked_errors,
    "run_lookups": lookup_errors,
    "run_divided": divided_errors,
    "run_placed": placed_errors,
    "run_long": long_errors,
    "run_products": product_errors,
    "run_vectors": vector_errors,
    "run_padded": padded_errors,
    "run_turns": turn_errors,
    "run_described": described_errors,
    "run_sunk": sunk_errors,
    "run_joined": joined_errors,
    "run_summed": summed_errors,
    "run_together": together_errors,
    "run_early": early_errors,
    "run_longest": longest_errors,
    "run_edges": edge_results,
    "run_exponentials": exponential_errors,
    "run_outside": lookups_outside,
    "run_rows": row_errors,
    "run_grouped": grouped_errors,
    "run_scans": scan_errors,
    "run_triangles": triangle_errors,
    "run_functions": error_functions,
    "run_logarithms": logarithms,
    "run_folds": folds_of_the_interpreter,
    "compile": lambda capability, dtype: resources(int(capability), DType(dtype)),
    "compile_masks": masked_resources,
    "compile_divided": divided_resources,
    "compile_placed": placed_resources,
    "compile_long": long_resources,
    "compile_products": product_resources,
    "compile_vectors": vector_resources,
    "compile_padded": padded_resources,
    "compile_shared": shared_resources,
    "compile_rows": row_resources,
    "compile_grouped": grouped_resources,
    "compile_scans": scan_resources,
    "compile_triangles": triangle_resources,
    "compile_turns": turn_resources,
    "compile_described": described_resources,
    "compile_sunk": sunk_resources,
    "compile_joined": joined_resources,
    "compile_together": together_resources,
    "compile_early": early_assembly,
    "compile_longest": longest_resources,
    "compile_short": lambda capability: short_resources(int(capability)),
}


def main(*commands: str) -> None:
    """Prints the rows of each command, or its traceback: "compile:90:float32" has arguments."""
    made: dict[str, object] = {}
    for command in commands:
        name, *arguments = command.split(":")
        try:
            made[command] = list(COMMANDS[name](*arguments))
        except Exception:
            made[command] = traceback.format_exc()
    print(json.dumps(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
