"""Rows, columns and sums on a GPU: printed kernels with the configurations that are chosen."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.improve import improved
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.tools.check.judge import relative_error
from helpers.effort import FULL

H200 = next(machine for machine in known().values() if machine.name == "NVIDIA H200")
o = bb.ops

DIVISION = re.compile(r"\b(div|rem)\.[su]32\b")
"""A division of whole numbers, unless the divisor is constant."""

Function = Callable[..., object]
SPLIT = Schedule(split={"M": 3})


def plus_transposed(X: Any, Y: Any) -> object:
    return {"O": X + Y.T}


def _shifted(X: Any, A: Any, B: Any) -> dict[str, Any]:
    """Exponentials less a number of each element, which is 0 / 0 beyond the end of a row."""
    y = o.maximum(A / B, 0.0)
    sums = o.sum(o.exp(X - y), axis=1)
    return {"Y": y, "S": sums, "T": o.max(X, axis=1)}


def _group_norm(X: Any, W: Any, V: Any) -> dict[str, Any]:
    """Groups of channels with a mean of 0, then a weight and a bias for each channel."""
    y = X - o.mean(X, axis=(2, 3), keepdims=True)
    y = y / o.sqrt(o.mean(y * y, axis=(2, 3), keepdims=True) + 1e-5)
    return {"O": y * W[:, :, None] + V[:, :, None]}


GROUPS = (("B G C P", "G C", "G C"), {"B": 1, "G": 2, "C": 5, "P": 3500})

ROWS: dict[str, tuple[Function, tuple[str, ...], dict[str, int]]] = {
    "softmax": (lambda X: {"O": o.softmax(X)}, ("M N",), {"M": 5, "N": 1000}),
    "short softmax": (lambda X: {"O": o.softmax(X)}, ("M N",), {"M": 37, "N": 3}),
    "long log softmax": (lambda X: {"O": o.log_softmax(X)}, ("M N",), {"M": 1, "N": 17_001}),
    "layer norm": (
        lambda X, G, B: {"O": o.layernorm(X) * G + B},
        ("M N", "N", "N"),
        {"M": 7, "N": 777},
    ),
    "rms norm": (lambda X, G: {"O": o.rmsnorm(X) * G}, ("M N", "N"), {"M": 9, "N": 1024}),
    "gelu": (lambda X: {"O": o.gelu(X)}, ("M N",), {"M": 33, "N": 100}),
    "batched gate": (
        lambda X, Y, G: {"O": o.silu(X) * Y + G},
        ("B M N", "B M N", "N"),
        {"B": 3, "M": 17, "N": 700},
    ),
    "transposed": (lambda X: {"O": X.T * 2.0}, ("M N",), {"M": 667, "N": 130}),
    "sum of rows": (lambda X: {"O": o.sum(X, axis=1)}, ("M N",), {"M": 33, "N": 100}),
    "sum of long rows": (lambda X: {"O": o.sum(X, axis=1)}, ("M N",), {"M": 1, "N": 17_000}),
    "sum of columns": (lambda X: {"O": o.sum(X, axis=0)}, ("M N",), {"M": 3001, "N": 20}),
    "sum of all": (lambda X: {"O": o.sum(X, axis=(0, 1))}, ("M N",), {"M": 333, "N": 77}),
    "largest of all": (lambda X: {"O": o.max(X, axis=(0, 1))}, ("M N",), {"M": 333, "N": 77}),
    "other shifts than the maximum": (_shifted, ("M N", "M N", "M N"), {"M": 5, "N": 1000}),
}
"""Functions with the axes of their inputs, and their sizes."""
LARGE: dict[str, tuple[Function, tuple[str, ...], dict[str, int]]] = {
    "large gelu": (*ROWS["gelu"][:2], {"M": 8192, "N": 4096}),
    "many softmaxes": (*ROWS["softmax"][:2], {"M": 200_000, "N": 100}),
    "large log softmax": (*ROWS["long log softmax"][:2], {"M": 512, "N": 32_000}),
    "large softmax": (*ROWS["softmax"][:2], {"M": 8192, "N": 8192}),
    "logarithms of sums": (
        lambda X: {"O": o.log(o.sum(o.exp(X - o.max(X, axis=1, keepdims=True)), axis=1))},
        ("M N",),
        {"M": 1024, "N": 128_256},
    ),
    "large layer norm": (*ROWS["layer norm"][:2], {"M": 8192, "N": 768}),
    "sums of many columns": (*ROWS["sum of columns"][:2], {"M": 200, "N": 100_000}),
    "sums of long columns": (*ROWS["sum of columns"][:2], {"M": 200_000, "N": 100}),
    "large sum": (lambda X: {"O": o.sum(X, axis=0)}, ("M",), {"M": 16_000_000}),
}
"""The same for sizes of benchmarks; they are compiled only."""
FORCED: dict[str, tuple[Function, tuple[str, ...], dict[str, int], Schedule]] = {
    "split sum of columns": (*ROWS["sum of columns"], SPLIT),
    "split sum of long columns": (
        *ROWS["sum of columns"][:2],
        {"M": 20_000, "N": 2},
        Schedule(split={"M": 2}),
    ),
    "split sum of all": (*ROWS["sum of all"], SPLIT),
    "split maximum": (*ROWS["largest of all"], SPLIT),
    "mirrored, odd": (
        plus_transposed,
        ("M N", "N M"),
        {"M": 300, "N": 300},
        Schedule(mirrored=True),
    ),
    "mirrored, even": (
        plus_transposed,
        ("M N", "N M"),
        {"M": 333, "N": 333},
        Schedule(mirrored=True),
    ),
    "mirrored, not square": (
        plus_transposed,
        ("M N", "N M"),
        {"M": 130, "N": 333},
        Schedule(mirrored=True),
    ),
    "split softmax": (
        lambda X: {"O": o.softmax(X)},
        ("M N",),
        {"M": 2, "N": 17_000},
        Schedule(split={"N": 3}, apart=True),
    ),
    "split layer norm": (
        *ROWS["layer norm"][:2],
        {"M": 2, "N": 17_000},
        Schedule(split={"N": 3}, apart=True),
    ),
    "group norm": (_group_norm, *GROUPS, Schedule(grid="outer")),
    "split group norm": (_group_norm, *GROUPS, Schedule(grid="outer", split={"C": 2})),
    "split group norm, apart": (_group_norm, *GROUPS, Schedule(split={"C": 3}, apart=True)),
}
"""The same with a schedule."""
SLOW = ("long log softmax",)
"""Triton's interpreter calls a function for each element of these; a full run has them too."""
RUN = {name: row for name, row in ROWS.items() if FULL or name not in SLOW}
"""The functions that are run."""


def program_of(function: Function, axes: tuple[str, ...]) -> ArrayProgram:
    names = function.__code__.co_varnames[: len(axes)]
    return bb.trace(function, name="rows", **dict(zip(names, axes, strict=True)))


Rows = Mapping[str, tuple[Function, tuple[str, ...], dict[str, int]]]
Forced = Mapping[str, tuple[Function, tuple[str, ...], dict[str, int], Schedule]]


def choices(
    dtype: str, rows: Rows = ROWS, scheduled: Forced = FORCED
) -> Iterator[tuple[str, ArrayProgram, dict[str, int], Choice]]:
    """The choice for each of the programs, with a search or with a schedule."""
    for name, (function, axes, sizes) in rows.items():
        program = program_of(function, axes)
        request = Request(program, target="cuda", dtype=dtype, sizes=sizes, capability=90)
        yield name, program, sizes, improved(choose(request), (), H200)[0]
    for name, (function, axes, sizes, schedule) in scheduled.items():
        program = program_of(function, axes)
        tiles = {"M": 64, "N": 64} if schedule.mirrored else None
        request = Request(
            program, target="cuda", dtype=dtype, sizes=sizes, tiles=tiles, capability=90
        )
        forced = [replace(choice, schedule=schedule) for choice in choose(request)]
        yield name, program, sizes, next(filter(can_be_scheduled, forced))


def can_be_scheduled(choice: Choice) -> bool:
    """True unless the schedule is one for the loops of other snapshots."""
    try:
        choice.scheduled()
    except NoKernel:
        return False
    return True


def row_errors() -> Iterator[dict[str, object]]:
    """The error of each program, and that of PyTorch's own float32 operators."""
    import torch

    from helpers import torch_reference, triton_runner

    rng = np.random.default_rng(0)
    for name, program, sizes, choice in choices("float32", RUN):
        inputs = {
            given.name: rng.standard_normal([sizes[a.name] for a in given.type.axes])
            .astype(np.float32).astype(np.float64)
            for given in program.inputs
        }  # fmt: skip
        if "sum" in name:  # sums that cancel have errors of any size
            inputs = {given: np.abs(x) for given, x in inputs.items()}
        exact = bb.evaluate(program, inputs)
        nest, tiles = choice.scheduled()
        found = triton_runner.run(nest, inputs, tiles, options=choice.schedule.launch)
        usual = torch_reference.run(program, inputs, torch.float32)
        yield {
            "case": name,
            "error": relative_error(found, exact),
            "torch": relative_error(usual, exact),
        }


def row_resources(
    rows: Rows = ROWS | LARGE, scheduled: Forced = FORCED
) -> Iterator[dict[str, object]]:
    """The resources of each kernel in bfloat16, and whether loads are wide and run ahead.

    A program `divides` if it finds its blocks with a division by a number that is not constant.
    """
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    for name, _, _, choice in choices("bfloat16", rows, scheduled):
        nest, tiles = choice.scheduled()
        options = choice.schedule.launch
        made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles, options=options)
        yield {
            "case": name,
            "kernels": len(nest.kernels),
            "spilled": sum(one.stack for one in made.values()),
            "wide": any("ld.global.v4.b32" in one.assembly for one in made.values()),
            "ahead": any("cp.async" in one.assembly for one in made.values()),
            "divides": any(DIVISION.search(one.assembly) for one in made.values()),
        }
